"""Figures of plots."""

from __future__ import annotations

import pytest

from induscode.gateway.page.html import _WIDTH, draw_bar, draw_bars, format_number


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.5, "0.5"), (999, "999"), (1e3, "1k"), (12_300, "12.3k"), (1e6, "1M"), (2.5e9, "2.5G"), (1e9, "1G")],
)
def test_number_has_three_figures_and_a_unit(value: float, shown: str) -> None:
    assert format_number(value) == shown


@pytest.mark.parametrize(
    ("start", "length", "place"),
    [(5.0, 2.5, (0.5, 0.25)), (0.0, 0.0, (0.0, 1 / 150)), (10.0, 0.0, (149 / 150, 1 / 150))],
)
def test_bar_has_its_place_on_the_scale_and_can_be_seen(
    start: float, length: float, place: tuple[float, float]
) -> None:
    drawn = str(draw_bar("t", start, length, 10.0, "ok"))
    x, wide = (round(_WIDTH * part, 1) for part in place)
    assert f'x="{x:g}"' in drawn.replace(".0", "")
    assert f'width="{wide:g}"' in drawn.replace(".0", "")


def test_bars_show_each_value_and_leave_gaps() -> None:
    drawn = str(draw_bars([0, 2, 1], "calls per minute"))
    assert "<title>calls per minute: 3 in all, 2 at most</title>" in drawn
    assert drawn.count("<rect") == 2
