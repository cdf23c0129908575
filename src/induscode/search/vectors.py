"""Vector cache: a private SQLite file that may be deleted at any time.

A vector's key is the digest of its definition, so only changed definitions are recomputed. A damaged file is replaced,
with a note. All functions block.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from indusagi.core.app_dirs import SQLITE_SIDE_FILES, prepare_database_file, state_dir
from indusagi.core.faults import Note

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_APPLICATION_ID: Final = 0x76656373
_VERSION: Final = 1
"""Increases with the model, and with the texts vectors are computed from."""
_MAX_ROWS: Final = 50_000
"""The oldest go first."""
_BATCH_SIZE: Final = 500
_BUSY_S: Final = 5.0
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""Error codes for a file with the wrong content: https://www.sqlite.org/rescode.html."""


def vectors_path() -> str:
    """Return the cache's path, which may not exist.

    Raises:
        OSError: The home directory is unknown.
    """
    return os.path.join(state_dir(), "search-vectors.db")


class VectorCache:
    """The cache. Without a usable file it stores nothing, and a note says so."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.notes: list[Note] = []

    def read(self, digests: Collection[str], size: int) -> dict[str, bytes]:
        """Read the existing vectors with this size in bytes. Any other row means a damaged file."""
        vectors: dict[str, bytes] = {}
        wanted = list(digests)
        try:
            with closing(self._open()) as database:
                for start in range(0, len(wanted), _BATCH_SIZE):
                    some = wanted[start : start + _BATCH_SIZE]
                    marks = ", ".join("?" * len(some))
                    rows = database.execute(f"SELECT digest, vector FROM vectors WHERE digest IN ({marks})", some)
                    vectors.update(row for row in rows if isinstance(row[1], bytes) and len(row[1]) == size)
        except sqlite3.Error as exc:
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self._begin_again(exc)
            else:  # locked by another process, no space …
                self._give_up(exc)
        except OSError as exc:
            self._give_up(exc)
        return vectors

    def write(self, vectors: Mapping[str, bytes]) -> None:
        """Add vectors."""
        try:
            with closing(self._open()) as database, database:
                database.executemany("INSERT OR REPLACE INTO vectors (digest, vector) VALUES (?, ?)", vectors.items())
                database.execute(
                    "DELETE FROM vectors WHERE rowid <= (SELECT max(rowid) FROM vectors) - ?", (_MAX_ROWS,)
                )
        except (OSError, sqlite3.Error) as exc:
            self._give_up(exc)

    def _open(self) -> sqlite3.Connection:
        prepare_database_file(self.path)
        database = sqlite3.connect(self.path, timeout=_BUSY_S)
        try:
            if not _is_current(database):
                with database:
                    database.execute("BEGIN IMMEDIATE")
                    if not _is_current(database):  # another process may have created it in the meantime
                        database.execute("DROP TABLE IF EXISTS vectors")
                        database.execute("CREATE TABLE vectors (digest TEXT NOT NULL UNIQUE, vector BLOB NOT NULL)")
                        database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                        database.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            database.close()
            raise
        return database

    def _begin_again(self, exc: sqlite3.Error) -> None:
        self.notes.append(Note(f"the search cache {self.path}", f"it is damaged ({exc}), and was begun again"))
        for side in ("", *SQLITE_SIDE_FILES):
            with suppress(OSError):
                os.unlink(self.path + side)

    def _give_up(self, exc: Exception) -> None:
        note = Note(
            f"the search cache {self.path}", f"it cannot be used: {exc}", "what it lacks is made again in each run"
        )
        if note not in self.notes:
            self.notes.append(note)


def _is_current(database: sqlite3.Connection) -> bool:
    facts = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    return facts == [_APPLICATION_ID, _VERSION]
