"""A search program, run to its end or until there is enough, with nothing of it left behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from indusagi.core.process.child import ChildProcess

_COMPLAINT_BYTES = 8 * 1024
"""What is kept of what it says on its standard error."""
_BROKEN = b"panicked at "
"""What ripgrep says when it has met a fault of its own; it may then wait for ever for itself."""


class Reader(Protocol):
    """Takes what the program writes, and says when it has enough."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more is wanted."""
        ...

    def feed(self, data: bytes) -> None:
        """Take what the program wrote."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """How the program went."""

    exit_code: int | None
    """None if it was ended before it was done."""
    complaints: str
    timed_out: bool
    held_up: bool = False
    """Whether it was ended because it would never have come to its end, or has broken down."""


async def run_program(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    reader: Reader,
    timeout_s: float,
    doubt: Callable[[], Awaitable[bool]] | None = None,
) -> Finished:
    """Run a program and hand what it writes to `reader`; a caller that is cancelled ends it.

    Args:
        argv: The program and its arguments.
        env: Its environment.
        cwd: Where it starts.
        reader: Who takes what it writes.
        timeout_s: How long it may take.
        doubt: Runs beside it, and says whether to end it because something holds it up.

    Raises:
        OSError: It cannot be started.
    """
    from indusagi.core.process.child import ChildProcess  # noqa: PLC0415 — for those who run programs

    listener = _Listener(reader)
    child = listener.child = ChildProcess(listener)
    held_up = False
    try:
        await child.start(argv, env, cwd, with_input=False, dies_with_us=False)
        with anyio.move_on_after(timeout_s) as timer:
            held_up = await _over_or_held_up(listener.over, doubt) or listener.is_broken
        ended_by_us = reader.is_full or timer.cancelled_caught or held_up
        code = None if ended_by_us else child.exit_code
    finally:
        # It has no affairs to put in order: nothing it does outlives it.
        await child.end(0)
    complaints = bytes(listener.complaints).decode("utf-8", "replace")
    return Finished(code, complaints, timer.cancelled_caught, held_up)


async def _over_or_held_up(over: anyio.Event, doubt: Callable[[], Awaitable[bool]] | None) -> bool:
    """Wait for the end, and tell whether it was given up."""
    if doubt is None:
        await over.wait()
        return False
    held_up = False

    async def watch() -> None:
        nonlocal held_up
        held_up = await doubt()
        if held_up:
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await over.wait()
        group.cancel_scope.cancel()
    return held_up


class _Listener:
    """Hears of the program, in the event loop."""

    child: ChildProcess

    def __init__(self, reader: Reader) -> None:
        self.over = anyio.Event()
        self.complaints = bytearray()
        self.is_broken = False
        """Whether it has met a fault of its own, and what it gives is worth nothing."""
        self._reader = reader
        self._recent = b""

    def stdout_received(self, data: bytes) -> None:
        """Hand it on, until there is enough."""
        if self._reader.is_full:
            return
        self._reader.feed(data)
        if self._reader.is_full:
            self.over.set()

    def stderr_received(self, data: bytes) -> None:
        """Keep the beginning."""
        self.complaints += data[: _COMPLAINT_BYTES - len(self.complaints)]
        recent = self._recent + data
        self._recent = recent[-len(_BROKEN) :]
        if _BROKEN in recent:
            self.is_broken = True
            self.over.set()

    def state_changed(self) -> None:
        """See whether it is over: gone, and all that it wrote read."""
        child = self.child
        if child.exited.is_set() and not child.output_open and not child.errors_open:
            self.over.set()
