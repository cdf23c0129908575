"""The ledger's SQLite database: a private file with a digest chain of rows, documents, and the latest row per subject.

All functions block and belong to one thread. Several processes may write the same file: each change is a transaction
that takes the write lock first, then appends to the end of the chain.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING, cast

from indusagi.core.app_dirs import state_dir
from indusagi.core.records import record
from indusagi.core.sqlite import DatabaseFormat, connect, transaction
from indusagi.core.time import DAY_MS, find_safe_now, iso_utc, now_ms
from induscode.deck.mcp.store.events import (
    GENESIS,
    Event,
    PruneResult,
    Row,
    RunFacts,
    chain_digest,
    document_addresses,
    encode_facts,
    filter_texts,
)

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.deck.mcp.store.events import Batch, Retention, RowOp


_ADDRESSES_PER_QUERY = 500

_SCHEMA = (
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
)
"""`find_schema_damage` compares these texts with the file, including whitespace."""
LEDGER = DatabaseFormat(
    application_id=0x696E6475,
    version=1,
    upgrades={0: _SCHEMA},
    # Acknowledged rows survive power loss (https://www.sqlite.org/pragma.html#pragma_synchronous). The page cache is
    # small (SQLite's default is 2 MB): a run reads its servers' pins and documents once, then only appends.
    pragmas=("synchronous = FULL", "cache_size = -512"),
)


class DamagedStoreError(Exception):
    """The database is damaged or was tampered with."""


@record
class ChainEnd:
    """A position in the chain and the digest of its row."""

    position: int
    digest: str


def store_path() -> str:
    """Return the path of this user's ledger; raises `OSError` without a home directory."""
    return os.path.join(state_dir(), "ledger.db")


class LedgerDb:
    """An open database with the current schema."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.connection = connect(path, LEDGER)
        self.seqs: dict[str, int] = {}
        """The last sequence number of each run written through this connection."""

    def close(self) -> None:
        """Close the connection. The last one to close merges the write-ahead log into the file."""
        self.connection.close()

    # -- writing ----------------------------------------------------------------------------

    def append(self, batches: Iterable[Batch], *, to_empty: bool = False) -> bool:
        """Write all batches or none and return `True`; with `to_empty`, only if the ledger has no rows yet."""
        seqs = dict(self.seqs)
        with transaction(self.connection):
            end = self.end("head")
            if to_empty and end.position:
                return False
            for batch in batches:
                self.connection.executemany("INSERT OR IGNORE INTO documents VALUES (?, ?)", batch.documents.items())
                for event in batch.events:
                    end = self.write(event, end, seqs)
            self.set_end("head", end)
        self.seqs = seqs
        return True

    def write(self, event: Event, end: ChainEnd, seqs: dict[str, int]) -> ChainEnd:
        """Write one row after `end` in the caller's transaction and return the new end."""
        position, run = end.position + 1, event.run
        if run not in seqs:
            query = "SELECT max(seq) FROM events WHERE run = ?"
            seqs[run] = self.connection.execute(query, (run,)).fetchone()[0] or 0
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
        """Store the end of the chain (`head`), or the row before its first one (`base`)."""
        self.connection.execute("INSERT OR REPLACE INTO ends VALUES (?, ?, ?)", (name, end.position, end.digest))

    # -- reading ----------------------------------------------------------------------------

    def end(self, name: str) -> ChainEnd:
        """Read the end of the chain (`head`), or the row before its first one (`base`)."""
        cells = self.connection.execute("SELECT position, digest FROM ends WHERE name = ?", (name,)).fetchone()
        if cells is None:
            raise DamagedStoreError(f"it does not say where its {name} is")
        _check_types(cells, (int, str))
        return ChainEnd(*cells)

    def rows(self, run: str) -> Sequence[Row]:
        """Read the rows of a run."""
        return tuple(self.select("WHERE run = ? ORDER BY seq", (run,)))

    def latest(self, op: str) -> Sequence[Row]:
        """Read the latest row of every subject of an op."""
        where = "JOIN latest USING (position) WHERE latest.op = ? ORDER BY position"
        return tuple(self.select(where, (op,)))

    def select(self, where: str, values: Sequence[str | int] = ()) -> Iterator[Row]:
        """Read rows one by one, checking each against its digest.

        Raises `DamagedStoreError` if a row doesn't match its digest.
        """
        query = (
            "SELECT events.position, run, seq, at, events.op, events.subject, facts, digest, "
            "(SELECT digest FROM events AS former WHERE former.position = events.position - 1) "
            f"FROM events {where}"
        )
        base = self.end("base")
        for *found, former in self.connection.execute(query, values):
            check_row(found)
            *cells, facts, digest = found
            before = base.digest if found[0] == base.position + 1 else former
            if chain_digest(before, found[0], (*cells[1:], facts)) != digest:
                raise DamagedStoreError(f"row {found[0]} is not the one that was written")
            yield Row(*cells, facts=parse_facts(facts, found[0]), digest=digest)

    def runs(self) -> Sequence[RunFacts]:
        """List the runs in the order they began."""
        query = "SELECT run, min(at), count(*), min(position) FROM events GROUP BY run ORDER BY min(position)"
        runs = self.connection.execute(query).fetchall()
        for cells in runs:
            _check_types(cells, (str, str, int, int))
        return tuple(RunFacts(*cells) for cells in runs)

    def documents(self, addresses: Iterable[str]) -> dict[str, str]:
        """Read documents by address, skipping missing ones."""
        wanted = list(dict.fromkeys(addresses))
        documents: dict[str, str] = {}
        for start in range(0, len(wanted), _ADDRESSES_PER_QUERY):
            some = wanted[start : start + _ADDRESSES_PER_QUERY]
            query = f"SELECT address, text FROM documents WHERE address IN ({','.join('?' * len(some))})"
            for pair in self.connection.execute(query, some):
                _check_types(pair, (str, str))
                documents[pair[0]] = pair[1]
        return documents


