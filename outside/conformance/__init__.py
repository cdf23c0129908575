"""`python -m outside.conformance`: have the official suite judge our client and our servers.

Ends with 0 if every check passed or is left out with a reason, with 1 if not, with 2 if the suite
cannot be run at all.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import TYPE_CHECKING

from outside.conformance.servers import judge_servers, table
from outside.conformance.suite import EXTENSION, REVISIONS, Suite, Verdict, is_judged_in
from outside.install import HOME, ROOT, CannotInstall
from outside.say import aligned, complain, markdown, say, write_between

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SIGNING_IN = "auth/"
"""Scenarios of signing in, which have a table of their own."""
_SIGN_IN_REVISIONS = ("2025-03-26", *REVISIONS, EXTENSION)
_CLIENT = (sys.executable, "-m", "outside.conformance.client")
_HEAD = ("revision", "scenario", "passed", "failed", "result")
_WIDTHS = (10, 35, 6, 6, 6)
_PAGE = ROOT / "docs/evidence/conformance.md"


class _Options(argparse.Namespace):
    only: str | None
    of: str | None


def main(arguments: Sequence[str]) -> int:
    """Run the suite and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.conformance", description=__doc__)
    parser.add_argument("--only", metavar="SCENARIO", help="run one scenario; writes no table")
    parser.add_argument("--of", metavar="SUBJECT", help="judge the client, sign-in, tasks, or one server")
    options = parser.parse_args(arguments, _Options())
    results = HOME / "results"
    shutil.rmtree(results, ignore_errors=True)
    try:
        suite = Suite()
        return _judge(suite, results, options)
    except CannotInstall as exc:
        complain(f"outside.conformance: {exc}")
        return 2


def _judge(suite: Suite, results: Path, options: _Options) -> int:
    verdicts = [] if options.of not in {None, "client", "sign-in"} else _clients(suite, results, options)
    servers = [] if options.of in {"client", "sign-in"} else judge_servers(suite, results, options.only, options.of)
    signed_in = [one for one in verdicts if one.scenario.startswith(_SIGNING_IN)]
    if options.only is None and options.of in {None, "sign-in"}:
        write_between(_PAGE, "conformance of signing in", sign_in_table(signed_in))
    if options.only is None and options.of is None:
        rows = [cells(verdict) for verdict in verdicts if verdict not in signed_in]
        write_between(_PAGE, "conformance", markdown(_HEAD, rows))
        write_between(_PAGE, "conformance of servers", table([one for one in servers if not one.subject.has_tasks]))
    if options.only is None and options.of in {None, "tasks"}:
        write_between(_PAGE, "conformance of tasks", table([one for one in servers if one.subject.has_tasks]))
    failed = [f"client, {one.revision}, {one.scenario}" for one in verdicts if one.wrong]
    if options.only is None:
        failed += [line for judged in servers for line in judged.stale]
    failed += [line for judged in servers for line in judged.failed]
    every = [*verdicts, *(one for judged in servers for one in judged.verdicts)]
    say(f"{len(every)} scenarios, {len(failed)} complaints")
    for line in failed:
        say(f"  {line}")
    return 1 if failed or not every else 0


def _clients(suite: Suite, results: Path, options: _Options) -> list[Verdict]:
    say(aligned(_HEAD, _WIDTHS))
    verdicts: list[Verdict] = []
    for revision in _SIGN_IN_REVISIONS:
        # One at a time: the suite would start them all at once, more than a small machine carries.
        for scenario in suite.scenarios("client", revision):
            signs_in = scenario.startswith(_SIGNING_IN)
            is_judged = signs_in if options.of == "sign-in" else signs_in or is_judged_in(revision, scenario)
            if not is_judged or options.only not in {None, scenario}:
                continue
            folder = results / revision / scenario
            verdict = suite.judge_client(_CLIENT, revision, scenario, folder)
            verdicts.append(verdict)
            say(aligned(cells(verdict), _WIDTHS))
            for line in verdict.wrong:
                say(f"  {line}")
    return verdicts


def sign_in_table(verdicts: Sequence[Verdict]) -> list[str]:
    """Give the table of signing in: a row per scenario, a column per revision, and the sums."""
    by_place = {(one.scenario, one.revision): one for one in verdicts}

    def cell(scenario: str, revision: str) -> str:
        verdict = by_place.get((scenario, revision))
        return "" if verdict is None else _checks([verdict])

    rows = [
        (scenario.removeprefix(_SIGNING_IN), *(cell(scenario, revision) for revision in _SIGN_IN_REVISIONS))
        for scenario in dict.fromkeys(one.scenario for one in verdicts)
    ]
    columns = [[one for one in verdicts if one.revision == revision] for revision in _SIGN_IN_REVISIONS]
    rows.append(("**checks**", *map(_checks, columns)))
    good = [f"{sum(not one.wrong for one in column)} of {len(column)}" for column in columns]
    rows.append(("**scenarios**", *good))
    total = f"{sum(not one.wrong for one in verdicts)} of {len(verdicts)} runs, {_checks(verdicts)} checks."
    return [*markdown(("scenario", *_SIGN_IN_REVISIONS), rows), "", total]


def _checks(verdicts: Sequence[Verdict]) -> str:
    passed = sum(one.passed for one in verdicts)
    return f"{passed} of {passed + sum(max(one.failed, len(one.wrong)) for one in verdicts)}"


def cells(verdict: Verdict) -> tuple[str, ...]:
    """Give the row of the table of the client."""
    result = "ok" if not verdict.wrong else "FAILED"
    counts = (str(verdict.passed), str(verdict.failed))
    return (verdict.revision, verdict.scenario, *counts, result)
