"""Command output: tables and notes for users, JSON for programs, questions on a terminal."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from indusagi.core.text import escape_unseen
from induscode.cli.console import build_rich_table, print_rich_table, stdout_console
from induscode.cli.terminal import escape_unprintable, print_line, print_status

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from indusagi.core.faults import Note
    from indusagi.core.json import JsonLike
    from induscode.core.consent import Consent

_GAP = "  "

as_json = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
digest_option = click.option(
    "--digest", "digests", multiple=True, metavar="DIGEST", help="With --yes: only to what was shown with this digest."
)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on standard output with right-aligned numbers; on a terminal, fit it to the width."""
    cells, numbers = _escape_cells(rows), _find_numbers(heads, rows)
    if (console := stdout_console()) is not None:
        print_rich_table(console, heads, cells, numbers)
        return
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for line in (list(heads), *cells):
        _print_cells(line, widths, numbers)


def _escape_cells(rows: Sequence[Sequence[object]]) -> list[list[str]]:
    return [[escape_unprintable(str(cell)) for cell in row] for row in rows]


def _find_numbers(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    return [bool(rows) and all(isinstance(row[index], int) for row in rows) for index in range(len(heads))]


def _print_cells(line: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> None:
    parts = [
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(line, widths, numbers, strict=True)
    ]
    print_line(_GAP.join(parts).rstrip())


class GrowingTable:
    """A table that prints its rows as they come; the last column may be any length.

    Args:
        heads: The column heads.
        columns: Possible cells of each column but the last, for its width.
        numbers: The heads of right-aligned columns.
    """

    def __init__(self, heads: Sequence[str], columns: Sequence[Iterable[str]], numbers: Sequence[str] = ()) -> None:
        self._heads = heads
        self._numbers = [head in numbers for head in heads]
        cells = [[head, *map(escape_unprintable, column)] for head, column in zip(heads, columns, strict=False)]
        self._widths = [max(map(len, column)) for column in cells]
        self._has_heads = True

    def add(self, row: Sequence[object]) -> None:
        """Print a row, with the heads above the first one."""
        (cells,) = _escape_cells([row])
        console, has_heads = stdout_console(), self._has_heads
        self._has_heads = False
        if console is not None:
            print_rich_table(console, self._heads, [cells], self._numbers, self._widths, has_heads=has_heads)
            return
        for line in (self._heads, cells) if has_heads else (cells,):
            _print_cells(line, [*self._widths, 0], self._numbers)
        sys.stdout.flush()


@contextmanager
def live_table() -> Generator[Callable[[Sequence[str], Sequence[Sequence[object]], str], None]]:
    """Yield a function that shows a table with a line below it, replacing the previous table on a terminal.

    Without a terminal, each table goes below the last one. Earlier output stays on the screen.
    """
    console = stdout_console()
    if console is None:

        def print_next(heads: Sequence[str], rows: Sequence[Sequence[object]], line: str) -> None:
            print_table(heads, rows)
            print_line(line)
            sys.stdout.flush()

        yield print_next
        return
    from rich.console import Group  # noqa: PLC0415 — for a terminal only
    from rich.live import Live  # noqa: PLC0415 — for a terminal only
    from rich.text import Text  # noqa: PLC0415 — for a terminal only

    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:

        def replace_last(heads: Sequence[str], rows: Sequence[Sequence[object]], line: str) -> None:
            table = build_rich_table(heads, _escape_cells(rows), _find_numbers(heads, rows))
            live.update(Group(table, Text(line, "dim")), refresh=True)

        yield replace_last


def write_json(value: JsonLike, *, indent: int | None = 2) -> None:
    """Print one JSON value on standard output, in ASCII so that it can't contain terminal escapes."""
    print(json.dumps(value, indent=indent))  # noqa: T201 — the result of a command


def print_notes(notes: Iterable[Note]) -> None:
    """Print notes on standard error, one line each."""
    for note in notes:
        print_status(str(note))


def confirm(question: str) -> bool:
    """Ask a yes-or-no question on the terminal; anything but yes means no."""
    print(escape_unseen(question), end=" [y/N] ", flush=True)  # noqa: T201 — a question to the user
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def ask_consent(
    consent: Consent, question: str, *, yes: bool = False, digests: Sequence[str] = (), quiet: bool = False
) -> bool:
    """Show `consent`, ask `question`, and return whether the user agrees to exactly that.

    Args:
        consent: The facts to agree to.
        question: Asked after the facts.
        yes: The user already agreed with `--yes`.
        digests: Digests from the command line that limit `yes`; empty means it covers anything.
        quiet: With `yes`, print nothing.

    Raises:
        click.UsageError: There's no terminal to ask on.
    """
    if not (quiet and yes):
        print_line(consent.heading)
        for line in (*consent.details, f"digest: {consent.digest}"):
            print_line(f"  {line}")
    if digests and consent.digest not in digests:
        print_status(f"{consent.subject}: it has changed since you looked; look at it again")
        return False
    if not yes and not can_ask_user():
        message = f"There is no terminal to ask on: look at it, then use --yes --digest {consent.digest}"
        raise click.UsageError(message, click.get_current_context(silent=True))
    return yes or confirm(question)


def can_ask_user() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def build_unknown_name(
    message: str, name: str, names: Sequence[str], ctx: click.Context | None = None
) -> click.UsageError:
    """Build the error for an unknown name, with a suggestion."""
    from indusagi.capabilities.arguments import find_similar_name  # noqa: PLC0415 — for a mistyped name

    similar = find_similar_name(name, names)
    hint = f". Did you mean {similar!r}?" if similar else ""
    return click.UsageError(f"{message}{hint}", ctx or click.get_current_context(silent=True))
