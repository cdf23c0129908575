"""Having the suite judge our servers, one after the other, in both revisions."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from outside.conformance.subjects import Subject, subjects
from outside.conformance.suite import EXTENSION, REVISIONS, TASKS, Suite, Verdict, end_of, is_judged_in, read_results
from outside.install import ROOT
from outside.leftovers import Watch
from outside.remote import NotListening, listening
from outside.say import aligned, markdown, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_HEAD = ("subject", "revision", "scenario", "passed", "failed", "result")
_WIDTHS = (18, 10, 45, 6, 6, 11)
_PREPARE_S = 120
_NOT_OFFERED = "not offered"
_REST = "all scenarios without a number"
_STATE = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")


@dataclass(slots=True)
class Judged:
    """A server, and what the suite found."""

    subject: Subject
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    wrong: list[str] = field(default_factory=list[str])
    """What is wrong with it as a program: it does not start, or leaves something behind."""

    @property
    def failed(self) -> list[str]:
        """What has to be put right."""
        return [
            *(f"{self.subject.name}: {line}" for line in self.wrong),
            *(
                f"{self.subject.name}, {one.revision}, {one.scenario}: {line}"
                for one in self.verdicts
                for line in self.complaints(one)
            ),
        ]

    @property
    def stale(self) -> list[str]:
        """The reasons that nothing was left out for; only if everything was run."""
        met = {one.scenario for one in self.verdicts}
        met |= {name for one in self.verdicts for name in one.excepted}
        listed = {**self.subject.left_out, **self.subject.may_fail}
        return [
            f"{self.subject.name}: {name} need not be left out" for name in listed if self.verdicts and name not in met
        ]

    def complaints(self, verdict: Verdict) -> list[str]:
        """What counts of what the suite complains about."""
        reason = self.subject.why_not(verdict.scenario)
        if reason is None and verdict.revision == EXTENSION and verdict.passed <= 1:
            return [*verdict.wrong, "the suite judged the connection alone: the extension is not declared"]
        if reason is None:
            return verdict.wrong
        if verdict.passed > 1 and not verdict.wrong and self.subject.only is None:
            return [f"it passes, yet it is left out: {reason}"]
        return []

    def cell(self, verdict: Verdict | None) -> str:
        """What stands in the table."""
        if verdict is None:
            return "not run"
        if self.subject.why_not(verdict.scenario) is not None:
            return _NOT_OFFERED
        failed = f", {verdict.failed or 'something'} failed" if verdict.wrong else ""
        return f"{verdict.passed}{failed}"


def judge_servers(suite: Suite, results: Path, scenario: str | None = None, subject: str | None = None) -> list[Judged]:
    """Judge all servers, or one; in all scenarios, or in one."""
    say(aligned(_HEAD, _WIDTHS))
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_all(suite, results, Path(folder).resolve(), (scenario, subject)))


async def _all(suite: Suite, results: Path, scratch: Path, only: tuple[str | None, str | None]) -> list[Judged]:
    scenario, wanted = only
    scenarios = {
        revision: [
            one
            for one in suite.scenarios("server", revision)
            if scenario in {None, one} and is_judged_in(revision, one)
        ]
        for revision in (*REVISIONS, EXTENSION)
    }
    return [
        await _Judging(suite, subject, results / subject.name, scratch).all(
            {
                key: [one for one in listed if one.startswith(TASKS) == subject.has_tasks]
                for key, listed in scenarios.items()
            }
        )
        for subject in subjects(scratch)
        if wanted in {None, subject.name} or (wanted == "tasks" and subject.has_tasks)
    ]


class _Judging:
    """One server being judged: started, health-checked and ended by its caller."""

    def __init__(self, suite: Suite, subject: Subject, folder: Path, scratch: Path) -> None:
        self._suite = suite
        self._subject = subject
        self._folder = folder
        self._scratch = scratch
        self._judged = Judged(subject)
        self._watch = Watch(str(scratch))

    async def all(self, scenarios: Mapping[str, Sequence[str]]) -> Judged:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._subject.prepare:
            run = partial(subprocess.run, self._subject.prepare, cwd=self._scratch, env={**os.environ, **self._env()})
            await asyncio.to_thread(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_PREPARE_S)
        only = self._subject.only
        for revision, listed in scenarios.items():
            offered = [one for one in listed if only is None or one in only]
            # The later revision knows no sessions.
            room = self._subject.sessions if revision == REVISIONS[0] else None
            size = room or max(len(offered), 1)
            for begin in range(0, len(offered), size):
                if not self._judged.wrong:
                    some = offered[begin : begin + size]
                    await self._some(revision, some, together=len(some) == len(listed) > 1)
            self._judged.verdicts += [Verdict(revision, one) for one in listed if one not in offered]
        for process in self._watch.left():
            self._complain(f"left behind: {process}")
        return self._judged

    async def _some(self, revision: str, scenarios: Sequence[str], *, together: bool) -> None:
        log, results = self._folder / "log.txt", self._folder / revision
        env = self._env()
        command, judge = self._subject.command, self._suite.judge_server
        try:
            async with listening(command, log=log, env=env, cwd=self._scratch) as port:
                url = f"http://localhost:{port}/mcp"
                said = await asyncio.to_thread(judge, url, revision, results, scenarios, together=together)
                self._watch.look()
        except NotListening as exc:
            self._complain(f"{exc}: {end_of(log.read_text('utf-8'))}")
            return
        found = read_results(results, revision, scenarios, self._subject.may_fail.get, said)
        self._judged.verdicts += found
        for verdict in found:
            _tell(self._judged, verdict)

    def _env(self) -> dict[str, str]:
        # Without the settings of the user, and without files in the home directory.
        return {**dict.fromkeys(_STATE, str(self._scratch)), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}

    def _complain(self, line: str) -> None:
        self._judged.wrong.append(line)
        say(f"  {line}")


def _tell(judged: Judged, verdict: Verdict) -> None:
    complaints = judged.complaints(verdict)
    left_out = judged.subject.why_not(verdict.scenario) is not None
    result = "FAILED" if complaints else _NOT_OFFERED if left_out else "ok"
    counts = (str(verdict.passed), str(verdict.failed))
    name, revision, scenario = judged.subject.name, verdict.revision, verdict.scenario
    say(aligned((name, revision, scenario, *counts, result), _WIDTHS))
    for line in complaints:
        say(f"  {line}")


def table(judged: Sequence[Judged]) -> list[str]:
    """Give the page: one row for each scenario, the sums, and what was left out."""
    columns = [{(one.revision, one.scenario): one for one in each.verdicts} for each in judged]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows = [(*key, *(each.cell(column.get(key)) for each, column in zip(judged, columns, strict=True))) for key in keys]
    sums = [row for revision in dict.fromkeys(revision for revision, _ in keys) for row in _sums(judged, revision)]
    head = ("revision", "scenario", *(each.subject.name for each in judged))
    return [*markdown(head, [*rows, *sums]), "", *left_out(judged)]


def _sums(judged: Sequence[Judged], revision: str) -> list[tuple[str, ...]]:
    scenarios, checks = [revision, "scenarios judged"], [revision, "checks passed"]
    for each in judged:
        run = [one for one in each.verdicts if one.revision == revision]
        counted = [one for one in run if each.subject.why_not(one.scenario) is None]
        passed, failed = sum(one.passed for one in counted), sum(one.failed for one in counted)
        scenarios.append(f"{len(counted)} of {len(run)}")
        checks.append(f"{passed} of {passed + failed}")
    return [tuple(scenarios), tuple(checks)]


def left_out(judged: Iterable[Judged]) -> list[str]:
    """Say what was not judged, and why."""
    return [
        f"- {each.subject.name}: {reason}: {', '.join(dict.fromkeys(names))}."
        for each in judged
        for reason, names in _reasons(each).items()
    ]


def _reasons(judged: Judged) -> dict[str, list[str]]:
    subject = judged.subject
    found: defaultdict[str, list[str]] = defaultdict(list)
    for verdict in judged.verdicts:
        reason = subject.why_not(verdict.scenario)
        if reason is not None:
            # Where few scenarios can be judged at all, the table says which.
            every = subject.only is not None
            found[reason].append(_REST if every else f"`{verdict.scenario}`")
        for name in verdict.excepted if reason is None else ():
            found[subject.may_fail[name]].append(f"`{name}`")
    return found
