"""`indus calls`: lists, statistics and export of what was recorded."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from tests.calls.helpers import calls_file, make_record, read_calls
from tests.commands.helpers import configured, on_terminal, row, user_file
from tests.commands.serving import greeted
from tests.support.forked import start_command
from tests.support.scripts import command, run

from indusagi.core.time import now_ms
from induscode.calls.database import CallDatabase, Payload
from induscode.commands import program

if TYPE_CHECKING:
    from pathlib import Path


def store(*values: dict[str, Any], payload: Payload | None = None, dropped: int = 0) -> None:
    with closing(CallDatabase(str(calls_file()))) as database:
        rows = [make_record(**{"at_ms": now_ms(), **one}).to_row() for one in values]
        database.append(rows, {} if payload is None else {0: payload}, dropped=dropped)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command in this process."""
    monkeypatch.chdir(tmp_path)

    def show(*words: str, code: int = 0) -> str:
        assert program.run(["calls", *words]) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return show


def test_without_records_it_says_so(shown: Any) -> None:
    assert shown() == "No calls yet. Try: indus call ls\n"
    assert json.loads(shown("--json")) == {"calls": [], "dropped": 0}
    assert json.loads(shown("--by", "tool", "--json"))["groups"] == []
    assert shown("--export", "csv") == ""


def test_calls_are_listed_the_newest_last_with_who_what_and_how_it_ended(shown: Any) -> None:
    store(
        {"client": "editor 1", "principal": "ada", "via": "gateway", "duration_us": 1_250_000},
        {"server": "", "tool": "read", "agent": "helper", "outcome": "error", "code": "not_found", "attempt": 2},
        {"server": "", "tool": "ls", "conversation": "talk", "duration_us": 12_345},
    )
    head, first, second, third = shown().splitlines()
    assert head.split() == ["CALL", "WHEN", "TOOL", "WHAT", "RESULT", "TOOK", "BY"]
    assert first.endswith("ada editor 1")
    assert "s → echo" in first
    assert "1.25 s" in first
    assert "error: not found, attempt 2" in second
    assert "12.3 ms" in third
    assert len(shown("--limit", "1").splitlines()) == 2
    assert "ls" not in shown("--failed")
    assert shown("--slow").splitlines()[1].split()[0] == "1"
    assert shown("--tool", "nothing") == "No call matches.\n"
    assert [one["tool"] for one in json.loads(shown("--json", "--tool", "r*"))["calls"]] == ["read"]


def test_statistics_name_calls_errors_and_percentiles(shown: Any) -> None:
    store({"tool": "a", "duration_us": 100}, {"tool": "a", "duration_us": 300, "outcome": "fault"}, {"tool": "b"})
    lines = [line.split() for line in shown("--by", "tool").splitlines()]
    assert lines[0] == ["TOOL", "CALLS", "FAILED", "DECLINED", "P50", "P95", "SLOWEST", "TOKENS"]
    assert lines[1][:10] == ["s", "→", "a", "2", "1", "0", "100", "us", "300", "us"]
    assert lines[-1][:4] == ["all", "3", "1", "0"]
    report = json.loads(shown("--by", "server", "--json"))
    figures = {"calls": 3, "errors": 1, "declined": 0, "p50_us": 300, "p95_us": 500, "slowest_us": 500, "tokens": 0}
    assert report["groups"] == [{"server": "s", **figures}]
    assert report["all"]["calls"] == 3


def test_finding_u2_declined_calls_are_told_apart_from_failed_ones(shown: Any) -> None:
    store(
        {"tool": "a", "duration_us": 100, "waited_us": 2_000_000},
        {"tool": "b", "duration_us": 50, "outcome": "denied", "code": "denied", "waited_us": 3_000_000},
        {"tool": "c", "outcome": "error"},
    )
    assert "declined" in shown().splitlines()[2]
    assert "took:       100 us, after 2.00 s for your answer" in shown("1")
    assert "took:       it didn't run, after 3.00 s for your answer" in shown("2")
    assert "s → c" in shown("--failed")
    assert "s → b" not in shown("--failed")
    assert "s → b" in shown("--declined")
    assert "s → c" not in shown("--declined")
    assert [one["waited_us"] for one in json.loads(shown("--json"))["calls"]] == [2_000_000, 3_000_000, 0]


