from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from indusagi.core.clock import ManualClock, now_ms
from indusagi.core.ids import UlidMint, new_ulid


def test_an_id_is_a_ulid_to_an_outside_reader() -> None:
    before = now_ms()
    made = new_ulid()
    read = ULID.from_str(made)
    assert str(read) == made
    assert before <= read.milliseconds <= now_ms()


@given(st.lists(st.integers(-5_000, 5_000), min_size=1, max_size=50))
def test_ids_rise_whatever_the_clock_does(steps: list[int]) -> None:
    clock = ManualClock(1_000_000)
    mint = UlidMint(clock)
    made = [mint.mint()]
    for step in steps:
        clock.advance(step)
        made.append(mint.mint())
    assert made == sorted(set(made))


def test_ids_made_by_several_threads_are_all_different() -> None:
    mint = UlidMint()
    with ThreadPoolExecutor(8) as pool:
        made = [job.result() for job in [pool.submit(mint.mint) for _ in range(4_000)]]
    assert len(set(made)) == len(made)


def test_each_thread_sees_its_own_ids_rise() -> None:
    mint = UlidMint()
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(lambda: [mint.mint() for _ in range(500)]) for _ in range(8)]
        runs = [job.result() for job in jobs]
    assert all(run == sorted(run) for run in runs)
