"""Slash commands: `/name arguments` on the input line, handled by the session and never sent to the model."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from indusagi.core.faults import CoreError
from indusagi.core.records import record
from indusagi.core.text import escape_unseen, format_count
from induscode.cli.dialog import Choice, Question, Reply

if TYPE_CHECKING:
    from induscode.conversations.conversation import Conversation
    from induscode.launch.invocation import Invocation


_SHELL_COMMAND = re.compile(r"\bindus (mcp (?:approve|diff|disable|enable|login|logout|logs|trust)|addons trust)\b")


class SlashError(CoreError):
    """A slash command failed; the message is for the user."""


class SlashScreen(Protocol):
    """Output and questions of a slash command: the terminal, or an editor's conversation view."""

    @property
    def width(self) -> int:
        """Columns per line."""
        ...

    @property
    def can_mark(self) -> bool:
        """Whether several choices of a list can be marked."""
        ...

    def print(self, text: str) -> None:
        """Write finished text."""
        ...

    def show(self, text: str) -> None:
        """Write one line, escaped."""
        ...

    async def ask(self, question: Question) -> Reply:
        """Ask a question and wait for the answer."""
        ...

    def copy(self, text: str) -> None:
        """Copy a text to the terminal's clipboard. An editor has its own."""
        ...

    def offer_draft(self, text: str) -> None:
        """Put a text into the input line if it's empty. An editor's stays as it is."""
        ...


class SlashHost(Protocol):
    """The session as slash commands see it."""

    @property
    def conversation(self) -> Conversation:
        """The open conversation."""
        ...

    @property
    def commands(self) -> Mapping[str, SlashCommand]:
        """The commands by name, for `/help`."""
        ...

    @property
    def screen(self) -> SlashScreen:
        """Output and questions of the command."""
        ...

    def print_table(self, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        """Print a table that fits the terminal, escaping its cells."""
        ...

    def reopen(self, invocation: Invocation) -> None:
        """Switch to an invocation's conversation after the command."""
        ...

    def prompt(self, text: str) -> None:
        """Send a prompt to the model after the command."""
        ...

    def leave(self) -> None:
        """End the session after the command."""
        ...


@record(kw_only=True)
class SlashCommand:
    """A slash command."""

    name: str
    """Without the slash."""
    usage: str = ""
    """Its arguments, such as `[NAME]`."""
    describe: str
    actions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Descriptions of its possible first words, for completion."""
    run: Callable[[SlashHost, str], Awaitable[None]]
    """Receives the rest of the line; raises `SlashError` on failure."""


async def confirm(host: SlashHost, title: str, lines: Sequence[str] = (), default: str = "n") -> bool:
    """Ask whether to go on. Anything but a yes is a no."""
    choices = (Choice(key="y", label="yes"), Choice(key="n", label="no"))
    facts = tuple(map(escape_unseen, lines))
    reply = await host.screen.ask(Question(title=escape_unseen(title), lines=facts, choices=choices, default=default))
    return reply.key == "y"


async def confirm_end_of_jobs(host: SlashHost, reason: str) -> bool:
    """Ask before reopening the session ends running jobs or tasks. True if there are none."""
    from indusagi.capabilities.jobs import list_jobs  # noqa: PLC0415 — after the first prompt

    jobs = [job for job in list_jobs(host.conversation.session.native.context) if (await job.look()).running]
    tasks = host.conversation.resources.delegate.list_running()
    counts = [format_count(len(jobs), "job", "jobs")] if jobs else []
    counts += [format_count(len(tasks), "task", "tasks")] if tasks else []
    if not counts:
        return True
    names = ", ".join((*(job.id for job in jobs), *(task.id for task in tasks)))
    verb = "ends" if len(jobs) + len(tasks) == 1 else "end"
    return await confirm(host, f"{reason} {' and '.join(counts)} {verb} with it: {names}. Go on?")


async def pick(host: SlashHost, title: str, rows: Sequence[str]) -> int | None:
    """Have the user pick a row, and return its index."""
    choices = tuple(Choice(key=str(index), label=escape_unseen(row)) for index, row in enumerate(rows))
    reply = await host.screen.ask(Question(title=title, choices=choices, picks=True))
    return int(reply.key) if reply.key else None


async def mark(host: SlashHost, title: str, lines: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Have the user mark names, and return the marked ones. Where lists have no marks, ask about each."""
    facts = tuple(map(escape_unseen, lines))
    if not host.screen.can_mark:
        for line in facts:
            host.screen.show(line)
        return [name for name in names if await confirm(host, f"{title} {name}?")]
    choices = tuple(Choice(key=str(number), label=escape_unseen(name)) for number, name in enumerate(names, 1))
    question = Question(title=escape_unseen(title), lines=facts, choices=choices, marks=True)
    reply = await host.screen.ask(question)
    return [name for number, name in enumerate(names, 1) if str(number) in reply.marked]


def split_words(rest: str) -> list[str]:
    """Split the rest of a line like a shell; `SlashError` if a quote isn't closed."""
    try:
        return shlex.split(rest)
    except ValueError as exc:
        raise SlashError(f"the line cannot be read: {exc}") from exc


def name_slash_commands(text: str) -> str:
    """Replace shell commands by slash commands: `indus mcp trust x` becomes `/mcp trust x`."""
    return _SHELL_COMMAND.sub(r"/\1", text)


def parse_line(line: str) -> tuple[str, str]:
    """Split `/name rest` into name and rest."""
    name, _, rest = line[1:].partition(" ")
    return name.strip(), rest.strip()


def find_command(name: str, commands: Mapping[str, SlashCommand]) -> SlashCommand:
    """Find a command by name or unique prefix; `SlashError` if there's none or several match."""
    if name in commands:
        return commands[name]
    matches = [command for command in commands if command.startswith(name)] if name else []
    if len(matches) == 1:
        return commands[matches[0]]
    if matches:
        raise SlashError(f"/{name} may be {', '.join(f'/{match}' for match in matches)}")
    from indusagi.capabilities.arguments import find_similar_name  # noqa: PLC0415 — for a mistyped name

    similar = find_similar_name(name, [*commands])
    raise SlashError(f"unknown command /{name}: " + (f"did you mean /{similar}?" if similar else "type / to see all"))