def test_limit_keeps_the_groups_with_the_most_calls(shown: Any, capsys: pytest.CaptureFixture[str]) -> None:
    store({"tool": "a"}, {"tool": "b"}, {"tool": "b"}, {"tool": "c"})
    report = json.loads(shown("--by", "tool", "--limit", "1", "--json"))
    assert [group["tool"] for group in report["groups"]] == ["b"]
    assert report["all"]["calls"] == 4
    assert program.run(["calls", "--by", "tool", "--limit", "1"]) == 0
    assert "2 further groups left out by --limit" in capsys.readouterr().err


def test_one_call_is_shown_with_its_texts_while_they_are_kept(shown: Any) -> None:
    store({"client": "editor"}, payload=Payload('{"a":1}', '"done"'))
    text = shown("1")
    assert "by:         editor" in text
    assert '  arguments:\n    {"a":1}' in text
    assert json.loads(shown("1", "--json"))["result"] == '"done"'
    assert "There is no call 9" in shown("9", code=2)
    assert "There is no call 'stats'. For statistics: indus calls --by tool" in shown("stats", code=2)
    assert "For statistics: indus calls --by server" in shown("server", code=2)


def test_an_export_has_every_call_and_a_spreadsheet_computes_nothing(shown: Any) -> None:
    store({"client": "=HYPERLINK(1)"}, {"tool": 'quo"te,d'})
    lines = [json.loads(line) for line in shown("--export", "jsonl").splitlines()]
    assert [one["client"] for one in lines] == ["=HYPERLINK(1)", ""]
    rows = list(csv.DictReader(io.StringIO(shown("--export", "csv"))))
    assert [one["client"] for one in rows] == ["'=HYPERLINK(1)", ""]
    assert rows[1]["tool"] == 'quo"te,d'
    (last,) = csv.DictReader(io.StringIO(shown("--export", "csv", "--limit", "1")))
    assert last["tool"] == 'quo"te,d'


@pytest.mark.parametrize(("text", "expected"), [("10min", 1), ("3d", 2), ("2001-01-01T00:00", 2)])
def test_since_is_an_age_or_a_time(shown: Any, text: str, expected: int) -> None:
    store({"at_ms": now_ms() - 86_400_000}, {})
    assert len(json.loads(shown("--since", text, "--json"))["calls"]) == expected


def test_misuse_is_one_line(shown: Any, tmp_path: Path) -> None:
    assert "--since 'soon'" in shown("--since", "soon", code=2)
    assert "--slow and --by can't be used together" in shown("--slow", "--by", "tool", code=2)
    assert "--limit and --follow can't be used together" in shown("--follow", "--limit", "3", code=2)
    assert "--limit and NUMBER can't be used together" in shown("1", "--limit", "3", code=2)
    for filters in (["--server", "s"], ["--tool", "t"], ["--client", "c"], ["--since", "1d"], ["--failed"]):
        assert f"{filters[0]} and NUMBER can't be used together" in shown("1", *filters, code=2)
    assert "There is no call '999" in shown("9" * 20, code=2)
    assert "is not in the range" in shown("--limit", "9" * 20, code=2)
    assert "--since '999" in shown("--since", "9" * 5_000 + "d", code=2)
    assert "--export and --json can't be used together" in shown("--export", "csv", "--json", code=2)
    calls_file().parent.mkdir(parents=True, exist_ok=True)
    calls_file().write_bytes(b"no database" * 100)
    said = shown(code=1)
    assert f"the records of calls {str(calls_file())!r} cannot be read" in said
    assert "remove it" in said


def test_an_age_beyond_1970_and_an_outcome_that_its_code_repeats(shown: Any) -> None:
    store({"tool": "stop", "outcome": "cancelled", "code": "cancelled"})
    listed = shown("--since", "9" * 20 + "d")
    assert "stop" in listed
    assert "cancelled (cancelled)" not in listed


