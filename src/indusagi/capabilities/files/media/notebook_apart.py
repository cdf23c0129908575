"""Notebooks, read where that holds nobody up: small ones in a thread, others apart.

Their JSON is parsed in one call, which lets nobody else run until it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.files.media import notebook_worker
from indusagi.capabilities.files.media.notebook_worker import answer, page_in, request
from indusagi.capabilities.worker.client import asked
from indusagi.capabilities.worker.interpreter import own_python

if TYPE_CHECKING:
    from indusagi.capabilities.files.media.notebook import NotebookPage
    from indusagi.capabilities.files.text.lines import Wanted

SMALL_BYTES = 128 * 1024
"""Up to this the parser takes a hundredth of a second."""
DEADLINE_S = 30.0


async def notebook_page(data: bytes, wanted: Wanted) -> NotebookPage | str:
    """Read some lines of a notebook, or say why it cannot be read as one."""
    try:
        page = await _page(data, wanted)
    except TimeoutError:
        return f"that took more than {DEADLINE_S:.0f} seconds"
    except OSError as exc:
        return f"the process that reads it cannot be started: {exc.strerror or exc}"
    except ValueError:
        return "the process that reads it ended without an answer"
    return "it is not one" if page is None else page


async def _page(data: bytes, wanted: Wanted) -> NotebookPage | None:
    if len(data) <= SMALL_BYTES:
        return await to_thread.run_sync(page_in, data, wanted, abandon_on_cancel=True)
    argv = own_python(notebook_worker.__name__)
    pieces = await asked(argv, request(data, wanted), DEADLINE_S)
    return await to_thread.run_sync(answer, pieces)
