"""A walk by directory handles, and its failures."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.ports import FileKind, FileStat
from indusagi.capabilities.search.search import sort_by_mtime
from indusagi.capabilities.search.walk import DirHandle, Walk, _FileHandle, is_dir, open_target
from indusagi.capabilities.tools.find import NameQuery, _has_kind, _read_age, find_names

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path


class Gone:
    """An entry that was there when the directory was listed, on a system that has to ask."""

    name = "gone"

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        raise FileNotFoundError

    is_file = is_dir

    def stat(self, *, follow_symlinks: bool) -> os.stat_result:
        raise FileNotFoundError


GONE = cast("os.DirEntry[str]", Gone())


@contextmanager
def opened(path: Path) -> Generator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def test_a_removed_entry_is_neither_file_nor_directory() -> None:
    assert not is_dir(GONE)
    assert not _has_kind(GONE, FileKind.FILE)
    assert _read_age(GONE) == 0


def test_an_unreadable_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub/deep").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    real, calls = os.scandir, 0

    def scandir(handle: int) -> Iterator[os.DirEntry[str]]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise PermissionError
        return cast("Iterator[os.DirEntry[str]]", real(handle))

    with opened(tmp_path) as handle:
        monkeypatch.setattr(os, "scandir", scandir)
        going = Walk(handle, None)
        assert [listing.above for listing in going.listings()] == [""]
        monkeypatch.undo()
    assert sorted(going.unreadable) == ["other", "sub"]


def test_a_directory_replaced_by_a_link_is_not_entered(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").touch()
    with opened(root) as handle:
        going = Walk(handle, None)
        met: list[str] = []
        for found in going.listings():
            met += [entry.name for entry in found.entries]
            (root / "sub").rmdir()
            (root / "sub").symlink_to(tmp_path / "outside")
    assert (met, going.unreadable) == (["sub"], ["sub"])


@pytest.mark.parametrize(
    ("hidden", "names", "found"),
    [
        (True, [".git", ".dot", "a"], [".dot", "a"]),
        (True, [".dot", "a"], [".dot", "a"]),
        (False, [".git", ".dot", "a"], ["a"]),
        (False, [".dot", "a"], ["a"]),
    ],
)
def test_git_is_never_walked_and_other_hidden_names_only_on_request(
    tmp_path: Path, hidden: bool, names: list[str], found: list[str]
) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    with opened(tmp_path) as handle:
        walk = Walk(handle, None, hidden=hidden)
        assert sorted(entry.name for listing in walk.listings() for entry in listing.entries) == found


def test_an_abandoned_walk_closes_its_handles(tmp_path: Path) -> None:
    """The handles are counted around every test."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    with opened(tmp_path) as handle:
        going = Walk(handle, None).listings()
        next(going)
        next(going)
        going.close()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def test_removed_files_sort_as_the_oldest(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with opened(tmp_path) as handle:
        assert sort_by_mtime(handle, ["gone", "a"]) == ["a", "gone"]


def test_a_closed_handle_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    file_handle = _FileHandle()
    file_handle.close()
    with open(tmp_path / "a", "rb") as file:
        file_handle.take(file)
    assert file_handle.handle == -1


@pytest.mark.anyio
async def test_a_target_that_is_neither_file_nor_directory_is_refused(tmp_path: Path) -> None:
    class Odd(LocalFs):
        async def stat(self, path: str, *, follow: bool = True) -> FileStat:
            return FileStat(kind=FileKind.OTHER, size=0, mode=0, mtime_ns=0)

    with pytest.raises(OSError, match="neither a directory nor a regular file"):
        async with open_target(Odd(str(tmp_path)), "x"):
            pass


@pytest.mark.anyio
async def test_a_file_removed_meanwhile_is_an_error(tmp_path: Path) -> None:
    class Late(LocalFs):
        async def stat(self, path: str, *, follow: bool = True) -> FileStat:
            return FileStat(kind=FileKind.FILE, size=0, mode=0, mtime_ns=0)

    with pytest.raises(FileNotFoundError):
        async with open_target(Late(str(tmp_path)), "gone"):
            pass


def test_probe_0_18_every_directory_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        folder = tmp_path / f"d{number % 10}" / f"part{number}"
        folder.mkdir(parents=True)
        (folder / "file.txt").touch()
    (tmp_path / "d3/part3/needle.txt").touch()
    listings = 0
    real = os.scandir

    def scandir(handle: int) -> object:
        nonlocal listings
        listings += 1
        return real(handle)

    with opened(tmp_path) as handle, monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        result = find_names(DirHandle(handle), str(tmp_path), NameQuery("needle"))
    assert result.paths == ["d3/part3/needle.txt"]
    assert listings == 1 + 10 + 200
