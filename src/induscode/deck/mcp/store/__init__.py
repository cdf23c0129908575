"""The ledger's store: a log that outlives the session, and is never in its way.

Appending does not wait: a thread of the store's own writes, several batches in one step when they
come fast. What was appended before a `flush` that answered True is in the file and stays there,
also if the process is killed the moment after. A file that is damaged is set aside, one that cannot
be written is left alone; either way the session goes on, and one note says so.

Every wait for the thread has a deadline. A thread that has ended, whatever ended it, is noticed at
once: what is read from such a store is empty, and a note says why.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import anyio

from indusagi.core.notes import Note
from induscode.deck.mcp.store.file import store_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from induscode.deck.mcp.store.events import Batch, PruneResult, Retention, Row, RunFacts
    from induscode.deck.mcp.store.fallback import FallbackStore

T = TypeVar("T")

WAIT_S = 30.0
"""The longest wait for an answer of the thread."""
VERIFY_S = 300.0
"""The longest wait for an answer that takes reading every row: a check, or a pruning."""
LATE_WAIT_S = 1.0
"""The longest wait while the thread has missed a deadline and has not answered since."""
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

    async def prune(self, keep: Retention, own_run: str) -> PruneResult | None:
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
    question: Callable[[FallbackStore], object]
    answer: concurrent.futures.Future[object]
    failed: threading.Event = field(default_factory=threading.Event)
    """Set before the answer if there is none."""

    def fail(self) -> None:
        """Answer that there is no answer."""
        self.failed.set()
        with suppress(concurrent.futures.InvalidStateError):  # the caller waits no longer
            self.answer.set_result(None)


class ThreadedStore:
    """A store in a thread of its own. Make one with `open_store` or `memory_store`."""

    def __init__(self, path: str | None, *notes: Note) -> None:
        self._notes = [*notes]
        self._keeper: FallbackStore | None = None
        self._jobs: queue.SimpleQueue[_Write | _Ask | None] = queue.SimpleQueue()
        self._path = path
        # A session that forgets to close its store must still be able to end.
        self._thread = threading.Thread(target=self._work, name="ledger store", daemon=True)
        self._closed = False
        self._late = False
        self._ended = threading.Event()
        try:
            self._thread.start()
        except RuntimeError as exc:  # the system gives this process no further thread
            self._end(exc)

    @property
    def path(self) -> str | None:
        """The file; None while it is kept in memory only."""
        return None if self._keeper is None else self._keeper.path

    @property
    def notes(self) -> Sequence[Note]:
        """What went wrong with it, and what was taken out of it."""
        return (*self._notes, *(() if self._keeper is None else self._keeper.notes))

    # -- for the event loop -----------------------------------------------------------------

    def append(self, make: Callable[[], Batch]) -> None:
        """Have a batch written soon; after the end it is dropped."""
        if not self._closed and not self._ended.is_set():
            self._jobs.put(_Write(make))

    async def flush(self) -> bool:
        """Wait until everything appended so far is written; False if it is not in a file."""
        return await self._ask(lambda keeper: keeper.path is not None, otherwise=False)

    async def rows(self, run: str) -> Sequence[Row]:
        """Read the rows of a run, in their order."""
        return await self._ask(lambda keeper: keeper.read(lambda db: db.rows(run), ()), ())

    async def latest(self, op: str) -> Sequence[Row]:
        """Read the rows of an op that have the last word on their subjects."""
        return await self._ask(lambda keeper: keeper.latest(op), ())

    async def runs(self) -> Sequence[RunFacts]:
        """List the runs, in the order in which they began."""
        return await self._ask(lambda keeper: keeper.read(lambda db: db.runs(), ()), ())

    async def documents(self, addresses: Iterable[str]) -> Mapping[str, str]:
        """Read documents; what is missing, or is not what its address says, is left out."""
        wanted = tuple(addresses)
        return await self._ask(lambda keeper: keeper.documents(wanted), {})

    async def verify(self, *, set_aside: bool = False) -> Sequence[Note]:
        """Look at everything, and list what is damaged; nothing if it is as it was written."""
        unread = (Note("the ledger", "it could not be checked: its thread does not answer"),)
        return await self._ask(lambda keeper: keeper.verify(set_aside=set_aside), unread, wait_s=VERIFY_S)

    async def prune(self, keep: Retention, own_run: str) -> PruneResult | None:
        """Take out old runs, and leave a record of it; None if there are none."""
        return await self._ask(lambda keeper: keeper.prune(keep, own_run), None, wait_s=VERIFY_S)

    async def aclose(self) -> None:
        """Write what is left, and close."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        wait_s = self._longest_wait(WAIT_S)
        with anyio.move_on_after(wait_s, shield=True):
            await anyio.to_thread.run_sync(self._join, wait_s)

    async def _ask(self, question: Callable[[FallbackStore], T], otherwise: T, *, wait_s: float | None = None) -> T:
        """Have the thread answer a question; `otherwise` if it fails, has ended or is too late."""
        if self._closed:
            raise RuntimeError("the store is closed")
        answer: concurrent.futures.Future[T | None] = concurrent.futures.Future()
        ask = _Ask(question, answer)  # type: ignore[arg-type] — the same future, of any answer
        self._jobs.put(ask)
        if self._ended.is_set():
            self._reject_jobs()
        with anyio.move_on_after(self._longest_wait(WAIT_S if wait_s is None else wait_s)):
            found = await asyncio.wrap_future(answer)
            self._late = False
            return otherwise if ask.failed.is_set() else cast("T", found)
        self._late = True
        said = "it does not answer in time; what is read from it is taken for empty"
        self._tell(Note(self._owner, said, "see whether another program holds the file"))
        return otherwise

    def _longest_wait(self, wait_s: float) -> float:
        """Bound a wait: a thread that has missed a deadline is not waited for as long again."""
        return min(wait_s, LATE_WAIT_S) if self._late else wait_s

    def _join(self, wait_s: float) -> None:
        if self._thread.ident is not None:  # else it was never started
            self._thread.join(wait_s)

    def _tell(self, note: Note) -> None:
        if note not in self._notes:
            self._notes.append(note)

    @property
    def _owner(self) -> str:
        return "the ledger" if self._path is None else f"the ledger {self._path!r}"

    # -- in the thread ----------------------------------------------------------------------

    def _work(self) -> None:
        failure: BaseException | None = None
        try:
            self._serve_jobs()
        except BaseException as exc:  # noqa: BLE001 — boundary: a waiting caller must be told
            failure = exc
        self._end(failure)

    def _serve_jobs(self) -> None:
        # Loaded here: it costs as much as it is seldom needed before the first session.
        from induscode.deck.mcp.store.fallback import FallbackStore  # noqa: PLC0415 — see above

        keeper = FallbackStore(self._path)
        self._keeper = keeper
        ask: _Ask | None = None
        more = True
        try:
            while more:
                writes, ask, more = self._next()
                if writes:
                    _append(keeper, writes)
                if ask is not None:
                    _answer(ask, keeper)
        finally:
            if ask is not None:
                ask.fail()  # changes nothing if it was answered
            keeper.close()

    def _end(self, failure: BaseException | None) -> None:
        """Answer everything that waits for the thread, which takes no further jobs."""
        if failure is not None:
            reason = f"{type(failure).__name__}: {failure}".rstrip(": ")
            said = f"its thread failed ({reason}); what happens from now on is not kept"
            self._tell(Note(self._owner, said, "indus ledger verify"))
        self._ended.set()
        self._reject_jobs()

    def _reject_jobs(self) -> None:
        """Drop the jobs that wait, and tell their callers; for a thread that has ended."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if isinstance(job, _Ask):
                job.fail()

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


def _append(keeper: FallbackStore, writes: Sequence[Callable[[], Batch]]) -> None:
    try:
        keeper.append(writes)
    except BaseException as exc:  # noqa: BLE001 — boundary: the thread goes on, and a note says so
        reason = f"{type(exc).__name__}: {exc}"
        keeper.tell(Note("the ledger", f"{len(writes)} batches were lost: {reason}"))


def _answer(ask: _Ask, keeper: FallbackStore) -> None:
    if not ask.answer.set_running_or_notify_cancel():
        return
    try:
        found = ask.question(keeper)
    except BaseException as exc:  # noqa: BLE001 — boundary: the thread goes on, and a note says so
        reason = f"{type(exc).__name__}: {exc}"
        keeper.tell(Note("the ledger", f"a question was not answered: {reason}"))
        ask.failed.set()
        found = None
    ask.answer.set_result(found)


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
