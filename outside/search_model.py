"""What a real small model does with 527 tools, with search and without it: twenty tasks, with a table of results.

    python -m outside.search_model [--tasks N] [--minutes N] [--rows FILE]

`make demo-search` installs llama.cpp and fetches the weights first. All definitions together have ten times the tokens
of its context window: without search it is listed those that fit, and the others are gone. A task is managed if the
right tool was called without an error; the try ends there. Each try is a line of a file: a run that ends by its time
limit is continued by the next one. The tries of one mode come after one another, so that the engine reads the system
prompt and the definitions once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import anyio

from indusagi.core.cancel import CancelToken
from induscode.conversations.contract import RequestBudget, ToolAnswered, ToolCalled
from induscode.conversations.models import OWN_KEY
from induscode.conversations.opening import open_conversation
from induscode.launch.invocation import Invocation
from induscode.launch.settings import TOOL_SEARCH_MODE
from outside.engine.model import QWEN_CODER
from outside.engine.server import LocalWeights, open_local_server
from outside.install import HOME
from outside.local_model import private_state, read_engine_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonValue
    from induscode.conversations.contract import RunEvent

Mode: TypeAlias = Literal["on", "off"]
MODES: Final[tuple[Mode, ...]] = ("on", "off")
SERVERS = ("tracker", "calendar", "mail", "shop", "music", "weather")
TASKS = {
    "Find a tool that deletes a song.\nCall it for the song with the id 7.": "music__delete_song",
    "Find a tool that creates a calendar event.\nCall it for the event with the id 12.": "calendar__create_event",
    "Find a tool that archives a mail message.\nCall it for the message with the id 3.": "mail__archive_message",
    "Find a tool that exports an invoice.\nCall it for the invoice with the id 41.": "shop__export_invoice",
    "Find a tool that searches a forecast.\nCall it for the forecast with the id 5.": "weather__search_forecast",
    "Find a tool that lists a playlist.\nCall it for the playlist with the id 8.": "music__list_playlist",
    "Find a tool that updates a customer.\nCall it for the customer with the id 9.": "shop__update_customer",
    "Find a tool that deletes a reminder.\nCall it for the reminder with the id 2.": "calendar__delete_reminder",
    "Find a tool that creates a label in the tracker.\nCall it for the label with the id 6.": "tracker__create_label",
    "Find a tool that exports a mail filter.\nCall it for the filter with the id 1.": "mail__export_filter",
    "Find a tool that archives an album.\nCall it for the album with the id 33.": "music__archive_album",
    "Find a tool that lists a weather alert.\nCall it for the alert with the id 4.": "weather__list_alert",
    "Find a tool that creates a refund.\nCall it for the refund with the id 77.": "shop__create_refund",
    "Find a tool that deletes a milestone.\nCall it for the milestone with the id 10.": "tracker__delete_milestone",
    "Find a tool that updates a mail draft.\nCall it for the draft with the id 14.": "mail__update_draft",
    "Find a tool that searches a holiday.\nCall it for the holiday with the id 18.": "calendar__search_holiday",
    "Find a tool that exports an artist.\nCall it for the artist with the id 21.": "music__export_artist",
    "Find a tool that creates a shipment.\nCall it for the shipment with the id 52.": "shop__create_shipment",
    "Find a tool that archives a comment.\nCall it for the comment with the id 16.": "tracker__archive_comment",
    "Find a tool that updates a weather station.\nCall it for the station with the id 30.": "weather__update_station",
}
"""Each line is a turn: a model of this size makes one call and ends its turn (docs/guides/local-models.md)."""
REQUESTS = 5
TRY_S = 900.0
"""Time for one try on a busy machine."""


@dataclass
class Try:
    """One try of a task."""

    prompt: str
    mode: Mode
    managed: bool = False
    calls: list[str] = field(default_factory=list[str])
    arguments: list[JsonValue] = field(default_factory=list["JsonValue"])
    errors: list[str] = field(default_factory=list[str])
    answer: str = ""
    end: str = ""
    """Why it ended without the right call."""
    seconds: float = 0.0
    engine_seconds: float = 0.0
    """CPU time of the engine: with one thread, about the seconds on a machine that does nothing else."""


def write_servers(folder: Path) -> Path:
    """Make the directory of a try, and the file that names the six servers."""
    rows = {
        server: {
            "command": sys.executable,
            "args": ["-m", "outside.many_tools", server],
            "env": {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        }
        for server in SERVERS
    }
    folder.mkdir(exist_ok=True)
    servers = folder.parent / "servers.json"
    servers.write_text(json.dumps({"mcpServers": rows}))
    return servers


async def try_once(prompt: str, wanted: str, folder: Path, name: str, base_url: str, mode: Mode) -> Try:
    """Run one prompt in a new conversation, until the wanted tool has answered."""
    servers = write_servers(folder)
    invocation = Invocation(
        cwd=str(folder),
        model=name,
        base_url=base_url,
        context_window=QWEN_CODER.context_window // 2,
        tools=("ls",),
        mcp=(str(servers),),
        no_addons=True,
        approval="all",
        max_requests=REQUESTS,
    )
    settings = invocation.settings.with_flag(TOOL_SEARCH_MODE, mode)
    row, cancel = Try(prompt, mode), CancelToken()

    async def follow(event: RunEvent) -> None:
        if isinstance(event, ToolCalled):
            row.calls.append(event.name)
            row.arguments.append(event.arguments)
        elif isinstance(event, ToolAnswered) and event.is_error:
            row.errors.append(event.text[:500])
        elif isinstance(event, ToolAnswered) and event.name == wanted:
            row.managed = True
            cancel.cancel()

    started, worked = time.monotonic(), read_engine_seconds()
    async with open_conversation(replace(invocation, settings=settings)) as conversation:
        await conversation.loading.wait()
        await conversation.wait_for_servers()
        row.end = f"no end after {TRY_S:g} s"
        with anyio.move_on_after(TRY_S):
            for line in prompt.splitlines():
                turn = await conversation.run_turn(line, sink=follow, cancel=cancel, budget=RequestBudget(REQUESTS))
                row.end, row.answer = turn.reason, turn.text[:500]
                if row.managed:
                    break
    row.seconds, row.engine_seconds = time.monotonic() - started, read_engine_seconds() - worked
    return row


def read_rows(path: Path) -> list[Try]:
    """Read the tries of earlier runs."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [Try(**row) for row in map(json.loads, lines)]


