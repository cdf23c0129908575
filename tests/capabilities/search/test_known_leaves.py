"""What is remembered of directories: nothing that has changed, and nothing that may have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.search import leaves
from indusagi.capabilities.search.leaves import KnownLeaves, LeafMemory
from indusagi.capabilities.search.names import Kind, Lent, Query, find_names
from indusagi.core.clock import ManualClock, now_ms

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.search.names import Names

EVERYTHING = Query("")


@pytest.fixture(autouse=True, params=["counted", "looked into"])
def known_here(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Have leaves known by their links, and by a look inside as where links are not counted."""
    device = tmp_path_factory.getbasetemp().stat().st_dev
    known = leaves._COUNTING if request.param == "counted" else leaves._TIMED
    if leaves._file_system(device) not in known:
        pytest.skip("this file system does not count links, or nobody knows how it keeps times")
    if request.param == "looked into":
        monkeypatch.setattr(leaves, "_COUNTING", frozenset[str]())


def settled() -> KnownLeaves:
    """Make a memory to which every change lies far back."""
    return KnownLeaves(ManualClock(now_ms() + 3_600_000))


def looked(root: Path, query: Query, known: KnownLeaves | None) -> Names:
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return find_names(Lent(handle), str(root), query, known or KnownLeaves())
    finally:
        os.close(handle)


def found(root: Path, query: Query, known: KnownLeaves | None = None) -> list[str]:
    return looked(root, query, known).paths


def wait_for_the_clock(place: Path) -> None:
    """Change a file until the file system's clock has moved on."""
    probe = place / "probe"
    probe.touch()
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        os.utime(probe)


