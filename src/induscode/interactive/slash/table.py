"""The table of slash commands: those of the session, and the Markdown files of user and project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from induscode.interactive.slash import SlashCommand
from induscode.interactive.slash.custom import load_custom_commands
from induscode.interactive.slash.mcp import MCP
from induscode.interactive.slash.tools import PERMISSIONS, TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from induscode.interactive.slash import SlashHost


async def load_commands(cwd: str, on_note: Callable[[str], None] | None = None) -> Mapping[str, SlashCommand]:
    """Load the commands for a working directory; a file never replaces a command of the session.

    `on_note` receives a line about each file that was left out.
    """
    commands = [SlashCommand(name="exit", describe="leave the session", run=_leave), MCP, PERMISSIONS, TOOLS]
    table = {command.name: command for command in commands}
    custom = await to_thread.run_sync(load_custom_commands, cwd, frozenset(table))
    if on_note is not None:
        for note in custom.notes:
            on_note(note)
    return {**table, **custom.commands}


async def _leave(host: SlashHost, _: str) -> None:
    host.leave()
