"""The ledger's store: a persistent log that never delays the session.

Appending returns immediately; a thread does the writing, several batches per transaction under load. Once `flush`
returns True, everything appended before is in the file, even if the process dies right after. A damaged file is
recovered and set aside, an unwritable one is left alone. Either way the session continues, with a note.

Every wait for the thread has a deadline. Reading raises `SilentStoreError` if the thread misses it, has ended, or can't
read the file: no answer is not the same as an empty one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

from indusagi.core.faults import Note
from indusagi.core.records import record
from induscode.deck.contract import BridgeFault
from induscode.deck.mcp.store import database
from induscode.deck.mcp.store.database import ChainEnd, ChainPart, LedgerDb, store_path

if TYPE_CHECKING:
    from induscode.deck.mcp.store.events import Batch, PruneResult, Retention, Row, RunFacts
    from induscode.deck.mcp.store.fallback import FallbackStore

T = TypeVar("T")

WAIT_S = 30.0
"""Deadline for the thread."""
VERIFY_S = 300.0
"""Deadline for work that reads every row: verifying or pruning."""
LATE_WAIT_S = 1.0
"""Deadline after a missed one, until the thread answers again."""
_MAX_BATCHES = 256
"""Maximum batches per transaction."""


class SilentStoreError(BridgeFault):
    """The store doesn't answer: its thread is late or has ended, or its file is unreadable."""


class SharedPins(Protocol):
    """The pins of other machines, next to a store's own."""

    def merge(self, own: Sequence[Row]) -> Sequence[Row]:
        """Return the pins that `own` lacks, followed by `own`."""
        ...

    def find_texts(self, addresses: Iterable[str]) -> Mapping[str, str]:
        """Return the definitions of shared pins at these addresses."""
        ...


@record
class _StoreQuery:
    """A query for the thread and the future of its answer."""

    function: Callable[[FallbackStore], object]
    answer: concurrent.futures.Future[object]

    def fail(self, reason: str) -> None:
        """Fail the query with `SilentStoreError`."""
        with suppress(concurrent.futures.InvalidStateError):  # the caller has given up
            self.answer.set_exception(SilentStoreError(reason))


