"""Terminal output: colour, tables that fit the width, relative times.

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
    from rich.table import Table

STATE_STYLES: Mapping[str, str] = {
    **dict.fromkeys(("ready", "known", "asked", "built in", "enroll"), "green"),
    **dict.fromkeys(("disabled", "untrusted", "changed", "unresolved", "retire"), "yellow"),
    **dict.fromkeys(("faulted", "fault", "quarantine"), "red"),
    **dict.fromkeys(("unseen", "unchecked"), "dim"),
}
"""Colours of server states and ledger events."""

_MIN_TEXT_WIDTH = 16
_GAP = 2
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


def print_rich_table(
    console: Console,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    widths: Sequence[int] = (),
    *,
    has_heads: bool = True,
) -> None:
    """Print a table that fits the terminal by wrapping the last column.

    If that gets too narrow, print each row as a record instead: users couldn't retype a truncated name.

    Args:
        console: The terminal.
        heads: The column heads.
        rows: Cells without control characters.
        right: Whether to right-align each column.
        widths: Widths of all columns but the last; by default as wide as the cells.
        has_heads: Whether to print the heads.
    """
    from rich.cells import cell_len  # noqa: PLC0415 — for a terminal only

    needed = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    widths = widths or needed[:-1]
    if sum(widths) + _GAP * len(needed) + min(needed[-1], _MIN_TEXT_WIDTH) > console.width:
        _print_records(console, heads, rows, has_text=not right[-1])
        return
    table = build_rich_table(heads, rows, right, widths)
    table.show_header = has_heads
    console.print(table)


def build_rich_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], widths: Sequence[int] = ()
) -> Table:
    """Build a table that wraps its last column and colours states."""
    from rich.table import Table  # noqa: PLC0415 — for a terminal only
    from rich.text import Text  # noqa: PLC0415 — for a terminal only

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, (head, at_right) in enumerate(zip(heads, right, strict=True)):
        last = index == len(heads) - 1
        width = widths[index] if index < len(widths) else None
        table.add_column(
            head, justify="right" if at_right else "left", overflow="fold", no_wrap=not last, min_width=width
        )
    for row in rows:
        table.add_row(*(Text(cell, STATE_STYLES.get(cell, "")) for cell in row))
    return table


def _print_records(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]], *, has_text: bool) -> None:
    """Print each row as its first cell, a line of facts, and (with `has_text`) its last cell as text below."""
    from rich.padding import Padding  # noqa: PLC0415 — for a terminal only
    from rich.text import Text  # noqa: PLC0415 — for a terminal only

    for row in rows:
        console.print(Text(row[0], "bold", overflow="fold"))
        facts = Text(overflow="fold")
        end = len(row) - has_text
        for head, cell in zip(heads[1:end], row[1:end], strict=True):
            if cell:
                facts.append(f"{', ' if facts else ''}{head.lower()}: ")
                facts.append(cell, STATE_STYLES.get(cell, ""))
        for line in (facts, Text(row[-1] if has_text else "", overflow="fold")):
            if line:
                console.print(Padding(line, (0, 0, 0, _GAP), expand=False))


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