def test_a_file_without_a_table_is_a_file_without_calls(shown: Any) -> None:
    calls_file().parent.mkdir(parents=True, exist_ok=True)
    calls_file().touch()  # as a process leaves it that had no room
    assert "No calls yet. Try: indus call ls" in shown()
    assert json.loads(shown("--json")) == {"calls": [], "dropped": 0}


@pytest.mark.process
def test_a_damaged_file_that_a_call_sets_aside_is_named(tmp_path: Path) -> None:
    calls_file().parent.mkdir(parents=True, exist_ok=True)
    calls_file().write_bytes(b"no database" * 100)
    done = run("call", "ls", cwd=tmp_path)
    (aside,) = calls_file().parent.glob("calls.db.corrupt-*")
    assert done.returncode == 0
    assert done.stderr.startswith(f"indus: the records of calls {str(calls_file())!r}: it was damaged and set aside")
    assert str(aside) in done.stderr
    assert [one.tool for one in read_calls()] == ["ls"]


@pytest.mark.process
def test_in_a_narrow_terminal_every_figure_has_its_name(tmp_path: Path) -> None:
    store({"tool": "echo", "tokens": 77})
    assert "took: 500 us" in on_terminal("calls", cwd=tmp_path, columns=30)


def test_dropped_calls_are_said(shown: Any, capsys: pytest.CaptureFixture[str]) -> None:
    store({}, dropped=3)
    assert program.run(["calls"]) == 0
    assert "3 calls could not be recorded" in capsys.readouterr().err
    assert json.loads(shown("--json"))["dropped"] == 3


@pytest.mark.process
def test_calls_of_a_gateway_and_of_the_command_are_recorded_with_their_client_and_server(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    with greeted("--profile", "read-only", cwd=tmp_path) as gateway:
        assert gateway.text("honest__echo", text="my-secret") == "my-secret"
        assert gateway.call("read", path="absent")["isError"]
    assert run("call", "honest__echo", "text=hi", cwd=tmp_path).returncode == 0
    echo, read, typed = read_calls()
    assert (echo.via, echo.client, echo.server, echo.tool, echo.outcome) == (
        "gateway",
        "test 1",
        "honest",
        "echo",
        "ok",
    )
    assert (read.server, read.tool, read.code) == ("", "read", "not_found")
    assert (typed.via, typed.client, typed.server) == ("call", "indus", "honest")
    assert echo.run
    assert b"my-secret" not in calls_file().read_bytes()


@pytest.mark.process
def test_nothing_is_recorded_where_it_is_switched_off(tmp_path: Path) -> None:
    settings = user_file().parents[1] / "indus" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('{"calls": {"record": "off"}}', encoding="utf-8")
    assert run("call", "ls", cwd=tmp_path).returncode == 0
    assert not calls_file().exists()


@pytest.mark.process
@pytest.mark.parametrize("words", [["--json"], []])
def test_new_calls_are_followed_until_a_signal(tmp_path: Path, words: list[str]) -> None:
    store({"tool": "old"})
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    following = start_command(
        [command(), "calls", "--follow", *words], stdout=subprocess.PIPE, text=True, cwd=tmp_path, environ=environ
    )
    with following:
        try:
            output, lines = following.stdout, list[str]()
            assert output is not None
            count = 1 if words else 2  # a table has heads
            reader = threading.Thread(target=lambda: lines.extend(output.readline() for _ in range(count)))
            reader.start()
            # Calls before the start of the command are not shown, so that one has to come later. They fill no buffer.
            for _ in range(200):
                store({"tool": "new"})
                reader.join(0.1)
                if not reader.is_alive():
                    break
            assert not reader.is_alive()
            assert "new" in lines[-1]
            following.send_signal(signal.SIGINT)
            assert following.wait(60) == 130
        finally:
            following.kill()


@pytest.mark.process
def test_following_ends_with_its_reader_though_no_call_comes(tmp_path: Path) -> None:
    store({})
    following = subprocess.Popen([command(), "calls", "--follow"], stdout=subprocess.PIPE, cwd=tmp_path)
    try:
        assert following.stdout is not None
        following.stdout.close()
        assert following.wait(60) == 128 + signal.SIGPIPE
    finally:
        following.kill()
        following.wait()
