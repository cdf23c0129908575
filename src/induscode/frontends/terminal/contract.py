"""What the session and its screen know of each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class ScreenListener(Protocol):
    """Receives the user's actions."""

    def submit(self, text: str) -> None:
        """Handle a submitted message."""
        ...

    def interrupt(self) -> None:
        """Handle Ctrl-C."""
        ...

    def steer(self) -> None:
        """Handle Esc."""
        ...

    def recall(self) -> str:
        """Take the queued messages back, to edit them."""
        ...

    def leave(self) -> None:
        """Handle Ctrl-D on an empty line, or a closed terminal."""
        ...

    def switch_mode(self) -> None:
        """Handle Shift-Tab."""
        ...

    def list_results(self) -> str:
        """Return what Ctrl-O shows."""
        ...


@dataclass(slots=True)
class LiveState:
    """Contents of the live region next to the input line. The caller changes it and calls `Screen.refresh`."""

    rows: Callable[[int], Sequence[str]] = field(default=lambda limit: ())
    """Returns at most `limit` rows, with SGR sequences."""
    queued: Sequence[str] = ()
    activity: Callable[[], str] = field(default=lambda: "")
    """Returns what's happening, in at most one row with SGR sequences."""
    status: Callable[[int], str] = field(default=lambda width: "")
    """Returns the status row for a width, with SGR sequences."""
    pictures: str = ""
    """The directory for pasted pictures, once a conversation is open."""
    link: str = ""
    """The address that `c` copies, while a sign-in waits."""