def check_row(cells: Sequence[object]) -> None:
    """Check the cell types of a row of `events`; raises `DamagedStoreError` if one is wrong."""
    _check_types(cells, (int, str, int, str, str, str, str, str))


def _check_types(cells: Sequence[object], types: Sequence[type]) -> None:
    """Check cell types, since SQLite columns accept any type (https://www.sqlite.org/datatype3.html)."""
    for cell, wanted in zip(cells, types, strict=True):
        if type(cell) is not wanted:
            problem = f"{type(cell).__name__} in place of {wanted.__name__}"
            raise DamagedStoreError(f"a row of it cannot be read: {problem}")


def parse_facts(text: str, position: int) -> JsonObject:
    """Parse the facts of a row; raises `DamagedStoreError` if they aren't a JSON object."""
    try:
        facts: object = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise DamagedStoreError(f"row {position} cannot be read: {exc}") from exc
    if not isinstance(facts, dict):
        raise DamagedStoreError(f"row {position} has no facts")
    return facts  # pyright: ignore[reportUnknownVariableType] — its keys are JSON's


# -- retention --------------------------------------------------------------------------------


def prune(db: LedgerDb, keep: Retention, own_run: str, now: Callable[[], int] = now_ms) -> PruneResult | None:
    """Remove old runs, never the caller's own. Returns `None` if there was nothing to remove.

    Runs leave in the order they began, along with all rows before the first row of a remaining run. Rows that are
    still the latest of their subject (a pin, a listing) are first copied to the end, so pruning removes nothing still
    in force. A `prune` row then records the number of removed rows and the digest of the last one, where the chain
    continues: `indus ledger verify` can still prove every remaining row. Rows a node hasn't published yet stay unless
    they're older than `keep.days`. A clock that jumps ahead removes nothing.
    """
    at_ms = now()
    with transaction(db.connection):
        runs = db.runs()
        safe_ms = find_safe_now(at_ms, filter(None, (_parse_time(run.began) for run in runs)))
        oldest = iso_utc(safe_ms - keep.days * DAY_MS)
        recent = {run.run for run in runs[max(0, len(runs) - keep.runs) :]}
        stay = [run.first for run in runs if run.run == own_run or (run.run in recent and run.began >= oldest)]
        cut = min(stay, default=db.end("head").position + 1)
        published = db.connection.execute("SELECT position FROM ends WHERE name = 'published'").fetchone()
        if published is not None:
            # Keep rows that other machines don't have yet, unless they're too old.
            young = min((run.first for run in runs if run.began >= oldest), default=cut)
            cut = min(cut, max(young, published[0] + 1))
        if cut <= db.end("base").position + 1:
            return None
        seqs = dict(db.seqs)
        result = _remove_rows(db, cut, seqs, own_run, iso_utc(at_ms))
        _remove_documents(db)
    db.seqs = seqs
    return result


