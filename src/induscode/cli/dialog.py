"""Questions to the user, and the protocol of the dialog that asks them.

Permissions, plan mode and server requests all ask through a `Dialog`: the screen of the interactive session, or the
terminal of `indus -p` and `indus call`. Without a dialog, everything that needs an answer is denied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from indusagi.core.records import record


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
class Question:
    """A question with choices, or one that takes free text."""

    title: str
    lines: tuple[str, ...] = ()
    """Complete facts, escaped."""
    choices: tuple[Choice, ...] = ()
    """Empty for free text."""
    default: str = ""
    """The key that Enter selects."""
    picks: bool = False
    """Whether it's a list to pick from: typing narrows it, and keys aren't shown."""
    check: Callable[[str], str | None] | None = None
    """Validates free text: returns the problem with an answer, or `None`."""
    secret: bool = False
    """Hide the text while the user types it."""


@record
class Reply:
    """The user's answer."""

    key: str = ""
    text: str = ""
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
