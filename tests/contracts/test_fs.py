"""The contract of the `Fs` port, tested on each implementation."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.support.scripts import unmeasured
from tests.support.waiting import until

from indusagi.capabilities.files.policy import DirFdPath, workspace_policy
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.ports import DirEntry, FileKind, Fs, PathRefused

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
NOBODY = 65534


@pytest.fixture(params=["bounded", "unbounded"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Fs:
    root = str(tmp_path)
    return LocalFs(root, workspace_policy(root) if request.param == "bounded" else None)


def _always(answer: object) -> Callable[..., object]:
    def give(*_args: object, **_more: object) -> object:
        return answer

    return give


def _refuse(*_args: object, **_more: object) -> object:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def _record_calls(done: list[str], name: str, really: Callable[..., None]) -> Callable[..., None]:
    def record(*args: object, **more: object) -> None:
        done.append(name)
        really(*args, **more)

    return record


async def test_written_content_is_read_back(fs: Fs) -> None:
    await fs.write_file("a.bin", b"\x00\xff\r\n")
    assert await fs.read_bytes("a.bin") == b"\x00\xff\r\n"


async def test_text_is_utf_8(fs: Fs) -> None:
    await fs.write_file("a.txt", "é\r\n🙂")
    assert await fs.read_bytes("a.txt") == b"\xc3\xa9\r\n\xf0\x9f\x99\x82"
    assert await fs.read_text("a.txt") == "é\r\n🙂"


async def test_invalid_utf_8_is_refused_with_its_position(fs: Fs) -> None:
    await fs.write_file("latin", b"caf\xe9")
    with pytest.raises(OSError, match="not UTF-8 at byte 3"):
        await fs.read_text("latin")


async def test_lone_surrogates_are_refused_with_their_position(fs: Fs, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="at character 3 is not text") as caught:
        await fs.write_file("a", "abc\ud800")
    assert (caught.value.errno, caught.value.filename) == (errno.EILSEQ, "a")
    assert os.listdir(tmp_path) == []


async def test_a_part_of_a_file_can_be_read(fs: Fs) -> None:
    await fs.write_file("a", b"0123456789")
    assert await fs.read_bytes("a", offset=2, limit=3) == b"234"
    assert await fs.read_bytes("a", offset=8, limit=100) == b"89"
    assert await fs.read_bytes("a", offset=10) == b""
    assert await fs.read_bytes("a", limit=0) == b""


@pytest.mark.parametrize(("offset", "limit"), [(-1, None), (0, -1), (2**63, None), (2**70, 1), (-(2**70), None)])
async def test_an_invalid_part_is_an_os_error(fs: Fs, offset: int, limit: int | None) -> None:
    await fs.write_file("a", b"0123456789")
    with pytest.raises(OSError, match="no such part") as caught:
        await fs.read_bytes("a", offset=offset, limit=limit)
    assert caught.value.errno == errno.EINVAL


async def test_a_limit_may_be_larger_than_any_file(fs: Fs) -> None:
    await fs.write_file("a", b"0123456789")
    assert await fs.read_bytes("a", offset=5, limit=2**70) == b"56789"


async def test_a_large_file_is_read_whole(fs: Fs) -> None:
    data = os.urandom(3 * 1024 * 1024 + 7)
    await fs.write_file("large", data)
    assert await fs.read_bytes("large") == data


async def test_relative_paths_start_at_the_root_and_absolute_ones_stay(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"x")
    assert await fs.read_bytes(str(tmp_path / "a")) == b"x"


async def test_a_missing_file_is_not_found(fs: Fs) -> None:
    assert not await fs.exists("nothing")
    assert not await fs.exists("nothing/below")
    for operation in (fs.read_bytes, fs.read_text, fs.stat, fs.rm, fs.readdir):
        with pytest.raises(FileNotFoundError):
            await operation("nothing")


async def test_a_path_below_a_file_does_not_exist(fs: Fs) -> None:
    await fs.write_file("file", b"")
    assert await fs.exists("file")
    assert not await fs.exists("file/below")


async def test_impossible_paths_do_not_exist(fs: Fs, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert not await fs.exists("x" * 300)
    assert not await fs.exists("loop")
    assert not await fs.exists("loop/below")


async def test_exists_raises_where_it_may_not_look(fs: Fs, monkeypatch: pytest.MonkeyPatch) -> None:
    await fs.mkdir("closed")
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", _refuse)  # root may look everywhere
        with pytest.raises(PermissionError):
            await fs.exists("closed/a")


async def test_a_link_that_leads_to_itself_cannot_be_written_through(fs: Fs, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        await fs.write_file("loop", b"x")
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
async def test_an_invalid_path_is_an_os_error(fs: Fs, path: str) -> None:
    with pytest.raises(OSError, match="a path cannot hold such characters"):
        await fs.read_bytes(path)


async def test_stat_returns_kind_size_and_mode(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"abc")
    (tmp_path / "a").chmod(0o640)
    found = await fs.stat("a")
    assert (found.kind, found.size, found.mode) == (FileKind.FILE, 3, 0o640)
    assert found.mtime_ns == (tmp_path / "a").stat().st_mtime_ns
    assert (await fs.stat(".")).kind is FileKind.DIRECTORY


async def test_stat_follows_a_link_unless_told_otherwise(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"abc")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "dangling").symlink_to("nothing")
    assert (await fs.stat("link")).kind is FileKind.FILE
    assert (await fs.stat("link", follow=False)).kind is FileKind.SYMLINK
    assert not await fs.exists("dangling")


async def test_writing_through_a_link_changes_the_file_and_keeps_the_link(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"old")
    (tmp_path / "link").symlink_to("a")
    await fs.write_file("link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert await fs.read_bytes("a") == b"new"


async def test_writing_keeps_the_mode_of_the_file(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"old")
    (tmp_path / "a").chmod(0o750)
    await fs.write_file("a", b"new")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o750


@pytest.mark.parametrize("mode", [0o000, 0o040, 0o400, 0o600, 0o640, 0o777])
async def test_a_temporary_file_is_never_more_accessible_than_the_finished_one(
    fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "a").chmod(mode)
    fchmod, first = os.fchmod, list[int]()

    def watch(handle: int, mode: int) -> None:
        first.append(stat.S_IMODE(os.fstat(handle).st_mode))
        fchmod(handle, mode)

    monkeypatch.setattr(os, "fchmod", watch)
    await fs.write_file("a", b"new")
    assert [found & ~mode for found in first] == [0]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


@as_root
async def test_writing_keeps_the_owner_and_the_group(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"old")
    os.chown(tmp_path / "a", NOBODY, 12345)
    (tmp_path / "a").chmod(0o6755)
    await fs.write_file("a", b"new")
    found = (tmp_path / "a").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, 12345, 0o6755)
    assert await fs.read_bytes("a") == b"new"


@pytest.mark.process
@as_root
@pytest.mark.parametrize(
    ("owner", "group", "former", "narrowed"),
    [
        (0, NOBODY, 0o6755, 0o755),  # the file is no longer root's: it must not act for root
        (0, 0, 0o6775, 0o755),
        (NOBODY, 0, 0o2660, 0o600),  # what root's group could do, the group of nobody cannot
        (NOBODY, 0, 0o674, 0o644),
        (NOBODY, NOBODY, 0o6770, 0o6770),
    ],
)
def test_a_changed_owner_gains_no_rights(owner: int, group: int, former: int, narrowed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        path = Path(folder, "a")
        path.write_bytes(b"old")
        os.chown(path, owner, group)
        path.chmod(former)
        assert _as_nobody(folder, "await fs.write_file('a', b'new')") == ""
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (NOBODY, NOBODY)
        assert (stat.S_IMODE(found.st_mode), path.read_bytes()) == (narrowed, b"new")


@as_root
async def test_the_mode_is_narrowed_where_owner_and_group_cannot_stay(
    fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fs.write_file("a", b"old")
    os.chown(tmp_path / "a", NOBODY, NOBODY)
    (tmp_path / "a").chmod(0o6775)
    monkeypatch.setattr(os, "fchown", _refuse)
    await fs.write_file("a", b"new")
    found = (tmp_path / "a").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, 0o755)


@pytest.mark.process
@as_root
def test_the_group_is_kept_where_the_owner_cannot_be() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, 12345)
        path = Path(folder, "a")
        path.write_bytes(b"old")
        os.chown(path, 0, 12345)
        path.chmod(0o664)
        assert _as_nobody(folder, "await fs.write_file('a', b'new')", groups=[12345]) == ""
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (NOBODY, 12345)
        assert stat.S_IMODE(found.st_mode) == 0o664


@pytest.mark.process
@as_root
def test_a_forbidden_write_names_the_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "a")
        reported = _as_nobody(folder, "await fs.write_file('a', b'new')", tell="exc.filename")
        assert reported == os.path.realpath(path)


def _as_nobody(folder: str, code: str, *, groups: list[int] | None = None, tell: str = "type(exc).__name__") -> str:
    """Use the files as another user than root; return the output or the error."""
    script = f"""
