"""The ledger store: durable rows, a private file, and sessions that go on when the file fails."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread
from tests.support.deck import AT, capability
from tests.support.scripts import ROOT, unmeasured
from tests.support.stores import batch, fill_store, query_file, run_sql, store_file, stored

from indusagi.core import sqlite
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.deck.mcp import store as stores
from induscode.deck.mcp.store import LedgerStore, SilentStoreError, memory_store, open_store
from induscode.deck.mcp.store import database as ledger_database
from induscode.deck.mcp.store import fallback as ledger_fallback
from induscode.deck.mcp.store.database import LEDGER, DamagedStoreError, store_path
from induscode.deck.mcp.store.events import Batch, Event, Retention, content_address, descriptor_text
from induscode.deck.mcp.store.history import deck_at
from induscode.deck.mcp.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio


async def positions(store: LedgerStore, run: str = "r1") -> list[tuple[int, int]]:
    return [(row.position, row.seq) for row in await store.rows(run)]


async def test_rows_survive_closing_and_opening_the_store(tmp_path: Path) -> None:
    await fill_store(tmp_path, 3)
    async with stored(tmp_path) as store:
        rows = await store.rows("r1")
        assert [(row.position, row.seq, row.facts["tool"]) for row in rows] == [
            (1, 1, "t1"), (2, 2, "t2"), (3, 3, "t3"),
        ]  # fmt: skip
        assert [run.run for run in await store.runs()] == ["r1"]
        address = str(rows[0].facts["definition"])
        assert await store.documents([address, "nowhere"]) == {address: '{"number":1}'}
        assert (store.notes, await store.verify()) == ((), ())


async def test_the_store_is_private_and_in_the_state_directory() -> None:
    store = await open_store()
    try:
        store.append(batch(1))
        assert await store.flush()
        path = Path(store_path())
        assert store.path == str(path)
        files = sorted(path.parent.glob("ledger.db*"))
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert len(files) == 3
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        await store.aclose()


async def test_a_store_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    await fill_store(tmp_path, 1)
    store_file(tmp_path).chmod(0o644)
    await fill_store(tmp_path, 1)
    assert stat.S_IMODE(store_file(tmp_path).stat().st_mode) == 0o600


async def test_runs_have_their_own_numbers_in_one_chain(tmp_path: Path) -> None:
    async with stored(tmp_path) as one, stored(tmp_path) as other:
        for number in range(1, 4):
            one.append(batch(number, run="a"))
            assert await one.flush()
            other.append(batch(number, run="b"))
            assert await other.flush()
        assert await positions(one, "a") == [(1, 1), (3, 2), (5, 3)]
        assert await positions(one, "b") == [(2, 1), (4, 2), (6, 3)]
        assert await other.verify() == ()


async def test_a_document_is_kept_once_however_often_it_is_needed(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        for run in "abc":
            store.append(batch(1, run=run))
        await store.flush()
    assert query_file(store_file(tmp_path), "SELECT count(*) FROM documents") == [(1,)]


async def test_the_last_word_on_a_subject_is_found(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        for run in "ab":
            store.append(batch(1, run=run))
        assert [row.run for row in await store.latest("pin")] == ["b"]
        assert await store.latest("list") == ()


async def test_a_failing_batch_is_noted_and_the_others_are_written(tmp_path: Path) -> None:
    def broken() -> Batch:
        raise ValueError("no such thing")

    async with stored(tmp_path) as store:
        store.append(batch(1))
        store.append(broken)
        store.append(batch(2))
        assert await store.flush()
        assert await positions(store) == [(1, 1), (2, 2)]
        assert ["no such thing" in note.message for note in store.notes] == [True]


async def test_a_store_in_memory_answers_and_acknowledges_nothing() -> None:
    store = await memory_store()
    try:
        store.append(batch(1))
        assert not await store.flush()
        assert await positions(store) == [(1, 1)]
        assert (store.path, store.notes, await store.verify()) == (None, (), ())
    finally:
        await store.aclose()


async def test_a_store_is_closed_although_its_owner_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, closed, close = threading.Event(), list[bool](), ledger_fallback.FallbackStore.close

    def close_late(store: ledger_fallback.FallbackStore) -> None:
        closed.append(released.wait(60))
        close(store)

    monkeypatch.setattr(ledger_fallback.FallbackStore, "close", close_late)
    store = await open_store(str(store_file(tmp_path)))
    with anyio.CancelScope() as scope:
        scope.cancel()
        asyncio.get_running_loop().call_soon(released.set)
        await store.aclose()
    released.set()
    assert closed == [True]


async def test_a_closed_store_takes_nothing_and_answers_nothing(tmp_path: Path) -> None:
    store = await open_store(str(store_file(tmp_path)))
    await store.aclose()
    await store.aclose()
    store.append(batch(1))
    with pytest.raises(RuntimeError, match="closed"):
        await store.rows("r1")
    assert query_file(store_file(tmp_path), "SELECT count(*) FROM events") == [(0,)]


async def test_more_rows_than_one_transaction_takes_are_all_written(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        for number in range(1, 701):
            store.append(batch(number))
        assert await store.flush()
        wanted = [str(row.facts["definition"]) for row in await store.rows("r1")]
        assert len(await store.documents(wanted)) == 700


async def test_a_failing_query_is_noted_and_the_store_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LookupError("not ours")

    async with stored(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(ledger_fallback, "find_damage", broken)
            found = await store.verify()
        assert ["could not be checked" in note.message for note in found] == [True]
        assert ["LookupError: not ours" in note.message for note in store.notes] == [True]
        assert await store.flush()


async def test_batches_that_nothing_takes_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("lookup failed")

    async with stored(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(ledger_fallback.FallbackStore, "append", broken)
            store.append(batch(1))
            await store.flush()
        store.append(batch(2))
        assert await store.flush()
        assert ["lookup failed" in note.message for note in store.notes] == [True]


async def test_names_with_half_a_surrogate_pair_are_kept(tmp_path: Path) -> None:
    event = Event("r1", AT, "fault", {"server": "\ud800", "detail": "a\x00b\u202e"})
    async with stored(tmp_path) as store:
        store.append(lambda: Batch((event,)))
        assert await store.flush()
        assert [row.facts for row in await store.rows("r1")] == [event.facts]
        assert await store.verify() == ()


# -- two processes ----------------------------------------------------------------------------

WRITER = """
import asyncio, os, sys
from induscode.deck.mcp.store import open_store
from induscode.deck.mcp.store.events import Batch, Event

