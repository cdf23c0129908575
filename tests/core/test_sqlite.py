"""Private SQLite files that several processes open at once."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

from indusagi.core import sqlite
from indusagi.core.sqlite import DatabaseFormat, connect, prepare_database_file

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    import pytest

FORM = DatabaseFormat(application_id=7, version=1, upgrades={0: ["CREATE TABLE t (a)"]})


def test_a_file_that_another_process_creates_meanwhile_is_not_taken_for_a_foreign_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.db")
    prepare_database_file(path)
    read_pragma = sqlite.read_pragma
    other = threading.Thread(target=lambda: connect(path, FORM).close())

    def read_and_start(connection: sqlite3.Connection, name: str) -> int:
        found = read_pragma(connection, name)
        if not other.ident:
            other.start()
            other.join(0.3)  # it waits for us: the time only gives a wrong order the chance to happen
        return found

    monkeypatch.setattr(sqlite, "read_pragma", read_and_start)
    with closing(connect(path, FORM)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    other.join()
