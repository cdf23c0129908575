"""Directories opened from a base, while links are swap_first in."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.support.scripts import unmeasured

from indusagi.capabilities.files.policy import DirFdPath, SymlinkError, open_at, open_directory, workspace_policy
from indusagi.capabilities.local import fs as local_fs
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.ports import PathRefused

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

TRIES = 2_000


def test_a_directory_is_opened_through_directories_not_links(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/link").symlink_to("b")
    (tmp_path / "a/file").touch()
    for parts in ([], ["a"], ["a", "b"]):
        handle = open_directory(str(tmp_path), parts)
        try:
            assert os.path.samestat(os.fstat(handle), os.stat(tmp_path.joinpath(*parts)))
        finally:
            os.close(handle)
    for parts in (["a", "link"], ["a", "link", "c"]):
        with pytest.raises(SymlinkError):
            open_directory(str(tmp_path), parts)
    with pytest.raises(NotADirectoryError):
        open_directory(str(tmp_path), ["a", "file"])
    with pytest.raises(FileNotFoundError):
        open_directory(str(tmp_path), ["a", "none"])


def test_a_base_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "base").symlink_to("/")
    for parts in ([], ["etc"]):
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            open_directory(str(tmp_path / "base"), parts)


@pytest.mark.parametrize("create", [False, True])
def test_dot_dot_does_not_lead_out_of_the_base(tmp_path: Path, *, create: bool) -> None:
    (tmp_path / "a").mkdir()
    for parts in ([".."], ["a", "..", ".."]):
        with pytest.raises(SymlinkError):
            open_directory(str(tmp_path), parts, create=create)


def test_a_link_is_neither_followed_nor_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with open_at(str(tmp_path), ["link"], "link") as spot:
        assert spot.lstat().st_mode & 0o170000 == 0o120000
        for look in (spot.stat, lambda: spot.open(os.O_RDONLY), spot.open_folder):
            with pytest.raises(SymlinkError):
                look()


class Field(NamedTuple):
    """A workspace in which `d` and `f` are swap_first for links that lead out, and back again."""

    root: Path
    outside: Path
    fs: LocalFs


def _nothing(_handle: int) -> None:
    pass


@pytest.fixture
def field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Field:
    root, outside = tmp_path / "w", tmp_path / "outside"
    for folder, content in ((root, b"ours"), (outside, b"secret")):
        (folder / "d").mkdir(parents=True)
        (folder / "d/x").write_bytes(content)
        (folder / "f").write_bytes(content)
    monkeypatch.setattr(os, "fsync", _nothing)  # the race is not about the disk
    return Field(root, outside, LocalFs(str(root), workspace_policy(str(root))))


SWAP = """
import os, sys

here, kept, link, target = sys.argv[1:]
os.symlink(target, link)
first = True
while True:
    for source, place in ((here, kept), (link, here), (here, link), (kept, here)):
        try:
            os.rename(source, place)
        except OSError:  # a write may have put a file in the place of the link
            pass
    if first:
        print(flush=True)
        first = False
"""


@contextmanager
def swapping(field: Field, name: str) -> Generator[None]:
    """Swap a name for a link to the outside and back, all the time, in another process."""
    names = [str(field.root / f"{name}{end}") for end in ("", ".kept", ".link")]
    command = [sys.executable, "-I", "-S", "-c", SWAP, *names, str(field.outside / name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=unmeasured()) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline()
            yield
            assert swapper.poll() is None
        finally:
            swapper.kill()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.repeats
@pytest.mark.process
@pytest.mark.parametrize("path", ["d/x", "f"])
def test_c4_no_read_leaves_the_base_while_links_are_swapped(field: Field, path: str) -> None:
    seen: dict[bytes | type[OSError], int] = {}
    with swapping(field, path[0]):
        for _ in range(TRIES):
            try:
                got: bytes | type[OSError] = field.fs._read(path, 0, None)
            except OSError as exc:
                got = type(exc)
            seen[got] = seen.get(got, 0) + 1
    assert b"secret" not in seen
    assert seen.keys() <= {b"ours", PathRefused, FileNotFoundError, SymlinkError}


@pytest.mark.repeats
@pytest.mark.process
@pytest.mark.parametrize("path", ["d/x", "f", "d/new"])
def test_c4_no_write_leaves_the_base_while_links_are_swapped(field: Field, path: str) -> None:
    before = contents(field.outside)
    with swapping(field, path[0]):
        for _ in range(TRIES // 10):
            with suppress(PathRefused, FileNotFoundError, NotADirectoryError, SymlinkError):
                field.fs._at(path, _put, writing=True)
    assert contents(field.outside) == before
    assert sorted(os.listdir(field.outside / "d")) == ["x"]


def _put(spot: DirFdPath) -> None:
    from indusagi.capabilities.files.atomic_write import write_atomically  # noqa: PLC0415 — beside its use

    write_atomically(spot, b"evil", spot.path)


@pytest.mark.repeats
@pytest.mark.process
def test_c4_nothing_is_created_or_removed_outside_while_links_are_swapped(field: Field) -> None:
    before = contents(field.outside)
    with swapping(field, "d"):
        for number in range(TRIES // 10):
            with suppress(PathRefused, FileNotFoundError, NotADirectoryError, SymlinkError):
                field.fs._make(f"d/{number}/deep")
            with suppress(PathRefused, FileNotFoundError, SymlinkError):
                field.fs._at("d/x", _unlink, writing=True, follow=False)
    assert contents(field.outside) == before
    assert sorted(os.listdir(field.outside / "d")) == ["x"]


def _unlink(spot: DirFdPath) -> None:
    os.unlink(spot.name, dir_fd=spot.folder)


@pytest.mark.process
def test_c4_no_listing_leaves_the_base_while_links_are_swapped(field: Field) -> None:
    (field.outside / "d/secret").touch()
    with swapping(field, "d"):
        for _ in range(TRIES // 10):
            with suppress(PathRefused, FileNotFoundError, SymlinkError):
                assert [entry.name for entry in field.fs._at("d", local_fs._list)] == ["x"]


def test_a_link_swapped_in_and_out_only_delays(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [3]
    really = DirFdPath.stat

    def swap_first(spot: DirFdPath) -> os.stat_result:
        if left[0]:
            left[0] -= 1
            raise SymlinkError(spot.path)
        return really(spot)

    monkeypatch.setattr(DirFdPath, "stat", swap_first)
    assert field.fs._read("f", 0, None) == b"ours"
    left[0] = 100
    with pytest.raises(OSError, match="symbolic links") as caught:
        field.fs._read("f", 0, None)
    assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, str(field.root / "f"))
    assert left[0] == 90
