"""Paths lie within directories by their components, and programs of a workspace are not run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.core import app_dirs as paths
from indusagi.core.app_dirs import find_trusted_program, is_within, parts_below, sort_in_chunks

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.lists(st.sampled_from(["a", "ab", "a-b", ".git", "é"]), max_size=4)


@given(NAMES, NAMES)
def test_path_is_within_its_leading_components(above: list[str], path: list[str]) -> None:
    folder, whole = "/" + "/".join(above), "/" + "/".join(path)
    within = path[: len(above)] == above
    assert is_within(whole, folder) == within
    assert is_within(whole, "/elsewhere", folder) == within
    if within:
        assert parts_below(whole, folder) == path[len(above) :]


def program(folder: Path) -> str:
    folder.mkdir()
    (folder / "helper").touch(mode=0o755)
    return str(folder)


def test_default_14_program_of_the_workspace_is_not_run(tmp_path: Path) -> None:
    inside, honest = program(tmp_path / "work"), program(tmp_path / "honest")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "helper").symlink_to(f"{inside}/helper")
    (tmp_path / "door").symlink_to(inside)
    bad = [inside, ".", "work", "", str(linked), str(tmp_path / "door")]
    assert find_trusted_program("helper", os.pathsep.join(bad), inside) is None
    search_path = os.pathsep.join([*bad, honest])
    assert find_trusted_program("helper", search_path, inside) == f"{honest}/helper"
    assert find_trusted_program("helper", search_path, str(tmp_path / "door")) == f"{honest}/helper"
    assert find_trusted_program("helper", inside, "/nowhere") == f"{inside}/helper"
    assert find_trusted_program("other", search_path, inside) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers())), st.integers(1, 5))
def test_sorting_in_chunks_gives_the_same_order(items: list[tuple[int, int]], part: int) -> None:
    def first(pair: tuple[int, int]) -> int:
        return pair[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "_CHUNK_ITEMS", part)
        assert sort_in_chunks(items, first) == sorted(items, key=first)
