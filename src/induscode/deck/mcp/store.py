"""The ledger's store: a log that outlives the session, and is never in its way.

Whoever appends does not wait: a thread of the store's own writes, several batches in one step when
they come fast. What was appended before a `flush` that answered True is in the file and stays
there, also if the process is killed the moment after. A file that is damaged is set aside, one that
cannot be written is left alone; either way the session goes on in memory, and one note says so.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

from indusagi.core.notes import Note
from induscode.deck.mcp.store_file import store_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from induscode.deck.mcp.store_keeper import Keeper
    from induscode.deck.mcp.store_rows import Batch, Pruned, Retention, Row, RunFacts

T = TypeVar("T")

WAIT_S = 30.0
"""The longest that anybody waits for the disk."""
_TOGETHER = 256
"""Batches that are written in one step at most."""


class LedgerStore(Protocol):
    """Keeps rows and documents. Reading sees everything that was appended before."""

    @property
    def path(self) -> str | None:
        """The file; None while it is kept in memory only."""
        ...

    @property
    def notes(self) -> Sequence[Note]:
        """What went wrong with it, and what was taken out of it."""
        ...

    def append(self, make: Callable[[], Batch]) -> None:
        """Have a batch written soon; it is made in the store's thread, and made once."""
        ...

    async def flush(self) -> bool:
        """Wait until everything appended so far is written; False if it is not in a file."""
        ...

    async def rows(self, run: str) -> Sequence[Row]:
        """Read the rows of a run, in their order."""
        ...

    async def latest(self, op: str) -> Sequence[Row]:
        """Read the rows of an op that have the last word on their subjects."""
        ...

    async def runs(self) -> Sequence[RunFacts]:
        """List the runs, in the order in which they began."""
        ...

    async def documents(self, addresses: Iterable[str]) -> Mapping[str, str]:
        """Read documents; what is missing, or is not what its address says, is left out."""
        ...

    async def verify(self, *, set_aside: bool = False) -> Sequence[Note]:
        """Look at everything, and list what is damaged; nothing if it is as it was written."""
        ...

    async def prune(self, keep: Retention, own_run: str) -> Pruned | None:
        """Take out old runs, and leave a record of it; None if there are none."""
        ...

    async def aclose(self) -> None:
        """Write what is left, and close."""
        ...


@dataclass(frozen=True, slots=True)
class _Write:
    make: Callable[[], Batch]


@dataclass(frozen=True, slots=True)
class _Ask:
    question: Callable[[Keeper], object]
    answer: concurrent.futures.Future[object]


