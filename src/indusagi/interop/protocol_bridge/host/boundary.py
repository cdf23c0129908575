"""The boundary of a host: failing work is logged in one line, and ends nothing but itself.

Whatever clients, servers and issuers send, a host keeps running. `HostTasks.start` starts each of its tasks, and each
of its event loop callbacks calls `log_failure` where it would raise.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Coroutine

from indusagi.core.faults import describe_error
from indusagi.core.text import clean_text, cut_text

_log = logging.getLogger(__name__)

_MAX_KINDS = 20
_MAX_CHARS = 200
_CLOSE_S = 5.0
"""How long cancelled tasks may take to end."""


class RateLimitedLog:
    """Logs messages about one owner: each kind the first, 10th, 100th time and so on."""

    def __init__(self, owner: str, overflow: str = "sends other messages", level: int = logging.WARNING) -> None:
        self._owner = owner
        self._overflow = overflow
        self._level = level
        self._counts: Counter[str] = Counter()

    def write(self, message: str) -> bool:
        """Log a message, unless one of its kind was logged recently; return whether it was logged."""
        # Most messages contain a peer's text, which can invent ever new kinds.
        kind = " ".join(clean_text(cut_text(message, _MAX_CHARS))[0].split())
        if kind not in self._counts and len(self._counts) >= _MAX_KINDS:
            kind = self._overflow
        self._counts[kind] += 1
        count = self._counts[kind]
        is_due = f"{count}".rstrip("0") == "1"
        if is_due:
            _log.log(self._level, "%s %s%s", self._owner, kind, "" if count == 1 else f" ({count:,} times)")
        return is_due


_failures = RateLimitedLog("the host", "failed in other ways", logging.ERROR)


def log_failure(what: str, exc: BaseException) -> None:
    """Log that the host failed in `what`: one line with cause and place, and the traceback at level debug."""
    trace, place = exc.__traceback__, ""
    while trace is not None:
        place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    if _failures.write(f"failed in {what}: {type(exc).__name__}{place}: {describe_error(exc)}"):
        _log.debug("the host failed in %s", what, exc_info=exc)


def handle_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log an error from an event loop callback, as the loop's exception handler."""
    exc = context.get("exception")
    what = str(context.get("message") or "a callback")
    if isinstance(exc, BaseException):
        log_failure(f"the event loop: {what}", exc)
    else:
        _failures.write(f"has a report of the event loop: {what}")


class HostTasks:
    """A host's background work. It ends with the host, and no failure ends it earlier."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(
        self, what: str, work: Callable[[], Coroutine[object, object, None]], *, retry_s: float | None = None
    ) -> None:
        """Run work in a task. Failures are logged; with `retry_s` the work restarts after that many seconds."""
        # This object owns the task: it holds on to it, and `close` ends it.
        task = asyncio.create_task(_run(what, work, retry_s), name=what)  # noqa: TID251
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Cancel everything and wait for it to end."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=_CLOSE_S)


async def _run(what: str, work: Callable[[], Coroutine[object, object, None]], retry_s: float | None) -> None:
    while True:
        try:
            await work()
        except Exception as exc:  # noqa: BLE001 — the boundary
            log_failure(what, exc)
        else:
            return
        if retry_s is None:
            return
        await asyncio.sleep(retry_s)
