"""What every `ReadStateHandle` promises, tried on each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities.context import ReadState, ReadStateHandle

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=[ReadState])
def state(request: pytest.FixtureRequest) -> ReadStateHandle:
    make: Callable[[], ReadStateHandle] = request.param
    return make()


def test_unread_file_is_unknown(state: ReadStateHandle) -> None:
    assert state.digest("/a") is None


def test_last_recorded_digest_is_returned(state: ReadStateHandle) -> None:
    state.record("/a", "one")
    state.record("/a", "two")
    state.record("/b", "other")
    assert (state.digest("/a"), state.digest("/b")) == ("two", "other")


def test_forgotten_file_is_unknown(state: ReadStateHandle) -> None:
    state.record("/a", "one")
    state.forget("/a")
    state.forget("/a")
    assert state.digest("/a") is None
