"""Text measured in the cells of a terminal: a character of East Asian scripts and most emoji take two.

ASCII text is measured by its length. The table of widths is part of rich and is loaded for the first other character.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORDS = re.compile(r" *[^ ]+| +")


def measure_cells(text: str) -> int:
    """Measure how many cells a text without control characters takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 — loads the table of widths, which most output does without

    return cell_len(text)


def cut_to_cells(text: str, width: int, mark: str = "…") -> str:
    """Shorten a text to `width` cells; a shortened text ends in `mark`."""
    if width <= 0:
        return ""
    if measure_cells(text) <= width:
        return text
    room = width - measure_cells(mark)
    return mark[:width] if room < 0 else _split_at(text, room)[0] + mark


def wrap_to_cells(text: str, width: int) -> Iterator[str]:
    """Yield the rows of one line, each of `width` cells at most: broken at spaces, in words that are too long.

    Spaces at the start of the line and between words are kept; the spaces at which a row ends are left out.
    """
    row, used = "", 0
    for match in _WORDS.finditer(text):
        word = match[0]
        size = measure_cells(word)
        if row and used + size > width:
            yield row.rstrip(" ")
            word, row, used = word.lstrip(" "), "", 0
            size = measure_cells(word)
        while size > width:
            head, rest = _split_at(word, width)
            if not head:  # a character of two cells in a row of one
                head, rest = word[:1], word[1:]
            yield head
            word = rest
            size = measure_cells(word)
        row, used = row + word, used + size
    yield row.rstrip(" ")


def _split_at(text: str, width: int) -> tuple[str, str]:
    """Split a text after the last character that ends within `width` cells."""
    if text.isascii():
        return text[:width], text[width:]
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if measure_cells(text[:middle]) <= width:
            low = middle
        else:
            high = middle - 1
    return text[:low], text[low:]
