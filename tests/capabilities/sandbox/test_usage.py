"""When a server is measured, and what counts. The machine is made up."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from indusagi.capabilities.sandbox import usage
from indusagi.capabilities.sandbox.profile import ResourceLimits
from indusagi.capabilities.sandbox.usage import UsageWatch, add_up_files
from indusagi.core.process.tree import measure_footprint

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MIB = 1 << 20
LIMITS = ResourceLimits(memory=100 * MIB, processes=100, disk=100 * MIB)


def test_a_server_is_measured_when_the_machine_has_lost_what_it_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, used, measured = [-500, 800 * MIB, 900 * MIB], [5, 5 * MIB], list[int]()

    def measure(*_: object) -> tuple[int, int]:
        measured.append(len(measured))
        return used[0], used[1]

    monkeypatch.setattr(usage, "measure_footprint", measure)

    def read_nothing(_: object) -> int:  # earlier tests wrote from this process, too
        return 0

    monkeypatch.setattr(usage, "read_written_bytes", read_nothing)

    def read_room(_: UsageWatch) -> tuple[int, ...]:
        return tuple(room)

    monkeypatch.setattr(UsageWatch, "_read_room", read_room)
    watch = UsageWatch(LIMITS, os.getpid(), [str(tmp_path)])

    def check() -> tuple[bool, str | None]:
        before = len(measured)
        excess = watch.check()
        return len(measured) > before, excess

    assert check() == (True, None)  # the first time
    assert check() == (False, None)
    room[0] -= 94
    assert check() == (False, None)
    room[0] -= 1
    assert check() == (True, None)
    room[1] -= 95 * MIB
    assert check() == (True, None)
    # Others freed a lot, and it took as much.
    room[1] += 500 * MIB
    assert check() == (False, None)
    room[1] -= 95 * MIB
    used[1] = 60 * MIB
    assert check() == (True, None)
    assert check() == (True, None)  # it has grown, so look again
    assert check() == (False, None)
    room[1] -= 40 * MIB
    used[1] = 100 * MIB
    has_looked, excess = check()
    assert has_looked
    assert excess is not None
    assert "100M of memory" in excess


def test_shared_memory_and_linked_files_count_once(tmp_path: Path) -> None:
    me = os.getpid()
    tasks, rss = measure_footprint([me, me], 1 << 30, 1 << 60)
    assert tasks >= 2
    assert measure_footprint([me], 1 << 30, 1)[1] <= rss
    assert measure_footprint([me, me], 1, 1 << 60)[0] < tasks
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/data").write_bytes(b"x" * MIB)
    os.link(tmp_path / "inner/data", tmp_path / "link")
    (tmp_path / "outside").symlink_to("/usr")
    assert MIB <= add_up_files([str(tmp_path)], 1 << 40) < 2 * MIB
    assert add_up_files([str(tmp_path)], 1) >= 1
