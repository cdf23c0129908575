"""The table of slash commands: built-in ones, and the user's and project's Markdown files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from induscode.frontends.terminal.slash.mcp import MCP
from induscode.frontends.terminal.slash.prompts import list_memory_commands, load_custom_commands
from induscode.frontends.terminal.slash.session import (
    list_context_commands,
    list_conversation_commands,
    list_rewind_commands,
    list_session_commands,
)
from induscode.frontends.terminal.slash.tasks import list_task_commands
from induscode.frontends.terminal.slash.tools import ADDONS, PERMISSIONS, TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from induscode.frontends.terminal.slash import SlashCommand


async def load_commands(cwd: str, on_note: Callable[[str], None] | None = None) -> Mapping[str, SlashCommand]:
    """Load the commands for a working directory. A file never replaces a built-in command.

    `on_note` receives a line about each skipped file.
    """
    table: dict[str, SlashCommand] = {}
    commands = (
        *list_session_commands(table),
        *list_context_commands(),
        *list_conversation_commands(),
        *list_rewind_commands(),
        *list_memory_commands(),
        *list_task_commands(),
        ADDONS,
        MCP,
        PERMISSIONS,
        TOOLS,
    )
    for command in sorted(commands, key=lambda command: command.name):
        table[command.name] = command
    custom = await to_thread.run_sync(load_custom_commands, cwd, frozenset(table))
    if on_note is not None:
        for note in custom.notes:
            on_note(note)
    table.update(custom.commands)
    return table
