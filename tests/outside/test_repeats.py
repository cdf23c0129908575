"""Tests of `make repeats`: reading pytest's totals, the load, and what is not repeated."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from outside.repeats import Row, put_load, read_counts
from tests.support.waiting import is_alive

from outside import repeats

if TYPE_CHECKING:
    from pathlib import Path


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


def test_runs_that_ended_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []

    def run_suite(seed: int, loops: int, commit: str) -> Row:
        ran.append((seed, loops))
        if len(ran) == 3:
            raise KeyboardInterrupt
        load = repeats.describe_load(loops)
        return Row(commit, repeats._PYTHON, seed, load, 0, passed=9, failed=0, skipped=0, seconds=1, failures=[])

    monkeypatch.setattr(repeats, "_KEPT", tmp_path)
    monkeypatch.setattr(repeats, "_ROWS", tmp_path / "rows")
    monkeypatch.setattr(repeats, "run_suite", run_suite)
    commits = iter(["1a", "1a", "1a", "1a+", "2b"])
    monkeypatch.setattr(repeats, "read_commit", lambda: next(commits))
    words = ["--count", "4", "--loops", "2", "--seed", "5"]
    with pytest.raises(KeyboardInterrupt):
        repeats.main(words)
    assert repeats.main(words) == 0
    assert ran == [(5, 0), (6, 2), (7, 0), (7, 0), (8, 2)]
    for arguments in ([*words, "--anew"], words, words):  # the second has a changed tree, the third another commit
        ran.clear()
        ran += [(0, 0)] * 3
        assert repeats.main(arguments) == 0
        assert len(ran) == 3 + 4
