"""A file is put in its place whole, or what stood there stays: full disks, closed files."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import unmeasured

from indusagi.capabilities.files.beneath import spot_at
from indusagi.capabilities.files.placing import put_file

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

ROOM = 64 * 1024


def put(path: Path, data: bytes) -> None:
    """Write a file the way the door does."""
    with spot_at(str(path.parent), [path.name], str(path)) as spot:
        put_file(spot, data, str(path))


@contextmanager
def little_room() -> Generator[None]:
    """Let no file become longer than `ROOM`, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("names", [1, 2])
@pytest.mark.parametrize("size", [0, 5, ROOM])
def test_where_there_is_no_room_the_old_content_stays(
    size: int, names: int, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"o" * size)
    if names > 1:
        os.link(path, tmp_path / "b")
    with little_room(), pytest.raises(OSError, match="File too large"):
        put(path, b"n" * (2 * ROOM))
    assert path.read_bytes() == b"o" * size
    assert sorted(os.listdir(tmp_path)) == ["a", "b"][:names]


@pytest.mark.parametrize("before", [b"", b"old", b"much longer than the other", b"same!"])
@pytest.mark.parametrize("after", [b"", b"new", b"as long as it is wanted", b"SAME!"])
def test_a_file_of_several_names_gets_the_content_under_all(
    before: bytes, after: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(before)
    os.link(path, tmp_path / "b")
    put(path, after)
    assert (tmp_path / "b").read_bytes() == path.read_bytes() == after


@pytest.mark.parametrize("names", [1, 2])
def test_a_read_only_file_is_left_alone_under_all_its_names(
    names: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody_may(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr(os, "access", nobody_may)  # root may write to anything
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o444)
    if names > 1:
        os.link(path, tmp_path / "b")
    with pytest.raises(PermissionError, match="the file is read-only"):
        put(path, b"new")
    assert path.read_bytes() == b"old"
    path.chmod(0o644)
    put(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.process
def test_a_read_only_file_is_not_replaced_in_a_folder_that_is_open() -> None:
    script = """
import os, pathlib, tempfile
from indusagi.capabilities.files.beneath import spot_at
from indusagi.capabilities.files.placing import put_file

with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o777)
    path = pathlib.Path(folder, "a")
    path.write_bytes(b"old")
    for mode, owner in ((0o444, 65534), (0o555, 0), (0o644, 65534)):
        path.chmod(mode)
        os.chown(path, owner, 65534)
        os.seteuid(65534)
        try:
            with spot_at(folder, ["a"], str(path)) as spot:
                put_file(spot, b"new", str(path))
        except PermissionError as exc:
            print(exc.strerror, os.listdir(folder))
        os.seteuid(0)
        print(path.read_bytes().decode())
"""
    argv = [sys.executable, "-c", script]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True, env=unmeasured())
    refused = "the file is read-only. Ask the user to make it writable ['a']\nold\n"
    assert ran.stdout == f"{refused}{refused}new\n"
