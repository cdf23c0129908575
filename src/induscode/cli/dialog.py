"""Questions to the user, and the protocol of the dialog that asks them.

Permissions, plan mode and server requests all ask through a `Dialog`: the screen of the interactive session, or the
terminal of `indus -p` and `indus call`. Without a dialog, everything that needs an answer is denied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol

from indusagi.core.records import record
from induscode.cli.terminal import escape_unprintable


@record(kw_only=True)
class Choice:
    """One possible answer."""

    key: str
    """The letter that the user types."""
    label: str
    takes_text: bool = False
    """Whether text follows, such as the reason for a no."""
    lasts: bool = False
    """Whether it's a yes to later questions too."""
    refuses: bool = False
    """Whether it's a no."""


@record(kw_only=True)
class FileChange:
    """A change of a file to show with a question."""

    path: str
    """Absolute."""
    before: str | None
    """The whole text, or `None` for a new file."""
    after: str
    diff: str
    """A unified diff, perhaps cut."""
    counts: str
    """The number of added and removed lines."""


_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)")


def number_lines(diff: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a unified diff with line numbers, each after its sign (none between hunks)."""
    lines = diff.removesuffix("\n").split("\n")
    start = next((index for index, line in enumerate(lines) if line.startswith("@@")), 0)
    old = new = 1
    for index, line in enumerate(lines[start:]):
        if (hunk := _HUNK.match(line)) is not None:
            old, new = int(hunk[1]), int(hunk[2])
            if index:
                yield "", "    …"
            continue
        sign = line[:1] if line[:1] in {"+", "-"} else " "
        text = escape_unprintable(line[1:].rstrip("\r").expandtabs(4))
        yield sign, f"{old if sign == '-' else new:>6} {sign} {text}".rstrip()
        old, new = old + (sign != "+"), new + (sign != "-")


@record(kw_only=True)
class Question:
    """A question with choices, or one that takes free text."""

    title: str
    lines: tuple[str, ...] = ()
    """Complete facts, escaped."""
    brief: tuple[str, ...] | None = None
    """What to show of them at first, if the question is about a call: its line on a terminal replaces the question."""
    prompt: str = ""
    """The question itself, below the facts."""
    change: FileChange | None = None
    markdown: str = ""
    """A text to read, above the question. Untrusted."""
    place: Callable[[], str] = lambda: ""
    """Returns its place among several that wait: `1 of 3`."""
    choices: tuple[Choice, ...] = ()
    """Empty for free text."""
    default: str = ""
    """The key that Enter selects."""
    picks: bool = False
    """Whether it's a list to pick from: typing narrows it, and keys aren't shown."""
    marks: bool = False
    """Whether any number of choices can be marked."""
    marked: tuple[str, ...] = ()
    """The keys of the choices that are marked at first."""
    check: Callable[[str], str | None] | None = None
    """Validates free text: returns the problem with an answer, or `None`."""
    secret: bool = False
    """Hide the text while the user types it."""


@record
class Reply:
    """The user's answer."""

    key: str = ""
    text: str = ""
    marked: tuple[str, ...] = ()
    """The keys of the marked choices."""
    cancelled: bool = False
    """Whether the user declined to answer: Ctrl-C, Ctrl-D, or a closed terminal."""


class Dialog(Protocol):
    """A way to ask the user."""

    async def ask(self, question: Question, /) -> Reply:
        """Ask a question and wait for the answer; one question at a time."""
        ...

    def show(self, text: str, /) -> None:
        """Show the user one line."""
        ...
