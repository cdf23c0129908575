"""The database of the store: rows in one chain, documents, and who has the last word on what.

Everything here blocks and belongs to one thread. One database in a file may be written by several
processes: each change is one transaction that takes the write lock first and appends to the end it
then finds.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from induscode.deck.mcp.store.events import GENESIS, Row, RunFacts, chain_digest, encode_facts
from induscode.deck.mcp.store.file import ChainEnd

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from indusagi.core.json import JsonObject
    from induscode.deck.mcp.store.events import Batch, Event

APPLICATION = 0x696E6475
"""Marks the file as ours."""
BUSY_S = 5.0
"""How long to wait for another process that is writing."""
_ASKED_AT_ONCE = 500

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE events (
            position INTEGER PRIMARY KEY,
            run TEXT NOT NULL,
            seq INTEGER NOT NULL,
            at TEXT NOT NULL,
            op TEXT NOT NULL,
            subject TEXT NOT NULL,
            facts TEXT NOT NULL,
            digest TEXT NOT NULL,
            UNIQUE (run, seq)
        )""",
        """CREATE TABLE documents (
            address TEXT PRIMARY KEY,
            text TEXT NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE latest (
            op TEXT NOT NULL,
            subject TEXT NOT NULL,
            position INTEGER NOT NULL,
            PRIMARY KEY (op, subject)
        ) WITHOUT ROWID""",
        """CREATE TABLE ends (
            name TEXT PRIMARY KEY,
            position INTEGER NOT NULL,
            digest TEXT NOT NULL
        ) WITHOUT ROWID""",
        f"INSERT INTO ends VALUES ('base', 0, '{GENESIS}'), ('head', 0, '{GENESIS}')",
    ),
)
"""What leads from each version of the tables to the next; their number is the present version."""


class ForeignStoreError(Exception):
    """A database that is not ours to write to: another program's, or of a later version."""


class NewerStoreError(ForeignStoreError):
    """A ledger that a later version of this program has written."""


class DamagedStoreError(Exception):
    """A database that is not what was written."""


