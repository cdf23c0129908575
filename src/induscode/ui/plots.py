"""Plots as SVG, made on the server: bars, lines, sparklines and a waterfall.

Colours and fonts come from the style sheet. Every plot has a title, which screen readers read instead of its lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from induscode.ui.html import Html, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WIDTH: Final = 400
_HEIGHT: Final = 120
_LEFT: Final = 44
_BOTTOM: Final = 16
_COLOURS: Final = 6
"""Classes `line-0` to `line-5` of the style sheet; further lines use them again."""


def draw_lines(title: str, series: Mapping[str, Sequence[float]], labels: tuple[str, str], unit: str = "") -> Html:
    """Draw lines over the same times; `labels` are the first and the last time."""
    top = max((value for values in series.values() for value in values), default=0.0)
    wide, high = _WIDTH - _LEFT, _HEIGHT - _BOTTOM
    shapes = [
        tag("line", x1=_LEFT, y1=high, x2=_WIDTH, y2=high, cls="axis"),
        tag("text", format_number(top) + unit, x=_LEFT - 4, y=10, cls="label end"),
        tag("text", "0", x=_LEFT - 4, y=high, cls="label end"),
        tag("text", labels[0], x=_LEFT, y=_HEIGHT - 2, cls="label"),
        tag("text", labels[1], x=_WIDTH, y=_HEIGHT - 2, cls="label end"),
    ]
    for index, values in enumerate(series.values()):
        shapes.append(tag("polyline", points=_points(values, top, wide, high, _LEFT), cls=f"line-{index % _COLOURS}"))
    legend = [tag("span", tag("i", cls=f"swatch fill-{index % _COLOURS}"), name) for index, name in enumerate(series)]
    image = tag("svg", tag("title", title), shapes, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", cls="plot")
    return tag("figure", tag("figcaption", title, tag("span", legend, cls="legend")), image)


def draw_sparkline(values: Sequence[float], title: str) -> Html:
    """Draw a small line without axes."""
    if not values:
        return tag("span", "none", cls="faint")
    line = tag("polyline", points=_points(values, max(values), 96, 18, 0), cls="line-0")
    return tag("svg", tag("title", title), line, viewBox="-1 -1 98 21", role="img", cls="spark")


def draw_waterfall(title: str, bars: Sequence[tuple[str, float, float, str]]) -> Html:
    """Draw bars one below the other: name, start and length in milliseconds, and class of each."""
    end = max((start + length for _, start, length, _ in bars), default=1.0) or 1.0
    row, left = 18, 140
    wide = _WIDTH - left
    shapes: list[Html] = []
    for index, (name, start, length, kind) in enumerate(bars):
        y = index * row
        shapes += [
            tag("text", name if len(name) <= 24 else f"{name[:23]}…", x=0, y=y + 13, cls="label"),
            tag("rect", x=round(left + start / end * wide, 1), y=y + 3, height=row - 6, cls=f"bar {kind}",
                width=max(1.5, round(length / end * wide, 1))),
        ]  # fmt: skip
    height = max(1, len(bars)) * row
    return tag("svg", tag("title", title), shapes, viewBox=f"0 0 {_WIDTH} {height}", role="img", cls="plot")


def _points(values: Sequence[float], top: float, wide: float, high: float, left: float) -> str:
    step = wide / max(1, len(values) - 1)
    scale = (high - 4) / top if top else 0.0
    return " ".join(f"{left + index * step:.1f},{high - value * scale:.1f}" for index, value in enumerate(values))


def format_number(value: float) -> str:
    """Format a number in few characters: 12,300 is `12.3k`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