async def main(path, run, count):
    store = await open_store(path)
    print("open", flush=True)
    for number in range(1, count + 1):
        row = Event(run, "now", "pin", {"tool": number}, f"s{number}")
        store.append(lambda: Batch((row,)))
        if not await store.flush():
            print("memory", [str(note) for note in store.notes], flush=True)
            break
        print(number, flush=True)
    await store.aclose()

if len(sys.argv) == 4:
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
for run in sys.stdin:  # one forked writer for each line: a fork is many times as fast as a start
    if not (pid := os.fork()):
        print(os.getpid(), flush=True)
        asyncio.run(main(sys.argv[1], run.strip(), 100_000))
        os._exit(0)
    os.waitpid(pid, 0)
    print("ended", flush=True)
"""


def writer(path: Path, *job: str) -> subprocess.Popen[str]:
    """Start a process that writes one run (name, rows), or one for each line it is sent."""
    path.parent.parent.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), *job],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=unmeasured(),
        cwd=ROOT,
    )


@pytest.mark.process
async def test_processes_that_start_and_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = store_file(tmp_path)
    writers = [writer(path, run, "40") for run in "abc"]
    said = [one.communicate(timeout=60)[0].split() for one in writers]
    assert said == [["open", *map(str, range(1, 41))]] * 3
    async with stored(tmp_path) as store:
        assert [run.rows for run in await store.runs()] == [40, 40, 40]
        assert await store.verify() == ()


async def test_a_ledger_that_another_process_fills_while_it_is_created_was_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_and_lose_the_race(path: str) -> bool:
        created = sqlite.prepare_database_file(path)
        other = ledger_fallback.FallbackStore(None)
        other.close()
        other._db = ledger_database.LedgerDb(path)
        other.append([batch(number) for number in range(1, 4)])
        other.close()
        return created

    monkeypatch.setattr(ledger_fallback, "prepare_database_file", create_and_lose_the_race)
    async with stored(tmp_path) as store:
        assert store.notes == ()
        assert [run.rows for run in await store.runs()] == [3]


@pytest.mark.process
@pytest.mark.parametrize("part", range(2))
async def test_r53_a_killed_writer_loses_no_row_that_was_acknowledged(tmp_path: Path, part: int) -> None:
    path = store_file(tmp_path)
    acknowledged: dict[str, int] = {}
    with writer(path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for loop in range(15):
            process.stdin.write(f"run{loop}\n")
            process.stdin.flush()
            pid = int(process.stdout.readline())
            assert process.stdout.readline() == "open\n"
            # Killed after another number of rows each time, in the middle of the next ones.
            rows = part * 15 + loop
            for _ in range(rows):
                process.stdout.readline()
            os.kill(pid, signal.SIGKILL)
            # The last line may be half of a row, with the end behind it.
            rows += sum(1 for _ in takewhile(lambda line: not line.endswith("ended\n"), process.stdout))
            acknowledged[f"run{loop}"] = rows
    async with stored(tmp_path) as store:
        assert await store.verify() == ()
        assert (store.path, store.notes) == (str(path), ())
        rows = {run.run: run.rows for run in await store.runs()}
        lost = {run: count for run, count in acknowledged.items() if rows.get(run, 0) < count}
        assert lost == {}


# -- versions ---------------------------------------------------------------------------------

NEXT = replace(LEDGER, version=2, upgrades={1: ("ALTER TABLE documents ADD COLUMN kind TEXT",)})


def test_an_older_store_is_migrated_in_one_transaction(tmp_path: Path) -> None:
    anyio.run(fill_store, tmp_path, 2)
    connection = sqlite.connect(str(store_file(tmp_path)), LEDGER)
    try:
        broken = replace(NEXT, upgrades={1: ("CREATE TABLE more (x)", "no such statement")})
        with pytest.raises(sqlite3.Error):
            sqlite.migrate(connection, broken)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        for _ in range(2):
            sqlite.migrate(connection, NEXT)
            assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        found = connection.execute("SELECT address, kind FROM documents").fetchall()
        assert [kind for _, kind in found] == [None, None]
        with pytest.raises(sqlite.NewerDatabaseError, match=r"version is 2.*knows 1"):
            sqlite.migrate(connection, LEDGER)
    finally:
        connection.close()


def test_the_text_of_the_tables_is_the_one_in_the_files_of_earlier_versions(tmp_path: Path) -> None:
    # A file with other tables counts as damaged, and whitespace is part of their text.
    anyio.run(fill_store, tmp_path, 1)
    tables = query_file(store_file(tmp_path), "SELECT sql FROM sqlite_master ORDER BY name")
    assert content_address(repr(tables)) == "1267e6849518e071de893b647cb80741cffa2afe560f3302216ed94f1cbc44ce"


async def test_a_later_store_is_not_touched(tmp_path: Path) -> None:
    await fill_store(tmp_path, 2)
    path = store_file(tmp_path)
    run_sql(path, "PRAGMA user_version = 99")
    before = path.read_bytes()
    async with stored(tmp_path) as store:
        store.append(batch(3))
        assert not await store.flush()
        assert [note.message for note in store.notes] == [
            "it cannot be used (its version is 99, and this program knows 1); "
            "what happens is kept until the session ends. "
            "The definitions of 2 tools that were approved are kept"
        ]
    assert path.read_bytes() == before


async def test_another_programs_database_is_not_touched(tmp_path: Path) -> None:
    path = store_file(tmp_path)
    path.parent.mkdir()
    run_sql(path, "PRAGMA journal_mode = WAL", "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    async with stored(tmp_path) as store:
        assert store.path is None
        assert "another program" in store.notes[0].message
    assert path.read_bytes() == before
    assert query_file(path, "PRAGMA application_id") != [(LEDGER.application_id,)]


# -- damage -----------------------------------------------------------------------------------

DAMAGE = {
    "changed": ["UPDATE events SET facts = replace(facts, 't3', 'tX') WHERE position = 3"],
    "missing": ["DELETE FROM events WHERE position = 3"],
    "first missing": ["DELETE FROM events WHERE position = 1"],
    "reordered": [
        "UPDATE events SET position = 99 WHERE position = 3",
        "UPDATE events SET position = 3 WHERE position = 4",
        "UPDATE events SET position = 4 WHERE position = 99",
    ],
    "inserted": ["INSERT INTO events VALUES (7, 'r1', 7, '', 'pin', '', '{}', 'x')"],
    "another digest": ["UPDATE events SET digest = 'x' WHERE position = 2"],
    "tail gone": ["DELETE FROM events WHERE position = 6"],
    "no rows": ["DELETE FROM events"],
    "no head": ["DELETE FROM ends"],
    "a false beginning": [
        "UPDATE ends SET (position, digest) = (SELECT position, digest FROM events "
        "WHERE position = 2) WHERE name = 'base'",
        "DELETE FROM events WHERE position <= 2",
        "DELETE FROM latest WHERE position <= 2",
    ],
    "a document changed": ["UPDATE documents SET text = '{\"number\":0}' WHERE text LIKE '%3%'"],
    "a document missing": ["DELETE FROM documents WHERE text LIKE '%3%'"],
    "a pin forgotten": ["DELETE FROM latest WHERE position = 3"],
    "a pin of an older row": [
        "UPDATE events SET subject = 's3' WHERE position = 4",
        "DELETE FROM latest WHERE subject = 's4'",
    ],
    "facts that are none": ["UPDATE events SET facts = '[]' WHERE position = 3"],
    "facts that are no JSON": ["UPDATE events SET facts = '{' WHERE position = 3"],
    "facts that are no text": ["UPDATE events SET facts = x'ff' WHERE position = 3"],
    "a text that is no text": ["UPDATE documents SET text = CAST(x'ff' AS TEXT)"],
    "a table gone": ["DROP TABLE latest"],
}


@pytest.mark.parametrize("statements", DAMAGE.values(), ids=DAMAGE.keys())
async def test_r53_any_damage_is_found_and_the_file_set_aside(tmp_path: Path, statements: Sequence[str]) -> None:
    await fill_store(tmp_path, 6)
    path = store_file(tmp_path)
    run_sql(path, *statements)
    async with stored(tmp_path) as store:
        found = await store.verify(set_aside=True)
        assert found or store.notes
        assert ["it is damaged" in note.message for note in store.notes] == [True]
        # The session goes on in what was recovered, and no pin is forgotten.
        store.append(batch(7))
        assert await store.flush()
        kept = [row.seq for row in await store.rows("r1") if row.seq <= 6]
        assert kept == [*range(kept[0], kept[0] + len(kept))] if kept else True
        pins = {row.subject: row.facts["tool"] for row in await store.latest("pin")}
        assert pins == {f"s{number}": f"t{number}" for number in range(1, 8)}
    (aside,) = path.parent.glob("*.corrupt-*")
    async with stored(tmp_path) as store:
        assert (store.path, store.notes) == (str(path), ())
        assert len(await store.latest("pin")) == 7
        assert [note.message for note in await store.verify()] == [f"a damaged ledger was set aside as {aside}"]


async def test_r53_looking_alone_leaves_a_damaged_file_where_it_is(tmp_path: Path) -> None:
    await fill_store(tmp_path, 30)
    path = store_file(tmp_path)
    run_sql(path, "UPDATE events SET digest = 'x' WHERE position < 30")
    async with stored(tmp_path) as store:
        found = await store.verify()
        assert len(found) == 21
        assert (found[0].message, found[-1].message) == ("row 1 is not the one that was written", "and 10 more")
        assert store.path == str(path)


async def test_r53_a_flipped_byte_anywhere_is_found_or_changes_nothing(tmp_path: Path) -> None:
    await fill_store(tmp_path, 40)
    path = store_file(tmp_path)
    run_sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    wanted = query_file(path, "SELECT * FROM events")
    for place in range(0, len(whole), len(whole) // 25):
        flipped = bytearray(whole)
        flipped[place] ^= 0x20
        for side in path.parent.glob("ledger.db?*"):
            side.unlink()
        path.write_bytes(flipped)
        async with stored(tmp_path) as store:
            noticed = bool(store.notes or await store.verify())
        if not noticed:
            assert query_file(path, "SELECT * FROM events") == wanted, place


@pytest.mark.parametrize("kept", [0, 100, 4096, 9000])
async def test_r53_a_file_that_was_cut_off_is_set_aside(tmp_path: Path, kept: int) -> None:
    await fill_store(tmp_path, 60)
    path = store_file(tmp_path)
    os.truncate(path, kept)
    async with stored(tmp_path) as store:
        assert store.notes or await store.verify(set_aside=True)
        assert (store.path, len(store.notes)) == (str(path), 1)
        assert len(await store.latest("pin")) == 60
    assert bool(list(path.parent.glob("*.corrupt-*"))) == (kept > 0)  # an empty file holds nothing to set aside


async def test_r53_an_old_copy_in_place_of_the_store_is_noticed(tmp_path: Path) -> None:
    await fill_store(tmp_path, 2)
    path = store_file(tmp_path)
    copy = path.read_bytes()
    async with stored(tmp_path) as store:
        store.append(batch(3))
        await store.flush()
    path.write_bytes(copy)
    async with stored(tmp_path) as store:
        assert len(await store.latest("pin")) == 3
        assert ["1 pins were missing in it" in note.message for note in store.notes] == [True]


async def test_a_removed_store_is_reported_and_created_again(tmp_path: Path) -> None:
    await fill_store(tmp_path, 2)
    store_file(tmp_path).unlink()
    async with stored(tmp_path) as store:
        assert ["is not there any more" in note.message for note in store.notes] == [True]
        assert len(await store.latest("pin")) == 2
        store.append(batch(1))
        assert await store.flush()
        assert await store.verify() == ()


async def test_r53_damage_found_while_writing_replaces_only_the_file(tmp_path: Path) -> None:
    await fill_store(tmp_path, 6)
    path = store_file(tmp_path)
    async with stored(tmp_path) as store:
        run_sql(path, "DELETE FROM ends")
        store.append(batch(7))
        assert await store.flush()
        assert [row.facts["tool"] for row in await store.rows("r1")][-1] == "t7"
        assert [note.remedy.startswith("the damaged file is") for note in store.notes] == [True]
        assert ["set aside as" in note.message for note in await store.verify()] == [True]


async def test_a_damaged_store_that_another_process_has_replaced_is_left_alone(tmp_path: Path) -> None:
    await fill_store(tmp_path, 6)
    path = store_file(tmp_path)
    async with stored(tmp_path) as store:
        run_sql(path, "DELETE FROM ends")
        assert await to_thread.run_sync(sqlite.set_aside, str(path)) is not None
        assert await to_thread.run_sync(sqlite.set_aside, str(path)) is None
        await fill_store(tmp_path, 1)
        store.append(batch(7))
        assert await store.flush()
        assert store.notes == ()
        assert len(await store.latest("pin")) == 7
    # Written to the ledger that the other process has begun, and nothing else was set aside.
    assert len([one for one in path.parent.glob("*.corrupt-*") if one.suffix == ".db"]) <= 1


# -- disks ------------------------------------------------------------------------------------


async def test_r54_a_full_disk_moves_the_ledger_to_memory(tmp_path: Path) -> None:
    await fill_store(tmp_path, 3)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with stored(tmp_path) as store:
        store.append(batch(4))
        assert await store.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            for number in range(5, 300):
                store.append(batch(number))
            acknowledged = await store.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not acknowledged
        store.append(batch(300))
        assert not await store.flush()
        assert (store.path, len(store.notes)) == (None, 1)
        # The rows since the disk was full, and the pins of all rows.
        assert [row.facts["tool"] for row in await store.rows("r1")] == [f"t{number}" for number in range(5, 301)]
        assert len(await store.latest("pin")) == 300
        assert await store.verify() == ()
    async with stored(tmp_path) as store:
        assert len(await store.rows("r1")) == 4
        assert (await store.verify(), store.notes) == ((), ())


def unusable(tmp_path: Path, kind: str) -> Path:
    path = store_file(tmp_path)
    if kind == "a directory":
        path.mkdir(parents=True)
    elif kind == "a link":
        path.parent.mkdir()
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "a FIFO":
        path.parent.mkdir()
        os.mkfifo(path)
    elif kind == "a folder that is a file":
        path.parent.write_text("", encoding="ascii")
    else:
        path.parent.symlink_to(tmp_path)
    return path


@pytest.mark.parametrize(
    "kind", ["a directory", "a link", "a FIFO", "a folder that is a file", "a folder that is a link"]
)
async def test_r54_an_unusable_path_is_left_alone(tmp_path: Path, kind: str) -> None:
    unusable(tmp_path, kind)
    async with stored(tmp_path) as store:
        store.append(batch(1))
        assert not await store.flush()
        assert (store.path, len(store.notes)) == (None, 1)
        assert await positions(store) == [(1, 1)]
    assert not (tmp_path / "elsewhere").exists()


async def test_r54_a_read_only_file_system_moves_the_ledger_to_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: str) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(sqlite, "create_private_file", refused)
    async with stored(tmp_path) as store:
        assert (store.path, len(store.notes)) == (None, 1)
        assert "Read-only file system" in store.notes[0].message


async def test_r54_a_file_that_cannot_be_read_midway_is_recovered(tmp_path: Path) -> None:
    await fill_store(tmp_path, 3)
    async with stored(tmp_path) as store:
        run_sql(store_file(tmp_path), "DROP TABLE latest")
        assert len(await store.latest("pin")) == 3
        assert (store.path, len(store.notes)) == (str(store_file(tmp_path)), 1)


async def test_r54_a_disk_error_moves_the_ledger_to_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill_store(tmp_path, 3)
    async with stored(tmp_path) as store:

        def broken(*_: object) -> None:
            failure = sqlite3.OperationalError("disk I/O error")
            failure.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise failure

        with monkeypatch.context() as patch:
            patch.setattr(ledger_fallback.LedgerDb, "append", broken)
            store.append(batch(4))
            await store.flush()
        assert (store.path, await positions(store)) == (None, [])
    assert store_file(tmp_path).exists()


async def test_a_store_that_cannot_be_set_aside_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> str:
        raise PermissionError("not yours")

    await fill_store(tmp_path, 3)
    run_sql(store_file(tmp_path), "DELETE FROM ends")
    monkeypatch.setattr(ledger_fallback, "set_aside", refused)
    async with stored(tmp_path) as store:
        assert ["not yours" in note.message for note in store.notes] == [True]
        assert len(await store.latest("pin")) == 3


async def test_without_a_home_there_is_a_store_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "nowhere")
    store = await open_store()
    try:
        assert store.path is None
        assert ["set HOME" in note.message for note in store.notes] == [True]
    finally:
        await store.aclose()


async def test_the_thread_ends_with_the_store(tmp_path: Path) -> None:
    await fill_store(tmp_path, 1)
    assert "ledger store" not in {thread.name for thread in threading.enumerate()}


def test_a_row_without_facts_is_damage() -> None:
    from induscode.deck.mcp.store.database import parse_facts  # noqa: PLC0415 — beside its only use

    with pytest.raises(DamagedStoreError):
        parse_facts("[" * 100_000, 1)
    with pytest.raises(DamagedStoreError, match="row 3 has no facts"):
        parse_facts("[]", 3)


async def test_a_hanging_disk_ends_every_wait_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    def hanging() -> Batch:
        free.wait(60)
        return Batch(())

    async with stored(tmp_path) as store:
        store.append(hanging)
        with monkeypatch.context() as patch:
            patch.setattr(stores, "WAIT_S", 0.05)
            assert not await store.flush()
        free.set()
        assert await store.flush()


async def test_a_failing_store_in_memory_reports_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("out of memory")

    store = await memory_store()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ledger_fallback.LedgerDb, "append", broken)
            patch.setattr(ledger_fallback.LedgerDb, "rows", broken)
            store.append(batch(1))
            with pytest.raises(SilentStoreError, match="out of memory"):
                await store.rows("r1")
        said = [note.message for note in store.notes]
        assert ["out of memory" in one for one in said] == [True, True]
        assert "1 batches were lost" in said[0]
        assert await store.prune(Retention(runs=1), "r1") is None
    finally:
        await store.aclose()


async def test_a_store_that_fails_for_long_names_the_first_failures_and_counts_the_rest() -> None:
    def failing(number: int) -> Batch:
        raise ValueError(f"failure {number}")

    store = await memory_store()
    try:
        for number in (*range(5_000), *range(50)):
            store.append(partial(failing, number))
        await store.flush()
        assert len(store.notes) == 101
        assert "failure 99" in store.notes[99].message
        assert store.notes[100].message == "4,900 further failures are not listed"
    finally:
        await store.aclose()


async def test_a_session_that_loses_its_file_keeps_the_decks_shown_since(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with stored(tmp_path) as store:
        journal = Journal(store)
        journal.record_turn([capability("a", "x").descriptor])
        assert await store.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            journal.record_turn([capability("a", f"t{number}").descriptor for number in range(300)])
            assert not await store.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        record = await deck_at(store, journal.run, turn=2)
        assert record is not None
        assert record.text is not None
        assert await store.prune(Retention(runs=0), "new") is not None
        assert await store.verify() == ()


async def test_a_run_whose_numbers_have_a_gap_is_out_of_order(tmp_path: Path) -> None:
    await fill_store(tmp_path, 3)
    run_sql(store_file(tmp_path), "UPDATE events SET seq = 9 WHERE position = 2")
    async with stored(tmp_path) as store:
        found = [note.message for note in await store.verify()]
        assert "row 2 is out of the order of its run" in found


async def test_an_invalid_prune_row_explains_no_missing_rows(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        store.append(lambda: Batch((Event("r1", AT, "prune", {"last": "x"}),)))
        store.append(lambda: Batch((Event("r1", AT, "turn", {"turn": 1}),)))
        assert await store.flush()
        assert await store.verify() == ()


async def test_finding_e3_a_text_that_only_a_manifest_names_is_missed(tmp_path: Path) -> None:
    shown = [capability("a", name).descriptor for name in ("x", "y")]
    async with stored(tmp_path) as store:
        Journal(store).record_turn(shown)
        assert await store.flush()
        assert await store.verify() == ()
    gone = content_address(descriptor_text(shown[1]))
    run_sql(store_file(tmp_path), f"DELETE FROM documents WHERE address = '{gone}'")
    async with stored(tmp_path) as store:
        found = [note.message for note in await store.verify()]
        assert found == [f"row 2 needs the document {gone[:12]}: missing"]


async def test_finding_e3_a_text_that_was_withheld_is_not_missed(tmp_path: Path) -> None:
    secret = "sk-live-0123456789abcdef"
    config = StdioServerConfig(id="a", command="x", env={"TOKEN": secret})
    tools = [capability("a", "x").descriptor, capability("a", "y", description=secret).descriptor]
    async with stored(tmp_path) as store:
        Journal(store, [config]).record_turn(tools)
        assert await store.flush()
        assert await store.documents([content_address(descriptor_text(tools[1]))]) == {}
        assert await store.verify() == ()


async def test_a_vacuumed_store_is_as_good_as_before(tmp_path: Path) -> None:
    await fill_store(tmp_path, 40)
    # VACUUM changes the root pages: it writes the tables in the order of their names.
    run_sql(
        store_file(tmp_path),
        "CREATE TABLE more (x)",
        "CREATE TABLE again AS SELECT * FROM latest",
        "DROP TABLE more",
        "DROP TABLE again",
        "VACUUM",
    )
    async with stored(tmp_path) as store:
        assert (store.path, store.notes) == (str(store_file(tmp_path)), ())
        assert len(await store.latest("pin")) == 40
