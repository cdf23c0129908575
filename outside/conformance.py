"""`python -m outside.conformance`: have the official suite judge our client, in both revisions.

Ends with 0 if every check passed or is excepted below, with 1 if not, with 2 if the suite cannot be
run at all.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outside.install import HOME, ROOT, CannotInstall, find_node, node_packages
from outside.say import aligned, complain, markdown, say, write_between

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REVISIONS = ("2025-11-25", "2026-07-28")
EXCEPTIONS: dict[tuple[str, str, str], str] = {}
"""Revision, scenario and id of a check that may fail, and why. Empty is how it should be."""
_NOT_OURS = "auth/"
"""Scenarios of signing in: the bridge sends the headers it is given, and does not sign in."""
_SUITE = "@modelcontextprotocol/conformance/dist/index.js"
_CLIENT = (sys.executable, "-m", "outside.conformance_client")
_SCENARIO_MS = 60_000
_HEAD = ("revision", "scenario", "passed", "failed", "result")
_WIDTHS = (10, 35, 6, 6, 6)
_BAD = {"FAILURE", "WARNING"}


@dataclass(slots=True)
class Verdict:
    """What the suite found in one scenario."""

    revision: str
    scenario: str
    passed: int = 0
    failed: int = 0
    wrong: list[str] = field(default_factory=list[str])

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        result = "ok" if not self.wrong else "FAILED"
        return (self.revision, self.scenario, str(self.passed), str(self.failed), result)


class _Options(argparse.Namespace):
    only: str | None


def main(arguments: Sequence[str]) -> int:
    """Run the suite and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.conformance", description=__doc__)
    parser.add_argument("--only", metavar="SCENARIO", help="run one scenario; writes no table")
    options = parser.parse_args(arguments, _Options())
    try:
        verdicts = _judge_all(options.only)
    except CannotInstall as exc:
        complain(f"outside.conformance: {exc}")
        return 2
    if options.only is None:
        table = markdown(_HEAD, [verdict.cells for verdict in verdicts])
        write_between(ROOT / "docs/outside.md", "conformance", table)
    failed = [verdict for verdict in verdicts if verdict.wrong]
    checks = sum(verdict.passed for verdict in verdicts)
    say(f"{len(verdicts)} scenarios, {checks} checks passed, {len(failed)} scenarios failed")
    return 1 if failed or not verdicts else 0


def _judge_all(only: str | None) -> list[Verdict]:
    node = find_node()
    if node is None:
        raise CannotInstall("no node 22 or newer with npm; run `make setup`, or install one")
    suite = [str(node.path), str(node_packages(node) / _SUITE)]
    results = HOME / "results"
    shutil.rmtree(results, ignore_errors=True)
    say(aligned(_HEAD, _WIDTHS))
    verdicts: list[Verdict] = []
    for revision in REVISIONS:
        # One at a time: the suite would start them all at once, more than a small machine carries.
        for scenario in _scenarios(suite, revision):
            if only in {None, scenario}:
                verdict = _judge(suite, revision, scenario, results / revision / scenario)
                verdicts.append(verdict)
                say(aligned(verdict.cells, _WIDTHS))
                for line in verdict.wrong:
                    say(f"  {line}")
    return verdicts


def _scenarios(suite: Sequence[str], revision: str) -> list[str]:
    """Ask the suite which scenarios of a revision there are for a client; extensions are none."""
    listed = _run([*suite, "list", "--client", "--spec-version", revision]).stdout
    names = [line.split()[1] for line in listed.splitlines() if line.startswith("  - ")]
    return [name for name in names if not name.startswith(_NOT_OURS)]


def _judge(suite: Sequence[str], revision: str, scenario: str, folder: Path) -> Verdict:
    client = ("--command", shlex.join(_CLIENT), "--timeout", str(_SCENARIO_MS))
    what = ("--scenario", scenario, "--spec-version", revision, "--output-dir", str(folder))
    done = _run([*suite, "client", *client, *what])
    verdict = Verdict(revision, scenario)
    found = next(folder.glob("*/checks.json"), None)
    if found is None:
        verdict.wrong.append(f"the suite left no results: {_end(done.stderr)}")
        return verdict
    for check in json.loads(found.read_text("utf-8")):
        verdict.passed += check["status"] == "SUCCESS"
        if check["status"] in _BAD:
            verdict.failed += 1
            _weigh(check["id"], check.get("errorMessage") or check["description"], verdict)
    told = found.with_name("stderr.txt").read_text("utf-8")
    if "Traceback" in told or (done.returncode and not verdict.failed):
        verdict.wrong.append(f"the client ended badly: {_end(told) or _end(done.stderr)}")
    return verdict


def _weigh(check: str, said: str, verdict: Verdict) -> None:
    reason = EXCEPTIONS.get((verdict.revision, verdict.scenario, check))
    if reason is None:
        verdict.wrong.append(f"{check}: {said}")
    else:
        say(f"  excepted: {check}: {said} ({reason})")


def _end(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-3:])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SCENARIO_MS / 1000 + 30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CannotInstall(str(exc)) from exc


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
