"""Tables for a terminal: as wide as it is, or a record for each row."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from induscode.cli.listing import print_rich_table
from induscode.cli.terminal import format_age, print_status_line

HEADS, ROWS = ("NAME", "COUNT", "TEXT"), [("one", "1", "some words to be read"), ("two", "", "")]


def show(width: int, *, text: bool = True) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    print_rich_table(console, HEADS, ROWS, (False, True, not text))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_table_that_fits_is_a_table_and_its_last_column_is_wrapped() -> None:
    assert show(40) == ["NAME  COUNT  TEXT", "one       1  some words to be read", "two"]
    assert show(31) == ["NAME  COUNT  TEXT", "one       1  some words to be", "             read", "two"]
    # The columns need 4 + 5 and the gaps, and the text at least 16.
    assert 4 + 5 + 3 * 2 + 16 == 31


def test_a_table_that_does_not_fit_is_a_record_for_each_row() -> None:
    assert show(4 + 5 + 3 * 2 + 15) == ["one", "  count: 1", "  some words to be read", "two"]
    assert show(20, text=False) == ["one", "  count: 1, text:", "  some words to be", "  read", "two"]


@pytest.mark.parametrize(
    ("passed_ms", "age"),
    [(-5, "now"), (999, "now"), (1_000, "1 s ago"), (59_999, "59 s ago"), (60_000, "1 min ago"),
     (3_600_000, "1 h ago"), (86_400_000, "1 d ago"), (200_000_000, "2 d ago")],
)  # fmt: skip
def test_an_age_is_in_its_largest_unit(passed_ms: int, age: str) -> None:
    assert format_age(10**12, 10**12 + passed_ms) == age


def test_a_status_line_has_its_name_on_a_terminal_alone() -> None:
    class Terminal(io.StringIO):
        is_terminal = True

        def isatty(self) -> bool:
            return self.is_terminal

    terminal, file = Terminal(), io.StringIO()
    assert (print_status_line(terminal, "it is ready"), print_status_line(file, "it is ready")) == (True, False)
    assert "it is ready" in terminal.getvalue()
    assert file.getvalue() == ""
