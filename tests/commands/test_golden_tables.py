"""What commands print on terminals of five widths, whole: a file of `tables` for each.

`INDUS_APPROVE=1` writes the files anew; read the difference then.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shlex
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import rich.live
import rich.table
from tests.calls.helpers import calls_file, make_record
from tests.commands.helpers import configured, on_terminal, project_file, row, user_file

from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject
from indusagi.runtime.contract import ToolDescriptor
from induscode.calls.database import CallDatabase
from induscode.cli.terminal import print_line
from induscode.commands.mcp import doctor
from induscode.commands.program import run
from induscode.conversations.transcript import Transcript, conversations_dir
from induscode.deck.mcp.store import open_store
from induscode.deck.mcp.store.journal import Journal

LOADED = (rich.live, rich.table)
"""Loaded here: an import inside an event loop would block it."""
FOLDER = Path(__file__).with_name("tables")
NOW_MS = 1_763_670_900_000  # 2025-11-20T20:35:00Z
COMMANDS = (
    "calls", "calls --failed", "calls 2", "calls --by tool", "calls --by server", "top --once --minutes 60",
    "ledger timeline", "ledger timeline --all", "mcp list --no-check", "connect", "secrets list", "tokens list",
    "approvals list",
)  # fmt: skip
STARTING = (
    "tools --no-check --tools read,ls,edit", "tools native --no-mcp --tools ls", "tools search --no-mcp send an email",
    "addons list", "resources --no-check", "models --model openai:gpt-5.1",
)  # fmt: skip
"""Commands that load the deck: in their own processes, whose event loop may read files."""
SCRUBBED = (
    (r"(?<![0-9A-Z])01[0-9A-HJKMNP-TV-Z]{10}(?:[0-9A-HJKMNP-TV-Z]{14})?(?![0-9A-Z])", "01RUN0000000"),
    (r"\d\d:\d\d:\d\d(?=\S* +\S*01RUN|\S* {10,}\S*broken failed)", "00:00:00"),
    (r"deck [0-9a-f]{12}", "deck 000000000000"),
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_calls() -> None:
    """Record calls of a conversation, of clients and of a command."""
    os.makedirs(conversations_dir(), exist_ok=True)
    with closing(Transcript(os.path.join(conversations_dir(), new_ulid()), "/work/proj")) as transcript:
        transcript.mark("turn", node="n1", run="r1", turn=1)
        transcript.add_message(
            {"parts": [{"part_kind": "user-prompt", "content": "please edit app.py and run the tests"}]}
        )
        for name, arguments in (
            ("edit", {"path": "/work/proj/app.py"}),
            ("bash", {"command": "python3 -m pytest -q tests"}),
        ):
            part: JsonObject = {
                "part_kind": "tool-call",
                "tool_call_id": name,
                "tool_name": name,
                "args": {**arguments},
            }
            transcript.add_message({"parts": [part]})
        name = transcript.id
    origin = {"via": "session", "conversation": name, "run": "r1", "turn": 1, "server": "", "kind": "tool"}
    facts = [
        {**origin, "tool": "edit", "call": "edit", "duration_us": 21_000, "waited_us": 3_100_000},
        {**origin, "tool": "bash", "call": "bash", "outcome": "denied", "code": "denied"},
        {"via": "gateway", "client": "claude-code 2.1.80", "server": "files", "tool": "list_directory", "kind": "tool",
         "duration_us": 38_000},
        {"via": "gateway", "client": "claude-code 2.1.80", "server": "a-server-with-a-long-name", "kind": "tool",
         "tool": "create_or_update_file", "duration_us": 4_000, "outcome": "fault", "code": "timeout"},
        {"via": "call", "server": "files", "tool": "file:///work/notes.md", "kind": "resource", "duration_us": 1_200,
         "outcome": "error", "code": "not_found", "attempt": 2},
    ]  # fmt: skip
    with closing(CallDatabase(str(calls_file()))) as database:
        rows = [make_record(at_ms=NOW_MS - 1_000 * (300 - 60 * n), **one).to_row() for n, one in enumerate(facts)]
        rows.insert(0, make_record(at_ms=NOW_MS - 90_000_000, tool="ls", server="", kind="tool", via="call").to_row())
        database.append(rows)


async def make_history() -> None:
    store = await open_store()
    journal = Journal(store)
    journal.record_event("ready", "files", "", "")
    journal.record_event("fault", "broken", "exited", "failed: exited with code 2")
    journal.record_turn([ToolDescriptor("files__list_directory", "A tool.", {"type": "object"})])
    await store.aclose()


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr("induscode.commands.calls.now_ms", lambda: NOW_MS)
    monkeypatch.setenv("PATH", str(folder))
    (Path(os.environ["HOME"]) / ".cursor").mkdir()
    configured(user_file(), {"files": row(), "remote": {"url": "https://mcp.example.com/mcp"}})
    configured(project_file(folder), {"theirs": row(), "unset": row(env={"KEY": "${NOT_SET}"})})
    make_calls()
    asyncio.run(make_history())
    return folder


def build_findings() -> list[doctor._Findings]:
    """Build a healthy server, a broken one, and one without consent."""
    facts = ("stdio", "mcp.json", "trusted", "python3")
    return [
        doctor._Findings("everything", *facts, handshake="done", tools=13, latency_ms=2_700, state="ready"),
        doctor._Findings(
            "broken", *facts, handshake="failed", state="failed",
            stderr=("Traceback (most recent call last):", '  File "x.py"', "KeyError: 'API_TOKEN' is not set"),
            fault="failed: exited with code 2. Last output: KeyError",
            remedy='it needs the variable API_TOKEN: add it to its row, as in "env": {"API_TOKEN": "${API_TOKEN}"}',
        ),
        doctor._Findings(
            "tracker", *facts, state="not trusted", remedy="look at it and consent to it: indus mcp trust tracker"
        ),
    ]  # fmt: skip


def print_all() -> None:
    for line in COMMANDS:
        print_line(f"$ indus {line}")
        if code := run(shlex.split(line)):
            print_line(f"[{code}]")
    print_line("$ indus mcp doctor")
    doctor._print_summary(build_findings())


@pytest.mark.parametrize(
    ("columns", "color"), [(60, False), (80, False), (100, False), (100, True), (124, False), (180, False)]
)
def test_commands_fit_the_terminal(columns: int, color: bool, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "" if color else "1")
    print_all()
    check(f"{columns}-{'color' if color else 'plain'}", columns, terminal.getvalue(), prepared)


@pytest.mark.process
@pytest.mark.parametrize("columns", [60, 80, 100, 124, 180])
def test_lists_of_tools_fit_the_terminal(columns: int, prepared: Path) -> None:
    shown = [
        f"$ indus {line}\n{on_terminal(*line.split(), cwd=prepared, columns=columns, NO_COLOR='1')}"
        for line in STARTING
    ]
    check(f"tools-{columns}", columns, "".join(shown), prepared)


def check(name: str, columns: int, text: str, folder: Path) -> None:
    """Compare a text with its file, without what differs by run."""
    text = text.replace(str(folder), "CWD").replace(os.environ["HOME"], "HOME")
    for pattern, word in SCRUBBED:
        text = re.sub(pattern, word, text)
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    lines = [line for line in plain.splitlines() if not line.startswith(("$", "indus:"))]
    # Terminals wrap sentences.
    assert [line for line in lines if len(line) > columns and not line.endswith(".")] == []
    found = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("INDUS_APPROVE"):
        path.write_text(found, "utf-8")
    assert found.splitlines() == path.read_text("utf-8").splitlines()
