"""Slash commands in an editor: `/name arguments` at the beginning of a prompt.

https://agentclientprotocol.com/protocol/slash-commands. They are the commands of the terminal, without those that leave
the session or open another one: the editor does that. What a command prints is a message of the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.faults import CoreError
from induscode.cli.terminal import escape_controls, escape_unprintable
from induscode.frontends.terminal.slash import SlashError, parse_line
from induscode.frontends.terminal.slash.prompts import list_prompt_commands
from induscode.frontends.terminal.slash.table import load_commands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.cli.dialog import Question, Reply
    from induscode.conversations.conversation import Conversation
    from induscode.frontends.acp.dialog import EditorDialog
    from induscode.frontends.acp.updates import UpdateChannel
    from induscode.frontends.terminal.slash import SlashCommand
    from induscode.launch.invocation import Invocation

_TERMINAL_ONLY = frozenset({"exit", "fork", "help", "quit", "resume"})


class EditorScreen:
    """Shows the output of commands as messages."""

    width = 80

    def __init__(self, channel: UpdateChannel, dialog: EditorDialog) -> None:
        self._channel = channel
        self._dialog = dialog

    def print(self, text: str) -> None:
        """Show finished text as it is."""
        if text.strip():
            self._channel.say(f"```\n{escape_controls(text).rstrip()}\n```\n\n")

    def show(self, text: str) -> None:
        """Show one line."""
        self._dialog.show(text)

    async def ask(self, question: Question) -> Reply:
        """Put a question to the person at the editor."""
        return await self._dialog.ask(question)


class EditorCommands:
    """The slash commands of one session; a `SlashHost` for them."""

    def __init__(self, conversation: Conversation, channel: UpdateChannel, dialog: EditorDialog) -> None:
        self.conversation = conversation
        self.screen = EditorScreen(channel, dialog)
        self._channel = channel
        self._commands: Mapping[str, SlashCommand] = {}
        self._prompt = ""

    async def load(self) -> None:
        """Load the commands of the session, of the user and of the project."""
        commands = await load_commands(self.conversation.invocation.cwd, self.conversation.notes.append)
        prompts = list_prompt_commands(self.conversation)
        self._commands = {**{name: one for name, one in commands.items() if name not in _TERMINAL_ONLY}, **prompts}

    def announce(self) -> None:
        """Send the list of commands."""
        listed: list[JsonValue] = []
        for command in self._commands.values():
            row: JsonObject = {"name": command.name, "description": command.describe}
            if command.usage:
                row["input"] = {"hint": command.usage}
            listed.append(row)
        self._channel.send({"sessionUpdate": "available_commands_update", "availableCommands": listed})

    def knows(self, text: str) -> bool:
        """Tell whether a prompt is a command; what no command has is for the model."""
        return text.startswith("/") and parse_line(text)[0] in self._commands

    async def run(self, line: str) -> str:
        """Run a command, and give the prompt that it has for the model; empty if it has none."""
        name, rest = parse_line(line)
        self._prompt = ""
        try:
            await self._commands[name].run(self, rest)
        except SlashError as exc:
            self.screen.show(str(exc))
        except (CoreError, OSError) as exc:
            self.screen.show(f"/{name} failed: {exc}")
        return self._prompt

    # -- for commands -------------------------------------------------------------------------

    def print_table(self, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        """Show a table in Markdown; cells are escaped."""
        lines = [heads, tuple("---" for _ in heads), *rows]
        cells = ([" ".join(escape_unprintable(cell).replace("|", "\\|").split()) for cell in line] for line in lines)
        self._channel.say("\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n\n")

    def reopen(self, invocation: Invocation) -> None:
        """Refuse: the editor opens sessions."""
        raise SlashError("the editor opens conversations: start a new one there")

    def prompt(self, text: str) -> None:
        """Send a prompt to the model after the command."""
        self._prompt = text

    def leave(self) -> None:
        """Refuse: the editor closes sessions."""
        raise SlashError("the editor ends the session")
