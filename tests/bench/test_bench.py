import json
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pytest
from bench.__main__ import main
from bench.bridge import FASTMCP, Big, big_check, compare_calls, compare_neighbours, floor_s, memory_check
from bench.bridge.fresh import Fresh, fresh
from bench.measure import Pair, Sample, calls, compare
from bench.process import console_script, output_of, python, surroundings
from bench.row import CannotMeasure, Check, Row
from bench.rows import ROWS
from bench.start import list_loaded_modules

from indusagi.runtime import ToolOutcome, ToolResult

if TYPE_CHECKING:
    from pathlib import Path

    from bench.measure import Batch

KEYS = {
    "name",
    "what",
    "compared_with",
    "ours",
    "baseline",
    "ours_min",
    "baseline_min",
    "ratio",
    "budget",
    "ok",
    "note",
}


def twice_as_long(name: str, *, budget: float) -> Row:
    pair = Pair(Sample(0.002, 0.001), Sample(0.001, 0.0005))
    return Row(name, "ours", "theirs", lambda: pair, budget=budget)


def connected(*, connect_s: float = 1.0, resident: int = 1, sdk: bool = False, children_s: float = 0.0) -> Fresh:
    return Fresh(connect_s, connect_s, resident, sdk, children_s)


def written(path: "Path") -> dict[str, object]:
    return json.loads(path.read_text(encoding="utf-8"))


def rows_in(path: "Path") -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", written(path)["rows"])


@pytest.mark.process
def test_starting_loads_none_of_the_heavy_packages_and_the_json_file_says_so(tmp_path: "Path") -> None:
    target = tmp_path / "made" / "results.json"
    assert main(["--only", "no-sdk", "--json", str(target), "--check"]) == 0
    assert set(written(target)) == {"python", "system", "machine", "cores", "rows"}
    (row,) = rows_in(target)
    assert set(row) == KEYS
    assert (row["name"], row["ok"], row["note"]) == ("no-sdk", True, "none is loaded")
    assert row["ours"] is row["baseline"] is row["ratio"] is row["budget"] is None


def test_the_json_file_holds_medians_minima_and_their_ratio(tmp_path: "Path") -> None:
    target = tmp_path / "results.json"
    assert main(["--json", str(target)], [twice_as_long("a", budget=3)]) == 0
    assert rows_in(target) == [
        {
            "name": "a",
            "what": "ours",
            "compared_with": "theirs",
            "ours": 0.002,
            "baseline": 0.001,
            "ours_min": 0.001,
            "baseline_min": 0.0005,
            "ratio": 2.0,
            "budget": 3,
            "ok": True,
            "note": None,
        }
    ]


def test_the_list_names_every_row_and_measures_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [row.name for row in ROWS]
    assert len(set(names)) == len(names)


