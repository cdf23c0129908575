"""Directories without directories: known without a look, and listed to the same end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.search import leaves, walk
from indusagi.capabilities.search.leaves import KnownLeaves, LateEntry, is_leaf
from indusagi.capabilities.search.names import Kind, Lent, Query, find_names

if TYPE_CHECKING:
    from pathlib import Path


def found(root: Path, query: Query) -> list[str]:
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return find_names(Lent(handle), str(root), query, KnownLeaves()).paths
    finally:
        os.close(handle)


def leaf(path: Path) -> bool:
    return is_leaf(path.stat())


def test_a_directory_with_a_directory_in_it_is_never_a_leaf(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "sub").mkdir()
    assert not leaf(tmp_path)
    (tmp_path / "sub" / "file").touch()
    links = os.stat(tmp_path / "sub").st_nlink
    assert leaf(tmp_path / "sub") == (links == 2 and counting(tmp_path))


def counting(path: Path) -> bool:
    return leaves._file_system(os.stat(path).st_dev) in leaves._COUNTING


def test_a_file_system_that_nobody_knows_has_no_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mounts"
    monkeypatch.setattr(leaves, "_MOUNTS", str(table))
    for text in ("", "nonsense\n", "1 2 0:99 / / rw - btrfs x rw\n"):
        table.write_text(text, encoding="utf-8")
        leaves._file_system.cache_clear()
        assert leaves._file_system(os.makedev(0, 99)) not in leaves._COUNTING
    table.write_text("1 2 0:99 / / rw shared:1 - tmpfs x rw\n", encoding="utf-8")
    leaves._file_system.cache_clear()
    assert leaves._file_system(os.makedev(0, 99)) == "tmpfs"
    monkeypatch.setattr(leaves, "_MOUNTS", str(tmp_path / "nowhere"))
    leaves._file_system.cache_clear()
    assert leaves._file_system(os.makedev(0, 99)) not in leaves._COUNTING
    leaves._file_system.cache_clear()


def test_an_entry_is_looked_at_when_it_is_asked_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "sub").mkdir()
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file, link, sub, gone = (LateEntry(name, handle) for name in ("file", "link", "sub", "no"))
        kinds = [(e.is_file(), e.is_symlink(), e.is_dir()) for e in (file, link, sub, gone)]
        assert kinds == [(True, False, False), (False, True, False), (False, False, True), (False, False, False)]
        assert file.stat().st_size == 1
    finally:
        os.close(handle)


def never(_found: os.stat_result) -> bool:
    return False


NAMES = st.sampled_from(["a.py", "b.py", ".hidden", "c.log", "link", "sub", "deep"])


@given(st.lists(st.lists(NAMES, min_size=1, max_size=3), max_size=12), st.booleans())
def test_both_ways_to_list_find_the_same(
    tmp_path_factory: pytest.TempPathFactory, ways: list[list[str]], hidden: bool
) -> None:
    root = tmp_path_factory.mktemp("tree")
    (root / ".gitignore").write_text("*.log\n", encoding="utf-8")
    for way in ways:
        folder = root.joinpath(*(f"d{part}" for part in way[:-1]))
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / way[-1]
        if way[-1] == "link" and not place.is_symlink():
            place.symlink_to("nowhere")
        elif way[-1] != "link":
            place.touch()
    queries = [
        Query("", hidden=hidden),
        Query("*.py", hidden=hidden),
        Query("a", kind=Kind.FILE, by_time=True),
        Query("link", kind=Kind.LINK),
        Query("d", kind=Kind.DIRECTORY),
        Query("c", no_ignore=True),
    ]
    with pytest.MonkeyPatch.context() as patch:
        by_name = [found(root, query) for query in queries]
        patch.setattr(walk, "is_leaf", never)
        assert [found(root, query) for query in queries] == by_name


def test_probe_0_18_every_directory_is_listed_once_and_only_hits_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        folder = tmp_path / f"d{number % 10}" / f"part{number}"
        folder.mkdir(parents=True)
        for at in range(5):
            (folder / f"file{at}.txt").touch()
    (tmp_path / "d3/part3/needle.txt").touch()
    listed, looked = 0, 0
    real_scan, real_list, real_stat = os.scandir, os.listdir, LateEntry.stat

    def scandir(handle: int) -> object:
        nonlocal listed
        listed += 1
        return real_scan(handle)

    def listdir(handle: int) -> list[str]:
        nonlocal listed
        listed += 1
        return real_list(handle)

    def stat(entry: LateEntry, *, follow_symlinks: bool = True) -> os.stat_result:
        nonlocal looked
        looked += 1
        return real_stat(entry, follow_symlinks=follow_symlinks)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        patch.setattr(os, "listdir", listdir)
        patch.setattr(LateEntry, "stat", stat)
        assert found(tmp_path, Query("needle")) == ["d3/part3/needle.txt"]
    assert listed == 1 + 10 + 200
    assert looked <= 2
