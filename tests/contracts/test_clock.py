"""What every `Clock` promises, tried on each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.clock import ManualClock

from indusagi.core.time import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("make", [SystemClock, ManualClock])
def test_clock_returns_whole_milliseconds_and_does_not_go_back(make: Callable[[], Clock]) -> None:
    clock = make()
    told = [clock.now_ms() for _ in range(100)]
    assert all(isinstance(ms, int) for ms in told)
    assert told == sorted(told)


def test_manual_clock_moves_only_by_advance() -> None:
    clock = ManualClock(1_000)
    clock.advance(500)
    clock.advance(-200)
    assert (clock.now_ms(), clock.now_ms()) == (1_300, 1_300)
