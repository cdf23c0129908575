"""The ends of commands, without the waits that a test would otherwise spend on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio
from tests.support.transports import LoopTime
from tests.support.waiting import until

from indusagi.capabilities import jobs
from indusagi.capabilities.local.shell import LocalProcess
from indusagi.core.process import child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

Result = TypeVar("Result")


def kill_soon(monkeypatch: pytest.MonkeyPatch, *, grace_ms: int = 100) -> None:
    """Shorten the time between SIGTERM and SIGKILL, for processes that ignore SIGTERM anyway."""
    defaults = LocalProcess.stop.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "grace_ms", grace_ms)
    monkeypatch.setattr(jobs, "STOP_GRACE_MS", grace_ms)


def give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for processes that are killed and don't end."""
    kill_soon(monkeypatch)
    monkeypatch.setattr(child, "_REAP_S", 0.1)


async def past_its_limit(
    run: Callable[[], Awaitable[Result]],
    ready: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
    *,
    limit_s: float = 600,
) -> Result:
    """Run a command with a time limit, which is up once the command is `ready`, and not before."""
    results: list[Result] = []
    time = LoopTime(monkeypatch)
    limited: list[LocalProcess] = []
    wait = LocalProcess.wait

    async def wait_within_limit(process: LocalProcess) -> int:
        limited.append(process)
        return await wait(process)

    # The command may be ready while its start is still being noted, and its limit not yet set.
    monkeypatch.setattr(LocalProcess, "wait", wait_within_limit)

    async def keep() -> None:
        results.append(await run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep)
        await until(lambda: bool(limited) and ready())
        await time.passes(limit_s)
    return results[0]
