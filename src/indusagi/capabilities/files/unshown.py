"""A file that was read but cannot be shown to a model."""

from dataclasses import dataclass

DOCUMENTS = "install the extra `documents`: pip install 'indus-deck[documents]'"
"""What helps where a library for documents is missing."""


@dataclass(frozen=True, slots=True)
class Unshown:
    """Why it cannot be shown."""

    why: str
    """A sentence that goes on after the name of the file and a colon."""
    code: str
    """The same for programs."""