def open_database(path: str | None) -> sqlite3.Connection:
    """Open a database that is there, or one in memory.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
    where = f"file:{quote(path)}?mode=rw" if path else ":memory:"
    connection = sqlite3.connect(where, timeout=BUSY_S, isolation_level=None, uri=path is not None)
    try:
        connection.execute("PRAGMA journal_mode = WAL").close()
        # Else a loss of power could take back what was acknowledged.
        connection.execute("PRAGMA synchronous = FULL").close()
        connection.execute("PRAGMA trusted_schema = OFF").close()
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Do several things to a database, or none of them."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # Some failures have rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def migrate(connection: sqlite3.Connection, steps: Sequence[Sequence[str]] = MIGRATIONS) -> tuple[int, int]:
    """Bring the tables to the present version in one step; tell the versions before and after.

    Raises:
        ForeignStoreError: It is another program's.
        NewerStoreError: Its version is later than ours.
        sqlite3.Error: It cannot be done; the database is as it was.
    """
    with transaction(connection):
        version = _pragma(connection, "user_version")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if _pragma(connection, "application_id") != APPLICATION and (version or tables):
            raise ForeignStoreError("it is the database of another program")
        if version > len(steps):
            raise NewerStoreError(f"its version is {version}, and this program knows {len(steps)}")
        for statement in (one for step in steps[version:] for one in step):
            connection.execute(statement)
        if version < len(steps):
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {len(steps)}")
    return version, len(steps)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


class LedgerDb:
    """One open database with the present tables."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.connection = open_database(path)
        self.seqs: dict[str, int] = {}
        """The last number of each run that was written through this connection."""
        try:
            migrate(self.connection)
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        """Close it; the last one to do so leaves a single file."""
        self.connection.close()

    # -- writing ----------------------------------------------------------------------------

    def append(self, batches: Iterable[Batch]) -> ChainEnd:
        """Write batches, all of them or none, and tell the end of the chain."""
        seqs = dict(self.seqs)
        with transaction(self.connection):
            end = self.end("head")
            for batch in batches:
                self.connection.executemany("INSERT OR IGNORE INTO documents VALUES (?, ?)", batch.documents.items())
                for event in batch.events:
                    end = self.write(event, end, seqs)
            self.set_end("head", end)
        self.seqs = seqs
        return end

    def write(self, event: Event, end: ChainEnd, seqs: dict[str, int]) -> ChainEnd:
        """Write one row after the end that is given, inside a transaction of the caller's."""
        position = end.position + 1
        run = event.run
        if run not in seqs:
            asked = "SELECT max(seq) FROM events WHERE run = ?"
            seqs[run] = self.connection.execute(asked, (run,)).fetchone()[0] or 0
        seqs[run] += 1
        cells = (run, seqs[run], event.at, event.op, event.subject, encode_facts(event.facts))
        digest = chain_digest(end.digest, position, cells)
        self.connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (position, *cells, digest))
        if event.subject:
            self.connection.execute(
                "INSERT OR REPLACE INTO latest VALUES (?, ?, ?)", (event.op, event.subject, position)
            )
        return ChainEnd(position, digest)

    def set_end(self, name: str, end: ChainEnd) -> None:
        """Write down where the chain begins or ends."""
        self.connection.execute("INSERT OR REPLACE INTO ends VALUES (?, ?, ?)", (name, end.position, end.digest))

    # -- reading ----------------------------------------------------------------------------

    def end(self, name: str) -> ChainEnd:
        """Tell where the chain ends (`head`), or which row stood before the first (`base`)."""
        found = self.connection.execute("SELECT position, digest FROM ends WHERE name = ?", (name,)).fetchone()
        if found is None:
            raise DamagedStoreError(f"it does not say where its {name} is")
        _check_types(found, _END_TYPES)
        return ChainEnd(*found)

    def rows(self, run: str) -> Sequence[Row]:
        """Read the rows of a run."""
        return tuple(self.select("WHERE run = ? ORDER BY seq", (run,)))

    def latest(self, op: str) -> Sequence[Row]:
        """Read the rows that have the last word on their subjects."""
        where = "JOIN latest USING (position) WHERE latest.op = ? ORDER BY position"
        return tuple(self.select(where, (op,)))

    def select(self, where: str, values: Sequence[str | int] = ()) -> Iterator[Row]:
        """Read rows one by one, each compared with its digest.

        Raises:
            DamagedStoreError: A row is not the one that was written.
        """
        asked = (
            "SELECT events.position, run, seq, at, events.op, events.subject, facts, digest, "
            "(SELECT digest FROM events AS former WHERE former.position = events.position - 1) "
            f"FROM events {where}"
        )
        base = self.end("base")
        for *found, former in self.connection.execute(asked, values):
            check_row(found)
            *cells, facts, digest = found
            before = base.digest if found[0] == base.position + 1 else former
            if chain_digest(before, found[0], (*cells[1:], facts)) != digest:
                raise DamagedStoreError(f"row {found[0]} is not the one that was written")
            yield Row(*cells, facts=read_facts(facts, found[0]), digest=digest)

    def runs(self) -> Sequence[RunFacts]:
        """List the runs, in the order in which they began."""
        asked = "SELECT run, min(at), count(*), min(position) FROM events GROUP BY run ORDER BY min(position)"
        runs = self.connection.execute(asked).fetchall()
        for found in runs:
            _check_types(found, _RUN_TYPES)
        return tuple(RunFacts(*found) for found in runs)

    def documents(self, addresses: Iterable[str]) -> dict[str, str]:
        """Read documents; those that are not there are left out."""
        wanted = list(dict.fromkeys(addresses))
        found: dict[str, str] = {}
        for at in range(0, len(wanted), _ASKED_AT_ONCE):
            some = wanted[at : at + _ASKED_AT_ONCE]
            marks = ",".join("?" * len(some))
            asked = f"SELECT address, text FROM documents WHERE address IN ({marks})"
            for pair in self.connection.execute(asked, some):
                _check_types(pair, _DOCUMENT_TYPES)
                found[pair[0]] = pair[1]
        return found


_ROW_TYPES = (int, str, int, str, str, str, str, str)
_RUN_TYPES = (str, str, int, int)
_END_TYPES = (int, str)
_DOCUMENT_TYPES = (str, str)


def check_row(found: Sequence[object]) -> None:
    """Refuse a row of the events whose cells are not of the types that were written.

    Raises:
        DamagedStoreError: A cell is not what was written.
    """
    _check_types(found, _ROW_TYPES)


def _check_types(found: Sequence[object], types: Sequence[type]) -> None:
    """Refuse cells of other types: a column's type binds no value, and damage changes it.

    Raises:
        DamagedStoreError: A cell is not what was written.
    """
    for cell, wanted in zip(found, types, strict=True):
        if type(cell) is not wanted:
            said = f"{type(cell).__name__} in place of {wanted.__name__}"
            raise DamagedStoreError(f"a row of it cannot be read: {said}")


def read_facts(text: str, position: int) -> JsonObject:
    """Read the facts of a row.

    Raises:
        DamagedStoreError: They are no facts.
    """
    try:
        facts: object = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise DamagedStoreError(f"row {position} cannot be read: {exc}") from exc
    if not isinstance(facts, dict):
        raise DamagedStoreError(f"row {position} has no facts")
    return facts  # pyright: ignore[reportUnknownVariableType] — its keys are JSON's
