"""Plots as SVG: lines over time, sparklines, and the bars of a waterfall.

A drawing is stretched to its place; labels are texts beside it, so that they keep their size. Colours come from the
style sheet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from induscode.gateway.page.html import Html, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WIDTH: Final = 600
_HEIGHT: Final = 100
_COLOURS: Final = 6
"""Classes `line-0` to `line-5` of the style sheet; further lines use them again."""
FAILED: Final = "failed"
"""The name of a line about failures, which has the colour of failures."""


def draw_lines(
    title: str, series: Mapping[str, Sequence[float | None]], labels: tuple[str, str], unit: str = ""
) -> Html:
    """Draw lines over the same times; `labels` are the first and the last time. A line has a gap at None."""
    top = max((value for values in series.values() for value in values if value is not None), default=0.0)
    shapes = [
        tag("line", x1=0, y1=y, x2=_WIDTH, y2=y, cls="axis") for y in (_scale(top, top), _HEIGHT / 2, _scale(0, top))
    ]
    colours = {name: "bad" if name == FAILED else str(index % _COLOURS) for index, name in enumerate(series)}
    for name, values in series.items():
        shapes += _draw(values, top, f"line-{colours[name]}")
    legend = [tag("span", tag("i", cls=f"swatch fill-{colours[name]}"), name) for name in series]
    return tag(
        "figure",
        tag("figcaption", tag("span", title), tag("span", legend, cls="legend")),
        tag(
            "div",
            tag("span", format_number(top) + unit if top else "", cls="top"),
            tag("span", "0", cls="zero"),
            _frame(title, shapes, _HEIGHT, "plot"),
            tag("span", labels[0], cls="from"),
            tag("span", labels[1], cls="until"),
            cls="axes",
        ),
    )


def draw_sparkline(values: Sequence[float | None], title: str) -> Html:
    """Draw a small line without axes."""
    present = [value for value in values if value is not None]
    if not present:
        return tag("span", "no calls", cls="faint")
    return _frame(title, _draw(values, max(present), "line-0"), _HEIGHT, "spark")


def draw_bar(title: str, start: float, length: float, end: float, kind: str) -> Html:
    """Draw one bar of a waterfall: start and length on a scale that ends at `end`."""
    whole = end or 1.0
    wide = max(_WIDTH / 150, length / whole * _WIDTH)
    x = min(start / whole * _WIDTH, _WIDTH - wide)
    bar = tag("rect", x=round(x, 1), y=20, width=round(wide, 1), height=_HEIGHT - 40, cls=f"bar {kind}")
    return _frame(title, [bar], _HEIGHT, "track")


def _frame(title: str, shapes: Sequence[Html], height: int, cls: str) -> Html:
    view = f"0 0 {_WIDTH} {height}"
    return tag("svg", tag("title", title), shapes, viewBox=view, preserveAspectRatio="none", role="img", cls=cls)


def _draw(values: Sequence[float | None], top: float, cls: str) -> list[Html]:
    """Draw a line for each run of values without a gap; a single value is a dot."""
    step = _WIDTH / max(1, len(values) - 1)
    lines: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{index * step:.1f},{_scale(value, top):.1f}")
    return [tag("polyline", points=" ".join(line if len(line) > 1 else line * 2), cls=cls) for line in lines if line]


def _scale(value: float, top: float) -> float:
    return _HEIGHT - 2 - (value / top * (_HEIGHT - 4) if top else 0.0)


def format_number(value: float) -> str:
    """Format a number in few characters: 12,300 is `12.3k`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
