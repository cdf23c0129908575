"""Changes of large files, worked out in a process: it ends with whoever waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import move_on_after, to_thread

from indusagi.capabilities.files import task_worker
from indusagi.capabilities.files.apart import library_of, own_python
from indusagi.capabilities.files.change import LARGEST_FILE, Refused
from indusagi.capabilities.files.task import worked_out
from indusagi.capabilities.files.task_worker import answer, request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from indusagi.capabilities.files.task import Made, Task

DEADLINE_S = 60.0
"""The worst file of the largest size takes ten seconds."""
_PIECE = 256 * 1024
"""Bytes that are handed to the pipe in one go."""


async def worked_out_soon(task: Task, before: bytes | None) -> Made | Refused:
    """Work a change out without holding anybody up: a small one in a thread, a large one apart.

    What is worked out in vain is nobody's, so a cancelled caller does not wait for it.

    Raises:
        OSError: The process cannot be started.
    """
    if len(task.content or "") > LARGEST_FILE:
        message = f"the file would have more than {LARGEST_FILE:,} bytes"
        return Refused("too_large", message)
    if task.is_light(before):
        return await to_thread.run_sync(worked_out, task, before, abandon_on_cancel=True)
    return await _apart(task, before)


async def _apart(task: Task, before: bytes | None) -> Made | Refused:
    from indusagi.core.child import Child  # noqa: PLC0415 — processes, for large files alone

    heard = _Heard()
    child = Child(heard)
    argv = own_python(
        task_worker.__name__, library=await to_thread.run_sync(library_of, "rapidfuzz")
    )
    pieces = await to_thread.run_sync(request, task, before)
    try:
        with move_on_after(DEADLINE_S) as scope:
            # It reads all before it works and writes once: it does not outlive us for long.
            await child.start(argv, {}, None, dies_with_us=False)
            for piece in _slices(pieces):
                await child.writable.wait()
                child.write(piece)
            child.close_input()
            await child.output_ended.wait()
    finally:
        await child.end(0)
    if scope.cancelled_caught:
        message = f"the change could not be worked out in {DEADLINE_S:.0f} seconds; use a command"
        return Refused("timeout", message)
    return await to_thread.run_sync(answer, heard.pieces)


def _slices(pieces: Sequence[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), _PIECE):
            yield piece[at : at + _PIECE]


class _Heard:
    """What the process has written."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def wrote(self, data: bytes) -> None:
        """Keep it."""
        self.pieces.append(data)

    def complained(self, data: bytes) -> None:
        """Leave its complaints be: without an answer there is nothing to say but that."""

    def changed(self) -> None:
        """Look at nothing: whoever waits looks at the events of the process."""