class Counted:
    """How often directories without directories are listed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.listed = 0
        real_list, real_scan = os.listdir, os.scandir
        self._scan = real_scan

        def listdir(handle: int) -> list[str]:
            self._count(handle)
            return real_list(handle)

        def scandir(handle: int | Path) -> object:
            if isinstance(handle, int):  # a walk, and not a test that looks around
                self._count(handle)
            return real_scan(handle)

        patch.setattr(os, "listdir", listdir)
        patch.setattr(os, "scandir", scandir)

    def _count(self, handle: int) -> None:
        with self._scan(handle) as entries:
            self.listed += not [entry for entry in entries if entry.is_dir(follow_symlinks=False)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for number in range(20):
        folder = root / f"d{number % 4}" / f"part{number}"
        folder.mkdir(parents=True)
        (folder / f"file{number}.txt").touch()
        (folder / "same.py").touch()
    return root


def test_a_leaf_that_has_not_changed_is_not_listed_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, counted = settled(), Counted(monkeypatch)
    first = looked(tree, Query("file7"), known)
    assert counted.listed == 20
    assert looked(tree, Query("file7"), known) == first
    assert found(tree, Query("*.py"), known) == found(tree, Query("*.py"))
    assert counted.listed == 40  # the other twenty are those of the search without a memory


def test_a_leaf_that_has_changed_just_before_is_listed_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [path.stat().st_ctime_ns // 1_000_000 for path in tree.glob("*/*")]
    clock = ManualClock(max(changes) + 2_000)
    known, counted = KnownLeaves(clock), Counted(monkeypatch)
    found(tree, EVERYTHING, known)
    found(tree, EVERYTHING, known)
    assert counted.listed == 20 + changes.count(max(changes))
    clock.advance(1)
    found(tree, EVERYTHING, known)
    found(tree, EVERYTHING, known)
    assert counted.listed == 20 + 2 * changes.count(max(changes))


NAMES = st.sampled_from(["a", "b.py", "c.log", ".hidden"])
FOLDERS = st.sampled_from(["x/p", "x/q", "y/p", "y"])
CHANGES = st.one_of(
    st.tuples(st.just("touch"), FOLDERS, NAMES),
    st.tuples(st.just("remove"), FOLDERS, NAMES),
    st.tuples(st.just("rename"), FOLDERS, NAMES),
    st.tuples(st.just("link"), FOLDERS, NAMES),
    st.tuples(st.just("folder"), FOLDERS, st.just("sub")),
    st.tuples(st.just("swap"), st.just("x/p"), st.just("x/q")),
    st.tuples(st.just("rules"), FOLDERS, st.sampled_from(["*.log", "*.py", "sub/", "!*.log"])),
    st.tuples(st.just("date back"), FOLDERS, st.just("")),
)


def change(root: Path, what: str, folder: str, name: str) -> None:
    place = root / folder
    path = place / name
    match what:
        case "touch" if not path.is_symlink():
            path.touch()
        case "remove":
            path.unlink(missing_ok=True)
        case "rename" if path.is_file():
            path.rename(place / f"moved.{name}")
        case "link" if not path.exists():
            path.unlink(missing_ok=True)
            path.symlink_to("nowhere")
        case "folder":
            path.mkdir(exist_ok=True)
        case "swap":
            place.rename(root / "aside")
            (root / name).rename(place)
            (root / "aside").rename(root / name)
        case "rules":
            (place / ".gitignore").write_text(f"{name}\n", encoding="utf-8")
        case "date back":
            os.utime(place, (1, 1))
        case _:
            pass


@given(st.lists(st.lists(CHANGES, max_size=4), min_size=1, max_size=5))
def test_whatever_changes_the_answer_is_that_of_one_who_remembers_nothing(
    tmp_path_factory: pytest.TempPathFactory, turns: list[list[tuple[str, str, str]]]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for folder in ("x/p", "x/q", "y/p"):
        (root / folder).mkdir(parents=True)
        (root / folder / "a").touch()
    queries = (EVERYTHING, Query("*.py"), Query("a", hidden=False), Query("a", kind=Kind.LINK))
    known = settled()
    for turn in turns:
        for what, folder, name in turn:
            change(root, what, folder, name)
        for query in queries:
            assert looked(root, query, known) == looked(root, query, None)
        wait_for_the_clock(tmp_path_factory.getbasetemp())


def test_a_link_in_the_place_of_a_leaf_is_not_followed(tree: Path, tmp_path: Path) -> None:
    known = settled()
    found(tree, EVERYTHING, known)
    (tree / "d1/part1").rename(tmp_path / "outside")
    (tree / "d1/part1").symlink_to(tmp_path / "outside")
    assert found(tree, Query("file1.txt"), known) == []
    assert found(tree, Query("part1", kind=Kind.LINK), known) == ["d1/part1"]


def test_a_leaf_that_goes_while_it_is_remembered_does_no_harm(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = settled()
    found(tree, EVERYTHING, known)
    real = LeafMemory.recall

    def recall(self: LeafMemory, entry: os.DirEntry[str], parent: int) -> str | None:
        text = real(self, entry, parent)
        if entry.name == "part3":
            (tree / "d3/part3").rename(tree / "d3/other")
        return text

    monkeypatch.setattr(LeafMemory, "recall", recall)
    assert found(tree, Query("file3.txt"), known) == ["d3/part3/file3.txt"]


def test_a_leaf_that_is_gone_before_it_is_looked_at_is_not_remembered(tree: Path) -> None:
    known = settled()
    found(tree, EVERYTHING, known)
    with os.scandir(tree / "d2") as entries:
        entry = next(entry for entry in entries if entry.name == "part2")
    handle = os.open(tree / "d2", os.O_RDONLY)
    try:
        with known.memory() as memory:
            assert memory.recall(entry, handle) is not None
            (tree / "d2/part2").rename(tree / "d2/other")
            assert memory.recall(entry, handle) is None
    finally:
        os.close(handle)


def test_only_so_much_is_remembered(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, counted = settled(), Counted(monkeypatch)
    monkeypatch.setattr(leaves, "_REMEMBERED_CHARS", 100)
    for _ in range(2):
        assert len(found(tree, EVERYTHING, known)) == 20 * 2 + 24
        assert known._chars == sum(len(held.text) for held in known._held.values()) <= 100
        assert known._held
        for folder in tree.glob("*/*"):
            os.utime(folder)
        wait_for_the_clock(tree.parent)
    assert counted.listed == 40


def test_what_is_remembered_holds_no_directory_open(tree: Path) -> None:
    known = settled()
    before = len(os.listdir("/proc/self/fd"))
    for query in (EVERYTHING, Query("file"), Query("nothing"), Query("*.txt", hidden=False)):
        found(tree, query, known)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_entry_of_a_remembered_leaf_is_looked_at_in_its_own_directory(tree: Path) -> None:
    known = settled()
    (tree / "d1/part1/link").symlink_to("same.py")
    os.utime(tree / "d1/part1/same.py", (5, 5))
    links = Query("", kind=Kind.LINK)
    ages = Query("same.py", by_time=True)
    for memory in (known, known, None):
        assert found(tree, links, memory) == ["d1/part1/link"]
        assert found(tree, ages, memory)[-1] == "d1/part1/same.py"
