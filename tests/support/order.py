"""Pytest plugin that shuffles the tests: `-p tests.support.order --order-seed 7`.

Files stay together, so that a fixture of a module is still made once. A test that fails in one order alone leans on
another test.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the plugin."""
    parser.getgroup("order").addoption("--order-seed", default="0", help="Chooses the order of files and tests.")


def pytest_report_header(config: pytest.Config) -> str:
    """Name the seed, which repeats the order."""
    return f"order seed: {config.getoption('--order-seed')}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the files, and the tests of each file. Every worker of xdist gets the same order."""
    choice = random.Random(str(config.getoption("--order-seed")))
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(str(item.path), []).append(item)
    shuffled = list(files.values())
    choice.shuffle(shuffled)
    for tests in shuffled:
        choice.shuffle(tests)
    items[:] = [item for tests in shuffled for item in tests]
