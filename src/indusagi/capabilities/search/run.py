"""A search program, run to its end or until there is enough, with nothing of it left behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.child import Child

_COMPLAINT_BYTES = 8 * 1024
"""What is kept of what it says on its standard error."""


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


async def run_program(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, reader: Reader, timeout_s: float
) -> Finished:
    """Run a program and hand what it writes to `reader`; a caller that is cancelled ends it.

    Raises:
        OSError: It cannot be started.
    """
    from indusagi.core.child import Child  # noqa: PLC0415 — for those who run programs

    listener = _Listener(reader)
    child = listener.child = Child(listener)
    try:
        await child.start(argv, env, cwd, with_input=False, dies_with_us=False)
        with anyio.move_on_after(timeout_s) as timer:
            await listener.over.wait()
        code = None if reader.is_full or timer.cancelled_caught else child.exit_code
    finally:
        # It has no affairs to put in order: nothing it does outlives it.
        await child.end(0)
    complaints = bytes(listener.complaints).decode("utf-8", "replace")
    return Finished(code, complaints, timer.cancelled_caught)


class _Listener:
    """Hears of the program, in the event loop."""

    child: Child

    def __init__(self, reader: Reader) -> None:
        self.over = anyio.Event()
        self.complaints = bytearray()
        self._reader = reader

    def wrote(self, data: bytes) -> None:
        """Hand it on, until there is enough."""
        if self._reader.is_full:
            return
        self._reader.feed(data)
        if self._reader.is_full:
            self.over.set()

    def complained(self, data: bytes) -> None:
        """Keep the beginning."""
        self.complaints += data[: _COMPLAINT_BYTES - len(self.complaints)]

    def changed(self) -> None:
        """See whether it is over: gone, and all that it wrote read."""
        child = self.child
        if child.exited.is_set() and not child.output_open and not child.errors_open:
            self.over.set()