def _parse_time(text: str) -> int | None:
    """Parse a time as milliseconds since 1970, or return `None` if it's invalid."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def _remove_rows(db: LedgerDb, cut: int, seqs: dict[str, int], own_run: str, at: str) -> PruneResult:
    query = "SELECT count(*), count(DISTINCT run), min(at), max(at) FROM events WHERE position < ?"
    rows, runs, first_at, last_at = db.connection.execute(query, (cut,)).fetchone()
    last = next(db.select("WHERE events.position = ?", (cut - 1,)))
    end = db.end("head")
    where = "JOIN latest USING (position) WHERE events.position < ? ORDER BY events.position"
    for row in tuple(db.select(where, (cut,))):
        end = db.write(Event(own_run, at, cast("RowOp", row.op), row.facts, row.subject), end, seqs)
    facts: JsonObject = {
        "first": db.end("base").position + 1,
        "last": last.position,
        "digest": last.digest,
        "rows": rows,
        "runs": runs,
        "from": first_at,
        "to": last_at,
    }
    end = db.write(Event(own_run, at, "prune", facts), end, seqs)
    db.connection.execute("DELETE FROM events WHERE position < ?", (cut,))
    db.set_end("base", ChainEnd(last.position, last.digest))
    db.set_end("head", end)
    return PruneResult(runs, rows)


def _remove_documents(db: LedgerDb) -> None:
    """Remove the documents no row refers to any more."""
    needed: set[str] = set()
    manifests: set[str] = set()
    for row in db.select("WHERE op IN ('enroll', 'pin', 'turn')"):
        addresses = document_addresses(row.op, row.facts)
        needed |= addresses
        manifests |= addresses if row.op == "turn" else set()
    for text in db.documents(manifests).values():
        needed.update(filter_texts(json.loads(text)))
    stored = [address for (address,) in db.connection.execute("SELECT address FROM documents")]
    unused = [(address,) for address in stored if address not in needed]
    db.connection.executemany("DELETE FROM documents WHERE address = ?", unused)


# -- publication ------------------------------------------------------------------------------
#
# A chain has a random id, stored with its ends in the file. A file that doesn't continue the rows published under its
# id (restored from a backup, or copied to another machine) gets a new one.
#
# Runs of a node are published in full. The user's other runs in the same file are published as digests only: they stay
# provable, but their content stays on the machine.


CHAIN = "chain"
"""The end that holds the chain's id. Its position counts the former ids."""
PUBLISHED = "published"
"""The end of the rows other machines have confirmed."""
FORMER = "former"
"""The end that holds the previous id and its number of published rows."""


@record
class ChainRow:
    """One row of a chain. Without cells, the row is withheld and only its digest is known."""

    position: int
    digest: str
    cells: Sequence[str | int] = ()
    """Run, number in the run, time, op, subject and facts, as digested."""


