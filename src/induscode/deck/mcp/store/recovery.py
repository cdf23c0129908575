"""Recovery of a damaged ledger: the longest valid prefix of its rows, in a new file.

Rows are read in order up to the first one that cannot be read or breaks the chain, and are written unchanged. The
damaged file is copied and never changed. One `recover` row follows: how many rows were kept, how far the damaged file
reached, which documents are missing. Pins come from the pins file, and otherwise from rows after the damage that fit
their neighbours.

If page 1 of the file, which holds the schema, is unusable, the copy that is read gets page 1 of a new ledger
(https://www.sqlite.org/fileformat2.html). The tables of a ledger are created in one transaction, so their root pages
are always the same.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import create_private_file
from indusagi.core.ids import new_ulid
from indusagi.core.time import iso_utc, now_ms
from induscode.deck.mcp.store.database import ChainEnd, DamagedStoreError, LedgerDb, check_row, parse_facts, transaction
from induscode.deck.mcp.store.events import (
    GENESIS,
    Batch,
    Event,
    chain_digest,
    content_address,
    document_addresses,
    filter_texts,
)
from induscode.deck.mcp.store.pins_backup import PIN, Pin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from indusagi.core.json import JsonObject

# Offsets of the header: https://www.sqlite.org/fileformat2.html#the_database_header
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
    """Pins of rows after the damage: readable, but not proven by the chain."""
    head: int = 0
    """The last position according to the file, if it could be read."""
    chain: ChainEnd | None = None
    """The id under which nodes have published it: a recovered file that lost rows is noticed by them."""

    @property
    def last(self) -> int:
        """The position of the last valid row."""
        return self.rows[-1][0] if self.rows else self.base.position

    @property
    def lost_rows(self) -> int:
        """How many rows after the valid ones the file is known to have had."""
        return max(0, self.head - self.last)

    def find_missing_documents(self) -> set[str]:
        """Find the documents that the rows need and that could not be read."""
        needed: set[str] = set()
        for cells in self.rows:
            addresses = document_addresses(cells[4], parse_facts(cells[6], cells[0]))
            needed |= addresses
            if cells[4] == "turn":
                for address in addresses & self.documents.keys():
                    needed.update(filter_texts(json.loads(self.documents[address])))
        return needed - self.documents.keys()


def salvage(path: str) -> Salvage:
    """Read what can be read of a damaged ledger, which stays as it is.

    Raises:
        OSError: There is no place for a copy of it.
    """
    best = Salvage(ChainEnd(0, GENESIS))
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path), prefix=".recovery-") as folder:
        for copy_database in (_copy_file, _copy_with_new_schema):
            copy = os.path.join(folder, copy_database.__name__)
            with suppress(Exception):  # whatever is wrong with it: the other way may do
                copy_database(path, copy)
                found = _read(copy)
                if len(found.rows) > len(best.rows) or not best.rows:
                    best = found
    return best


def write_recovered(fresh: str, found: Salvage, pins: Mapping[str, Pin], reason: str) -> None:
    """Write a ledger that continues the valid part of a damaged one.

    Raises:
        OSError, sqlite3.Error: It cannot be written.
    """
    os.close(create_private_file(fresh))
    db = LedgerDb(fresh)
    try:
        latest: dict[tuple[str, str], tuple[int, str]] = {}
        for position, _, _, _, op, subject, text, _ in found.rows:
            if subject:
                latest[op, subject] = position, text
        with transaction(db.connection):  # the rows and documents, unchanged
            db.connection.executemany("INSERT INTO events VALUES (?,?,?,?,?,?,?,?)", found.rows)
            db.connection.executemany("INSERT INTO documents VALUES (?,?)", found.documents.items())
            index = [(*key, position) for key, (position, _) in latest.items()]
            db.connection.executemany("INSERT INTO latest VALUES (?,?,?)", index)
            if found.chain is not None:
                db.set_end("chain", found.chain)
            db.set_end("base", found.base)
            db.set_end("head", ChainEnd(found.rows[-1][0], found.rows[-1][7]) if found.rows else found.base)
        kept = {subject: parse_facts(text, position) for (op, subject), (position, text) in latest.items() if op == PIN}
        restored = [pin for subject, pin in {**found.tail_pins, **pins}.items() if kept.get(subject) != pin.facts]
        facts: JsonObject = {
            "kept": len(found.rows),
            "base": found.base.position,
            "last": found.last,
            "known": found.last + found.lost_rows,
            "reason": reason,
        }
        db.append([build_recovery_batch(restored, facts, found.find_missing_documents())])
    finally:
        db.close()


def build_recovery_batch(restored: Sequence[Pin], facts: JsonObject, missing: Iterable[str] = ()) -> Batch:
    """Build the rows that describe a recovery and restore pins."""
    documents = {address: text for pin in restored for address, text in pin.documents.items()}
    needed = {address for pin in restored for address in document_addresses(PIN, pin.facts)}
    absent = sorted({*needed, *missing} - documents.keys())
    run, at = new_ulid(), iso_utc(now_ms())
    rows = [Event(run, at, "recover", {**facts, "pins": len(restored), "missing": [*absent]})]
    rows += [Event(run, at, PIN, pin.facts, pin.subject) for pin in restored]
    return Batch(rows, documents)


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
    # Any bytes are read as text, so that one damaged cell does not end the reading of all.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    rows: list[_Cells] = []
    try:
        # Rows in their order, also invalid ones. An unreadable page ends it: nothing leads to what follows.
        with suppress(Exception):
            for cells in connection.execute(_ROWS):
                rows.append(cells)  # noqa: PERF402 — those before a failure are kept
        found = _find_longest_prefix(connection, rows)
        head = _read_end(connection, "head")
        found.head = 0 if head is None else head.position
        found.chain = _read_end(connection, "chain")
        found.documents.update(_read_documents(connection, found))
        for pin in found.tail_pins.values():
            addresses = document_addresses(PIN, pin.facts)
            documents = {address: found.documents[address] for address in addresses & found.documents.keys()}
            found.tail_pins[pin.subject] = Pin(pin.subject, pin.facts, documents)
        return found
    finally:
        connection.close()


def _find_longest_prefix(connection: sqlite3.Connection, rows: list[_Cells]) -> Salvage:
    best = Salvage(ChainEnd(0, GENESIS))
    for base in _list_bases(connection, rows):
        kept = 0
        before: _Cells = (base.position, "", 0, "", "", "", "{}", base.digest)
        for cells in rows:
            if not _follows(before, cells):
                break
            before = cells
            kept += 1
        if kept > len(best.rows):
            best = Salvage(base, rows[:kept])
    for index in range(max(len(best.rows), 1), len(rows)):
        cells = rows[index]
        if cells[4] == PIN and cells[5] and _follows(rows[index - 1], cells):
            best.tail_pins[cells[5]] = Pin(cells[5], parse_facts(cells[6], cells[0]))
    return best


def _follows(before: _Cells, cells: _Cells) -> bool:
    """Tell whether a row fits the digest of the row before it, which may itself be invalid."""
    position, *middle, digest = cells
    return (
        _is_valid(cells)
        and [type(before[0]), type(before[7])] == [int, str]
        and position == before[0] + 1
        and chain_digest(before[7], position, middle) == digest
    )


def _is_valid(cells: _Cells) -> bool:
    try:
        check_row(cells)
        parse_facts(cells[6], cells[0])
    except DamagedStoreError:
        return False
    return True


def _list_bases(connection: sqlite3.Connection, rows: list[_Cells]) -> Iterator[ChainEnd]:
    """Yield the possible beginnings of the chain: the stored one, those of prunings, and the first row."""
    stored = _read_end(connection, "base")
    if stored is not None:
        yield stored
    for cells in rows:
        if _is_valid(cells) and cells[4] == "prune":
            facts = parse_facts(cells[6], cells[0])
            last, digest = facts.get("last"), facts.get("digest")
            if isinstance(last, int) and isinstance(digest, str):
                yield ChainEnd(last, digest)
    yield ChainEnd(0, GENESIS)


def _read_end(connection: sqlite3.Connection, name: str) -> ChainEnd | None:
    with suppress(Exception):
        query = "SELECT position, digest FROM ends WHERE name = ?"
        position, digest = connection.execute(query, (name,)).fetchone()
        if isinstance(position, int) and isinstance(digest, str):
            return ChainEnd(position, digest)
    return None


def _read_documents(connection: sqlite3.Connection, found: Salvage) -> dict[str, str]:
    documents: dict[str, str] = {}

    def take(pairs: Iterable[tuple[object, object]]) -> None:
        for address, text in pairs:
            if isinstance(address, str) and isinstance(text, str) and content_address(text) == address:
                documents[address] = text  # noqa: PERF403 — those before a failure are kept

    with suppress(Exception):
        take(connection.execute("SELECT address, text FROM documents"))
        return documents
    wanted = {
        address for cells in found.rows for address in document_addresses(cells[4], parse_facts(cells[6], cells[0]))
    }
    wanted.update(address for pin in found.tail_pins.values() for address in document_addresses(PIN, pin.facts))
    for address in wanted - documents.keys():
        with suppress(Exception):
            take(connection.execute("SELECT address, text FROM documents WHERE address = ?", (address,)))
    return documents
