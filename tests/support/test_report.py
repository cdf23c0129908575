"""The last lines of a run of tests."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from tests.support.report import command_again, count_reasons, tell_not_covered
from tests.support.sandboxes import NO_BUBBLEWRAP

if TYPE_CHECKING:
    from collections.abc import Iterable


def test_skipped_tests_are_counted_by_reason() -> None:
    rows = [("a.py", 1, "Skipped: no disk"), ("b.py", 2, "Skipped: no disk"), ("b.py", 3, "Skipped: no net"), None]
    reports = cast("Iterable[pytest.TestReport]", [SimpleNamespace(longrepr=row) for row in rows])
    assert count_reasons(reports) == {"no disk": 2, "no net": 1}


def test_a_sandbox_that_no_test_has_tried_is_named() -> None:
    assert tell_not_covered(Counter({NO_BUBBLEWRAP: 75, "no net": 1})) == [
        "not covered: the bubblewrap sandbox (75 tests skipped: bubblewrap isn't installed, or doesn't work here)"
    ]
    assert tell_not_covered(Counter({"no net": 1})) == []


class Options:
    """The part of the configuration that the command is built from."""

    def __init__(self, **given: object) -> None:
        self._given = given
        self.pluginmanager = SimpleNamespace(has_plugin=lambda name: "stall_seed" in given)  # pyright: ignore[reportUnknownLambdaType]

    def getoption(self, name: str, default: object = None) -> object:
        return self._given.get(name, default)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, ""),
        ({"hypothesis_seed": 7}, "--hypothesis-seed 7 "),
        ({"stall_seed": "3"}, "-p tests.support.stalls --stall-seed 3 "),
        ({"stall_seed": "3", "stall_children": True}, "-p tests.support.stalls --stall-seed 3 --stall-children "),
    ],
)
def test_a_failed_test_comes_with_the_command_that_runs_it_again(given: dict[str, object], options: str) -> None:
    command = command_again("tests/a.py::test_b[c d]", cast("pytest.Config", Options(**given)))
    assert command == f".venv/bin/python -m pytest {options}'tests/a.py::test_b[c d]'"
