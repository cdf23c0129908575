"""Show results to a person as a table, and to a program as JSON.

The JSON is one object: `python`, `system`, `machine` and `cores` say what it was measured on, and
`rows` holds an object for each row with the keys

    name, what, compared_with
    ours, baseline              median seconds for doing it once
    ours_min, baseline_min      the shortest
    ratio, budget               ours / baseline, and the most it may be
    ok                          whether it is within the budget
    note                        what a check has found

Times, ratio and budget are null in a row that is a check; the note is null in any other.
"""

from __future__ import annotations

import json
import os
import platform
from typing import TYPE_CHECKING

from bench.row import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.row import Result, Row

_UNITS = ((1.0, "s "), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


class Table:
    """A table that is printed line by line, while the next row is still being measured."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._width = max((len(row.name) for row in rows), default=0)

    def head(self) -> str:
        """Give the names of the columns."""
        return self._line("row", "ours", "baseline", "ratio", "budget", "", "compared with")

    def line(self, result: Result) -> str:
        """Give the line of one row."""
        name, verdict = result.row.name, "ok" if result.ok else "MISSED"
        measured = result.measured
        if isinstance(measured, Check):
            return self._line(name, "", "", "", "", verdict, measured.note)
        budget = "" if result.row.budget is None else f"{result.row.budget:g} x"
        times = _duration(measured.ours.median), _duration(measured.baseline.median)
        ratio = f"{measured.ratio:.2f} x"
        return self._line(name, *times, ratio, budget, verdict, result.row.compared_with)

    def _line(self, name: str, *cells: str) -> str:
        ours, baseline, ratio, budget, verdict, compared_with = cells
        return (
            f"{name:{self._width}}  {ours:>10}  {baseline:>10}  {ratio:>10}  {budget:>7}  {verdict:6}  {compared_with}"
        ).rstrip()


def as_json(results: Sequence[Result]) -> str:
    """Give what goes into the JSON file."""
    return json.dumps(
        {
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "rows": [_row(result) for result in results],
        },
        indent=2,
    )


def _row(result: Result) -> dict[str, object]:
    measured = result.measured
    pair = None if isinstance(measured, Check) else measured
    return {
        "name": result.row.name,
        "what": result.row.what,
        "compared_with": result.row.compared_with,
        "ours": pair and pair.ours.median,
        "baseline": pair and pair.baseline.median,
        "ours_min": pair and pair.ours.least,
        "baseline_min": pair and pair.baseline.least,
        "ratio": result.ratio,
        "budget": result.row.budget,
        "ok": result.ok,
        "note": measured.note if isinstance(measured, Check) else None,
    }


def _duration(seconds: float) -> str:
    size, unit = next(((s, u) for s, u in _UNITS if seconds >= s), _UNITS[-1])
    return f"{seconds / size:.1f} {unit}"
