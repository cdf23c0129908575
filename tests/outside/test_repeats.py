"""Tests of `make repeats`: reading pytest's totals, and the load."""

from __future__ import annotations

import subprocess
import sys

import pytest
from outside.repeats import put_load, read_counts
from tests.support.waiting import is_alive


def test_the_totals_of_all_tiers_are_added_up() -> None:
    output = "1 failed, 20 passed, 3 skipped in 4.10s\nnoise: 9 passed\n== 5 passed, 2 errors in 61.00s (0:01:01) ==\n"
    assert read_counts(output) == {"failed": 3, "passed": 25, "skipped": 3}


@pytest.mark.process
def test_the_load_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def remember(argv: list[str], **options: str) -> subprocess.Popen[bytes]:
        assert argv[0] == sys.executable
        started.append(start(argv, **options))  # pyright: ignore[reportCallIssue, reportArgumentType] — untyped options
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", remember)
    with put_load(2):
        assert [process.poll() for process in started] == [None] * 3
    assert not any(is_alive(process.pid) for process in started)
    with put_load(0):
        assert len(started) == 3
