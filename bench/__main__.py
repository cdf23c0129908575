"""`python -m bench`: measure, print a table, and write the results to a JSON file.

It ends with 0, also when a budget is missed; with 1 if `--check` was given and one is missed; and
with 2 if it could not measure: a bad option, or nothing installed to measure.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from bench.report import Table, as_json
from bench.row import CannotMeasure, Result
from bench.rows import ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.row import Row

_OK, _MISSED, _FAILED = 0, 1, 2


class _Options(argparse.Namespace):
    only: list[str] | None
    json: str
    list: bool
    check: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the error in one line, without the usage."""
        self.exit(_FAILED, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str], rows: Sequence[Row] = ROWS) -> int:
    """Measure the rows that are asked for and return the exit code."""
    options = _parser(rows).parse_args(arguments, _Options())
    chosen = [row for row in rows if options.only is None or row.name in options.only]
    if options.list:
        return _list(chosen)
    try:
        results = _measure(chosen)
        _write(options.json, as_json(results))
    except (CannotMeasure, OSError) as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return _FAILED
    missed = [result.row.name for result in results if not result.ok]
    if missed:
        print(f"MISSED: {', '.join(missed)}")
    return _MISSED if missed and options.check else _OK


def _parser(rows: Sequence[Row]) -> argparse.ArgumentParser:
    names = [row.name for row in rows]
    parser = _Parser(prog="bench", description="Measure ratios, each against its budget.")
    parser.add_argument("--only", action="append", metavar="NAME", choices=names, help="measure this row; repeatable")
    parser.add_argument("--json", metavar="PATH", default=".bench/results.json", help="where to write the results")
    parser.add_argument("--list", action="store_true", help="list the rows and measure nothing")
    parser.add_argument("--check", action="store_true", help="end with 1 if a budget is missed")
    return parser


def _list(rows: Sequence[Row]) -> int:
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        print(f"{row.name:{width}}  {row.what} / {row.compared_with}")
    return _OK


def _measure(rows: Sequence[Row]) -> list[Result]:
    table = Table(rows)
    print(table.head(), flush=True)
    results: list[Result] = []
    for row in rows:
        results.append(Result(row, row.measure()))
        print(table.line(results[-1]), flush=True)
    return results


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
