"""Search index of a gateway or session: a thread opens and prepares its semantic half, while the lexical half answers.

No search, call or list waits for vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from threading import Event, Lock
from typing import TYPE_CHECKING

from anyio import CancelScope, to_thread

from indusagi.core.faults import Note
from induscode.search.index import SearchUnavailableError, ToolIndex
from induscode.search.weights import SENTENCE_ENCODER

if TYPE_CHECKING:
    from induscode.search.items import SearchItem
    from induscode.search.semantic import SemanticIndex


# -- opening ----------------------------------------------------------------------------------


INSTALL_NUMPY = "pip install 'indus-deck[semantic]'"


def has_numpy() -> bool:
    """Return whether numpy, the extra `semantic`, is installed."""
    return find_spec("numpy") is not None


def has_semantic() -> bool:
    """Return whether the semantic half can be opened: numpy is installed, and the model was fetched."""
    return SENTENCE_ENCODER.is_fetched() and has_numpy()


def open_index(
    items: Iterable[SearchItem], report: Callable[[int, int], None] = lambda _done, _all: None
) -> tuple[ToolIndex, Sequence[Note]]:
    """Build an index with vectors; a note says why the search is only lexical. Blocks.

    `report` gets the numbers of computed and of missing vectors. Raises `SearchUnavailableError` if SQLite was built
    without FTS5.
    """
    index = ToolIndex(items)
    try:
        index.semantic = open_semantic()
        index.prepare(report)
    except (OSError, ValueError) as exc:
        index.semantic = None
        return index, [describe_unusable(exc)]
    return index, index.notes


def describe_unusable(exc: Exception) -> Note:
    """Say that the semantic half isn't used, and why."""
    remedy = f"words alone are searched; {SENTENCE_ENCODER.fetch_command} checks the model, and fetches a damaged one"
    return Note("the semantic half of the search", f"it cannot be used: {exc}", remedy)


def open_semantic() -> SemanticIndex | None:
    """Open the semantic half with its cache. None if numpy or the model is missing.

    Raises `OSError` if the model can't be read, and `ValueError` if it's damaged.
    """
    if not has_semantic():
        return None
    from induscode.search.encoder import read_encoder  # noqa: PLC0415 — imports numpy
    from induscode.search.semantic import SemanticIndex, VectorCache, encode_checked, vectors_path  # noqa: PLC0415 — imports numpy  # noqa: PLC0415 — used with numpy alone

    encoder = read_encoder(SENTENCE_ENCODER.path)
    encode_checked(encoder, ["tool"])  # if all vectors are cached, damage would only show in the results
    return SemanticIndex(encoder, VectorCache(vectors_path()))


# -- background -------------------------------------------------------------------------------


class BackgroundIndex:
    """Owns an index and the thread that computes its vectors after each update with new items.

    If `open_half` returns None in the thread, it's called again after the next update. `report` receives a note in the
    thread if the semantic half can't be used.
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
        """Number of reported cache notes."""
        self._thread = ThreadPoolExecutor(1, "search-vectors")

    def open(self) -> ToolIndex:
        """Open the index, once, blocking; raises `SearchUnavailableError` if SQLite was built without FTS5."""
        with self._lock:
            if self._index is None:
                self._index = ToolIndex(on_added=lambda: self.run_soon(self._prepare))
            return self._index

    def fill_soon(self, fill: Callable[[], object]) -> None:
        """Update the index in the thread, if the semantic half can be opened. Doesn't block."""

        def run() -> None:
            with suppress(SearchUnavailableError):  # the first search reports it
                if has_semantic() and not self._stopped.is_set():
                    fill()

        self.run_soon(run)

    def run_soon(self, work: Callable[[], object]) -> None:
        """Run a function in the thread, after the queued ones. Does nothing after `close`."""
        with suppress(RuntimeError):  # already shut down
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
        """Stop the thread, within the time of two vectors, and free the memory. Blocks."""
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
        if self._index is not None:
            self._index.close()

    async def aclose(self) -> None:
        """Close without blocking the event loop, even in a cancelled task."""
        self._stopped.set()
        with CancelScope(shield=True):
            await to_thread.run_sync(self.close)