def test_a_missed_budget_is_shown_and_fails_only_a_check(tmp_path: "Path", capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "results.json"
    rows = [twice_as_long("fine", budget=2), twice_as_long("impossible", budget=0)]
    assert main(["--json", str(target)], rows) == 0
    assert [row["ok"] for row in rows_in(target)] == [True, False]
    shown = capsys.readouterr().out.splitlines()
    assert "impossible" in shown[2]
    assert "MISSED" in shown[2]
    assert "MISSED" not in shown[1]
    assert shown[-1] == "MISSED: impossible"
    assert main(["--json", str(target), "--check"], rows) == 1
    assert main(["--json", str(target), "--check", "--only", "fine"], rows) == 0


def test_a_check_that_fails_counts_as_missed(tmp_path: "Path") -> None:
    row = Row("loads", "what it loads", "nothing", lambda: Check(ok=False, note="too much"))
    assert main(["--json", str(tmp_path / "results.json"), "--check"], [row]) == 1


def test_several_rows_can_be_picked_and_keep_their_order(tmp_path: "Path") -> None:
    target = tmp_path / "results.json"
    rows = [twice_as_long(name, budget=2) for name in ("a", "b", "c")]
    assert main(["--json", str(target), "--only", "c", "--only", "a"], rows) == 0
    assert [row["name"] for row in rows_in(target)] == ["a", "c"]


@pytest.mark.process
def test_the_name_of_no_row_is_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "bench", "--only", "nothing-like-it"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "nothing-like-it" in line
    assert all(row.name in line for row in ROWS)


def test_what_cannot_be_measured_or_written_is_told_in_one_line(
    tmp_path: "Path", capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> Pair:
        raise CannotMeasure("there is nothing to measure")

    assert main([], [Row("a", "ours", "theirs", measure, budget=1)]) == 2
    assert capsys.readouterr().err == "bench: there is nothing to measure\n"
    assert main(["--json", str(tmp_path)], [twice_as_long("a", budget=2)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_script_that_is_not_installed_asks_for_the_set_up(tmp_path: "Path") -> None:
    with pytest.raises(CannotMeasure, match="make setup"):
        console_script("indus", folder=str(tmp_path))


@pytest.mark.process
def test_what_a_statement_loads_is_found_however_it_is_loaded() -> None:
    loaded = list_loaded_modules("import importlib; importlib.import_module('asyncio.queues')")
    assert "asyncio" in loaded
    assert "click" not in loaded


@pytest.mark.process
def test_a_process_that_fails_is_told_with_its_reason() -> None:
    with pytest.raises(CannotMeasure, match=r"python.* ended with 1: ModuleNotFoundError"):
        output_of(python("-c", "import nowhere_to_be_found"))


def test_a_measured_process_keeps_no_setting_that_changes_how_python_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("COVERAGE_PROCESS_CONFIG", "x")
    monkeypatch.setenv("PYTHONPATH", "src")
    kept = surroundings()
    assert "PYTHONDONTWRITEBYTECODE" not in kept
    assert "COVERAGE_PROCESS_CONFIG" not in kept
    assert kept["PYTHONPATH"] == "src"


def test_the_two_are_timed_in_turns_and_each_goes_first_as_often_as_the_other() -> None:
    order: list[str] = []

    def slow(name: str, seconds: float) -> "Batch":
        def batch(count: int) -> float:
            order.append(name)
            return seconds * count

        return batch

    pair = compare(slow("ours", 3.0), slow("baseline", 1.0), rounds=4)
    assert pair.ratio == 3.0
    turns = order[-8:]
    assert turns == ["ours", "baseline", "baseline", "ours"] * 2


def test_a_batch_grows_until_its_duration_can_be_measured() -> None:
    counts: list[int] = []

    def quick(count: int) -> float:
        counts.append(count)
        return count * 1e-3

    pair = compare(quick, lambda count: float(count), rounds=1)
    assert counts[-1] == 8
    assert pair.ours == Sample(1e-3, 1e-3)


def test_a_batch_calls_the_work_as_often_as_it_is_told() -> None:
    done: list[int] = []
    assert calls(lambda: done.append(1))(5) >= 0
    assert len(done) == 5


@pytest.mark.process
def test_a_fresh_process_tells_of_each_time_it_has_connected() -> None:
    one, two = fresh("ours", 1, 2)
    assert not one.sdk
    assert not two.sdk
    assert two.since_start_s > one.since_start_s >= one.connect_s > 0
    assert min(one.resident, one.children_s, two.children_s) > 0
    # The SDK's way is the one that loads it: else two equal things would be compared.
    assert [theirs.sdk for theirs in fresh("sdk", 1) + fresh("sdk-one-by-one", 2)] == [True, True]


@pytest.mark.process
def test_a_fresh_process_that_fails_is_told_with_its_reason() -> None:
    with pytest.raises(CannotMeasure, match=r"\(magic\) failed: KeyError: 'magic'"):
        fresh("magic", 1)


def test_mounting_cannot_beat_the_slowest_server_nor_the_work_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.bridge._cores", lambda: 4)
    alone = connected(connect_s=0.5)
    assert floor_s(alone, connected(children_s=1.0)) == 0.5
    assert floor_s(alone, connected(children_s=4.0)) == 1.0


def test_the_bridge_must_need_less_memory_than_the_sdk_and_not_load_it() -> None:
    theirs = connected(resident=70_000_000, sdk=True)
    fine = memory_check(connected(resident=30_000_000), theirs)
    assert fine == Check(ok=True, note="30.0 MB beside 70.0 MB; does not load the SDK")
    assert not memory_check(connected(resident=30_000_000, sdk=True), theirs).ok
    assert not memory_check(connected(resident=80_000_000), theirs).ok


def test_a_big_result_is_judged_by_its_best_try_and_by_its_neighbour() -> None:
    delivered = [Big(2.0, 2.0)]
    check = big_check([Big(3.0, 0.01), Big(0.5, 0.04), Big(0.2, 0.06)], delivered)
    assert check.ok
    assert "refused in 500 ms, neighbour 40.0 ms" in check.note
    assert "delivered in 2000 ms, neighbour 2000.0 ms" in check.note
    assert not big_check([Big(0.2, 0.06)], delivered).ok
    assert not big_check([Big(1.2, 0.01)], delivered).ok


def test_a_rival_that_is_not_installed_is_named_and_not_passed_over(
    tmp_path: "Path", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(FASTMCP, raising=False)
    target = str(tmp_path / "results.json")
    assert main(["--only", "start-3-fastmcp", "--json", target, "--check"]) == 0
    assert f"not compared: {FASTMCP}" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.parametrize("callers", [1, 64])
def test_both_clients_are_timed_while_they_call_the_same_tool(callers: int) -> None:
    pair = compare_calls(callers, rounds=1)
    assert min(pair.ours.least, pair.baseline.least) > 0


@pytest.mark.process
def test_finding_d12_calls_beside_a_flooding_server_are_timed() -> None:
    pair = compare_neighbours(["log"], calls=3)
    assert min(pair.ours.least, pair.baseline.least) > 0


@pytest.mark.process
def test_a_call_that_fails_is_told_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> ToolOutcome:
        return ToolOutcome("call-1", ToolResult.error("not today", code="failed"))

    def echo(_bridge: object, _name: str) -> object:
        return fail

    monkeypatch.setattr("bench.bridge.echo_call", echo)
    with pytest.raises(CannotMeasure, match="a call failed: not today"):
        compare_calls(2, rounds=1)