async def run_tasks(tasks: Sequence[tuple[str, str]], minutes: float, path: Path) -> int:
    """Run the tries that the file lacks, until the time is over, and print the table of all."""
    rows = read_rows(path)
    done = {(row.prompt, row.mode) for row in rows}
    missing: list[tuple[str, str, Mode]] = [
        (prompt, wanted, mode) for mode in MODES for prompt, wanted in tasks if (prompt, mode) not in done
    ]
    ends_at = time.monotonic() + minutes * 60
    with tempfile.TemporaryDirectory(prefix="search-") as temporary:
        weights = LocalWeights(
            QWEN_CODER.name, QWEN_CODER.path, QWEN_CODER.context_window // 2, QWEN_CODER.chat_template
        )
        async with open_local_server(weights) as address:
            os.environ[OWN_KEY] = address.key
            with private_state(Path(temporary) / "state"):
                for prompt, wanted, mode in missing:
                    if time.monotonic() > ends_at:
                        break
                    row = await try_once(
                        prompt, wanted, Path(temporary) / "project", QWEN_CODER.name, address.base_url, mode
                    )
                    rows.append(row)
                    async with await anyio.open_file(path, "a", encoding="utf-8") as file:
                        await file.write(json.dumps(asdict(row)) + "\n")
                    print(f"{prompt.splitlines()[0]} (search {mode}) {describe(row)}", flush=True)
    print_table(tasks, rows)
    return 0


def describe(row: Try | None) -> str:
    """Describe a try in the cell of a table."""
    if row is None:
        return "not run"
    calls = ", ".join(row.calls) or "no call"
    end = "managed" if row.managed else f"not managed ({row.end})" if row.end != "done" else "not managed"
    return f"{end}: {calls}; {row.engine_seconds:.0f} s"


def print_table(tasks: Sequence[tuple[str, str]], rows: Sequence[Try]) -> None:
    """Print the results in Markdown, with the CPU seconds of the engine."""
    found = {(row.prompt, row.mode): row for row in rows}
    print("\n| Task | With search | Without |\n|---|---|---|")
    for prompt, _ in tasks:
        print(
            f"| {prompt.replace(chr(10), ' ')} | {' | '.join(describe(found.get((prompt, mode))) for mode in MODES)} |"
        )
    for mode in MODES:
        tries = [row for row in rows if row.mode == mode]
        print(f"search {mode}: {sum(row.managed for row in tries)} of {len(tries)} managed, {len(tasks)} tasks")


def main() -> int:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(prog="python -m outside.search_model")
    parser.add_argument("--tasks", type=int, default=len(TASKS))
    parser.add_argument("--minutes", type=float, default=30.0, help="no try begins later; run it again to go on")
    parser.add_argument("--rows", type=Path, default=HOME / "search-model.jsonl", help="where the tries are kept")
    options = parser.parse_args()
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    return anyio.run(run_tasks, [*TASKS.items()][: options.tasks], options.minutes, options.rows)


if __name__ == "__main__":
    sys.exit(main())
