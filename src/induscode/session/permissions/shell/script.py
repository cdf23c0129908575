"""What a shell command comes to. Shapes only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from induscode.session.permissions.shell.words import Word


@dataclass(frozen=True, slots=True)
class Command:
    """One command with its arguments."""

    words: tuple[Word, ...]
    fed: bool = False
    """Whether another command writes into its standard input."""

    @property
    def shown(self) -> str:
        """What to call it."""
        return " ".join(word.shown for word in self.words)


@dataclass(frozen=True, slots=True)
class Redirect:
    """A file that a command is connected to."""

    target: Word
    writes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a text comes to when the shell runs it."""

    text: str
    commands: tuple[Command, ...]
    suspects: tuple[Command, ...]
    """What runs besides, as far as one can tell."""
    possible: tuple[Command, ...] = ()
    """What an argument would be if the program took it for a command."""
    opaque: tuple[str, ...] = ()
    """Why it may run any command at all, a phrase each."""
    copied: tuple[Word, ...] = ()
    """Programs that it may give another name."""
    redirects: tuple[Redirect, ...]
    flaws: tuple[str, ...]
    """What was not understood, a phrase each; with any of them no rule allows the text."""
    whole: bool
    """Whether all of it was looked at."""
