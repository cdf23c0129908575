"""What every `ReadStateHandle` promises, tried on each of them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.context import ReadState, ReadStateHandle

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=[ReadState])
def state(request: pytest.FixtureRequest) -> ReadStateHandle:
    make: Callable[[], ReadStateHandle] = request.param
    return make()


def test_unread_file_is_unknown(state: ReadStateHandle) -> None:
    assert state.digest("/a") is None
    assert list(state.list_shown_lines("/a")) == []


def test_last_recorded_digest_is_returned(state: ReadStateHandle) -> None:
    state.record("/a", "one")
    state.record("/a", "two")
    state.record("/b", "other")
    assert (state.digest("/a"), state.digest("/b")) == ("two", "other")


def test_forgotten_file_is_unknown(state: ReadStateHandle) -> None:
    state.record("/a", "one", (1, 2))
    state.forget("/a")
    state.forget("/a")
    assert state.digest("/a") is None
    assert list(state.list_shown_lines("/a")) == []


def test_shown_ranges_are_merged(state: ReadStateHandle) -> None:
    for lines in ((10, 20), (1, 3), (4, 5), (18, 30), (40, 40), (12, 13)):
        state.record("/a", "one", lines)
    assert list(state.list_shown_lines("/a")) == [(1, 5), (10, 30), (40, 40)]


def test_record_without_lines_keeps_shown_ranges(state: ReadStateHandle) -> None:
    state.record("/a", "one", (1, 3))
    state.record("/a", "one")
    assert list(state.list_shown_lines("/a")) == [(1, 3)]


def test_new_content_has_no_shown_ranges(state: ReadStateHandle) -> None:
    state.record("/a", "one", (1, 3))
    state.record("/a", "two")
    assert list(state.list_shown_lines("/a")) == []
    state.record("/a", "three", (7, 8))
    assert list(state.list_shown_lines("/a")) == [(7, 8)]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 6))))
def test_ranges_hold_exactly_the_shown_lines(shown: list[tuple[int, int]]) -> None:
    state, lines = ReadState(), set[int]()
    for first, more in shown:
        state.record("/a", "one", (first, first + more))
        lines.update(range(first, first + more + 1))
    seen = list(state.list_shown_lines("/a"))
    assert [line for first, last in seen for line in range(first, last + 1)] == sorted(lines)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(seen))
