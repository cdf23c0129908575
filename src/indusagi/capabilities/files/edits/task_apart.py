"""Changes of files, worked out where that holds nobody up: small ones in a thread, others apart.

What is worked out in vain is nobody's, so a cancelled caller does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.files.edits import task_worker
from indusagi.capabilities.files.edits.plan import LARGEST_FILE, Refused
from indusagi.capabilities.files.edits.request import worked_out
from indusagi.capabilities.files.edits.task_worker import answer, request
from indusagi.capabilities.worker.client import asked
from indusagi.capabilities.worker.interpreter import library_of, own_python

if TYPE_CHECKING:
    from indusagi.capabilities.files.edits.request import Made, Task

_MOST_TEXT = 2 * LARGEST_FILE
"""Characters of all edits together: to hand on more would hold up the rest."""
DEADLINE_S = 60.0
"""The worst file of the largest size takes ten seconds."""


async def worked_out_soon(task: Task, before: bytes | None) -> Made | Refused:
    """Work a change out from what stands in the file (None: there is none).

    Raises:
        OSError: The process cannot be started.
    """
    if len(task.content or "") > LARGEST_FILE:
        message = f"the file would have more than {LARGEST_FILE:,} bytes"
        return Refused("too_large", message)
    if sum(len(edit.old) + len(edit.new) for edit in task.edits) > _MOST_TEXT:
        return Refused("too_large", f"the texts have more than {_MOST_TEXT:,} characters together")
    if task.is_light(before):
        return await to_thread.run_sync(worked_out, task, before, abandon_on_cancel=True)
    library = await to_thread.run_sync(library_of, "rapidfuzz")
    argv = own_python(task_worker.__name__, library=library)
    question = await to_thread.run_sync(request, task, before)
    try:
        pieces = await asked(argv, question, DEADLINE_S)
    except TimeoutError:
        message = f"the change could not be worked out in {DEADLINE_S:.0f} seconds; use a command"
        return Refused("timeout", message)
    return await to_thread.run_sync(answer, pieces)
