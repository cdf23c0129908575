"""The ledger's store: a log that outlives the session and never delays it.

Appending returns at once: a thread of the store writes, several batches in one transaction when they come fast. What
was appended before a `flush` that returned True is in the file, also if the process is killed the moment after. A
damaged file is recovered and set aside, a file that cannot be written is left alone; either way the session goes on,
and a note says so.

Every wait for the thread has a deadline. Reading raises `SilentStoreError` if the thread misses it, has ended, or can't
read the file: no answer is never the same as an empty one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

from indusagi.core.faults import Note
from indusagi.core.records import record
from induscode.deck.contract import BridgeFault
from induscode.deck.mcp.store.database import store_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from induscode.deck.mcp.store.database import ChainEnd, LedgerDb
    from induscode.deck.mcp.store.events import Batch, PruneResult, Retention, Row, RunFacts
    from induscode.deck.mcp.store.fallback import FallbackStore
    from induscode.deck.mcp.store.publication import ChainPart

T = TypeVar("T")

WAIT_S = 30.0
"""The longest wait for the thread."""
VERIFY_S = 300.0
"""The longest wait for work that reads every row: a verification, or a pruning."""
LATE_WAIT_S = 1.0
"""The longest wait while the thread has missed a deadline and has not answered since."""
_MOST_BATCHES = 256
"""Batches in one transaction."""


class SilentStoreError(BridgeFault):
    """The store has no answer: its thread is late or has ended, or its file can't be read."""


class LedgerStore(Protocol):
    """Stores rows and documents. Reading sees everything that was appended before.

    `rows`, `latest`, `runs` and `documents` raise `SilentStoreError` if there's no answer.
    """

    @property
    def path(self) -> str | None:
        """The file; None while the ledger is in memory."""
        ...

    @property
    def notes(self) -> Sequence[Note]:
        """What failed, and what was removed."""
        ...

    def append(self, make: Callable[[], Batch]) -> None:
        """Write a batch soon; `make` is called once, in the store's thread."""
        ...

    async def flush(self) -> bool:
        """Wait until everything appended so far is written; False if it is not in a file."""
        ...

    async def rows(self, run: str) -> Sequence[Row]:
        """Read the rows of a run, in order."""
        ...

    async def latest(self, op: str) -> Sequence[Row]:
        """Read the latest row of every subject of an op."""
        ...

    async def runs(self) -> Sequence[RunFacts]:
        """List the runs, in the order in which they began."""
        ...

    async def documents(self, addresses: Iterable[str]) -> Mapping[str, str]:
        """Read documents; absent and damaged ones are left out."""
        ...

    async def verify(self, *, set_aside: bool = False) -> Sequence[Note]:
        """Check everything and list the damage; with `set_aside` replace a damaged file."""
        ...

    async def prune(self, keep: Retention, own_run: str) -> PruneResult | None:
        """Remove old runs and record it; None if there is nothing to remove."""
        ...

    async def aclose(self) -> None:
        """Write what is left, and close."""
        ...


@record
class _StoreQuery:
    """A question for the thread, with the future of its answer."""

    function: Callable[[FallbackStore], object]
    answer: concurrent.futures.Future[object]

    def fail(self, reason: str) -> None:
        """Report that there is no answer."""
        with suppress(concurrent.futures.InvalidStateError):  # the caller waits no longer
            self.answer.set_exception(SilentStoreError(reason))


