"""`indus top`, and `indus mcp list --watch`."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.calls.helpers import calls_file, make_record
from tests.commands.helpers import configured, row, user_file
from tests.support.scripts import run, run_on_terminal
from tests.support.terminal import LineTerminal

from indusagi.core.time import now_ms
from induscode.calls.database import CallDatabase
from induscode.commands.calls import draw_bars

if TYPE_CHECKING:
    from pathlib import Path


def add_calls(*calls: tuple[str, int, str]) -> None:
    """Store calls of now: server, duration in microseconds, outcome."""
    calls_file().parent.mkdir(parents=True, exist_ok=True)
    rows = [make_record(at_ms=now_ms() - 1_000, server=server, duration_us=took, outcome=outcome, tokens=7)
            for server, took, outcome in calls]  # fmt: skip
    with closing(CallDatabase(str(calls_file()))) as database:
        database.append([one.to_row() for one in rows])


def test_bars_show_the_shape() -> None:
    assert draw_bars([0, 1, 8]) == " ▁█"
    assert draw_bars([0, 0]) == ""
    assert draw_bars([]) == ""


@pytest.mark.process
def test_the_figures_of_the_last_minutes(tmp_path: Path) -> None:
    assert "No call" in run("top", cwd=tmp_path).stdout
    add_calls(("alpha", 2_000, "ok"))
    assert "1 call in 5 min, 0 failed" in run("top", cwd=tmp_path).stdout
    add_calls(("alpha", 4_000, "error"), ("", 500, "ok"))
    done = run("top", cwd=tmp_path)
    assert done.returncode == 0
    assert "3 calls in 5 min, 1 failed" in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:3]] == [["alpha", "2"], ["native", "1"]]
    found = json.loads(run("top", "--json", cwd=tmp_path).stdout)
    assert (found["calls"], found["errors"]) == (3, 1)
    assert {one["server"]: one["tokens"] for one in found["servers"]} == {"alpha": 14, "native": 7}


@pytest.mark.process
def test_watched_servers_are_shown_until_ctrl_c(tmp_path: Path) -> None:
    configured(user_file(), {"one": row()})
    environ = {**os.environ, "PWD": str(tmp_path)}
    with LineTerminal("mcp", "list", "--watch", "--cwd", str(tmp_path), environ=environ) as terminal:
        assert "one" in terminal.read_until("ready")
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.process.wait(60) == 130


@pytest.mark.process
def test_watching_excludes_json(tmp_path: Path) -> None:
    done = run("mcp", "list", "--watch", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert "--watch" in done.stderr


@pytest.mark.process
def test_keys_sort_and_end_it(tmp_path: Path) -> None:
    add_calls(("many", 100, "ok"), ("many", 100, "denied"), ("slow", 9_000_000, "ok"))
    done = run_on_terminal("top", cwd=tmp_path, answer=("Sort by: c calls", "lq"), COLUMNS="120", TERM="xterm")
    assert done.returncode == 0
    assert done.stdout.count("q ends it.") >= 1
    once = run("top", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[:4] for line in once[1:3]] == [["many", "2", "0", "1"], ["slow", "1", "0", "0"]]
