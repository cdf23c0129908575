"""A note: something was skipped, replaced or left out, and the user should be able to see it.

Notes are values that travel beside a result; they are never raised.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """Say what happened to whom, and what can be done about it."""

    owner: str
    """The thing the note is about: a tool, a server, a file with its row."""
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        tail = f" ({self.remedy})" if self.remedy else ""
        return f"{self.owner}: {self.message}{tail}"
