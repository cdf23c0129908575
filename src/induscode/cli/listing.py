"""Listings: the same rows as a table for users and as JSON for programs.

Piped tables are aligned text. On a terminal, a table fits the width: with a `Fit`, it shortens cells and leaves out
columns. Otherwise its last column wraps, and if that gets too narrow, each row becomes a record, since users couldn't
retype a truncated name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from indusagi.core.records import record
from induscode.cli.output import write_json
from induscode.cli.terminal import STATE_STYLES, escape_unprintable, print_line, stdout_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from indusagi.core.json import JsonObject, JsonValue

T = TypeVar("T")
_GAP = "  "
_MIN_TEXT_WIDTH = 16


class Cell(str):
    """A cell with a style for terminals."""

    __slots__ = ("style",)
    style: str

    def __new__(cls, text: object, style: str) -> Cell:
        """Build the cell."""
        cell = super().__new__(cls, text)
        cell.style = style
        return cell


@record
class Fit:
    """How a table gets narrower."""

    shorten: Mapping[str, int]
    """Columns whose cells may be shortened, with the least width of each."""
    drop: Sequence[str] = ()
    """Columns to leave out if that isn't enough, in this order."""
    wraps: bool = False
    """Whether the last column wraps, instead of getting shorter."""

    def choose_widths(self, needed: Mapping[str, int], width: int) -> Mapping[str, int] | None:
        """Return the width of each column that's shown, or `None` if even the least is too wide."""
        for count in range(len(self.drop) + 1):
            kept = {head: size for head, size in needed.items() if head not in self.drop[:count]}
            widths = {head: min(size, self.shorten.get(head, size)) for head, size in kept.items()}
            spare = width - sum(widths.values()) - len(_GAP) * (len(widths) - 1)
            if spare >= 0:
                break
        else:
            return None
        growing = sorted((head for head in kept if widths[head] < kept[head]), key=lambda head: kept[head])
        for index, head in enumerate(growing):
            extra = min(kept[head] - widths[head], spare // (len(growing) - index))
            widths[head] += extra
            spare -= extra
        return widths


@record
class Listing(Generic[T]):
    """Rows of one kind, for a command with `--json`."""

    key: str
    """The member of the JSON object that has the rows."""
    rows: Sequence[T]
    heads: Sequence[str]
    """The heads of the table's columns."""
    cells: Callable[[T], Sequence[object]]
    """Returns a row's cells."""
    to_json: Callable[[T], JsonObject] = field(default=lambda row: cast("JsonObject", row), kw_only=True)
    """Returns a row's JSON form; by default the row itself."""
    before: JsonObject = field(default_factory=dict[str, "JsonValue"], kw_only=True)
    """Members of the JSON object before the rows."""
    after: JsonObject = field(default_factory=dict[str, "JsonValue"], kw_only=True)
    total: Sequence[T] = field(default=(), kw_only=True)
    """Rows at the end of the table that aren't in the JSON."""
    empty: str = field(default="", kw_only=True)
    """The line to print instead of a table without rows."""
    fit: Fit | None = field(default=None, kw_only=True)

    def show(self, *, as_json: bool) -> int:
        """Print the table or the JSON object, and return the exit code 0."""
        if as_json:
            write_json({**self.before, self.key: [self.to_json(row) for row in self.rows], **self.after})
        elif self.rows or self.total:
            print_table(self.heads, [self.cells(row) for row in (*self.rows, *self.total)], self.fit)
        elif self.empty:
            print_line(self.empty)
        return 0


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]], fit: Fit | None = None) -> None:
    """Print a table on standard output with right-aligned numbers; on a terminal, fit it to the width."""
    cells, numbers = _escape_cells(rows), _find_numbers(heads, rows)
    if (console := stdout_console()) is not None:
        print_rich_table(console, heads, cells, numbers, fit=fit, has_heads=any(heads))
        return
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for line in (list(heads), *cells) if any(heads) else cells:
        _print_cells(line, widths, numbers)


def _escape_cells(rows: Sequence[Sequence[object]]) -> list[list[str]]:
    return [[_escape_cell(cell) for cell in row] for row in rows]


