"""`indus ledger`: looking back, at any moment, and whether what is seen is what was written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.commands.helpers import configured, faulty, one_line, row, told, user_file
from tests.support.scripts import run
from tests.support.servers import HONEST_TOOLS
from tests.support.stores import run_sql

from indusagi.runtime.contract import ToolDescriptor
from induscode.deck.mcp.store import open_store
from induscode.deck.mcp.store.journal import Journal

pytestmark = pytest.mark.process


def file() -> Path:
    return Path(os.environ["HOME"]) / ".local" / "state" / "indus" / "ledger.db"


@pytest.fixture
def past(tmp_path: Path) -> Path:
    """Have something happen."""
    configured(user_file(), {"honest": row(), "dies": faulty("exits")})
    assert run("mcp", "list", cwd=tmp_path).returncode == 0
    return tmp_path


async def turned(*names: str) -> tuple[str, str]:
    """Write a run with a turn at which a model is shown these tools."""
    store = await open_store()
    journal = Journal(store)
    digest = journal.record_turn([ToolDescriptor(name, "A tool.", {"type": "object"}) for name in names])
    await store.aclose()
    return journal.run, digest


def rows(cwd: Path, *words: str) -> list[dict[str, Any]]:
    return told("ledger", "timeline", "--json", *words, cwd=cwd)["rows"]


def test_the_timeline_tells_what_happened_in_order(past: Path) -> None:
    happened = rows(past)
    assert [one["position"] for one in happened] == list(range(1, len(happened) + 1))
    assert {one["event"] for one in happened} == {
        "run", "place", "connect", "ready", "enroll", "pin", "list", "fault",
    }  # fmt: skip
    text = run("ledger", cwd=past).stdout
    assert text.splitlines()[0].split() == ["WHEN", "RUN", "WHAT"]
    assert f"{len(HONEST_TOOLS)} tools of 1 server enrolled" in text
    assert "dies failed: " in text
    text = run("ledger", "timeline", "--all", cwd=past).stdout
    assert text.splitlines()[0].split() == ["WHEN", "RUN", "EVENT", "SUBJECT", "DETAIL"]
    assert "honest__echo" in text
    assert "honest/echo" in text
    assert f"{len(HONEST_TOOLS)} tools" in text
    assert "2 servers" in text
    assert "API_KEY is missing" in text


def test_the_timeline_can_be_narrowed(past: Path) -> None:
    run("mcp", "list", cwd=past)
    assert {one["facts"]["server"] for one in rows(past, "--server", "dies")} == {"dies"}
    last = rows(past, "--limit", "2")
    assert [one["position"] for one in last] == [one["position"] for one in rows(past)][-2:]
    first = rows(past)[0]["run"]
    assert {one["run"] for one in rows(past, "--run", first)} == {first}
    assert {one["run"] for one in rows(past, "--run", first[:-1].lower())} == {first}
    one_line(run("ledger", "timeline", "--run", first[:3], cwd=past), "2 runs begin with")
    assert any(one["event"] == "ready" for one in rows(past))


def test_a_tool_a_key_and_a_row_are_shown_with_their_documents(past: Path) -> None:
    by_name = told("ledger", "show", "honest__echo", "--json", cwd=past)
    (enrolled,) = by_name["rows"]
    assert enrolled["event"] == "enroll"
    texts = [json.loads(text) for text in by_name["documents"].values()]
    assert {"echo", "honest__echo"} == {text["name"] for text in texts}
    key = enrolled["facts"]["key"]
    assert told("ledger", "show", key[:20], "--json", cwd=past) == by_name
    assert told("ledger", "show", str(enrolled["position"]), "--json", cwd=past) == by_name
    done = run("ledger", "show", "honest/echo", cwd=past)
    assert "Say it again." in done.stdout


def test_nothing_yet_is_said(tmp_path: Path) -> None:
    assert run("ledger", cwd=tmp_path).stdout == "No events yet. They appear after the first session or indus serve.\n"
    assert told("ledger", "--json", cwd=tmp_path) == {"rows": []}
    assert run("ledger", "export", cwd=tmp_path).stdout == ""
    assert "all 0 rows" in run("ledger", "verify", cwd=tmp_path).stdout


async def test_the_deck_of_a_turn_is_given_byte_for_byte(tmp_path: Path) -> None:
    name, digest = await turned("one", "two")
    shown = told("ledger", "turn", "1", "--json", cwd=tmp_path)
    assert (shown["run"], shown["turn"], shown["digest"]) == (name, 1, digest)
    assert shown["shown"] == ["one", "two"]
    assert [tool["name"] for tool in json.loads(shown["text"])] == ["one", "two"]
    done = run("ledger", "turn", "1", "--run", name, cwd=tmp_path)
    assert f"deck {digest}: a model was shown 2 tools\n  one\n  two\n" in done.stdout
    assert "1 turn" in run("ledger", cwd=tmp_path).stdout
    one_line(run("ledger", "turn", "2", "--run", name, cwd=tmp_path), f"The run {name} has no turn 2")


def test_the_deck_at_a_time_is_what_was_enrolled_then(past: Path) -> None:
    whole = told("ledger", "at", "2999-01-01", "--json", cwd=past)
    assert [one["tool"] for one in whole["enrolled"]] == list(HONEST_TOOLS)
    begun = rows(past)[0]
    early = told("ledger", "at", begun["at"], "--json", cwd=past)
    assert early["run"] == begun["run"]
    text = run("ledger", "at", "2999-01-01T10:00+02:00", "--run", begun["run"], cwd=past).stdout
    assert f"enrolled from servers: {len(HONEST_TOOLS)}" in text
    assert "honest__echo (honest/echo, pin " in text
    said = run("ledger", "at", "2001-01-01", "--run", begun["run"], cwd=past)
    one_line(said, f"The run {begun['run']} had not begun by 2001")


def test_an_export_is_all_of_it(past: Path) -> None:
    lines = [json.loads(line) for line in run("ledger", "export", cwd=past).stdout.splitlines()]
    exported = [line for line in lines if "position" in line]
    assert exported == rows(past, "--limit", "100000")
    documents = {line["document"]: line["text"] for line in lines if "document" in line}
    whole = told("ledger", "export", "--json", cwd=past)
    assert whole == {"rows": exported, "documents": documents}
    first = told("ledger", "export", "--json", "--run", exported[0]["run"], cwd=past)
    assert first["rows"] == exported


def test_a_ledger_that_is_as_it_was_written_is_fine(past: Path) -> None:
    assert "are as they were written" in run("ledger", "verify", cwd=past).stdout
    found = told("ledger", "verify", "--json", cwd=past)
    assert (found["file"], found["damage"]) == (str(file()), [])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET facts = '{}' WHERE position = 3",
        "DELETE FROM events WHERE position = 3",
        "DELETE FROM events WHERE position > 5",
    ],
)
def test_damage_is_found_and_is_exit_code_1(past: Path, statement: str) -> None:
    run_sql(file(), statement)
    done = run("ledger", "verify", "--json", cwd=past)
    assert done.returncode == 1
    assert json.loads(done.stdout)["damage"]
    assert "Traceback" not in done.stderr


def test_what_is_no_ledger_at_all_is_told_and_set_aside(past: Path) -> None:
    file().write_bytes(b"no database" * 1000)
    done = run("ledger", "verify", cwd=past)
    assert (done.returncode, done.stdout) == (1, "")
    assert "it is damaged" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["nope"], ["There is no command 'nope'"]),
        (["show"], ["Missing argument 'KEY'"]),
        (["show", "honest__eco"], ["nothing about 'honest__eco'. Did you mean 'honest__echo'?"]),
        (["show", "bk_nothing"], ["nothing about 'bk_nothing'"]),
        (["show", "a\x1b[2J"], ["'a\\x1b[2J'"]),
        (["at"], ["Missing argument 'TIME'"]),
        (["at", "yesterday"], ["'yesterday' is not a time: write 19:45, 2026-11-15T20:08"]),
        (["at", "0001-01-01T00:00+14:00"], ["is not a time"]),
        (["at", "2001-01-01"], ["No run had begun by 2001-01-01 00:00:00"]),
        (["turn"], ["Missing argument 'N'"]),
        (["turn", "0"], ["0 is not in the range"]),
        (["turn", "one"], ["'one' is not a valid integer"]),
        (["turn", "9"], ["The ledger has no turn 9"]),
        (["turn", "1", "--run", "zzz"], ["There is no run 'zzz'"]),
        (["timeline", "--limit", "-1"], ["-1 is not in the range"]),
        (["export", "--run", "zzz"], ["There is no run 'zzz'"]),
        (["verify", "extra"], ["unexpected extra argument (extra)"]),
    ],
)
def test_bad_input_is_one_clear_line(past: Path, words: list[str], parts: list[str]) -> None:
    one_line(run("ledger", *words, cwd=past), *parts)
