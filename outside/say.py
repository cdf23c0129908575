"""Telling a person what goes on: lines, and tables for the terminal and for the documentation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def say(line: str = "") -> None:
    """Write a line and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """Write a line to where errors go."""
    sys.stderr.write(f"{line}\n")


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Give a row for the terminal."""
    padded = [f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Give a table for the documentation."""
    return [_line(head), "|" + "---|" * len(head), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write_between(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace what stands between the two marker lines of a page.

    Raises:
        ValueError: The page has no such markers.
    """
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = page.read_text("utf-8")
    before, opened, rest = text.partition(first)
    _, closed, after = rest.partition(last)
    if not (opened and closed):
        raise ValueError(f"{page.name} has no lines {first} and {last}")
    written = "\n".join([first, "", *lines, "", last])
    if f"{before}{written}{after}" != text:
        page.write_text(f"{before}{written}{after}", "utf-8")
