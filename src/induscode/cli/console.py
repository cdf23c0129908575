"""Terminal output: colour and relative times.

Only terminals get a console; `induscode.cli.terminal` writes piped output and JSON byte for byte. rich obeys
`TERM=dumb` and `COLUMNS`. With `NO_COLOR` (https://no-color.org) we write no escape sequences at all, not even bold,
which rich would keep. We import rich only for a terminal.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from rich.console import Console

STATE_STYLES: Mapping[str, str] = {
    **dict.fromkeys(("ready", "known", "asked", "built in", "enroll"), "green"),
    **dict.fromkeys(("disabled", "untrusted", "changed", "unresolved", "retire"), "yellow"),
    **dict.fromkeys(("faulted", "fault", "quarantine"), "red"),
    **dict.fromkeys(("unseen", "unchecked"), "dim"),
}
"""Colours of server states and ledger events."""

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def console_for(stream: TextIO | None) -> Console | None:
    """Return a console for a stream, or `None` if it isn't a terminal."""
    if stream is None or not stream.isatty():
        return None
    from rich.console import Console  # noqa: PLC0415 — 50 ms, for a terminal only

    return Console(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def stdout_console() -> Console | None:
    """Return a console for standard output, or `None` if it isn't a terminal."""
    return console_for(sys.stdout)


def print_status_line(stream: TextIO, line: str) -> bool:
    """Print a status line with a bold program name; return False if the stream isn't a terminal."""
    console = console_for(stream)
    if console is None:
        return False
    from rich.text import Text  # noqa: PLC0415 — for a terminal only

    console.print(Text.assemble(("indus:", "bold"), " ", line), soft_wrap=True)
    return True


def format_age(then_ms: int, now_ms: int) -> str:
    """Format an age in its largest unit: `3 min ago`."""
    seconds = max(0, now_ms - then_ms) // 1000
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "now"


def find_shortest_prefix(names: Sequence[str], least: int = 8) -> int:
    """Return the shortest prefix length, from `least` on, that tells all names apart."""
    distinct = set(names)
    longest = max(map(len, distinct), default=least)
    for length in range(least, longest):
        if len({name[:length] for name in distinct}) == len(distinct):
            return length
    return longest
