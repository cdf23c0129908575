"""What a real small model does with 527 tools, with search and without it: twenty tasks, with a table of results.

    python -m outside.search_model [--tasks N] [--minutes N]

It needs the extra `[local]` and the weights (`indus models fetch`). All definitions together have ten times the tokens
of its context window: without search it is listed those that fit, and the others are gone. A task is managed if the
right tool was called without an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio

from indusagi.core.cancel import CancelToken
from induscode.launch.invocation import Invocation
from induscode.launch.settings import TOOL_SEARCH_MODE
from induscode.local_model.server import LocalWeights, open_local_server
from induscode.session.contract import RequestBudget, ToolAnswered, ToolCalled
from induscode.session.conversation import open_conversation
from induscode.session.models import LOCAL_WINDOW, OWN_KEY, choose_model
from outside.local_model import private_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.session.contract import RunEvent

SERVERS = ("tracker", "calendar", "mail", "shop", "music", "weather")
TASKS = {
    "Delete the song with the id 7.": "music__delete_song",
    "Create a calendar event with the id 12.": "calendar__create_event",
    "Archive the mail message with the id 3.": "mail__archive_message",
    "Export the invoice with the id 41.": "shop__export_invoice",
    "Search the weather forecast with the id 5.": "weather__search_forecast",
    "List the playlist with the id 8.": "music__list_playlist",
    "Update the customer with the id 9.": "shop__update_customer",
    "Delete the reminder with the id 2.": "calendar__delete_reminder",
    "Create a label with the id 6 in the issue tracker.": "tracker__create_label",
    "Export the mail filter with the id 1.": "mail__export_filter",
    "Archive the album with the id 33.": "music__archive_album",
    "List the weather alert with the id 4.": "weather__list_alert",
    "Create a refund with the id 77.": "shop__create_refund",
    "Delete the milestone with the id 10.": "tracker__delete_milestone",
    "Update the draft with the id 14.": "mail__update_draft",
    "Search the holiday with the id 18.": "calendar__search_holiday",
    "Export the artist with the id 21.": "music__export_artist",
    "Create a shipment with the id 52.": "shop__create_shipment",
    "Archive the comment with the id 16.": "tracker__archive_comment",
    "Update the weather station with the id 30.": "weather__update_station",
}
REQUESTS = 5


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


async def try_once(prompt: str, wanted: str, folder: Path, name: str, base_url: str, mode: Literal["on", "off"]) -> str:
    """Run one prompt in a new conversation; return how it ended."""
    servers = write_servers(folder)
    invocation = Invocation(
        cwd=str(folder),
        model=name,
        base_url=base_url,
        context_window=LOCAL_WINDOW // 2,
        tools=("ls",),
        mcp=(str(servers),),
        no_addons=True,
        approval="all",
        max_requests=REQUESTS,
    )
    settings = invocation.settings.with_flag(TOOL_SEARCH_MODE, mode)
    calls: list[str] = []
    failed: list[str] = []

    async def follow(event: RunEvent) -> None:
        if isinstance(event, ToolCalled):
            calls.append(event.name)
        elif isinstance(event, ToolAnswered) and event.is_error:
            failed.append(event.name)

    async with open_conversation(replace(invocation, settings=settings)) as conversation:
        await conversation.loading.wait()
        await conversation.wait_for_servers()
        await conversation.run_turn(prompt, sink=follow, cancel=CancelToken(), budget=RequestBudget(REQUESTS))
    managed = wanted in calls and failed.count(wanted) < calls.count(wanted)
    return f"{'managed' if managed else 'not managed'} ({', '.join(calls) or 'no call'})"


async def run_tasks(tasks: Sequence[tuple[str, str]], minutes: float) -> int:
    """Run the tasks until the time is over, and print the table."""
    choice = await choose_model(Invocation(cwd=str(Path.cwd()), model="local"), os.environ)
    assert choice.weights is not None
    ends_at = time.monotonic() + minutes * 60
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="search-") as temporary:
        weights = LocalWeights(choice.name, choice.weights, LOCAL_WINDOW // 2, choice.chat_template)
        async with open_local_server(weights) as address:
            os.environ[OWN_KEY] = address.key
            with private_state(Path(temporary) / "state"):
                for prompt, wanted in tasks:
                    ends: list[str] = []
                    modes: tuple[Literal["on", "off"], ...] = ("on", "off")
                    for mode in modes:
                        started, end = time.monotonic(), "not run: the time was over"
                        with anyio.move_on_after(max(0.0, ends_at - started)):
                            folder = Path(temporary) / "project"
                            end = await try_once(prompt, wanted, folder, choice.name, address.base_url, mode)
                        ends.append(f"{end} in {time.monotonic() - started:.0f} s")
                    rows.append([prompt, *ends])
                    print(f"| {prompt} | {' | '.join(ends)} |", flush=True)
                    if time.monotonic() > ends_at:
                        break
    for number, what in ((1, "with search"), (2, "without")):
        print(f"{what}: {sum(row[number].startswith('managed') for row in rows)} of {len(rows)}")
    return 0


def main() -> int:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(prog="python -m outside.search_model")
    parser.add_argument("--tasks", type=int, default=len(TASKS))
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    return anyio.run(run_tasks, [*TASKS.items()][: options.tasks], options.minutes)


if __name__ == "__main__":
    sys.exit(main())
