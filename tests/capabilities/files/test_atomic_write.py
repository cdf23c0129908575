"""Atomic writes: full disks, killed processes, hard links, read-only files."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import unmeasured

from indusagi.capabilities.files import atomic_write
from indusagi.capabilities.files.atomic_write import write_atomically
from indusagi.capabilities.files.policy import open_at
from indusagi.capabilities.ports import PathRefused

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

SPACE = 64 * 1024


def put(path: Path, data: bytes) -> None:
    """Write a file as LocalFs does."""
    with open_at(str(path.parent), [path.name], str(path)) as spot:
        write_atomically(spot, data, str(path))


@contextmanager
def little_space() -> Generator[None]:
    """Let no file become longer than `SPACE`, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SPACE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("names", [1, 2])
@pytest.mark.parametrize("size", [0, 5, SPACE])
def test_a_full_disk_keeps_the_old_content(size: int, names: int, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"o" * size)
    if names > 1:
        os.link(path, tmp_path / "b")
    with little_space(), pytest.raises(OSError, match="File too large"):
        put(path, b"n" * (2 * SPACE))
    assert path.read_bytes() == b"o" * size
    assert sorted(os.listdir(tmp_path)) == ["a", "b"][:names]


@pytest.mark.parametrize("size", [0, 5, SPACE])
def test_a_full_disk_keeps_the_old_content_of_a_file_written_in_place(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory does not accept a new file."""

    def refuse_new_file(*_: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(atomic_write, "_create_temporary", refuse_new_file)
    path = tmp_path / "a"
    path.write_bytes(b"o" * size)
    with little_space(), pytest.raises(OSError, match="File too large"):
        put(path, b"n" * (2 * SPACE))
    assert path.read_bytes() == b"o" * size
    put(path, b"n" * 7)
    assert path.read_bytes() == b"n" * 7


def abandon_write(path: Path, data: bytes) -> Path:
    """Write a file as a process that is killed meanwhile does; return the temporary file it leaves."""

    def end_process(*_: object, **__: object) -> None:
        raise SystemExit

    def fail(*_: object, **__: object) -> None:
        raise OSError

    before = set(path.parent.iterdir())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", end_process)
        patched.setattr(os, "unlink", fail)
        with pytest.raises(SystemExit):
            put(path, data)
    (left,) = set(path.parent.iterdir()) - before
    return left


@pytest.mark.parametrize("name", ["a", "x" * 255, "\udcff"])
def test_the_next_write_removes_the_temporary_file_of_a_killed_process(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    put(path, b"old")
    left = abandon_write(path, b"half")
    assert path.read_bytes() == b"old"
    put(tmp_path / "other", b"")
    assert left.exists()
    os.utime(left, (1, 1))
    put(path, b"new")
    assert path.read_bytes() == b"new"
    assert sorted(tmp_path.iterdir()) == sorted((path, tmp_path / "other"))


def test_the_temporary_file_of_a_running_process_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    left = abandon_write(path, b"half")
    put(path, b"new")
    assert path.read_bytes() == b"new"
    assert left.read_bytes() == b"half"


def test_a_suspended_process_does_not_rename_the_unfinished_file_of_another(tmp_path: Path) -> None:
    path = tmp_path / "a"
    left = abandon_write(path, b"theirs")
    os.utime(left, (1, 1))
    with open_at(str(tmp_path), ["a"], "a") as target:
        name, handle = atomic_write._create_temporary(target, 0o600)
        os.close(handle)
    assert name != left.name
    assert not left.exists()


@pytest.mark.parametrize("obstacle", ["folder", "link", "pipe"])
def test_an_obstacle_at_the_temporary_name_does_not_prevent_a_write(obstacle: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    left = abandon_write(path, b"half")
    left.unlink()
    if obstacle == "folder":
        left.mkdir()
    elif obstacle == "link":
        left.symlink_to(tmp_path / "nowhere")
    else:
        os.mkfifo(left)
    put(path, b"new")
    assert path.read_bytes() == b"new"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("before", [b"", b"old", b"much longer than the other", b"same!"])
@pytest.mark.parametrize("after", [b"", b"new", b"as long as it is wanted", b"SAME!"])
def test_finding_d8_the_other_names_of_a_file_keep_their_content(before: bytes, after: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(before)
    path.chmod(0o750)
    os.link(path, tmp_path / "b")
    put(path, after)
    assert path.read_bytes() == after
    assert (tmp_path / "b").read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o750
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("why", [errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY])
def test_finding_d8_a_file_with_other_names_is_never_written_in_place(
    why: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its directory takes no new file it is refused; one without other names is written."""
    path, other, alone = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    path.write_bytes(b"old")
    alone.write_bytes(b"old")
    os.link(path, other)

    def refuse_rename(*_: object, **__: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(os, "replace", refuse_rename)
    with pytest.raises(PathRefused, match="other names"):
        put(path, b"new")
    put(alone, b"new")
    assert (path.read_bytes(), other.read_bytes(), alone.read_bytes()) == (b"old", b"old", b"new")


@pytest.mark.parametrize("names", [1, 2])
def test_a_read_only_file_is_not_written_under_any_name(
    names: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_access(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr(os, "access", refuse_access)  # root may write to anything
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.process
def test_a_read_only_file_in_a_writable_directory_is_not_replaced() -> None:
    script = """
import os, pathlib, tempfile
from indusagi.capabilities.files.policy import open_at
from indusagi.capabilities.files.atomic_write import write_atomically

with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o777)
    path = pathlib.Path(folder, "a")
    path.write_bytes(b"old")
    for mode, owner in ((0o444, 65534), (0o555, 0), (0o644, 65534)):
        path.chmod(mode)
        os.chown(path, owner, 65534)
        os.seteuid(65534)
        try:
            with open_at(folder, ["a"], str(path)) as spot:
                write_atomically(spot, b"new", str(path))
        except PermissionError as exc:
            print(exc.strerror, os.listdir(folder))
        os.seteuid(0)
        print(path.read_bytes().decode())
"""
    argv = [sys.executable, "-c", script]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True, env=unmeasured())
    refused = "the file is read-only. Ask the user to make it writable ['a']\nold\n"
    assert ran.stdout == f"{refused}{refused}new\n"
