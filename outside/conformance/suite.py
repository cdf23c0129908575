"""The conformance suite: what it judges, how it is run, and what it found."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from indusagi.core.json import is_json_object
from outside.install import ROOT, CannotInstall, find_node, node_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from indusagi.core.json import JsonValue

REVISIONS = ("2025-11-25", "2026-07-28")
EXTENSION = "extension"
"""Instead of a revision: scenarios that belong to none."""
TASKS = "tasks-"
JUDGED_EXTENSIONS = ("sep-2640-", TASKS)
"""How the scenarios of the extensions begin that are judged: skills, and tasks."""
_SUITE = "@modelcontextprotocol/conformance/dist/index.js"
_SCENARIO_MS = 60_000
_RUN_S = 300
_BAD = {"FAILURE", "WARNING"}
_SERVER_RESULTS = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


@dataclass(slots=True)
class Verdict:
    """What the suite found in one scenario."""

    revision: str
    scenario: str
    passed: int = 0
    failed: int = 0
    wrong: list[str] = field(default_factory=list[str])
    excepted: list[str] = field(default_factory=list[str])


class Suite:
    """The suite as it is installed here.

    Raises:
        CannotInstall: It is not, and cannot be.
    """

    def __init__(self) -> None:
        node = find_node()
        if node is None:
            raise CannotInstall("no node 22 or newer with npm; run `make setup`, or install one")
        self._command = (str(node.path), str(node_packages(node) / _SUITE))

    def scenarios(self, side: Literal["client", "server"], revision: str) -> list[str]:
        """Ask which scenarios of a revision there are, or which are extensions."""
        if revision == EXTENSION:
            listed = _run([*self._command, "list", f"--{side}"])
            lines = [line for line in listed.stdout.splitlines() if line.endswith(f"[{EXTENSION}]")]
            return scenarios_in("\n".join(lines))
        listed = _run([*self._command, "list", f"--{side}", "--spec-version", revision])
        return scenarios_in(listed.stdout)

    def judge_client(self, client: Sequence[str], revision: str, scenario: str, folder: Path) -> Verdict:
        """Have the suite start a client and go through one scenario with it."""
        command = ("--command", shlex.join(client), "--timeout", str(_SCENARIO_MS))
        version = () if revision == EXTENSION else ("--spec-version", revision)
        what = ("--scenario", scenario, *version, "--output-dir", str(folder))
        done = _run([*self._command, "client", *command, *what])
        verdict = Verdict(revision, scenario)
        found = next(folder.rglob("checks.json"), None)
        if found is None:
            verdict.wrong.append(f"the suite left no results: {end_of(done.stderr)}")
            return verdict
        weigh(json.loads(found.read_text("utf-8")), verdict)
        told = found.with_name("stderr.txt").read_text("utf-8")
        if "Traceback" in told or (done.returncode and not verdict.failed):
            said = end_of(told) or end_of(done.stderr)
            verdict.wrong.append(f"the client ended badly: {said}")
        return verdict

    def judge_server(self, url: str, revision: str, folder: Path, scenarios: Sequence[str], *, together: bool) -> str:
        """Have the suite go through scenarios with a server, and give its last words.

        If they are all there are, they can be run together: the suite is started once.
        """
        # An extension belongs to no revision: the suite speaks the newest one.
        version = (REVISIONS[-1], "--force") if revision == EXTENSION else (revision,)
        what = ("--url", url, "--spec-version", *version, "--timeout", str(_SCENARIO_MS))
        command = (*self._command, "server", *what, "--output-dir", str(folder))
        runs = (
            [("--suite", "all")] if together and revision != EXTENSION else [("--scenario", one) for one in scenarios]
        )
        done = [_run([*command, *run]) for run in runs]
        return end_of("".join(f"{one.stdout}\n{one.stderr}\n" for one in done))


def is_judged_in(revision: str, scenario: str) -> bool:
    """Tell whether a scenario counts: those of a revision, and those of the extensions that we have."""
    return revision in REVISIONS or scenario.startswith(JUDGED_EXTENSIONS)


def read_results(
    folder: Path, revision: str, scenarios: Sequence[str], may_fail: Callable[[str], str | None], said: str
) -> list[Verdict]:
    """Read what the suite has written about a server; what is not there is a failure."""
    found = {scenario_of(one.name): one / "checks.json" for one in folder.glob("server-*")}
    verdicts = [Verdict(revision, scenario) for scenario in scenarios]
    for verdict in verdicts:
        if verdict.scenario in found:
            checks = json.loads(found[verdict.scenario].read_text("utf-8"))
            weigh(checks, verdict, may_fail)
        else:
            verdict.wrong.append(f"the suite left no results: {said}")
    return verdicts


def scenarios_in(listed: str) -> list[str]:
    """Read what the suite lists."""
    return [line.split()[1] for line in listed.splitlines() if line.startswith("  - ")]


def scenario_of(folder: str) -> str | None:
    """Say which scenario the results in a folder belong to."""
    found = _SERVER_RESULTS.fullmatch(folder)
    return found and found["scenario"]


def weigh(checks: JsonValue, verdict: Verdict, may_fail: Callable[[str], str | None] | None = None) -> None:
    """Count the checks of a scenario; a warning is a failure, unless there is a reason for it."""
    for check in checks if isinstance(checks, list) else []:
        if not is_json_object(check):
            continue
        verdict.passed += check["status"] == "SUCCESS"
        if check["status"] in _BAD:
            name, said = str(check["id"]), check.get("errorMessage") or check["description"]
            reason = may_fail(name) if may_fail is not None else None
            if reason is None:
                verdict.failed += 1
                verdict.wrong.append(f"{name}: {said}")
            else:
                verdict.excepted.append(name)
    if not verdict.passed and not verdict.wrong:
        verdict.wrong.append("the suite found nothing to judge")


def end_of(text: str) -> str:
    """Give the last lines of an output, as one."""
    return " / ".join(text.strip().splitlines()[-3:])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_RUN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CannotInstall(str(exc)) from exc
