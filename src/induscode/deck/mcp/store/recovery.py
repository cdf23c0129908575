"""Recovery of a damaged ledger: the longest valid prefix of its rows, in a fresh file.

Rows are read in order up to the first one that cannot be read or does not fit the chain, and are
written anew as they are. The damaged file is only copied, never changed. One row of the op
`recover` follows: how many rows were kept, up to which row the old file was known to reach, which
documents are missing. Pins come back from the pins file, and where there is none from rows after
the damage that fit their neighbours.

If page 1 of the file, which holds the schema, cannot be used, it is replaced (in the copy that is
read) by that of a new ledger: https://www.sqlite.org/fileformat2.html. The tables of a ledger are
made in one step, so their root pages are always the same.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import create_private_file
from indusagi.core.clock import iso_utc, now_ms
from indusagi.core.ids import new_ulid
from induscode.deck.mcp.store.database import DamagedStoreError, LedgerDb, check_row, read_facts, transaction
from induscode.deck.mcp.store.events import (
    GENESIS,
    Batch,
    Event,
    chain_digest,
    content_address,
    document_addresses,
    filter_texts,
)
from induscode.deck.mcp.store.file import ChainEnd
from induscode.deck.mcp.store.pins_backup import PIN, Pin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from indusagi.core.json import JsonObject

_PAGE = 4096
_HEADER = 100
_WRITE_AHEAD = slice(18, 20)
_PAGES = slice(28, 32)
_COUNTS = slice(24, 40)
"""Change counter, size in pages, and the list of free pages: what differs between two files."""
_VALID_FOR = slice(92, 96)
_ROWS = "SELECT position, run, seq, at, op, subject, facts, digest FROM events ORDER BY position"

_Cells = tuple[int, str, int, str, str, str, str, str]


@dataclass(slots=True)
class Salvage:
    """What could be read of a damaged ledger."""

    base: ChainEnd
    rows: list[_Cells] = field(default_factory=list[_Cells])
    """The longest prefix that fits the chain."""
    documents: dict[str, str] = field(default_factory=dict[str, str])
    tail_pins: dict[str, Pin] = field(default_factory=dict[str, Pin])
    """Pins of rows after the damage: readable, but not proven."""

    def needed(self) -> set[str]:
        """Name the documents that the rows need."""
        found: set[str] = set()
        manifests: set[str] = set()
        for cells in self.rows:
            addresses = document_addresses(cells[4], read_facts(cells[6], cells[0]))
            found |= addresses
            manifests |= addresses if cells[4] == "turn" else set()
        for address in manifests & self.documents.keys():
            found.update(filter_texts(json.loads(self.documents[address])))
        return found


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """What became of a damaged ledger."""

    kept: int
    """Rows of it that are in the fresh file."""
    pins: int
    """Pins that were restored besides."""
    end: ChainEnd


def salvage(path: str) -> Salvage:
    """Read what can be read of a damaged ledger, which stays as it is.

    Raises:
        OSError: There is no place for a copy of it.
    """
    best = Salvage(ChainEnd(0, GENESIS))
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path), prefix=".recovery-") as folder:
        for attempt in (_copy_file, _copy_with_new_schema):
            copy = os.path.join(folder, attempt.__name__)
            with suppress(Exception):  # whatever is wrong with it: the other way may do
                attempt(path, copy)
                found = _read(copy)
                if len(found.rows) > len(best.rows) or not best.rows:
                    best = found
    return best


def write_recovered(
    fresh: str, found: Salvage, pins: Mapping[str, Pin], known: ChainEnd | None, reason: str
) -> RecoveryResult:
    """Write a ledger that goes on where a damaged one is still valid.

    Raises:
        OSError, sqlite3.Error: It cannot be written.
    """
    os.close(create_private_file(fresh))
    db = LedgerDb(fresh)
    try:
        latest = _write_rows(db, found)
        restored = [
            pin for subject, pin in {**found.tail_pins, **pins}.items() if latest.get((PIN, subject)) != pin.facts
        ]
        last = found.rows[-1][0] if found.rows else found.base.position
        facts: JsonObject = {
            "kept": len(found.rows),
            "base": found.base.position,
            "last": last,
            "known": last if known is None else max(last, known.position),
            "reason": reason,
        }
        missing = found.needed() - found.documents.keys()
        end = db.append([recovery_batch(restored, facts, missing)])
        return RecoveryResult(len(found.rows), len(restored), end)
    finally:
        db.close()


def recovery_batch(restored: Sequence[Pin], facts: JsonObject, missing: Iterable[str] = ()) -> Batch:
    """Make the rows that say what was recovered, and that restore pins."""
    documents = {address: text for pin in restored for address, text in pin.documents.items()}
    needed = {one for pin in restored for one in document_addresses(PIN, pin.facts)}
    gone = sorted({*needed, *missing} - documents.keys())
    run, at = new_ulid(), iso_utc(now_ms())
    said: JsonObject = {**facts, "pins": len(restored), "missing": [*gone]}
    rows = [Event(run, at, "recover", said)]
    rows += [Event(run, at, PIN, pin.facts, pin.subject) for pin in restored]
    return Batch(rows, documents)


def _write_rows(db: LedgerDb, found: Salvage) -> dict[tuple[str, str], JsonObject]:
    """Write rows and documents as they were; give what has the last word on each subject."""
    latest: dict[tuple[str, str], tuple[int, str]] = {}
    for position, _, _, _, op, subject, facts, _ in found.rows:
        if subject:
            latest[op, subject] = position, facts
    end = ChainEnd(found.rows[-1][0], found.rows[-1][7]) if found.rows else found.base
    with transaction(db.connection):
        db.connection.executemany("INSERT INTO events VALUES (?,?,?,?,?,?,?,?)", found.rows)
        db.connection.executemany("INSERT INTO documents VALUES (?,?)", found.documents.items())
        db.connection.executemany("INSERT INTO latest VALUES (?,?,?)", [(*key, one[0]) for key, one in latest.items()])
        db.set_end("base", found.base)
        db.set_end("head", end)
    return {key: read_facts(facts, position) for key, (position, facts) in latest.items()}


# -- reading ----------------------------------------------------------------------------------


def _copy_file(path: str, copy: str) -> None:
    shutil.copyfile(path, copy)
    with suppress(FileNotFoundError):
        shutil.copyfile(f"{path}-wal", f"{copy}-wal")


def _copy_with_new_schema(path: str, copy: str) -> None:
    _copy_file(path, copy)
    pristine = LedgerDb(None)
    try:
        first = bytearray(pristine.connection.serialize()[:_PAGE])
    finally:
        pristine.close()
    with open(copy, "r+b") as file:
        old = file.read(_HEADER)
        first[_WRITE_AHEAD] = b"\x02\x02"
        first[_COUNTS] = old[_COUNTS]
        first[_VALID_FOR] = old[_COUNTS][:4]
        first[_PAGES] = (os.path.getsize(copy) // _PAGE).to_bytes(4, "big")
        file.seek(0)
        file.write(first)


def _read(copy: str) -> Salvage:
    connection = sqlite3.connect(copy, isolation_level=None)
    try:
        rows = _readable_rows(connection)
        found = _longest_prefix(connection, rows)
        found.documents.update(_readable_documents(connection, found))
        for pin in found.tail_pins.values():
            wanted = document_addresses(PIN, pin.facts)
            documents = {one: found.documents[one] for one in wanted & found.documents.keys()}
            found.tail_pins[pin.subject] = Pin(pin.subject, pin.facts, documents)
        return found
    finally:
        connection.close()


def _readable_rows(connection: sqlite3.Connection) -> list[_Cells]:
    """Read rows in their order, those with something wrong in them included."""
    connection.text_factory = _decode
    rows: list[_Cells] = []
    # A page that cannot be read ends it: what follows has no way to it.
    with suppress(Exception):
        for cells in connection.execute(_ROWS):
            rows.append(cells)  # noqa: PERF402 — those before a failure are kept
    return rows


def _decode(data: bytes) -> str:
    """Read any text, so that one damaged cell does not end the reading of all."""
    return data.decode("utf-8", "replace")


def _longest_prefix(connection: sqlite3.Connection, rows: list[_Cells]) -> Salvage:
    best = Salvage(ChainEnd(0, GENESIS))
    for base in _possible_bases(connection, rows):
        kept = 0
        before: _Cells = (base.position, "", 0, "", "", "", "{}", base.digest)
        for cells in rows:
            if not _follows(before, cells):
                break
            before = cells
            kept += 1
        if kept > len(best.rows):
            best = Salvage(base, rows[:kept])
    for at in range(max(len(best.rows), 1), len(rows)):
        cells = rows[at]
        if cells[4] == PIN and cells[5] and _follows(rows[at - 1], cells):
            best.tail_pins[cells[5]] = Pin(cells[5], read_facts(cells[6], cells[0]))
    return best


def _follows(before: _Cells, cells: _Cells) -> bool:
    """Tell whether a row fits the digest of the one before it, whatever that one is."""
    position, *middle, digest = cells
    return (
        _fits(cells)
        and _has_place(before)
        and position == before[0] + 1
        and chain_digest(before[7], position, middle) == digest
    )


def _has_place(cells: Sequence[object]) -> bool:
    """Tell whether a row, whatever else is wrong with it, has its position and its digest."""
    return type(cells[0]) is int and type(cells[7]) is str


def _fits(cells: _Cells) -> bool:
    try:
        check_row(cells)
        read_facts(cells[6], cells[0])
    except DamagedStoreError:
        return False
    return True


def _possible_bases(connection: sqlite3.Connection, rows: list[_Cells]) -> Iterator[ChainEnd]:
    """Give where the chain may begin: what the file says, what a pruning wrote, the beginning."""
    with suppress(Exception):
        found = connection.execute("SELECT position, digest FROM ends WHERE name = 'base'")
        position, digest = found.fetchone()
        if isinstance(position, int) and isinstance(digest, str):
            yield ChainEnd(position, digest)
    for cells in rows:
        if _fits(cells) and cells[4] == "prune":
            facts = read_facts(cells[6], cells[0])
            last, digest = facts.get("last"), facts.get("digest")
            if isinstance(last, int) and isinstance(digest, str):
                yield ChainEnd(last, digest)
    yield ChainEnd(0, GENESIS)


def _readable_documents(connection: sqlite3.Connection, found: Salvage) -> dict[str, str]:
    documents: dict[str, str] = {}

    def take(pairs: Iterable[tuple[object, object]]) -> None:
        for address, text in pairs:
            if isinstance(address, str) and isinstance(text, str) and content_address(text) == address:
                documents[address] = text  # noqa: PERF403 — those before a failure are kept

    with suppress(Exception):
        take(connection.execute("SELECT address, text FROM documents"))
        return documents
    wanted = {one for cells in found.rows for one in _needed(cells)}
    wanted.update(one for pin in found.tail_pins.values() for one in document_addresses(PIN, pin.facts))
    for address in wanted - documents.keys():
        with suppress(Exception):
            asked = "SELECT address, text FROM documents WHERE address = ?"
            take(connection.execute(asked, (address,)))
    return documents


def _needed(cells: _Cells) -> set[str]:
    return document_addresses(cells[4], read_facts(cells[6], cells[0]))
