"""`make soak`: mixed load on `indus serve`, and whether anything grows under it.

Gateways run side by side: over stdio, over HTTP, and as a relay of one server. Each goes through
laps of calls of every kind; clients come and leave, servers are killed and come back, the
configuration changes. Between laps, at rest, each is looked at: memory, objects, descriptors,
tasks, threads, processes. It ends with 1 if one of these has grown or an answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from bench.process import compile_packages
from bench.row import CannotMeasure
from bench.soak.gateways import SUBJECTS, complaints, opened
from bench.soak.growth import LEAST, Verdict, judge
from bench.soak.load import Wrong, lap
from bench.soak.sample import QUANTITIES, at_rest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.soak.gateways import Gateway, Subject
    from bench.soak.sample import Sample

_MINUTES = 1.25


@dataclass(slots=True)
class Course:
    """What one gateway went through."""

    subject: Subject
    samples: list[Sample] = field(default_factory=list["Sample"])
    done: Counter[str] = field(default_factory=Counter[str])
    failure: str | None = None

    def verdicts(self) -> list[Verdict]:
        """Judge every quantity."""
        series = zip(*(sample.values() for sample in self.samples), strict=True)
        return [judge(one, values) for one, values in zip(QUANTITIES, series, strict=True)]

    @property
    def ok(self) -> bool:
        """Whether every answer was right and nothing has grown."""
        return self.failure is None and all(verdict.ok for verdict in self.verdicts())


async def _run(course: Course, until: float) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            async with opened(course.subject, folder, course.done) as gateway:
                await _laps(course, gateway, until)
        except (Wrong, CannotMeasure) as exc:
            course.failure = f"{exc}; {complaints(folder)}"


async def _laps(course: Course, gateway: Gateway, until: float) -> None:
    while len(course.samples) < LEAST or monotonic() < until:
        await lap(gateway.visitor, *gateway.events())
        course.samples.append(await at_rest(gateway.pid, gateway.observer))
        course.done["laps"] += 1


async def soak(subjects: Sequence[Subject], minutes: float) -> list[Course]:
    """Have all gateways run for so long, side by side."""
    courses = [Course(subject) for subject in subjects]
    until = monotonic() + minutes * 60
    async with asyncio.TaskGroup() as tasks:
        for course in courses:
            tasks.create_task(_run(course, until))
    return courses


def report(course: Course) -> str:
    """Tell what became of a gateway."""
    done = ", ".join(f"{count:,} {what}" for what, count in sorted(course.done.items()))
    lines = [f"{course.subject.name}: {done}"]
    if course.failure is not None:
        return "\n".join([*lines, f"  WRONG: {course.failure}"])
    lines.append(f"  {'':20} {'first third':>12} {'last third':>12} {'allowed':>12}")
    for verdict in course.verdicts():
        unit = verdict.quantity.unit
        figures = (verdict.first / unit, verdict.last / unit, verdict.allowed / unit)
        shown = " ".join(f"{figure:12,.1f}" for figure in figures)
        lines.append(f"  {verdict.quantity.name:20} {shown}  {'' if verdict.ok else 'GROWS'}")
    return "\n".join(line.rstrip() for line in lines)


def main(arguments: Sequence[str]) -> int:
    """Soak, print what came of it, and give the exit code."""
    names = [subject.name for subject in SUBJECTS]
    parser = argparse.ArgumentParser(prog="bench.soak", description="Mixed load on indus serve.")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help=f"default: {_MINUTES:g}")
    parser.add_argument("--only", action="append", choices=names, help="this gateway; repeatable")
    options = parser.parse_args(arguments)
    chosen = [one for one in SUBJECTS if options.only is None or one.name in options.only]
    compile_packages()
    courses = asyncio.run(soak(chosen, options.minutes))
    for course in courses:
        print(report(course), end="\n\n")
    return 0 if all(course.ok for course in courses) else 1
