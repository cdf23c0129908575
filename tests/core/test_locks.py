"""Turns at a folder: one at a time, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import os
import threading
from typing import TYPE_CHECKING

import pytest

from indusagi.core import locks as turns
from indusagi.core.locks import locked_directory

if TYPE_CHECKING:
    from pathlib import Path


def test_only_one_has_its_turn_at_a_time(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0", encoding="ascii")

    def count() -> None:
        for _ in range(20):
            with locked_directory(str(tmp_path)):
                counter.write_text(str(int(counter.read_text("ascii")) + 1), encoding="ascii")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text("ascii") == "80"
    assert os.listdir(tmp_path) == ["counter"]


def test_whoever_never_gives_it_back_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_LONGEST_WAIT_S", 0.05)
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="held by another process") as caught, locked_directory(str(tmp_path)):
            pass
        assert caught.value.filename == str(tmp_path)
    finally:
        os.close(handle)
    with locked_directory(str(tmp_path)):
        pass
