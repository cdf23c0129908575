"""The checks that run around every test cover both packages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from blockbuster import BlockingError
from tests.conftest import PACKAGES, _is_ours
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

PROBE = """
import asyncio, time
async def block():
    time.sleep(0.001)
async def wait():
    await asyncio.Event().wait()
"""


def probe(package: str, name: str) -> Callable[[], Any]:
    """Compile a function as if it stood in a module of the package."""
    names: dict[str, Any] = {}
    exec(compile(PROBE, str(ROOT / "src" / package / "probe.py"), "exec"), names)  # noqa: S102 — the file name is the point
    return names[name]


@pytest.mark.parametrize("package", PACKAGES)
async def test_finding_e8_a_blocking_call_in_the_loop_is_noticed(package: str) -> None:
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        await probe(package, "block")()


@pytest.mark.parametrize("package", PACKAGES)
async def test_finding_e8_a_task_that_is_left_running_is_noticed(package: str) -> None:
    task = asyncio.create_task(probe(package, "wait")())  # noqa: TID251 — a task without an owner is the point
    assert _is_ours(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
