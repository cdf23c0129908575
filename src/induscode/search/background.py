"""Index of a gateway or a session: a thread opens and prepares its semantic half, while the lexical half answers.

No search, call or list waits for vectors.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Lock
from typing import TYPE_CHECKING

from anyio import CancelScope, to_thread

from induscode.search.index import ToolIndex
from induscode.search.lexical import SearchUnavailableError
from induscode.search.opening import describe_unusable, has_semantic, open_semantic

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.faults import Note
    from induscode.search.semantic import SemanticIndex


class BackgroundIndex:
    """Owner of an index and of the thread that makes its vectors, after each update with new items.

    Args:
        open_half: Opens the semantic half, in the thread; it is asked again after the next update if it gives None.
        report: Receives a note in the thread if the semantic half cannot be used.
    """

    def __init__(
        self,
        open_half: Callable[[], SemanticIndex | None] = open_semantic,
        report: Callable[[Note], None] = lambda _note: None,
    ) -> None:
        self._open_half = open_half
        self._report = report
        self._lock = Lock()
        self._index: ToolIndex | None = None
        self._stopped = Event()
        self._reported = 0
        """Notes of the cache that were reported."""
        self._thread = ThreadPoolExecutor(1, "search-vectors")

    def open(self) -> ToolIndex:
        """Open the index, once. It blocks.

        Raises:
            SearchUnavailableError: SQLite was built without FTS5.
        """
        with self._lock:
            if self._index is None:
                self._index = ToolIndex(on_added=lambda: self.run_soon(self._prepare))
            return self._index

    def fill_soon(self, fill: Callable[[], object]) -> None:
        """Run in the thread what updates the index, where the semantic half can be opened; this does not block."""

        def run() -> None:
            with suppress(SearchUnavailableError):  # the first search says so
                if has_semantic() and not self._stopped.is_set():
                    fill()

        self.run_soon(run)

    def run_soon(self, work: Callable[[], object]) -> None:
        """Run a function in the thread, after what was begun before; nothing is run after `close`."""
        with suppress(RuntimeError):  # raised after the shutdown
            self._thread.submit(work)

    def _prepare(self) -> None:
        if self._stopped.is_set():
            return
        try:
            index = self.open()
            if index.semantic is None:
                index.semantic = self._open_half()
            index.prepare(should_stop=self._stopped.is_set)
            for note in index.notes[self._reported :]:
                self._report(note)
            self._reported = len(index.notes)
        except Exception as exc:  # noqa: BLE001 — searches stay lexical, whatever is wrong with the model
            self._stopped.set()
            self._report(describe_unusable(exc))

    def close(self) -> None:
        """End the thread, which takes as long as two vectors, and free the memory. It blocks."""
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
        if self._index is not None:
            self._index.close()

    async def aclose(self) -> None:
        """Close without blocking the event loop, in a cancelled task too."""
        self._stopped.set()
        with CancelScope(shield=True):
            await to_thread.run_sync(self.close)