class ThreadedStore:
    """A store in a thread of its own. Make one with `open_store` or `memory_store`."""

    def __init__(self, path: str | None, *notes: Note) -> None:
        self._told = notes
        self._keeper: Keeper | None = None
        self._jobs: queue.SimpleQueue[_Write | _Ask | None] = queue.SimpleQueue()
        self._path = path
        # A session that forgets to close its store must still be able to end.
        self._thread = threading.Thread(target=self._work, name="ledger store", daemon=True)
        self._closed = False
        self._thread.start()

    @property
    def path(self) -> str | None:
        """The file; None while it is kept in memory only."""
        return None if self._keeper is None else self._keeper.path

    @property
    def notes(self) -> Sequence[Note]:
        """What went wrong with it, and what was taken out of it."""
        return self._told if self._keeper is None else (*self._told, *self._keeper.notes)

    # -- for the event loop -----------------------------------------------------------------

    def append(self, make: Callable[[], Batch]) -> None:
        """Have a batch written soon; after the end it is dropped."""
        if not self._closed:
            self._jobs.put(_Write(make))

    async def flush(self) -> bool:
        """Wait until everything appended so far is written; False if it is not in a file."""
        with anyio.move_on_after(WAIT_S):
            return await self._ask(lambda keeper: keeper.path is not None)
        return False

    async def rows(self, run: str) -> Sequence[Row]:
        """Read the rows of a run, in their order."""
        return await self._ask(lambda keeper: keeper.read(lambda db: db.rows(run), ()))

    async def latest(self, op: str) -> Sequence[Row]:
        """Read the rows of an op that have the last word on their subjects."""
        return await self._ask(lambda keeper: keeper.read(lambda db: db.latest(op), ()))

    async def runs(self) -> Sequence[RunFacts]:
        """List the runs, in the order in which they began."""
        return await self._ask(lambda keeper: keeper.read(lambda db: db.runs(), ()))

    async def documents(self, addresses: Iterable[str]) -> Mapping[str, str]:
        """Read documents; what is missing, or is not what its address says, is left out."""
        wanted = tuple(addresses)
        return await self._ask(lambda keeper: keeper.documents(wanted))

    async def verify(self, *, set_aside: bool = False) -> Sequence[Note]:
        """Look at everything, and list what is damaged; nothing if it is as it was written."""
        return await self._ask(lambda keeper: keeper.verify(set_aside=set_aside))

    async def prune(self, keep: Retention, own_run: str) -> Pruned | None:
        """Take out old runs, and leave a record of it; None if there are none."""
        return await self._ask(lambda keeper: keeper.prune(keep, own_run))

    async def aclose(self) -> None:
        """Write what is left, and close."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        with anyio.move_on_after(WAIT_S, shield=True):
            await anyio.to_thread.run_sync(self._thread.join, WAIT_S)

    async def _ask(self, question: Callable[[Keeper], T]) -> T:
        if self._closed:
            raise RuntimeError("the store is closed")
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._jobs.put(_Ask(question, answer))  # type: ignore[arg-type] — the same future, of any answer
        return await asyncio.wrap_future(answer)

    # -- in the thread ----------------------------------------------------------------------

    def _work(self) -> None:
        # As dear to load as it is rare to need it before the first session.
        from induscode.deck.mcp.store_keeper import Keeper  # noqa: PLC0415

        keeper = Keeper(self._path)
        self._keeper = keeper
        more = True
        try:
            while more:
                writes, ask, more = self._next()
                if writes:
                    _append(keeper, writes)
                if ask is not None:
                    _answer(ask, keeper)
        finally:
            keeper.close()

    def _next(self) -> tuple[list[Callable[[], Batch]], _Ask | None, bool]:
        """Wait for something to do, and take along what else is there to be written."""
        writes: list[Callable[[], Batch]] = []
        job = self._jobs.get()
        while True:
            if job is None:
                return writes, None, False
            if isinstance(job, _Ask):
                return writes, job, True
            writes.append(job.make)
            if len(writes) >= _TOGETHER:
                return writes, None, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return writes, None, True


def _append(keeper: Keeper, writes: Sequence[Callable[[], Batch]]) -> None:
    try:
        keeper.append(writes)
    except Exception as exc:  # noqa: BLE001 — boundary: whoever waits for the thread must be told
        keeper.tell(Note("the ledger", f"{len(writes)} batches were lost: {exc}"))


def _answer(ask: _Ask, keeper: Keeper) -> None:
    if not ask.answer.set_running_or_notify_cancel():
        return
    try:
        ask.answer.set_result(ask.question(keeper))
    except BaseException as exc:  # noqa: BLE001 — boundary: it belongs to whoever asked
        ask.answer.set_exception(exc)


async def open_store(path: str | None = None) -> ThreadedStore:
    """Open this user's store, or the one at `path`; it never fails, but may be in memory."""
    try:
        store = ThreadedStore(path or store_path())
    except OSError as exc:
        said = f"it has no place ({exc}); what happens is kept until the session ends"
        store = ThreadedStore(None, Note("the ledger", said))
    await store.flush()
    return store


async def memory_store() -> ThreadedStore:
    """Open a store that keeps nothing beyond the session."""
    store = ThreadedStore(None)
    await store.flush()
    return store