import asyncio, os, tempfile
from indusagi.capabilities.files.policy import workspace_policy
from indusagi.capabilities.local.fs import LocalFs

async def main():
    fs = LocalFs({folder!r}, workspace_policy({folder!r}))
    # As root, and elsewhere: what is loaded late may lie in a directory closed to others.
    with tempfile.TemporaryDirectory() as aside:
        first = LocalFs(aside, workspace_policy(aside))
        await first.mkdir("inner")
        for path in ("a", "a", "inner/a"):
            await first.write_file(path, b"")
            await first.read_bytes(path)
    os.setgroups({groups or []}); os.setgid({NOBODY}); os.setuid({NOBODY})
    try:
        {code}
    except OSError as exc:
        print({tell})

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=unmeasured(),  # the user `nobody` may not write coverage data
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them in Python")
async def test_writing_keeps_extended_attributes(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"old")
    try:
        os.setxattr(tmp_path / "a", "user.origin", b"here")
    except OSError:
        pytest.skip("this file system has none")
    await fs.write_file("a", b"new")
    assert os.getxattr(tmp_path / "a", "user.origin") == b"here"
    assert await fs.read_bytes("a") == b"new"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them in Python")
async def test_attributes_that_cannot_be_kept_do_not_prevent_a_write(
    fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def refuse(*args: object, **_more: object) -> object:
        tried.extend(args[1:2])
        raise OSError(errno.ENOTSUP, "Operation not supported")

    await fs.write_file("a", b"old")
    monkeypatch.setattr(os, "listxattr", _always(["security.capability", "user.a", "trusted.b"]))
    monkeypatch.setattr(os, "getxattr", _always(b"value"))
    monkeypatch.setattr(os, "setxattr", refuse)
    await fs.write_file("a", b"new")
    assert tried == ["user.a"]
    monkeypatch.setattr(os, "listxattr", refuse)
    await fs.write_file("a", b"newer")
    assert await fs.read_bytes("a") == b"newer"


@pytest.mark.parametrize("name", ["first", "second", "link"])
async def test_the_other_name_of_a_file_keeps_its_content(fs: Fs, tmp_path: Path, name: str) -> None:
    await fs.write_file("first", b"a longer text")
    (tmp_path / "first").chmod(0o640)
    os.link(tmp_path / "first", tmp_path / "second")
    (tmp_path / "link").symlink_to("second")
    await fs.write_file(name, b"short")
    written, other = ("first", "second") if name == "first" else ("second", "first")
    assert await fs.read_bytes(written) == await fs.read_bytes(name) == b"short"
    assert await fs.read_bytes(other) == b"a longer text"
    assert stat.S_IMODE((tmp_path / written).stat().st_mode) == 0o640


async def test_a_pipe_that_replaces_a_hard_link_is_not_written(
    fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fs.write_file("first", b"x")
    os.link(tmp_path / "first", tmp_path / "second")
    before = (tmp_path / "first").stat()
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "stat", _always(before))
            with anyio.fail_after(60):
                await fs.write_file("pipe", b"new")
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


async def test_a_new_file_gets_the_usual_mode(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"x")
    (tmp_path / "usual").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


async def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(fs: Fs, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        await fs.write_file("folder", b"x")
    with pytest.raises(FileNotFoundError):
        await fs.write_file("nowhere/a", b"x")
    assert sorted(os.listdir(tmp_path)) == ["folder"]


async def test_a_full_disk_leaves_the_old_content_and_no_temporary_file(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"old")
    former, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            await fs.write_file("a", bytes(2 * 1024 * 1024))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (former, hard))
    assert caught.value.filename == str(tmp_path / "a")
    assert await fs.read_bytes("a") == b"old"
    assert os.listdir(tmp_path) == ["a"]


async def test_a_missing_temporary_file_does_not_hide_the_error(
    fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        os.unlink(source, dir_fd=src_dir_fd)
        raise OSError(errno.EBUSY, "Device or resource busy", source, None, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="busy") as caught:
        await fs.write_file("a", b"x")
    assert (caught.value.errno, caught.value.filename2) == (errno.EBUSY, None)
    assert caught.value.filename == str(tmp_path / "a")


async def test_a_write_is_synced_before_the_rename(fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("fsync", "replace"):
        really: Callable[..., None] = getattr(os, name)

        monkeypatch.setattr(os, name, _record_calls(done, name, really))
    await fs.write_file("a", b"x")
    assert done == ["fsync", "replace"]
    os.link(tmp_path / "a", tmp_path / "b")
    await fs.write_file("a", b"y")
    assert done == ["fsync", "replace"] * 2


async def test_a_reader_never_sees_half_a_write(fs: Fs) -> None:
    contents = [bytes([n]) * 200_000 for n in (1, 2)]
    await fs.write_file("a", contents[0])
    seen: set[bytes] = set()

    async def write() -> None:
        for n in range(40):
            await fs.write_file("a", contents[n % 2])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        for _ in range(40):
            seen.add(await fs.read_bytes("a"))
    assert seen <= set(contents)


@pytest.mark.parametrize("operation", ["read_bytes", "read_text"])
async def test_r44_a_pipe_is_refused_and_does_not_block(fs: Fs, tmp_path: Path, operation: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with anyio.fail_after(60), pytest.raises(OSError, match="not a regular file"):
        await getattr(fs, operation)("pipe")
    with pytest.raises(OSError, match="not a regular file"):
        await fs.write_file("pipe", b"x")
    assert (await fs.stat("pipe")).kind is FileKind.OTHER


async def test_r44_a_waiting_writer_of_a_pipe_is_not_disturbed(fs: Fs, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    written: list[str] = []

    def write() -> None:
        try:
            with open(pipe, "wb") as file:
                file.write(b"for another reader")
            written.append("whole")
        except BrokenPipeError:
            written.append("broken")

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(100):  # nothing tells when the writer has begun to wait
        with pytest.raises(OSError, match="not a regular file"):
            await fs.read_bytes("pipe")
        await anyio.sleep(0.001)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        await anyio.to_thread.run_sync(thread.join)
        assert (written, os.read(reader, 100)) == (["whole"], b"for another reader")
    finally:
        os.close(reader)


async def test_r44_a_pipe_that_replaces_a_file_is_refused_and_does_not_block(
    fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fs.write_file("a", b"x")
    before = (tmp_path / "a").stat()
    os.mkfifo(tmp_path / "pipe")
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", _always(before))
        with anyio.fail_after(60), pytest.raises(OSError, match="not a regular file"):
            await fs.read_bytes("pipe")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
async def test_r44_a_device_is_refused(fs: Fs, device: str) -> None:
    with anyio.fail_after(60), pytest.raises(PathRefused, match="not a regular file") as caught:
        await fs.read_bytes(device)
    assert caught.value.refusal == "special"


async def test_r44_a_socket_is_refused(fs: Fs, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(tmp_path, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{here}/socket")  # its own path may be too long for one
        finally:
            os.close(here)
        with pytest.raises(PathRefused, match="not a regular file but a socket"):
            await fs.read_bytes("socket")


async def test_r44_a_10_gb_file_is_read_in_parts_only(fs: Fs, tmp_path: Path) -> None:
    size = 10 * 1024**3
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", size)
    assert (await fs.stat("huge")).size == size
    assert await fs.read_bytes("huge", offset=size - 5, limit=10) == bytes(5)
    assert await fs.read_bytes("huge", offset=size - 5) == bytes(5)
    assert await fs.reading("huge", lambda file: file.read(4)) == bytes(4)
    for limit in (None, size):
        with anyio.fail_after(60), pytest.raises(OSError, match="too many to be read") as caught:
            await fs.read_bytes("huge", limit=limit)
        assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("limit", [None, 2**70])
async def test_reading_a_growing_file_ends(fs: Fs, monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    await fs.write_file("a", b"x")
    monkeypatch.setattr(os, "pread", _always(bytes(64 * 1024 * 1024)))
    with pytest.raises(OSError, match="too many to be read at once"):
        await fs.read_bytes("a", limit=limit)


async def test_r44_reading_a_directory_is_an_is_a_directory_error(fs: Fs) -> None:
    with pytest.raises(IsADirectoryError):
        await fs.read_bytes(".")


async def test_directories_are_created_with_their_parents(fs: Fs, tmp_path: Path) -> None:
    await fs.mkdir("a/b/c")
    await fs.mkdir("a/b/c")
    assert (tmp_path / "a/b/c").is_dir()


async def test_a_directory_is_listed_by_name_with_kinds(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("b", b"")
    await fs.mkdir("a")
    (tmp_path / "c").symlink_to("a")
    os.mkfifo(tmp_path / "d")
    assert list(await fs.readdir(".")) == [
        DirEntry("a", FileKind.DIRECTORY),
        DirEntry("b", FileKind.FILE),
        DirEntry("c", FileKind.SYMLINK),
        DirEntry("d", FileKind.OTHER),
    ]


async def test_files_links_and_empty_directories_can_be_removed(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("file", b"")
    await fs.mkdir("folder")
    (tmp_path / "link").symlink_to("file")
    for name in ("link", "file", "folder"):
        await fs.rm(name)
    assert os.listdir(tmp_path) == []


async def test_a_directory_with_entries_is_not_removed(fs: Fs) -> None:
    await fs.mkdir("folder/inner")
    with pytest.raises(OSError, match="not empty"):
        await fs.rm("folder")


async def test_a_very_deep_path_is_an_os_error(fs: Fs) -> None:
    with pytest.raises(OSError, match="File name too long"):
        await fs.mkdir("x" * 300 + "/d" * 2 * sys.getrecursionlimit())


async def test_a_path_is_resolved_as_far_as_it_exists(fs: Fs, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    assert await fs.resolve("link/new/../file") == str(tmp_path / "folder/file")
    assert await fs.resolve(".") == str(tmp_path)


async def test_a_very_long_chain_of_links_is_an_os_error(fs: Fs, tmp_path: Path) -> None:
    for number in range(2 * sys.getrecursionlimit()):
        (tmp_path / f"{number}").symlink_to(f"{number + 1}")
    with pytest.raises(OSError, match=r"symbolic links|No such file"):
        await fs.read_bytes("0")
    assert not await fs.exists("0")


async def test_reading_sees_one_version_of_a_file(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"old")
    handles: list[BinaryIO] = []

    def work(file: BinaryIO) -> bytes:
        handles.append(file)
        os.replace(tmp_path / "b", tmp_path / "a")
        return file.read()

    await fs.write_file("b", b"new")
    assert await fs.reading("a", work) == b"old"
    assert handles[0].closed
    assert await fs.read_bytes("a") == b"new"


async def test_reading_passes_exceptions_of_the_work_on(fs: Fs) -> None:
    await fs.write_file("a", b"x")
    calls: list[int] = []

    def fail(_file: BinaryIO) -> None:
        calls.append(1)
        raise OSError(errno.ELOOP, "its own", "its own file")

    with pytest.raises(OSError, match="its own") as caught:
        await fs.reading("a", fail)
    assert (caught.value.filename, calls) == ("its own file", [1])


async def test_a_cancelled_reading_returns_at_once_and_closes_the_file(fs: Fs) -> None:
    await fs.write_file("a", b"x")
    begun, leave = threading.Event(), threading.Event()
    handles: list[BinaryIO] = []

    def work(file: BinaryIO) -> None:
        handles.append(file)
        begun.set()
        leave.wait(60)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fs.reading, "a", work)
            await anyio.to_thread.run_sync(begun.wait, 10)
            tasks.cancel_scope.cancel()
    assert not handles[0].closed  # still at work, without a caller that waits
    leave.set()
    await until(lambda: handles[0].closed)


async def test_a_folder_is_opened_by_descriptor(fs: Fs, tmp_path: Path) -> None:
    await fs.mkdir("folder")
    await fs.write_file("folder/a", b"x")
    (tmp_path / "link").symlink_to("folder")
    with await fs.folder("link") as folder:
        (tmp_path / "folder").rename(tmp_path / "moved")
        assert folder.path == str(tmp_path / "folder")
        assert await anyio.to_thread.run_sync(os.listdir, folder.handle) == ["a"]
    with pytest.raises(NotADirectoryError):
        await fs.folder("moved/a")


async def test_a_cancelled_opening_of_a_folder_leaves_no_descriptor(fs: Fs, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    really = DirFdPath.open_folder

    def slowly(spot: DirFdPath) -> int:
        begun.set()
        go_on.wait(60)
        return really(spot)

    monkeypatch.setattr(DirFdPath, "open_folder", slowly)
    task = asyncio.ensure_future(fs.folder("."))  # noqa: TID251 — a caller that knows no scopes
    await anyio.to_thread.run_sync(begun.wait, 10)
    task.cancel()
    go_on.set()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_listing_contains_sizes_and_link_targets(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("file", b"abc")
    await fs.mkdir("folder")
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    os.mkfifo(tmp_path / "pipe")
    assert [(each.name, each.size, each.target) for each in await fs.readdir(".")] == [
        ("file", 3, None),
        ("folder", None, None),
        ("link", None, "/nowhere/at/all"),
        ("pipe", None, None),
    ]


async def test_a_name_removed_meanwhile_is_listed_with_its_kind(
    fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fs.mkdir("a")
    await fs.write_file("b", b"")
    (tmp_path / "c").symlink_to("a")
    os.mkfifo(tmp_path / "d")
    scandir = os.scandir

    class Gone:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self.is_symlink = entry.name, entry.is_symlink
            self.is_dir, self.is_file = entry.is_dir, entry.is_file
            self.stat = _refuse

    class Entries:
        def __init__(self, handle: int) -> None:
            with scandir(handle) as entries:
                self._found = [Gone(entry) for entry in entries]

        def __enter__(self) -> list[Gone]:
            return self._found

        def __exit__(self, *_error: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Entries)
    kinds = [FileKind.DIRECTORY, FileKind.FILE, FileKind.SYMLINK, FileKind.OTHER]
    assert [(each.kind, each.size) for each in await fs.readdir(".")] == [(kind, None) for kind in kinds]


async def test_a_file_in_a_directory_without_new_files_is_written_in_place(
    fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fs.write_file("a", b"a longer text")
    before = (tmp_path / "a").stat()

    def busy(*_args: object, **_more: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    await fs.write_file("a", b"short")
    assert await fs.read_bytes("a") == b"short"
    assert (tmp_path / "a").stat().st_ino == before.st_ino
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.process
@as_root
def test_a_file_in_a_read_only_directory_is_written_in_place() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "a")
        path.write_bytes(b"a longer text")
        path.chmod(0o666)
        assert _as_nobody(folder, "await fs.write_file('a', b'short')") == ""
        assert (path.read_bytes(), os.listdir(folder)) == (b"short", ["a"])


@pytest.mark.process
@as_root
def test_a_directory_that_cannot_be_listed_can_be_entered() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        os.mkdir(Path(folder, "inner"), 0o755)
        Path(folder, "inner/a").write_bytes(b"x")
        assert _as_nobody(folder, "print(await fs.read_bytes('inner/a'))") == "b'x'"


async def test_a_directory_is_not_created_over_a_file(fs: Fs) -> None:
    await fs.write_file("file", b"x")
    for path in ("file", "file/below"):
        with pytest.raises(NotADirectoryError):
            await fs.mkdir(path)


async def test_a_directory_created_by_another_process_is_accepted(
    fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def twice(name: str, *, dir_fd: int) -> None:
        mkdir(name, dir_fd=dir_fd)
        mkdir(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", twice)
    await fs.mkdir("a/b")
    assert (tmp_path / "a/b").is_dir()


async def test_rm_removes_a_link_and_keeps_its_target(fs: Fs, tmp_path: Path) -> None:
    await fs.mkdir("folder")
    (tmp_path / "link").symlink_to("folder")
    await fs.rm("link/")
    assert os.listdir(tmp_path) == ["folder"]


async def test_a_cancelled_write_is_completed(fs: Fs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(_handle: int) -> None:
        begun.set()
        go_on.wait(60)

    monkeypatch.setattr(os, "fsync", slowly)
    task = asyncio.ensure_future(fs.write_file("a", b"x"))  # noqa: TID251 — knows no scopes
    await anyio.to_thread.run_sync(begun.wait, 10)
    for _ in range(3):
        task.cancel()
        await checkpoint()
    assert not task.done()
    go_on.set()
    await asyncio.wait({task})
    assert (task.cancelled(), os.listdir(tmp_path)) == (True, ["a"])
