"""`python -m bench.tools`: the scoreboard of the native tools, as a table in Markdown.

Every item is a probe that can fail. With `--with-original` the public original is probed the same
way, in an environment of its own. It ends with 0, also when something fails; with 1 if `--check`
was given and something of ours fails; with 2 if it could not begin.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from functools import partial
from typing import TYPE_CHECKING

from bench.process import compile_packages
from bench.row import CannotMeasure, Check, Row
from bench.tools import edits, event_loop, reading, shell, web
from bench.tools.board import Sizes, ground
from bench.tools.original import original
from bench.tools.subject import OURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.tools.board import Finding, Ground, Item
    from bench.tools.subject import Subject

ITEMS: tuple[Item, ...] = (*edits.ITEMS, *shell.ITEMS, *reading.ITEMS, *web.ITEMS, *event_loop.ITEMS)
_OK, _FAILED, _CANNOT = 0, 1, 2


class _Options(argparse.Namespace):
    only: list[str] | None
    json: str | None
    with_original: bool
    check: bool
    list: bool


def main(arguments: Sequence[str], items: Sequence[Item] = ITEMS, sizes: Sizes | None = None) -> int:
    """Probe what is asked for, print the table, and return the exit code."""
    options = _parser(items).parse_args(arguments, _Options())
    chosen = [item for item in items if options.only is None or item.name in options.only]
    if options.list:
        print("\n".join(f"{item.name}: {item.what} ({item.limit})" for item in chosen))
        return _OK
    subjects, notes = _subjects(with_original=options.with_original)
    try:
        compile_packages()
        with ground(sizes or Sizes()) as shared:
            found = _probe(chosen, subjects, shared)
        if options.json is not None:
            _write(options.json, as_json(found))
    except (CannotMeasure, OSError) as exc:
        print(f"bench.tools: {exc}", file=sys.stderr)
        return _CANNOT
    for note in notes:
        print(f"\n{note}")
    failed = [item.name for item, findings in found.items() if findings[OURS.name].ok is False]
    if failed:
        print(f"\nFAILED: {', '.join(failed)}")
    return _FAILED if failed and options.check else _OK


def _parser(items: Sequence[Item]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.tools", description="Probe the native tools.")
    names = [item.name for item in items]
    only = "probe this item; repeatable"
    parser.add_argument("--only", action="append", metavar="NAME", choices=names, help=only)
    parser.add_argument("--json", metavar="PATH", help="write the findings there as well")
    beside = "probe the public original too (installs it into .bench/original)"
    parser.add_argument("--with-original", action="store_true", help=beside)
    parser.add_argument("--check", action="store_true", help="end with 1 if one of ours fails")
    parser.add_argument("--list", action="store_true", help="list the items and probe nothing")
    return parser


def _subjects(*, with_original: bool) -> tuple[list[Subject], list[str]]:
    if not with_original:
        return [OURS], []
    try:
        return [OURS, original()], []
    except CannotMeasure as exc:
        return [OURS], [f"Ours alone: {exc}"]


def _probe(items: Sequence[Item], subjects: Sequence[Subject], shared: Ground) -> dict[Item, dict[str, Finding]]:
    """Probe item after item, and print each line as soon as it is known."""
    print("| item | what | limit | " + " | ".join(subject.name for subject in subjects) + " |")
    print("|---" * (3 + len(subjects)) + "|", flush=True)
    found: dict[Item, dict[str, Finding]] = {}
    for item in items:
        found[item] = {subject.name: item.find(subject, shared) for subject in subjects}
        cells = [item.name, item.what, item.limit, *map(_cell, found[item].values())]
        print(f"| {' | '.join(cells)} |", flush=True)
    return found


def _cell(finding: Finding) -> str:
    return f"**{finding.text}**" if finding.ok is False else finding.text


def as_json(found: Mapping[Item, Mapping[str, Finding]]) -> str:
    """Give what goes into the JSON file."""
    return json.dumps(
        {
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "items": [
                {
                    "name": item.name,
                    "what": item.what,
                    "limit": item.limit,
                    "found": {
                        name: {"ok": one.ok, "text": one.text, "figures": dict(one.figures)}
                        for name, one in findings.items()
                    },
                }
                for item, findings in found.items()
            ],
        },
        indent=2,
    )


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")


# -- rows of `make bench` -------------------------------------------------------------------


def _check(item: Item) -> Check:
    compile_packages()
    with ground(Sizes()) as shared:
        finding = item.find(OURS, shared)
    return Check(finding.ok is not False, finding.text)


_IN_BENCH = ("edit-miss", "edit-parallel", "bash-hang", "bash-flood", "read-large", "loop")
ROWS: tuple[Row, ...] = tuple(
    Row(f"tool-{item.name}", item.what, item.limit, partial(_check, item)) for item in ITEMS if item.name in _IN_BENCH
)
"""Those whose limit is a figure; the whole board takes minutes and has its own command."""
