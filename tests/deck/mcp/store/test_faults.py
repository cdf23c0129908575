"""The store under faults: flipped bits, failures of every type, a thread that hangs or ended."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.commands.helpers import configured, row, user_file
from tests.support.scripts import run
from tests.support.stores import batch, fill_store, run_sql, store_file, stored

from induscode.deck.mcp import store as stores
from induscode.deck.mcp.store import LedgerStore, SilentStoreError, open_store
from induscode.deck.mcp.store import database as store_db
from induscode.deck.mcp.store import fallback as store_keeper
from induscode.deck.mcp.store.database import store_path
from induscode.deck.mcp.store.events import Batch, PruneResult, Retention
from induscode.deck.mcp.store.fallback import FallbackStore

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

DEADLINE_S = 20
"""Far above what any operation takes, far below for ever."""
PAGE = 4096


async def use_everything(store: LedgerStore) -> bool:
    """Call every operation, within a deadline; tell whether any of it reported damage."""
    with anyio.fail_after(DEADLINE_S):
        for run_facts in await store.runs():
            for one in await store.rows(run_facts.run):
                assert isinstance(one.facts.get("definition", ""), str)
        rows = await store.latest("pin")
        await store.documents([str(one.facts.get("definition")) for one in rows])
        damage = await store.verify()
        store.append(batch(1_000, run="later"))
        await store.flush()
        await store.prune(Retention(runs=1), "later")
        rows = await store.rows("later")
        assert "t1000" in [one.facts.get("tool") for one in rows]
        return bool(damage or store.notes)


def flips_of(whole: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    """Give copies of a file with one bit flipped: every byte in use on page 1, a sample beyond."""
    used = [place for place in range(PAGE) if whole[place]]
    for place in (*used[::step], *range(PAGE, len(whole), len(whole) // 97 * step)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place * 7 % 8)
        yield place, bytes(flipped)


class Files:
    """The files of a closed store, to be put back with another content."""

    def __init__(self, path: Path) -> None:
        run_sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        self._path = path
        self._others = {
            one: one.read_bytes()
            for one in path.parent.iterdir()
            if one != path and not one.name.endswith(("-wal", "-shm"))
        }
        self.whole = path.read_bytes()

    def put(self, data: bytes) -> None:
        """Have this content in place of the ledger's, and nothing that was left since."""
        for one in self._path.parent.iterdir():
            one.unlink()
        self._path.write_bytes(data)
        for one, content in self._others.items():
            one.write_bytes(content)


@pytest.fixture
async def files(tmp_path: Path) -> Files:
    await fill_store(tmp_path, 30)
    return Files(store_file(tmp_path))


async def test_finding_d1_a_flipped_bit_anywhere_hangs_no_operation(tmp_path: Path, files: Files) -> None:
    for place, flipped in flips_of(files.whole, 40):
        files.put(flipped)
        async with stored(tmp_path) as store:
            noticed = await use_everything(store)
        assert noticed or place >= 16, place  # without its first bytes it is no database


def test_finding_d1_a_flipped_bit_in_the_schema_loses_no_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anyio.run(fill_store, tmp_path, 30)
    # Hundreds of writes that are waited for take seconds.
    monkeypatch.setattr(store_db, "LEDGER", replace(store_db.LEDGER, pragmas=("synchronous = OFF",)))

    def skip_sync(_: int) -> None: ...

    monkeypatch.setattr(os, "fsync", skip_sync)
    files = Files(store_file(tmp_path))
    path = str(store_file(tmp_path))
    start = files.whole.index(b"CREATE TABLE", 0, PAGE) - 300
    places = 0
    for place, flipped in flips_of(files.whole[:PAGE], 10):
        if place < start:
            continue
        places += 1
        files.put(flipped + files.whole[PAGE:])
        keeper = FallbackStore(path)
        try:
            assert len(keeper.latest("pin")) == 30, place
            keeper.append([batch(1_000, run="later")])
            rows = keeper.use(lambda db: db.rows("later"))
            assert [one.facts["tool"] for one in rows] == ["t1000"], place
        finally:
            keeper.close()
    assert places > 75


