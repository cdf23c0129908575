"""Pytest plugin: a run ends with why tests were skipped, what was not covered, and how to run a failed test again."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.support.sandboxes import NOT_COVERED

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

_SHOWN = 10
"""Failed tests whose command is printed: of more, the first ones matter."""


def count_reasons(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> Counter[str]:
    """Count skipped tests by the reason they give."""
    # A skipped test has its path, line and reason there, also in the controller of xdist.
    return Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in reports if isinstance(report.longrepr, tuple)
    )


def tell_not_covered(reasons: Counter[str]) -> list[str]:
    """Say in a line each what was left out as a whole."""
    return [
        f"not covered: {area} ({count} tests skipped: {reason})"
        for reason, area in NOT_COVERED.items()
        if (count := reasons[reason])
    ]


def command_again(nodeid: str, config: pytest.Config) -> str:
    """Give the command that runs one test in the way it ran here."""
    words = [".venv/bin/python", "-m", "pytest"]
    seed = config.getoption("hypothesis_seed", None)
    if seed is not None:
        words += ["--hypothesis-seed", str(seed)]
    if config.pluginmanager.has_plugin("tests.support.stalls"):
        words += ["-p", "tests.support.stalls", "--stall-seed", str(config.getoption("stall_seed"))]
        words += ["--stall-children"] if config.getoption("stall_children") else []
    return shlex.join([*words, nodeid])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the skipped tests by reason, and the commands for the failed ones."""
    reasons = count_reasons(terminalreporter.getreports("skipped"))
    if reasons:
        terminalreporter.section("skipped tests")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:4} {reason}")
    failed = [
        report.nodeid for report in (*terminalreporter.getreports("failed"), *terminalreporter.getreports("error"))
    ]
    if failed:
        terminalreporter.section("to run a failed test again")
        for nodeid in list(dict.fromkeys(failed))[:_SHOWN]:
            terminalreporter.write_line(command_again(nodeid, config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Print what was not covered, as the last lines of the run."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(reporter, pytest.TerminalReporter):
        for line in tell_not_covered(count_reasons(reporter.getreports("skipped"))):
            reporter.write_line(line, yellow=True, bold=True)