class ThreadedStore:
    """A store in a thread of its own. Open one with `open_store` or `memory_store`."""

    def __init__(self, path: str | None, *notes: Note) -> None:
        self._notes = [*notes]
        self._store: FallbackStore | None = None
        self._jobs: queue.SimpleQueue[Callable[[], Batch] | _StoreQuery | None] = queue.SimpleQueue()
        self._path = path
        # A daemon: a session that forgets to close its store can still end.
        self._thread = threading.Thread(target=self._serve_jobs, name="ledger store", daemon=True)
        self._closed = False
        self._late = False
        self._ended = threading.Event()
        try:
            self._thread.start()
        except RuntimeError as exc:  # the system gives this process no further thread
            self._end(exc)

    @property
    def path(self) -> str | None:
        """The file; None while the ledger is in memory."""
        return None if self._store is None else self._store.path

    @property
    def notes(self) -> Sequence[Note]:
        """What failed, and what was removed."""
        return (*self._notes, *(() if self._store is None else self._store.notes))

    # -- for the event loop -----------------------------------------------------------------

    def append(self, make: Callable[[], Batch]) -> None:
        """Write a batch soon; after the end of the thread it is dropped."""
        if not self._closed and not self._ended.is_set():
            self._jobs.put(make)

    async def flush(self) -> bool:
        """Wait until everything appended so far is written; False if it is not in a file."""
        return await self._try_query(lambda store: store.path is not None, default=False)

    async def rows(self, run: str) -> Sequence[Row]:
        """Read the rows of a run, in order."""
        return await self._query(lambda store: store.use(lambda db: db.rows(run)))

    async def latest(self, op: str) -> Sequence[Row]:
        """Read the latest row of every subject of an op."""
        return await self._query(lambda store: store.latest(op))

    async def runs(self) -> Sequence[RunFacts]:
        """List the runs, in the order in which they began."""
        return await self._query(lambda store: store.use(lambda db: db.runs()))

    async def documents(self, addresses: Iterable[str]) -> Mapping[str, str]:
        """Read documents; absent and damaged ones are left out."""
        wanted = tuple(addresses)
        return await self._query(lambda store: store.documents(wanted))

    async def verify(self, *, set_aside: bool = False) -> Sequence[Note]:
        """Check everything and list the damage; with `set_aside` replace a damaged file."""
        unread = (Note("the ledger", "it could not be checked: its thread does not answer"),)
        return await self._try_query(lambda store: store.verify(set_aside=set_aside), unread, wait_s=VERIFY_S)

    async def prune(self, keep: Retention, own_run: str) -> PruneResult | None:
        """Remove old runs and record it; None if there is nothing to remove."""
        return await self._try_query(lambda store: store.prune(keep, own_run), None, wait_s=VERIFY_S)

    # -- for other machines -----------------------------------------------------------------

    async def read_part(self, after: int | None, most_rows: int, most_characters: int) -> ChainPart | None:
        """Read rows of the chain after a position; None if they cannot be read."""
        from induscode.deck.mcp.store.publication import read_part  # noqa: PLC0415 — for a node of a cluster

        return await self._publish(lambda db: read_part(db, after, most_rows, most_characters))

    async def mark_published(self, chain: str, end: ChainEnd) -> None:
        """Remember up to where rows of a chain are published."""
        from induscode.deck.mcp.store.publication import mark_published  # noqa: PLC0415 — for a node of a cluster

        await self._publish(lambda db: mark_published(db, chain, end))

    async def renew_chain(self, former: str, published: int) -> str | None:
        """Give the chain a new id in place of the former one, and return it; None if that fails."""
        from induscode.deck.mcp.store.publication import renew_chain  # noqa: PLC0415 — for a node of a cluster

        return await self._publish(lambda db: renew_chain(db, former, published))

    async def _publish(self, action: Callable[[LedgerDb], T]) -> T | None:
        """Run an action that the publisher repeats: a lock of another process must not move the ledger to memory."""
        return await self._try_query(lambda store: store.use(action, can_wait=True), None)

    async def aclose(self) -> None:
        """Write what is left, and close."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        wait_s = self._longest_wait(WAIT_S)
        if self._thread.ident is not None:  # it was started
            with anyio.move_on_after(wait_s, shield=True):
                await anyio.to_thread.run_sync(self._thread.join, wait_s)

    async def _query(self, function: Callable[[FallbackStore], T], *, wait_s: float | None = None) -> T:
        """Run a function in the thread.

        Raises:
            SilentStoreError: It failed, the thread has ended, or the wait is over.
        """
        if self._closed:
            raise RuntimeError("the store is closed")
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        query = _StoreQuery(function, answer)  # type: ignore[arg-type] — the same future, of any answer
        self._jobs.put(query)
        if self._ended.is_set():
            self._reject_jobs()
        with anyio.move_on_after(self._longest_wait(WAIT_S if wait_s is None else wait_s)):
            try:
                return await asyncio.wrap_future(answer)
            finally:
                self._late = False
        self._late = True
        reason = "it does not answer in time; nothing is approved until it does"
        self._add_note(Note(self._owner, reason, "see whether another program holds the file"))
        raise SilentStoreError(f"{self._owner}: {reason}")

    async def _try_query(self, function: Callable[[FallbackStore], T], default: T, *, wait_s: float | None = None) -> T:
        """Run a function in the thread; return `default` if there's no answer, which a note explains."""
        try:
            return await self._query(function, wait_s=wait_s)
        except SilentStoreError:
            return default

    def _longest_wait(self, wait_s: float) -> float:
        """Bound a wait: a thread that has missed a deadline is not waited for as long again."""
        return min(wait_s, LATE_WAIT_S) if self._late else wait_s

    def _add_note(self, note: Note) -> None:
        if note not in self._notes:
            self._notes.append(note)

    @property
    def _owner(self) -> str:
        return "the ledger" if self._path is None else f"the ledger {self._path!r}"

    # -- in the thread ----------------------------------------------------------------------

    def _serve_jobs(self) -> None:
        query: _StoreQuery | None = None
        failure: BaseException | None = None
        try:
            from induscode.deck.mcp.store.fallback import FallbackStore  # noqa: PLC0415 — it takes as long as a start

            self._store = FallbackStore(self._path)
            with closing(self._store) as store:
                more = True
                while more:
                    writes, query, more = self._next_jobs()
                    if writes:
                        _append(store, writes)
                    if query is not None:
                        _answer(query, store)
        except BaseException as exc:  # noqa: BLE001 — boundary: a waiting caller must be told
            failure = exc
        if query is not None:
            query.fail("its thread has ended")  # changes nothing if it was answered
        self._end(failure)

    def _end(self, failure: BaseException | None) -> None:
        """Answer everything that waits for the thread, which takes no further jobs."""
        if failure is not None:
            reason = f"{type(failure).__name__}: {failure}".rstrip(": ")
            message = f"its thread failed ({reason}); what happens from now on is not kept"
            self._add_note(Note(self._owner, message, "indus ledger verify"))
        self._ended.set()
        self._reject_jobs()

    def _reject_jobs(self) -> None:
        """Drop the jobs that wait for a thread that has ended, and answer their callers."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if isinstance(job, _StoreQuery):
                job.fail(f"{self._owner}: its thread has ended")

    def _next_jobs(self) -> tuple[list[Callable[[], Batch]], _StoreQuery | None, bool]:
        """Wait for a job; batches that follow each other are written together."""
        writes: list[Callable[[], Batch]] = []
        job = self._jobs.get()
        while True:
            if job is None:
                return writes, None, False
            if isinstance(job, _StoreQuery):
                return writes, job, True
            writes.append(job)
            if len(writes) >= _MOST_BATCHES:
                return writes, None, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return writes, None, True


def _append(store: FallbackStore, writes: Sequence[Callable[[], Batch]]) -> None:
    try:
        store.append(writes)
    except BaseException as exc:  # noqa: BLE001 — boundary: the thread goes on, and a note says so
        store.add_note(Note("the ledger", f"{len(writes)} batches were lost: {type(exc).__name__}: {exc}"))


def _answer(query: _StoreQuery, store: FallbackStore) -> None:
    if not query.answer.set_running_or_notify_cancel():
        return
    try:
        query.answer.set_result(query.function(store))
    except BaseException as exc:  # noqa: BLE001 — boundary: the thread goes on, and a note says so
        reason = f"it could not be read: {type(exc).__name__}: {exc}"
        store.add_note(Note("the ledger", reason, "indus ledger verify"))
        query.fail(f"the ledger: {reason}")


async def open_store(path: str | None = None) -> ThreadedStore:
    """Open this user's store, or the one at `path`; opening never fails, but the store may be in memory."""
    try:
        store = ThreadedStore(path or store_path())
    except OSError as exc:
        message = f"it has no place ({exc}); what happens is kept until the session ends"
        store = ThreadedStore(None, Note("the ledger", message))
    await store.flush()
    return store


async def memory_store() -> ThreadedStore:
    """Open a store in memory, which ends with the session."""
    store = ThreadedStore(None)
    await store.flush()
    return store
