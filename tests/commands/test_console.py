"""What a person at a terminal sees: colour, width, descriptions, ages; pipes stay as they were."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import HONEST, SLOW_S, configured, faulty, held, on_terminal, row, user_file
from tests.support.forked import CONSTANTS
from tests.support.scripts import run

from induscode.cli.terminal import console_for, format_age

if TYPE_CHECKING:
    from pathlib import Path

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
COMMAND = ["--", *HONEST]


@pytest.mark.process
@pytest.mark.parametrize("columns", [40, 72, 120])
def test_finding_b10_tools_are_listed_with_descriptions_in_the_width_of_the_terminal(
    tmp_path: Path, columns: int
) -> None:
    shown = on_terminal("tools", cwd=tmp_path, columns=columns)
    assert ("\x1b[1mNAME" if columns > 60 else "\x1b[1mread\x1b[0m") in shown
    lines = ESCAPE.sub("", shown).splitlines()
    assert max(map(len, lines)) <= columns
    # A name that is cut cannot be typed, and one letter a line cannot be read.
    assert any(line.split()[:1] == ["enter_plan_mode"] for line in lines)
    assert "Read a file" in re.sub(r"\s+", " ", " ".join(lines))
    if columns > 100:
        read = next(line for line in lines if line.startswith("read "))
        assert "Read a file" in read


@pytest.mark.process
def test_finding_b10_no_color_is_obeyed_and_a_pipe_gets_neither_colour_nor_description(tmp_path: Path) -> None:
    assert "\x1b" not in on_terminal("tools", cwd=tmp_path, NO_COLOR="1")
    assert "\x1b" not in on_terminal("mcp", "get", "nope", cwd=tmp_path, NO_COLOR="1")
    piped = run("tools", cwd=tmp_path).stdout
    assert "\x1b" not in piped
    assert ["NAME", "SOURCE", "PROFILE", "TOKENS"] in [line.split() for line in piped.splitlines()]


@pytest.mark.process
def test_finding_b10_a_failed_server_is_red_and_its_message_is_wrapped(tmp_path: Path) -> None:
    configured(user_file(), {"good": row(), "bad": faulty("exits", 3, "the database is not there")})
    shown = on_terminal("mcp", "list", cwd=tmp_path, columns=60)
    assert "\x1b[31mfailed" in shown
    assert "\x1b[32mready" in shown
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\r", "\n", ESCAPE.sub("", shown))
    assert max(map(len, plain.splitlines())) <= 60
    assert "database" in plain


@pytest.mark.process
def test_finding_b10_a_server_that_is_added_is_tried(tmp_path: Path) -> None:
    done = run("mcp", "add", "good", *COMMAND, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^Server 'good': ready, \d+ tools, \d+\.\d s$", done.stdout, re.MULTILINE)
    done = run("mcp", "add", "bad", "--", "sh", "-c", "echo no key >&2; exit 4", cwd=tmp_path)
    assert done.returncode == 1
    assert "no key" in done.stderr
    assert "indus mcp doctor bad" in done.stderr
    assert "bad" in json.loads(user_file().read_text(encoding="utf-8"))["servers"]
    done = run("mcp", "add", "later", "--no-check", "--", "sh", "-c", "exit 4", cwd=tmp_path)
    assert (done.stdout.count("\n"), done.stderr) == (2, "")
    missing = run("mcp", "add", "unset", "--", "sh", "-c", "${NOT_SET_HERE}", cwd=tmp_path)
    assert "the variable NOT_SET_HERE is not set" in missing.stderr


@pytest.mark.process
def test_finding_b10_the_ledger_shows_short_names_that_run_takes(tmp_path: Path) -> None:
    run("mcp", "add", "good", *COMMAND, cwd=tmp_path)
    run("mcp", "list", cwd=tmp_path)
    lines = ESCAPE.sub("", on_terminal("ledger", cwd=tmp_path)).splitlines()
    name = re.findall(r"[0-9A-Z]{12}", lines[1])[0]
    assert 8 <= len(name) < 26
    assert run("ledger", "timeline", "--run", name, cwd=tmp_path).returncode == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("indus mcp get go", ["good"]),
        ("indus mcp trust ", ["good"]),
        ("indus call gre", ["grep"]),
        ("indus call good__ec", ["good__echo"]),
        ("indus tools show todo_", ["todo_read", "todo_set"]),
        ("indus mcp get x", []),
    ],
)
def test_finding_b10_names_of_servers_and_tools_are_completed(tmp_path: Path, line: str, answers: list[str]) -> None:
    configured(user_file(), {"good": row()})
    run("tools", cwd=tmp_path)
    words = str(len(line.split(" ")) - 1)
    done = run(cwd=tmp_path, _INDUS_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=words)
    assert [one.partition(",")[2] for one in done.stdout.split("\n") if one] == answers
    assert done.stderr == ""


@pytest.mark.process
def test_a_broken_configuration_completes_to_nothing(tmp_path: Path) -> None:
    line = "indus mcp get --mcp nowhere.json x"
    done = run(cwd=tmp_path, _INDUS_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="5")
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.process
@pytest.mark.parametrize(("name", "same"), [("authoring", "read-only"), ("survey", "coding")])
def test_finding_b14_older_names_of_profiles_mean_the_new_ones(tmp_path: Path, name: str, same: str) -> None:
    entries = [run("serve", "--print-config", "cursor", "--profile", one, cwd=tmp_path).stdout for one in (name, same)]
    assert entries[0] == entries[1] != ""
    assert "read-only|coding|all|none" in run("serve", "--help", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("ago_ms", "text"),
    [(-5, "now"), (999, "now"), (1_000, "1 s ago"), (61_000, "1 min ago"), (7_200_000, "2 h ago"),
     (200_000_000, "2 d ago")],
)  # fmt: skip
def test_an_age_is_told_in_its_largest_unit(ago_ms: int, text: str) -> None:
    assert format_age(1_000_000_000, 1_000_000_000 + ago_ms) == text


def test_only_a_terminal_has_a_console() -> None:
    assert console_for(None) is None
    assert console_for(io.StringIO()) is None


@pytest.mark.process
def test_finding_b10_a_slow_server_has_a_line_when_it_waits_and_when_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, waits = tmp_path / "hold", "no answer yet"
    hold.touch()
    configured(user_file(), {"slow": held(hold)})
    monkeypatch.setitem(CONSTANTS, SLOW_S, 0.05)
    shown = ESCAPE.sub("", on_terminal("mcp", "list", cwd=tmp_path, release=(waits, hold)))
    assert re.search(r"slow +stdio +checking… +- +user +no answer yet", shown)
    assert re.search(r"slow +stdio +ready +12 +user *\n", shown)
