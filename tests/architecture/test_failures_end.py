"""A failing test ends quickly and lets the run end."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import ROOT, unmeasured

if TYPE_CHECKING:
    from pathlib import Path

HURRIED = """
import pytest
from tests import conftest
from tests.support import leaks

conftest.LEFT_THREADS_S = leaks._SETTLE_S = 0.1

@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    assert session.config.stash[conftest.WATCH].limit_s == 59
    session.config.stash[conftest.WATCH] = conftest.Watch(0.2)
"""
"""Nothing ever answers what is waited for: only the limits end the tests and the run."""
HANGS = """
import asyncio, time
import anyio, pytest

@pytest.mark.anyio
async def test_waits():
    await asyncio.Event().wait()

@pytest.mark.anyio
async def test_spins():
    while True:
        await asyncio.sleep(0)

@pytest.mark.anyio
async def test_waits_for_a_thread():
    await anyio.to_thread.run_sync(time.sleep, 600, abandon_on_cancel=True)
"""


@pytest.mark.process
def test_finding_e12_tests_that_hang_are_failed_and_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(HURRIED, encoding="utf-8")
    (tmp_path / "test_hangs.py").write_text(HANGS, encoding="utf-8")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", f"--basetemp={tmp_path}/t"]
    # The limit is for the test alone: its teardown waits for the thread that it leaves.
    done = subprocess.run(
        [*argv, "--timeout=60", "-o", "timeout_func_only=true", "-c", "pyproject.toml", str(tmp_path)],
        cwd=ROOT,
        env=unmeasured(),
        capture_output=True,
        text=True,
        timeout=150,  # a machine with 30 runnable processes takes a minute
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.count("the test took longer than 0.2 s") >= 3
    assert "left behind: thread" in done.stdout
