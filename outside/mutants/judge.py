"""Whether a test notices a mutant.

A failed test counts if it passes on the unchanged tree, in the same place. That of a test is looked at once; that of a
test which starts processes, needs real time or took too long is looked at each time, and the test has to fail twice. A
test that fails on the unchanged tree counts for nothing from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from outside.mutants.choice import choose_tests
from outside.mutants.slots import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outside.mutants.baseline import Baseline
    from outside.mutants.places import Mutant
    from outside.mutants.slots import Run

_TOO_LONG = ("Timeout", "took longer than", "hangs")
_PASSED = (0, 5)
"""5: no test was left to run."""
_SLACK_S = 150.0
_FACTOR = 5.0
"""How much longer than on the unchanged tree a group may take: a test of its own ends after the limit of the suite."""


class TestRunner(Protocol):
    """A place where tests run: a slot."""

    def run(self, tests: Sequence[str] = (), *, arguments: Sequence[str] = ..., limit_s: float = ...) -> Run:
        """Run tests in this order."""
        ...

    def change(self, mutant: Mutant | None, path: str) -> None:
        """Put a mutant into the file, or take it back."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a test noticed a mutant."""

    mutant: Mutant
    is_noticed: bool
    by: str
    """The test that noticed it, and why."""
    ran: int
    """How many tests ran on it."""
    took_s: float = 0.0


@dataclass(slots=True)
class Judge:
    """Judges mutants, in several slots at once."""

    baseline: Baseline
    budget_s: float
    trusted: set[str] = field(default_factory=set[str])
    """Tests that have passed on the unchanged tree in a slot."""
    distrusted: set[str] = field(default_factory=set[str])
    """Tests that have failed there."""
    _lock: Lock = field(default_factory=Lock)

    def judge(self, mutant: Mutant, slot: TestRunner) -> Verdict:
        """Run the tests that may notice a mutant until one does."""
        began, ran = monotonic(), 0
        slot.change(mutant, mutant.path)
        try:
            for group in choose_tests(mutant, self.baseline, self.budget_s):
                left = [test for test in group if test not in self.distrusted]
                while left:
                    run = slot.run(left, limit_s=self._limit(left))
                    ran += len({outcome.test for outcome in run.outcomes})
                    failure = find_failure(run, left[0])
                    if failure is None:
                        break
                    if self._is_confirmed(failure, mutant, slot):
                        reason = f"{failure.test} ({_shorten(failure.why)})"
                        return Verdict(mutant, is_noticed=True, by=reason, ran=ran, took_s=monotonic() - began)
                    left = _go_on(left, failure.test)
            return Verdict(mutant, is_noticed=False, by="", ran=ran, took_s=monotonic() - began)
        finally:
            slot.change(None, mutant.path)

    def _limit(self, tests: Sequence[str]) -> float:
        took_s = dict(zip(self.baseline.tests, self.baseline.took_s, strict=True))
        return _SLACK_S + _FACTOR * sum(took_s[test] for test in tests)

    def _is_confirmed(self, failure: Outcome, mutant: Mutant, slot: TestRunner) -> bool:
        is_late = any(word in failure.why for word in _TOO_LONG)
        is_shaky = failure.is_slow_kind or is_late
        if failure.test in self.trusted and not is_shaky:
            return True
        is_file = "::" not in failure.test
        arguments = ("--collect-only",) if is_file else ("-x",)
        slot.change(None, mutant.path)
        original = slot.run([failure.test], arguments=arguments, limit_s=_SLACK_S)
        slot.change(mutant, mutant.path)
        is_good = find_failure(original, failure.test) is None
        with self._lock:
            (self.trusted if is_good else self.distrusted).add(failure.test)
        if is_good and is_shaky and not is_late:
            again = slot.run([failure.test], arguments=arguments, limit_s=_SLACK_S)
            return find_failure(again, failure.test) is not None
        return is_good


def find_failure(run: Run, first: str) -> Outcome | None:
    """Return the first failure of a run; a run that ended before its first test failed there."""
    if run.failures:
        return run.failures[0]
    if run.code in _PASSED:
        return None
    return Outcome(first, failed=True, took_s=0.0, why=f"exit code {run.code}", is_slow_kind=True)


def _go_on(tests: Sequence[str], failed: str) -> list[str]:
    """Return the tests after a failed one; without those of the file if that cannot be collected."""
    if failed in tests:
        return list(tests[tests.index(failed) + 1 :])
    return [test for test in tests if test.partition("::")[0] != failed]


def _shorten(why: str) -> str:
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    return lines[0][:100] if lines else ""