@record
class ChainPart:
    """Rows of a ledger after a position, with facts about the whole chain."""

    chain: str
    """Its id."""
    base: ChainEnd
    head: ChainEnd
    published: ChainEnd | None
    before: ChainEnd | None
    """The row before the first of these, or `None` if the file doesn't have it."""
    former: ChainEnd | None = None
    """The chain's previous id (as the digest) and the last row published under it."""
    rows: Sequence[ChainRow] = field(default=())

    @property
    def unpublished(self) -> int:
        """The number of rows still to publish."""
        done = self.base.position if self.published is None else self.published.position
        return max(0, self.head.position - max(done, self.base.position))


def read_part(db: LedgerDb, after: int | None, most_rows: int, most_characters: int) -> ChainPart:
    """Read up to so many rows after a position, or after the file's base (`None`)."""
    chain = _find_chain(db)
    base, head = db.end("base"), db.end("head")
    start = base.position if after is None else after
    before = base if start == base.position else None
    if base.position < start <= head.position:
        cells = db.connection.execute("SELECT digest FROM events WHERE position = ?", (start,)).fetchone()
        before = None if cells is None else ChainEnd(start, str(cells[0]))
    rows: list[ChainRow] = []
    if before is not None and most_rows:
        query = (
            "SELECT position, run, seq, at, op, subject, facts, digest FROM events "
            "WHERE position > ? ORDER BY position LIMIT ?"
        )
        shared: dict[str, bool] = {}
        length = 0
        for found in db.connection.execute(query, (start, most_rows)):
            check_row(found)
            position, *cells, digest = found
            run = str(cells[0])
            if run not in shared:
                shared[run] = _is_of_node(db, run)
            row = ChainRow(position, digest, tuple(cells) if shared[run] else ())
            length += sum(len(str(cell)) for cell in row.cells) + len(digest)
            if rows and length > most_characters:
                break
            rows.append(row)
    return ChainPart(chain, base, head, _find_end(db, PUBLISHED), before, _find_end(db, FORMER), rows)


def _is_of_node(db: LedgerDb, run: str) -> bool:
    cells = db.connection.execute(
        "SELECT position, facts FROM events WHERE run = ? AND op = 'run' ORDER BY seq LIMIT 1", (run,)
    ).fetchone()
    return cells is not None and bool(parse_facts(str(cells[1]), cells[0]).get("node"))


def _find_end(db: LedgerDb, name: str) -> ChainEnd | None:
    cells = db.connection.execute("SELECT position, digest FROM ends WHERE name = ?", (name,)).fetchone()
    return None if cells is None else ChainEnd(int(cells[0]), str(cells[1]))


def _find_chain(db: LedgerDb) -> str:
    end = _find_end(db, CHAIN)
    if end is None:
        with transaction(db.connection):
            end = _find_end(db, CHAIN)
            if end is None:  # no other process got there first
                end = ChainEnd(0, secrets.token_hex(8))
                db.set_end(CHAIN, end)
    return end.digest


def mark_published(db: LedgerDb, chain: str, end: ChainEnd) -> None:
    """Store the end of the published rows, unless the chain's id has changed."""
    with transaction(db.connection):
        known = _find_end(db, CHAIN)
        if known is not None and known.digest == chain:
            db.set_end(PUBLISHED, end)


def renew_chain(db: LedgerDb, former: str, published: int) -> str:
    """Replace the chain's id if it's still the former one, recording its published rows, and return the current id."""
    with transaction(db.connection):
        known = _find_end(db, CHAIN)
        if known is not None and known.digest != former:
            return known.digest
        fresh = ChainEnd(0 if known is None else known.position + 1, secrets.token_hex(8))
        db.set_end(CHAIN, fresh)
        db.set_end(FORMER, ChainEnd(published, former))
        db.connection.execute("DELETE FROM ends WHERE name = ?", (PUBLISHED,))
        return fresh.digest
