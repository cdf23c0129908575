"""Pauses between tries grow to a limit, and obey the other side."""

from __future__ import annotations

import pytest

from indusagi.core.tasks import Backoff, grow_pause


def test_pauses_grow_to_the_longest_and_start_again() -> None:
    backoff = Backoff(1, factor=2, longest_s=5, jitter=0)
    assert [backoff.next_pause() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.reset()
    assert backoff.next_pause() == 1


def test_the_other_side_may_ask_for_a_longer_pause_and_for_no_shorter_one() -> None:
    backoff = Backoff(1, jitter=0, longest_s=5)
    assert [backoff.next_pause(90), backoff.next_pause(0.5), backoff.next_pause(None)] == [90, 2, 4]


def test_pauses_vary_so_that_clients_do_not_return_together() -> None:
    pauses = {Backoff(10, jitter=0.2).next_pause() for _ in range(50)}
    assert len(pauses) > 1
    assert all(8 <= pause <= 12 for pause in pauses)


def test_a_day_of_failures_overflows_nothing() -> None:
    assert grow_pause(1, 2, 100_000, 60) == 60


@pytest.mark.anyio
async def test_a_pause_is_a_wait() -> None:
    await Backoff(0, jitter=0).pause()