class LedgerStore:
    """Rows and documents, behind a dedicated thread. Reads see all earlier appends.

    Open one with `open_store` or `memory_store`. `rows`, `latest`, `runs` and `documents` raise `SilentStoreError` if
    the store doesn't answer.
    """

    def __init__(self, path: str | None, *notes: Note) -> None:
        self.shared: SharedPins | None = None
        """Set while a node of a cluster shares its pins."""
        self._notes = [*notes]
        self._store: FallbackStore | None = None
        self._jobs: queue.SimpleQueue[Callable[[], Batch] | _StoreQuery | None] = queue.SimpleQueue()
        self._path = path
        # A daemon, so a session that forgets to close its store can still exit.
        self._thread = threading.Thread(target=self._serve_jobs, name="ledger store", daemon=True)
        self._closed = False
        self._late = False
        self._ended = threading.Event()
        try:
            self._thread.start()
        except RuntimeError as exc:  # out of threads
            self._end(exc)

    @property
    def path(self) -> str | None:
        """The file, or `None` while the ledger is in memory."""
        return None if self._store is None else self._store.path

    @property
    def notes(self) -> Sequence[Note]:
        """Notes on failures and removals."""
        return (*self._notes, *(() if self._store is None else self._store.notes))

    # -- for the event loop -----------------------------------------------------------------

    def append(self, make: Callable[[], Batch]) -> None:
        """Queue a batch, or drop it if the thread has ended."""
        if not self._closed and not self._ended.is_set():
            self._jobs.put(make)

    async def flush(self) -> bool:
        """Wait until all earlier appends are written. Returns `False` if they aren't in a file."""
        return await self._try_query(lambda store: store.path is not None, default=False)

    async def rows(self, run: str) -> Sequence[Row]:
        """Read the rows of a run, in order."""
        return await self._query(lambda store: store.use(lambda db: db.rows(run)))

    async def latest(self, op: str) -> Sequence[Row]:
        """Read the latest row of every subject of an op, other machines' pins first."""
        own = await self._query(lambda store: store.latest(op))
        return own if self.shared is None or op != "pin" else self.shared.merge(own)

    async def runs(self) -> Sequence[RunFacts]:
        """List the runs in the order they began."""
        return await self._query(lambda store: store.use(lambda db: db.runs()))

    async def documents(self, addresses: Iterable[str]) -> Mapping[str, str]:
        """Read documents, skipping missing and damaged ones."""
        wanted = tuple(addresses)
        found = await self._query(lambda store: store.documents(wanted))
        if self.shared is None:
            return found
        return {**found, **self.shared.find_texts(one for one in wanted if one not in found)}

    async def verify(self, *, set_aside: bool = False) -> Sequence[Note]:
        """Check everything and list the damage. With `set_aside`, replace a damaged file."""
        unread = (Note("the ledger", "it could not be checked: its thread does not answer"),)
        return await self._try_query(lambda store: store.verify(set_aside=set_aside), unread, wait_s=VERIFY_S)

    async def prune(self, keep: Retention, own_run: str) -> PruneResult | None:
        """Remove old runs and record it. Returns `None` if there was nothing to remove."""
        return await self._try_query(lambda store: store.prune(keep, own_run), None, wait_s=VERIFY_S)

    # -- for other machines -----------------------------------------------------------------

    async def read_part(self, after: int | None, most_rows: int, most_characters: int) -> ChainPart | None:
        """Read rows of the chain after a position, or return `None` if that fails."""
        return await self._publish(lambda db: database.read_part(db, after, most_rows, most_characters))

    async def mark_published(self, chain: str, end: ChainEnd) -> None:
        """Store the end of a chain's published rows."""
        await self._publish(lambda db: database.mark_published(db, chain, end))

    async def renew_chain(self, former: str, published: int) -> str | None:
        """Replace the chain's id and return the new one, or `None` if that fails."""
        return await self._publish(lambda db: database.renew_chain(db, former, published))

    async def _publish(self, action: Callable[[LedgerDb], T]) -> T | None:
        """Run an action the publisher retries: another process's lock must not move the ledger to memory."""
        return await self._try_query(lambda store: store.use(action, can_wait=True), None)

    async def aclose(self) -> None:
        """Write pending batches and close."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        wait_s = self._longest_wait(WAIT_S)
        if self._thread.ident is not None:  # it was started
            with anyio.move_on_after(wait_s, shield=True):
                await anyio.to_thread.run_sync(self._thread.join, wait_s)

    async def _query(self, function: Callable[[FallbackStore], T], *, wait_s: float | None = None) -> T:
        """Run a function in the thread.

        Raises `SilentStoreError` if it failed or timed out, or the thread has ended.
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
        """Run a function in the thread, or return `default` if the store doesn't answer (with a note)."""
        try:
            return await self._query(function, wait_s=wait_s)
        except SilentStoreError:
            return default

    def _longest_wait(self, wait_s: float) -> float:
        """Cap a wait after a missed deadline."""
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
        except BaseException as exc:  # noqa: BLE001 — boundary: waiting callers need an answer
            failure = exc
        if query is not None:
            query.fail("its thread has ended")  # a no-op if already answered
        self._end(failure)

    def _end(self, failure: BaseException | None) -> None:
        """Stop accepting jobs and answer all waiting callers."""
        if failure is not None:
            reason = f"{type(failure).__name__}: {failure}".rstrip(": ")
            message = f"its thread failed ({reason}); what happens from now on is not kept"
            self._add_note(Note(self._owner, message, "indus ledger verify"))
        self._ended.set()
        self._reject_jobs()

    def _reject_jobs(self) -> None:
        """Drop the jobs of an ended thread and answer their callers."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if isinstance(job, _StoreQuery):
                job.fail(f"{self._owner}: its thread has ended")

    def _next_jobs(self) -> tuple[list[Callable[[], Batch]], _StoreQuery | None, bool]:
        """Wait for a job, collecting consecutive batches."""
        writes: list[Callable[[], Batch]] = []
        job = self._jobs.get()
        while True:
            if job is None:
                return writes, None, False
            if isinstance(job, _StoreQuery):
                return writes, job, True
            writes.append(job)
            if len(writes) >= _MAX_BATCHES:
                return writes, None, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return writes, None, True


def _append(store: FallbackStore, writes: Sequence[Callable[[], Batch]]) -> None:
    try:
        store.append(writes)
    except BaseException as exc:  # noqa: BLE001 — boundary: the thread continues, with a note
        store.add_note(Note("the ledger", f"{len(writes)} batches were lost: {type(exc).__name__}: {exc}"))


def _answer(query: _StoreQuery, store: FallbackStore) -> None:
    if not query.answer.set_running_or_notify_cancel():
        return
    try:
        query.answer.set_result(query.function(store))
    except BaseException as exc:  # noqa: BLE001 — boundary: the thread continues, with a note
        reason = f"it could not be read: {type(exc).__name__}: {exc}"
        store.add_note(Note("the ledger", reason, "indus ledger verify"))
        query.fail(f"the ledger: {reason}")


async def open_store(path: str | None = None) -> LedgerStore:
    """Open this user's store, or the one at `path`. Never fails, but may fall back to memory."""
    try:
        store = LedgerStore(path or store_path())
    except OSError as exc:
        message = f"it has no place ({exc}); what happens is kept until the session ends"
        store = LedgerStore(None, Note("the ledger", message))
    await store.flush()
    return store


async def memory_store() -> LedgerStore:
    """Open an in-memory store, which ends with the session."""
    store = LedgerStore(None)
    await store.flush()
    return store