def _escape_cell(cell: object) -> str:
    text = escape_unprintable(str(cell))
    return Cell(text, cell.style) if isinstance(cell, Cell) else text


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

    `columns` has possible cells of each column but the last (with `fit` of the last too), for its width. `numbers`
    names right-aligned columns.
    """

    def __init__(
        self,
        heads: Sequence[str],
        columns: Sequence[Iterable[str]],
        numbers: Sequence[str] = (),
        fit: Fit | None = None,
    ) -> None:
        self._heads, self._fit = heads, fit
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
            print_rich_table(
                console, self._heads, [cells], self._numbers, self._widths, has_heads=has_heads, fit=self._fit
            )
            return
        for line in (self._heads, cells) if has_heads else (cells,):
            _print_cells(line, [*self._widths[: len(line) - 1], 0], self._numbers)
        sys.stdout.flush()


@contextmanager
def live_table(fit: Fit | None = None) -> Generator[Callable[[Sequence[str], Sequence[Sequence[object]], str], None]]:
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
    from rich.cells import cell_len  # noqa: PLC0415 — for a terminal only
    from rich.console import Group  # noqa: PLC0415 — for a terminal only
    from rich.live import Live  # noqa: PLC0415 — for a terminal only
    from rich.text import Text  # noqa: PLC0415 — for a terminal only

    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:

        def replace_last(heads: Sequence[str], rows: Sequence[Sequence[object]], line: str) -> None:
            cells, numbers = _escape_cells(rows), _find_numbers(heads, rows)
            needed = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
            fitted = fit and _build_fitted_table(console.width, heads, cells, numbers, needed, fit)
            table = fitted or _build_rich_table(heads, cells, numbers)
            live.update(Group(table, Text(line, "dim")) if line else table, refresh=True)

        yield replace_last


# -- on a terminal ----------------------------------------------------------------------------


def print_rich_table(
    console: Console,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    widths: Sequence[int] = (),
    *,
    has_heads: bool = True,
    fit: Fit | None = None,
) -> None:
    """Print a table that fits the terminal: as `fit` says, or by wrapping the last column.

    If that gets too narrow, print each row as a record instead: users couldn't retype a truncated name. `right` tells
    which columns to align right, and `widths` are those of all but the last, by default as wide as the cells.
    """
    from rich.cells import cell_len  # noqa: PLC0415 — for a terminal only

    needed = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    widths = widths or needed[:-1]
    if fit is not None:
        table = _build_fitted_table(console.width, heads, rows, right, [*widths, *needed[len(widths) :]], fit)
        if table is not None:
            table.show_header = has_heads
            console.print(table)
            return
    is_narrow = sum(widths) + len(_GAP) * len(needed) + min(needed[-1], _MIN_TEXT_WIDTH) > console.width
    if is_narrow and any(heads):
        _print_records(console, heads, rows, has_text=not right[-1])
        return
    table = _build_rich_table(heads, rows, right, widths)
    table.show_header = has_heads
    console.print(table)


def _build_fitted_table(
    width: int,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    needed: Sequence[int],
    fit: Fit,
) -> Table | None:
    """Build a table of the columns and widths that `fit` chooses, or return `None` if even that is too wide."""
    chosen = fit.choose_widths(dict(zip(heads, needed, strict=True)), width)
    if chosen is None:
        return None
    shown = [index for index, head in enumerate(heads) if head in chosen]
    table = _build_rich_table(
        [*chosen], [[row[at] for at in shown] for row in rows], [right[at] for at in shown], [*chosen.values()]
    )
    if fit.wraps:
        table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
    return table


def _build_rich_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], widths: Sequence[int] = ()
) -> Table:
    """Build a table that colours states, and wraps its last column, or with `widths` of all columns shortens cells."""
    from rich.table import Table  # noqa: PLC0415 — for a terminal only
    from rich.text import Text  # noqa: PLC0415 — for a terminal only

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    is_fixed = len(widths) == len(heads)
    for index, (head, at_right) in enumerate(zip(heads, right, strict=True)):
        table.add_column(
            head,
            justify="right" if at_right else "left",
            overflow="ellipsis" if is_fixed else "fold",
            no_wrap=is_fixed or index < len(heads) - 1,
            min_width=widths[index] if index < len(widths) else None,
            max_width=widths[index] if is_fixed else None,
        )
    for row in rows:
        table.add_row(*(Text(cell, _find_style(cell)) for cell in row))
    return table


def _find_style(cell: str) -> str:
    return cell.style if isinstance(cell, Cell) else STATE_STYLES.get(cell, "")


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
                facts.append(cell, _find_style(cell))
        for line in (facts, Text(row[-1] if has_text else "", overflow="fold")):
            if line:
                console.print(Padding(line, (0, 0, 0, len(_GAP)), expand=False))
