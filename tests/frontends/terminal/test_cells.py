"""Text measured in cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from induscode.frontends.terminal.blocks import cut_to_cells, measure_cells, wrap_to_cells

TEXT = st.text(st.sampled_from("ab  日本😀é"), max_size=60)


@pytest.mark.parametrize(
    ("text", "width", "cut"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("ab", 1, "…"),
        ("ab", 0, ""),
    ],
)
def test_a_text_is_cut_at_a_cell(text: str, width: int, cut: str) -> None:
    assert cut_to_cells(text, width) == cut


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [""]),
        ("one two three", ["one", "two", "three"]),
        ("  abcdefgh", ["  abc", "defgh"]),
        ("日本語だ", ["日本", "語だ"]),
    ],
)
def test_a_line_is_wrapped_at_spaces(text: str, rows: list[str]) -> None:
    assert [*wrap_to_cells(text, 5)] == rows


@given(TEXT, st.integers(2, 12))
def test_rows_fit_and_hold_every_letter(text: str, width: int) -> None:
    rows = [*wrap_to_cells(text, width)]
    assert all(cell_len(row) <= width for row in rows)
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")
    assert measure_cells(text) == cell_len(text)
    assert cell_len(cut_to_cells(text, width)) <= width
