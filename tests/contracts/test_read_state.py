"""What every `ReadStateHandle` promises, tried on each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities.read_state import ReadState, ReadStateHandle

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=[ReadState])
def state(request: pytest.FixtureRequest) -> ReadStateHandle:
    make: Callable[[], ReadStateHandle] = request.param
    return make()


def test_a_file_that_was_never_read_is_unknown(state: ReadStateHandle) -> None:
    assert state.digest("/a") is None


def test_the_last_digest_recorded_for_a_path_is_the_one_known(state: ReadStateHandle) -> None:
    state.record("/a", "one")
    state.record("/a", "two")
    state.record("/b", "other")
    assert (state.digest("/a"), state.digest("/b")) == ("two", "other")


def test_a_forgotten_file_is_unknown_again(state: ReadStateHandle) -> None:
    state.record("/a", "one")
    state.forget("/a")
    state.forget("/a")
    assert state.digest("/a") is None
