"""Questions to a person: the values, and the protocol of a dialog that puts them.

Permissions, plan mode and requests of servers all ask through a `Dialog`; the screen of the interactive session is one,
the terminal of `indus -p` and `indus call` another. Without a dialog there is no person, and what would be asked is
refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Callable


@record(kw_only=True)
class Choice:
    """One possible answer."""

    key: str
    """The letter that the person types."""
    label: str
    takes_text: bool = False
    """Whether a text follows, such as the reason of a no."""
    lasts: bool = False
    """Whether it is a yes that holds for longer than once."""
    refuses: bool = False
    """Whether it is a no."""


@record(kw_only=True)
class Question:
    """A question with choices, or one that takes free text."""

    title: str
    lines: tuple[str, ...] = ()
    """Facts, complete and escaped."""
    choices: tuple[Choice, ...] = ()
    """Without choices the answer is free text."""
    default: str = ""
    """The key that Enter chooses."""
    check: Callable[[str], str | None] | None = None
    """For free text: gives the problem of an answer, None if it is valid."""
    secret: bool = False
    """Whether the text is hidden while it is typed."""


@record
class Reply:
    """The answer of a person."""

    key: str = ""
    text: str = ""
    cancelled: bool = False
    """Whether the person declined to answer: Ctrl-C, Ctrl-D, or the end of the terminal."""


class Dialog(Protocol):
    """A way to ask a person."""

    async def ask(self, question: Question, /) -> Reply:
        """Put a question, and wait for the answer; one question at a time."""
        ...

    def show(self, text: str, /) -> None:
        """Show one line to the person."""
        ...
