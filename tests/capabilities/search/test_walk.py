"""A walk by handle, and what may go wrong on the way."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from indusagi.capabilities.files.paths import ignore
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.ports import FileKind, FileStat
from indusagi.capabilities.search import walk
from indusagi.capabilities.search.leaves import KnownLeaves
from indusagi.capabilities.search.listing import Met, is_dir
from indusagi.capabilities.search.names import Query, _Hunt
from indusagi.capabilities.search.seek import stamped
from indusagi.capabilities.search.target import _Held, opened_target
from indusagi.capabilities.search.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path
    from threading import Event


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


def test_what_has_gone_is_neither_file_nor_directory() -> None:
    assert not is_dir(GONE)
    assert walk._directories([GONE]) == []
    met = Met(GONE, "", is_dir=False, rules=None, handle=-1)
    assert not met.is_file()
    with KnownLeaves().memory() as memory:
        hunt = _Hunt(-1, Query("x", by_time=True), None, cast("Event", None), memory)
    assert hunt._age(met) == 0


def test_a_directory_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub/deep").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    real, calls = os.scandir, 0

    def scandir(handle: int) -> Iterator[os.DirEntry[str]]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise PermissionError
        return cast("Iterator[os.DirEntry[str]]", real(handle))

    def listdir(handle: int) -> list[str]:
        raise PermissionError

    with opened(tmp_path) as handle:
        monkeypatch.setattr(os, "scandir", scandir)
        monkeypatch.setattr(os, "listdir", listdir)
        going = Walk(handle, None)
        assert [listing.above for listing in going.listings()] == [""]
        monkeypatch.undo()
    assert sorted(going.closed) == ["other", "sub"]


def test_a_directory_that_has_become_a_link_is_not_entered(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").touch()
    with opened(root) as handle:
        going = Walk(handle, None)
        met: list[str] = []
        for found in going:
            met.append(found.path)
            (root / "sub").rmdir()
            (root / "sub").symlink_to(tmp_path / "outside")
    assert (met, going.closed) == (["sub"], ["sub"])


def test_a_walk_that_is_left_closes_its_handles(tmp_path: Path) -> None:
    """The handles are counted around every test."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    with opened(tmp_path) as handle:
        for going in (iter(Walk(handle, None)), Walk(handle, None).listings()):
            next(going)
            next(going)
            going.close()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def test_files_that_have_gone_are_the_oldest(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with opened(tmp_path) as handle:
        assert stamped(handle, ["gone", "a"]) == ["a", "gone"]


def test_a_rule_file_that_cannot_be_read_holds_no_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".gitignore").write_text("*\n", encoding="utf-8")

    def refuse(handle: int) -> os.stat_result:
        raise PermissionError

    monkeypatch.setattr(os, "fstat", refuse)
    read = ignore._read(str(tmp_path), ".gitignore", 100)
    monkeypatch.undo()
    assert read is None


def test_a_file_that_nobody_waits_for_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    held = _Held()
    held.close()
    with open(tmp_path / "a", "rb") as file:
        held.take(file)
    assert held.handle == -1


@pytest.mark.anyio
async def test_a_target_that_is_neither_file_nor_directory_is_refused(tmp_path: Path) -> None:
    class Odd(LocalFs):
        async def stat(self, path: str, *, follow: bool = True) -> FileStat:
            return FileStat(kind=FileKind.OTHER, size=0, mode=0, mtime_ns=0)

    with pytest.raises(OSError, match="neither a directory nor a regular file"):
        async with opened_target(Odd(str(tmp_path)), "x"):
            pass


@pytest.mark.anyio
async def test_a_file_that_has_gone_since_is_an_error(tmp_path: Path) -> None:
    class Late(LocalFs):
        async def stat(self, path: str, *, follow: bool = True) -> FileStat:
            return FileStat(kind=FileKind.FILE, size=0, mode=0, mtime_ns=0)

    with pytest.raises(FileNotFoundError):
        async with opened_target(Late(str(tmp_path)), "gone"):
            pass