FAILURES = [
    OverflowError("Python int too large to convert to SQLite INTEGER"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    MemoryError(),
    RecursionError("maximum recursion depth exceeded"),
    AssertionError(),
    sqlite3.InterfaceError("bad parameter"),
    sqlite3.DatabaseError("malformed database schema"),
    TypeError("not supported"),
    KeyError("ends"),
    SystemExit(3),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("broken", ["__init__", "append", "latest", "rows", "documents"])
async def test_finding_d1_whatever_the_thread_raises_is_a_damaged_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, broken: str
) -> None:
    await fill_store(tmp_path, 3)
    original = getattr(store_keeper.LedgerDb, broken)

    def fail_for_a_file(self: store_keeper.LedgerDb, *arguments: object) -> object:
        path = arguments[0] if broken == "__init__" else self.path
        if path is not None and str(path).endswith("ledger.db"):
            raise failure
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(store_keeper.LedgerDb, broken, fail_for_a_file)
        async with stored(tmp_path) as store:
            assert await use_everything(store)
            assert "it is damaged" in store.notes[0].message
            assert not await store.flush()
    assert list(store_file(tmp_path).parent.glob("ledger.db.corrupt-*"))


async def test_finding_d1_the_end_of_the_thread_ends_every_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ImportError("no module named _sqlite3")

    monkeypatch.setattr(store_keeper.FallbackStore, "__init__", fail)
    store = await open_store(str(store_file(tmp_path)))
    with anyio.fail_after(DEADLINE_S):
        assert not await store.flush()
        for query in (store.rows("r1"), store.latest("pin"), store.runs(), store.documents(["x"])):
            with pytest.raises(SilentStoreError, match="its thread has ended"):
                await query
        assert await store.prune(Retention(), "r1") is None
        assert [note.message for note in await store.verify()] == [
            "it could not be checked: its thread does not answer"
        ]
        store.append(batch(1))
        await store.aclose()
    assert ["ImportError: no module named _sqlite3" in note.message for note in store.notes] == [True]


async def test_finding_d1_a_question_already_asked_is_answered_when_the_thread_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def end(*_: object) -> None:
        asked.wait(DEADLINE_S)
        raise SystemExit(1)

    monkeypatch.setattr(stores, "_answer", end)
    store = LedgerStore(str(store_file(tmp_path)))
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(store.flush)
            await anyio.lowlevel.checkpoint()
            asked.set()
        await store.aclose()
    assert ["its thread failed (SystemExit: 1)" in note.message for note in store.notes] == [True]


async def test_finding_d1_a_process_without_a_free_thread_has_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        store = LedgerStore(str(store_file(tmp_path)))
    with anyio.fail_after(DEADLINE_S):
        assert not await store.flush()
        await store.aclose()
    assert "can't start new thread" in store.notes[0].message


async def test_finding_d1_a_thread_that_hangs_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()

    def hang() -> Batch:
        free.wait(DEADLINE_S)
        return Batch(())

    async with stored(tmp_path) as store:
        store.append(batch(1))
        store.append(hang)
        with monkeypatch.context() as patch:
            patch.setattr(stores, "WAIT_S", 0.05)
            with pytest.raises(SilentStoreError, match="does not answer in time"):
                await store.rows("r1")
            # From now on not even a check, which may take long, is waited for as long.
            patch.setattr(stores, "LATE_WAIT_S", 0.05)
            assert ["does not answer" in note.message for note in await store.verify()] == [True]
        assert ["does not answer in time" in note.message for note in store.notes] == [True]
        free.set()
        assert len(await store.rows("r1")) == 1
        assert await store.verify() == ()


async def test_finding_d1_a_file_that_another_program_locks_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_store(tmp_path, 3)
    path = store_file(tmp_path)
    monkeypatch.setattr("indusagi.core.sqlite.BUSY_S", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    try:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        async with stored(tmp_path) as store:
            assert await use_everything(store)
            assert "cannot be used (database is locked)" in store.notes[0].message
            assert len(await store.latest("pin")) == 4
    finally:
        holder.close()
    assert path.exists()


async def test_lock_of_another_process_puts_off_upkeep_and_keeps_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indusagi.core.sqlite.BUSY_S", 0.05)
    async with stored(tmp_path) as store:
        for number in (1, 2):
            store.append(batch(number, run=f"r{number}"))
        part = await store.read_part(None, 0, 0)
        assert part is not None
        with closing(sqlite3.connect(store_file(tmp_path), isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            await store.mark_published(part.chain, part.head)
            assert await store.renew_chain(part.chain, 0) is None
            assert await store.prune(Retention(runs=1, days=180), "r2") is None
        assert ["database is locked" in note.message for note in store.notes] == [True]
        await store.mark_published(part.chain, part.head)
        part = await store.read_part(None, 0, 0)
        assert part is not None
        assert (store.path, part.unpublished) == (str(store_file(tmp_path)), 0)
        assert await store.prune(Retention(runs=1, days=180), "r2") is not None


async def test_damage_that_upkeep_finds_replaces_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = store_keeper.prune, [sqlite3.DatabaseError("database disk image is malformed")]

    def fail_once(db: store_keeper.LedgerDb, keep: Retention, own_run: str) -> PruneResult | None:
        if failures:
            raise failures.pop()
        return original(db, keep, own_run)

    await fill_store(tmp_path, 3)
    monkeypatch.setattr(store_keeper, "prune", fail_once)
    async with stored(tmp_path) as store:
        await store.prune(Retention(runs=1), "later")
        assert ["it is damaged" in note.message for note in store.notes] == [True]
        store.append(batch(9))
        assert await store.flush()
    assert list(store_file(tmp_path).parent.glob("ledger.db.corrupt-*"))


# -- through real processes -------------------------------------------------------------------


@pytest.mark.process
def test_finding_d1_commands_end_and_tell_of_a_flipped_bit(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    assert run("mcp", "list", cwd=tmp_path).returncode == 0
    path = Path(store_path())
    files = Files(path)
    events = files.whole.index(b"CREATE TABLE events", 0, PAGE)
    for place, bit in ((events - 1, 0x40), (events + 3, 0x01), (files.whole.index(b"seq INT"), 4)):
        flipped = bytearray(files.whole)
        flipped[place] ^= bit
        files.put(bytes(flipped))
        verified = run("ledger", "verify", cwd=tmp_path)
        assert (verified.returncode, "damaged" in verified.stderr) == (1, True), place
        files.put(bytes(flipped))
        listed = run("mcp", "list", cwd=tmp_path)
        assert (listed.returncode, "ready" in listed.stdout) == (0, True), place
        assert "it is damaged" in listed.stderr, place
