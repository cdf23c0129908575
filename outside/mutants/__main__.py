"""Change one place of `src` at a time, and check that a test notices.

A sample of mutants is drawn by seed, from each room (top-level package) by its share of the lines: a condition is
negated or weakened, a boundary moved, a call, raise or return removed, a value, item, argument or caught exception
changed. The tests that run the changed line run on it, the nearest and cheapest first, until one fails. Which tests do
is recorded first by one run of all tests, and kept in `.outside/mutants` for as long as `src` and `tests` stay.
Exit code 1 if fewer than `--least` percent are noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from outside.install import HOME, ROOT
from outside.mutants.baseline import Baseline, find_baseline, hash_tests, record_tests
from outside.mutants.choice import draw_sample
from outside.mutants.judge import Judge, Verdict
from outside.mutants.operators import list_mutants
from outside.mutants.places import Mutant
from outside.mutants.slots import Slot
from outside.say import say

if TYPE_CHECKING:
    from collections.abc import Sequence

_SKIPPED = ("__main__.py",)
_RESULT = HOME / "mutants/last.json"


def main(arguments: Sequence[str]) -> int:
    """Judge a sample of mutants, print the survivors, and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=92.0, help="percent of mutants that tests must notice")
    parser.add_argument("--under", default="src", help="only files below this path, or this file")
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1, help="runs of tests at once")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for a mutant that none notices")
    parser.add_argument("--list", action="store_true", help="print the sample alone")
    options = parser.parse_args(arguments)
    sample = draw_sample(list_population(ROOT / options.under), options.count, options.seed)
    if options.list:
        for mutant in sample:
            print(describe(mutant))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        baseline = open_baseline(Path(folder), options.jobs)
        began = monotonic()
        verdicts = judge_all(sample, Judge(baseline, options.budget), Path(folder), options.jobs)
    print()
    percent = print_summary(verdicts, monotonic() - began)
    write_result(verdicts, options.seed)
    return 0 if percent >= options.least else 1


def list_population(under: Path) -> list[Mutant]:
    """List all mutants of the files below a path."""
    files = [under] if under.is_file() else sorted(under.rglob("*.py"))
    return [
        mutant
        for path in files
        if path.name not in _SKIPPED
        for mutant in list_mutants(str(path.relative_to(ROOT)), path.read_bytes())
    ]


def open_baseline(folder: Path, jobs: int) -> Baseline:
    """Return the baseline of this tree; it is recorded first if nobody has."""
    path, baseline = find_baseline()
    missing = baseline.forget_changed(hash_tests())
    if not missing:
        return baseline
    say(f"Recording which lines the tests of {len(missing)} files run (once for this tree) ...")
    began, former_count = monotonic(), len(baseline.tests)
    baseline.failed.clear()
    slots = [Slot(folder / str(number), sorted(baseline.libraries)) for number in range(min(jobs, len(missing)))]
    path.parent.mkdir(parents=True, exist_ok=True)
    for former in path.parent.glob("*.json.gz"):
        former.unlink()

    def save() -> None:
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_bytes(baseline.dump())
        unfinished.replace(path)

    record_tests(baseline, missing, slots, save)
    for slot in slots:
        slot.close()
    say(f"{len(baseline.tests) - former_count:,} tests recorded in {monotonic() - began:.0f} s")
    for test in baseline.failed:
        say(f"  failed meanwhile: {test}")
    return baseline


def judge_all(sample: Sequence[Mutant], judge: Judge, folder: Path, jobs: int) -> list[Verdict]:
    """Judge mutants in several slots at once, and print a line for each."""
    waiting: SimpleQueue[Mutant] = SimpleQueue()
    for mutant in sample:
        waiting.put(mutant)
    verdicts: list[Verdict] = []
    lock = Lock()

    def work(number: int) -> None:
        slot = Slot(folder / str(number), sorted(judge.baseline.libraries))
        try:
            while True:
                try:
                    verdict = judge.judge(waiting.get_nowait(), slot)
                except Empty:
                    return
                with lock:
                    verdicts.append(verdict)
                    print(show(verdict), flush=True)
        finally:
            slot.close()

    threads = [Thread(target=work, args=(number,)) for number in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return verdicts


def describe(mutant: Mutant) -> str:
    """Describe a mutant: where it is, and its line before and after."""
    before, after = mutant.show((ROOT / mutant.path).read_bytes())
    return f"{mutant.path}:{mutant.line} {mutant.change}\n    - {before}\n    + {after}"


def show(verdict: Verdict) -> str:
    """Return the line of a verdict."""
    word = "noticed " if verdict.is_noticed else "SURVIVED"
    effort = f"{verdict.ran} tests, {verdict.took_s:.1f} s"
    return (
        f"{word} {verdict.mutant.path}:{verdict.mutant.line} {verdict.mutant.change} [{effort}] {verdict.by}".rstrip()
    )


def print_summary(verdicts: Sequence[Verdict], took_s: float) -> float:
    """Print the survivors and a table of the rooms; return how many percent were noticed."""
    survivors = [verdict for verdict in verdicts if not verdict.is_noticed]
    for verdict in sorted(survivors, key=lambda verdict: (verdict.mutant.path, verdict.mutant.line)):
        print(f"SURVIVED {describe(verdict.mutant)}\n    {verdict.ran} tests ran on it")
    all_of = Counter(verdict.mutant.room for verdict in verdicts)
    noticed = Counter(verdict.mutant.room for verdict in verdicts if verdict.is_noticed)
    print(f"\n{'room':<28}{'mutants':>8}{'noticed':>8}{'%':>8}")
    for room, count in sorted(all_of.items()):
        print(f"{room:<28}{count:>8}{noticed[room]:>8}{100 * noticed[room] / count:>8.1f}")
    percent = 100 * noticed.total() / max(1, len(verdicts))
    print(f"{noticed.total()} of {len(verdicts)} mutants noticed: {percent:.1f} % ({took_s:.0f} s)")
    return percent


def write_result(verdicts: Sequence[Verdict], seed: int) -> None:
    """Write the verdicts as JSON."""
    rows: list[dict[str, object]] = []
    for verdict in verdicts:
        mutant = verdict.mutant
        before, after = mutant.show((ROOT / mutant.path).read_bytes())
        rows.append({
            "path": mutant.path, "line": mutant.line, "room": mutant.room, "change": mutant.change,
            "before": before, "after": after, "noticed": verdict.is_noticed, "by": verdict.by,
            "tests": verdict.ran, "seconds": round(verdict.took_s, 2),
        })  # fmt: skip
    _RESULT.parent.mkdir(parents=True, exist_ok=True)
    _RESULT.write_text(json.dumps({"seed": seed, "mutants": rows}, indent=1), "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
