"""What every `Fs` promises, tried on each of them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import anyio
import pytest

from indusagi.capabilities.backends import DirEntry, FileKind, Fs
from indusagi.capabilities.local_fs import LocalFs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[LocalFs])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Fs:
    make: Callable[[str], Fs] = request.param
    return make(str(tmp_path))


async def test_what_was_written_is_read_back(fs: Fs) -> None:
    await fs.write_file("a.bin", b"\x00\xff\r\n")
    assert await fs.read_bytes("a.bin") == b"\x00\xff\r\n"


async def test_text_is_utf_8(fs: Fs) -> None:
    await fs.write_file("a.txt", "é\r\n🙂")
    assert await fs.read_bytes("a.txt") == b"\xc3\xa9\r\n\xf0\x9f\x99\x82"
    assert await fs.read_text("a.txt") == "é\r\n🙂"


async def test_bytes_that_are_no_text_are_refused_with_their_place(fs: Fs) -> None:
    await fs.write_file("latin", b"caf\xe9")
    with pytest.raises(OSError, match="not UTF-8 at byte 3"):
        await fs.read_text("latin")


async def test_a_part_of_a_file_can_be_read(fs: Fs) -> None:
    await fs.write_file("a", b"0123456789")
    assert await fs.read_bytes("a", offset=2, limit=3) == b"234"
    assert await fs.read_bytes("a", offset=8, limit=100) == b"89"
    assert await fs.read_bytes("a", offset=10) == b""
    assert await fs.read_bytes("a", limit=0) == b""


async def test_a_large_file_is_read_whole(fs: Fs) -> None:
    data = os.urandom(3 * 1024 * 1024 + 7)
    await fs.write_file("large", data)
    assert await fs.read_bytes("large") == data


async def test_relative_paths_start_at_the_root_and_absolute_ones_stay(
    fs: Fs, tmp_path: Path
) -> None:
    await fs.write_file("a", b"x")
    assert await fs.read_bytes(str(tmp_path / "a")) == b"x"


async def test_a_missing_file_is_not_found(fs: Fs) -> None:
    assert not await fs.exists("nothing")
    assert not await fs.exists("nothing/below")
    for door in (fs.read_bytes, fs.read_text, fs.stat, fs.rm, fs.readdir):
        with pytest.raises(FileNotFoundError):
            await door("nothing")


async def test_a_path_below_a_file_does_not_exist(fs: Fs) -> None:
    await fs.write_file("file", b"")
    assert not await fs.exists("file/below")


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
async def test_a_path_that_the_system_cannot_have_is_an_os_error(fs: Fs, path: str) -> None:
    with pytest.raises(OSError, match="a path cannot hold such characters"):
        await fs.read_bytes(path)


async def test_looking_tells_kind_size_and_mode(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"abc")
    (tmp_path / "a").chmod(0o640)
    found = await fs.stat("a")
    assert (found.kind, found.size, found.mode) == (FileKind.FILE, 3, 0o640)
    assert found.mtime_ns == (tmp_path / "a").stat().st_mtime_ns
    assert (await fs.stat(".")).kind is FileKind.DIRECTORY


async def test_a_link_is_followed_unless_one_asks_for_the_link(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"abc")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "dangling").symlink_to("nothing")
    assert (await fs.stat("link")).kind is FileKind.FILE
    assert (await fs.stat("link", follow=False)).kind is FileKind.SYMLINK
    assert not await fs.exists("dangling")


async def test_writing_through_a_link_changes_the_file_and_keeps_the_link(
    fs: Fs, tmp_path: Path
) -> None:
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


async def test_a_new_file_gets_the_usual_mode(fs: Fs, tmp_path: Path) -> None:
    await fs.write_file("a", b"x")
    (tmp_path / "usual").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


async def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(
    fs: Fs, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        await fs.write_file("folder", b"x")
    with pytest.raises(FileNotFoundError):
        await fs.write_file("nowhere/a", b"x")
    assert sorted(os.listdir(tmp_path)) == ["folder"]


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


@pytest.mark.parametrize("door", ["read_bytes", "read_text"])
async def test_r44_a_pipe_is_refused_and_does_not_hang(fs: Fs, tmp_path: Path, door: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with anyio.fail_after(5), pytest.raises(OSError, match="not a regular file"):
        await getattr(fs, door)("pipe")
    with pytest.raises(OSError, match="not a regular file"):
        await fs.write_file("pipe", b"x")
    assert (await fs.stat("pipe")).kind is FileKind.OTHER


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
async def test_r44_a_device_is_refused(fs: Fs, device: str) -> None:
    with anyio.fail_after(5), pytest.raises(OSError, match="not a regular file"):
        await fs.read_bytes(device)


async def test_r44_a_directory_is_refused_as_such(fs: Fs) -> None:
    with pytest.raises(IsADirectoryError):
        await fs.read_bytes(".")


async def test_directories_are_made_with_those_above_them(fs: Fs, tmp_path: Path) -> None:
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


async def test_a_directory_with_something_in_it_is_not_removed(fs: Fs) -> None:
    await fs.mkdir("folder/inner")
    with pytest.raises(OSError, match="not empty"):
        await fs.rm("folder")
