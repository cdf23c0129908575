"""A question to a process of our own, and its answer; the process ends with whoever waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import fail_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from indusagi.core.process.child import ChildProcess

_PIECE = 256 * 1024
"""Bytes that are handed to the pipe in one go."""
_MOST_BYTES = 64 * 1024 * 1024
"""Of an answer: more than an honest one has."""


async def asked(
    argv: Sequence[str], question: Sequence[bytes], deadline_s: float, env: Mapping[str, str] | None = None
) -> list[bytes]:
    """Start a process, write the pieces of a question to it, and give the pieces of its answer.

    Args:
        argv: The process.
        question: What is written to it.
        deadline_s: How long all of it may take.
        env: Its whole environment; empty, so that whatever breaks into it finds no secret in it.

    Raises:
        TimeoutError: It took longer than that.
        OSError: It cannot be started.
    """
    from indusagi.core.process.child import ChildProcess  # noqa: PLC0415 — processes, for large work alone

    heard = _Heard()
    child = ChildProcess(heard)
    try:
        with fail_after(deadline_s):
            # It reads all before it works and writes at the end: it does not outlive us for long.
            await child.start(argv, env or {}, None, die_with_parent=False)
            await tell(child, question)
            child.close_input()
            await child.output_ended.wait()
    finally:
        await child.end(0)
    return heard.pieces


async def tell(child: ChildProcess, pieces: Sequence[bytes]) -> None:
    """Write to a process as fast as it reads: what is handed over at once is copied at once."""
    for piece in _slices(pieces):
        await child.writable.wait()
        child.write(piece)


def _slices(pieces: Sequence[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), _PIECE):
            yield piece[at : at + _PIECE]


class _Heard:
    """What the process has written."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._left = _MOST_BYTES

    def stdout_received(self, data: bytes) -> None:
        """Keep it, up to a limit."""
        if self._left > 0:
            self.pieces.append(data)
            self._left -= len(data)

    def stderr_received(self, data: bytes) -> None:
        """Leave its complaints be: without an answer there is nothing to say but that."""

    def state_changed(self) -> None:
        """Look at nothing: whoever waits looks at the events of the process."""
