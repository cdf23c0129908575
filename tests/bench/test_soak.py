"""The soak: what counts as growth, what counts as a wrong answer, what is counted. Not the load."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from bench.gateway.client import open_pipes
from bench.gateway.http_client import Web
from bench.soak import Course, main, report, soak
from bench.soak.gateways import SUBJECTS, Subject
from bench.soak.growth import LEAST, Quantity, judge
from bench.soak.load import Visitor, Wrong, expect, is_error, lap, texts
from bench.soak.sample import QUANTITIES, Sample, at_rest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.waiting import until

if TYPE_CHECKING:
    from bench.gateway.client import Answer
    from hypothesis.strategies import DrawFn

PLAIN = Quantity("things", slack=10)
SERVER = Path(__file__).parents[1] / "servers" / "honest.py"
FLAT = Sample(30_000_000, 40_000, 20, 10, 5, 3, 3)


@st.composite
def series(draw: "DrawFn", noise: float) -> list[float]:
    """Values that differ by less than `noise`."""
    size = draw(st.integers(LEAST, 200))
    low = draw(st.floats(0, 1e6))
    return [low + draw(st.floats(0, noise)) for _ in range(size)]


@given(series(noise=9.9))
def test_what_moves_within_its_slack_has_not_grown(values: list[float]) -> None:
    assert judge(PLAIN, values).ok


@given(series(noise=5.0), st.floats(25, 1e6))
def test_what_rises_all_the_time_has_grown_whatever_its_noise(values: list[float], rise: float) -> None:
    """Over the whole series: two thirds of four fifths of it lie between the medians."""
    step = rise * 1.25 / len(values)
    grown = [value + step * at for at, value in enumerate(values)]
    assert not judge(PLAIN, grown).ok


@given(series(noise=0.0), st.floats(10.1, 1e6))
def test_what_rises_once_and_stays_up_has_grown(values: list[float], rise: float) -> None:
    half = len(values) * 6 // 10
    assert not judge(PLAIN, [*values[:half], *(value + rise for value in values[half:])]).ok


@given(series(noise=5.0), st.floats(0, 1e6))
def test_what_grows_only_while_it_warms_up_has_not_grown(values: list[float], rise: float) -> None:
    warm = len(values) // 5
    assert judge(PLAIN, [*values[:warm], *(value + rise for value in values[warm:])]).ok


@given(series(noise=5.0), st.floats(1, 1e6))
def test_a_few_spikes_are_no_growth(values: list[float], spike: float) -> None:
    spiked = [value + spike if at % 5 == 4 else value for at, value in enumerate(values)]
    assert judge(PLAIN, spiked).ok


@given(series(noise=5.0), st.floats(1, 1e6))
def test_what_falls_has_not_grown(values: list[float], fall: float) -> None:
    assert judge(PLAIN, [value - fall * at for at, value in enumerate(values)]).ok


def test_a_share_allows_more_for_what_is_large() -> None:
    quantity = Quantity("things", slack=1, share=0.1)
    assert judge(quantity, [100.0] * 12 + [109.0] * 8).ok
    assert not judge(quantity, [100.0] * 12 + [111.0] * 8).ok


def test_too_few_samples_are_not_judged() -> None:
    with pytest.raises(ValueError, match="too few"):
        judge(PLAIN, [1.0] * (LEAST - 1))


# -- telling ------------------------------------------------------------------------------------


def course(*samples: Sample) -> Course:
    return Course(SUBJECTS[0], list(samples), Counter(laps=len(samples)))


def test_a_course_without_growth_is_told_as_a_table() -> None:
    fine = course(*[FLAT] * LEAST)
    assert fine.ok
    first, _, *lines = report(fine).splitlines()
    assert first == f"stdio: {LEAST} laps"
    assert [line.split("  ")[1] for line in lines] == [one.name for one in QUANTITIES]
    assert not any(line.endswith("GROWS") for line in lines)


@pytest.mark.parametrize("number", range(len(QUANTITIES)))
def test_growth_of_any_quantity_fails(number: int) -> None:
    name = [*Sample.__dataclass_fields__][number]
    step = cast("int", getattr(FLAT, name)) // 5 + 1
    samples = [replace(FLAT, **{name: getattr(FLAT, name) + step * at}) for at in range(LEAST)]
    grown = course(*samples)
    assert not grown.ok
    (line,) = [line for line in report(grown).splitlines() if line.endswith("GROWS")]
    assert line.strip().startswith(QUANTITIES[number].name)


@pytest.mark.process
async def test_a_gateway_that_does_not_start_fails_with_its_reason() -> None:
    (broken,) = await soak([Subject("broken", ("--no-such-flag",))], minutes=0)
    assert not broken.ok
    assert "WRONG: process" in report(broken)


def test_a_gateway_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    assert "invalid choice" in capsys.readouterr().err


# -- looking at answers -------------------------------------------------------------------------


def test_an_error_is_known_in_either_way_of_the_protocol() -> None:
    assert is_error({"error": {"code": -32602}})
    assert is_error({"result": {"isError": True, "content": []}})
    assert not is_error({"result": {"content": [{"type": "text", "text": "fine"}]}})


def test_what_is_not_as_it_must_be_is_wrong() -> None:
    answer: Answer = {"result": {"content": [{"type": "text", "text": "a"}, {"type": "image"}]}}
    expect(texts(answer), ["a"], "an answer")
    with pytest.raises(Wrong, match=r"an answer: \['a'\] instead of \['b'\]"):
        expect(texts(answer), ["b"], "an answer")


def test_progress_goes_to_whoever_asked_and_only_while_it_is_expected() -> None:
    visitor = Visitor(Web(1, "/"), "{}")
    token = visitor.expect_progress()
    said: Answer = {"method": "notifications/progress"}
    visitor.noticed({**said, "params": {"progressToken": token, "progress": 1}})
    visitor.noticed({**said, "params": {"progressToken": "another", "progress": 2}})
    assert visitor.forget(token) == [1]
    visitor.noticed({**said, "params": {"progressToken": token, "progress": 3}})
    assert not visitor.changes.is_set()
    visitor.noticed({"method": "notifications/tools/list_changed"})
    assert visitor.changes.is_set()


@pytest.mark.process
async def test_a_lap_over_a_server_itself_is_right_and_one_wrong_answer_fails_it(tmp_path: Path) -> None:
    """The server without any gateway: then it is the lap that is tested."""
    waiting: list[Visitor] = []
    server = ["-I", "-S", str(SERVER)]
    pipes = await open_pipes(
        [sys.executable, *server],
        cwd=str(tmp_path),
        env=os.environ,
        on_notice=lambda message: waiting[0].noticed(message),
    )
    try:
        await pipes.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}})
        waiting.append(Visitor(pipes, "{}"))
        await lap(waiting[0])
        assert waiting[0].done["cancelled"] > 0
        await until(lambda: len(os.listdir(f"/proc/{pipes.pid}/task")) == 1)
        waiting[0].tool = "{}_of_nobody"
        with pytest.raises(Wrong):
            await lap(waiting[0])
    finally:
        await pipes.aclose()


# -- counting -----------------------------------------------------------------------------------

OBSERVED = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
import bench.soak.subject as subject
import types
held = []
async def main():
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(asyncio.sleep(60))
        held.append(open("/dev/null"))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        raise SystemExit(0)
cli = types.ModuleType("induscode.__main__")
cli.main = lambda: asyncio.run(main())
sys.modules["induscode.__main__"] = cli
sys.exit(subject.main())
"""


@pytest.mark.process
async def test_the_observer_counts_the_tasks_of_a_process_and_the_rest_is_seen_from_outside(tmp_path: Path) -> None:
    place = str(tmp_path / "observer")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OBSERVED, place, os.getcwd()), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        sample = await at_rest(process.pid, place)
    finally:
        process.stdin.close()
        await process.wait()
    assert sample.tasks == 4
    # The observer, and the one that reads standard input.
    assert sample.threads == 3
    assert (sample.processes, sample.server_threads) == (0, 0)
    # Three of a process, its selector with two of its own, the observer's socket, and one file.
    assert sample.descriptors >= 5
    assert min(sample.memory, sample.objects) > 1000
