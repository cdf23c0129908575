"""What every `ReadStateHandle` promises, tried on each of them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.read_state import ReadState, ReadStateHandle

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=[ReadState])
def state(request: pytest.FixtureRequest) -> ReadStateHandle:
    make: Callable[[], ReadStateHandle] = request.param
    return make()


def test_a_file_that_was_never_read_is_unknown(state: ReadStateHandle) -> None:
    assert state.digest("/a") is None
    assert list(state.list_shown_lines("/a")) == []


def test_the_last_digest_recorded_for_a_path_is_the_one_known(state: ReadStateHandle) -> None:
    state.record("/a", "one")
    state.record("/a", "two")
    state.record("/b", "other")
    assert (state.digest("/a"), state.digest("/b")) == ("two", "other")


def test_a_forgotten_file_is_unknown_again(state: ReadStateHandle) -> None:
    state.record("/a", "one", (1, 2))
    state.forget("/a")
    state.forget("/a")
    assert state.digest("/a") is None
    assert list(state.list_shown_lines("/a")) == []


def test_lines_that_were_shown_add_up(state: ReadStateHandle) -> None:
    for lines in ((10, 20), (1, 3), (4, 5), (18, 30), (40, 40), (12, 13)):
        state.record("/a", "one", lines)
    assert list(state.list_shown_lines("/a")) == [(1, 5), (10, 30), (40, 40)]


def test_a_record_without_lines_leaves_those_that_were_shown(state: ReadStateHandle) -> None:
    state.record("/a", "one", (1, 3))
    state.record("/a", "one")
    assert list(state.list_shown_lines("/a")) == [(1, 3)]


def test_of_other_content_nothing_was_shown_yet(state: ReadStateHandle) -> None:
    state.record("/a", "one", (1, 3))
    state.record("/a", "two")
    assert list(state.list_shown_lines("/a")) == []
    state.record("/a", "three", (7, 8))
    assert list(state.list_shown_lines("/a")) == [(7, 8)]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 6))))
def test_the_ranges_hold_every_line_that_was_shown_and_no_other(shown: list[tuple[int, int]]) -> None:
    state, lines = ReadState(), set[int]()
    for first, more in shown:
        state.record("/a", "one", (first, first + more))
        lines.update(range(first, first + more + 1))
    seen = list(state.list_shown_lines("/a"))
    assert [line for first, last in seen for line in range(first, last + 1)] == sorted(lines)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(seen))
