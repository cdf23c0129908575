"""Verifies the store: every row in order, as written, with the documents it needs.

The chain isn't a signature: a program that can write the file can write another chain. It detects file damage and
changes that don't try to forge the chain.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from induscode.deck.mcp.store.database import ChainEnd, DamagedStoreError, LedgerDb, parse_facts
from induscode.deck.mcp.store.events import (
    chain_digest,
    content_address,
    document_addresses,
    filter_texts,
    find_withheld,
)

_MAX_PROBLEMS = 20
"""Problems to list; further ones are only counted."""


def find_damage(db: LedgerDb) -> Sequence[str]:
    """Check the whole store and list the damage."""
    try:
        with _read_transaction(db):
            problems = _Verification(db).run()
    except BaseException as exc:  # noqa: BLE001 — boundary: whatever reading raises is damage
        reason = f"{exc}" or type(exc).__name__
        return (f"the file cannot be read to its end: {reason}",)
    if len(problems) > _MAX_PROBLEMS:
        return (*problems[:_MAX_PROBLEMS], f"and {len(problems) - _MAX_PROBLEMS} more")
    return tuple(problems)


def find_end_damage(db: LedgerDb) -> str | None:
    """Check only the end of the chain, in constant time."""
    with _read_transaction(db):
        return _compare_ends(db)


def find_schema_damage(db: LedgerDb) -> str | None:
    """Compare a store's tables with a new one's.

    A changed schema text or root page can make queries silently return nothing. Root pages also differ after a VACUUM
    (https://www.sqlite.org/lang_vacuum.html), in which case SQLite checks the whole file.
    """
    query = "SELECT type, name, sql, rootpage FROM sqlite_master ORDER BY type, name"
    found = db.connection.execute(query).fetchall()
    pristine = type(db)(None)
    try:
        wanted = pristine.connection.execute(query).fetchall()
    finally:
        pristine.close()
    if found == wanted:
        return None
    if [row[:3] for row in found] != [row[:3] for row in wanted]:
        return "its tables are not those that were made"
    (result,) = db.connection.execute("PRAGMA integrity_check(1)").fetchone()
    return None if result == "ok" else f"the file: {result}"


@contextmanager
def _read_transaction(db: LedgerDb) -> Generator[None]:
    """Read a consistent state of the database, regardless of other writers."""
    db.connection.execute("BEGIN")
    try:
        yield
    finally:
        if db.connection.in_transaction:
            db.connection.execute("ROLLBACK")


def _compare_ends(db: LedgerDb) -> str | None:
    head = db.end("head")
    query = "SELECT position, digest FROM events ORDER BY position DESC LIMIT 1"
    cells = db.connection.execute(query).fetchone()
    last = db.end("base") if cells is None else ChainEnd(*cells)
    return None if last == head else f"it ends with row {last.position}, and was written up to {head.position}"


class _Verification:
    """One pass over all rows and documents."""

    def __init__(self, db: LedgerDb) -> None:
        self._db = db
        self._problems: list[str] = []
        self._latest: dict[tuple[str, str], int] = {}
        self._needed: dict[str, int] = {}
        self._manifests: dict[str, tuple[int, set[str]]] = {}
        self._pruned: ChainEnd | None = None
        self._lost: set[str] = set()
        """Documents a recovery recorded as missing."""
        self._recovered_bases: set[object] = set()
        """Rows after which a recovered ledger starts."""
        self._seqs: dict[str, int] = {}

    def run(self) -> list[str]:
        for (line,) in self._db.connection.execute("PRAGMA integrity_check(20)"):
            if line != "ok":
                self._problems.append(f"the file: {line}")
        previous = self._db.end("base")
        query = "SELECT position, run, seq, at, op, subject, facts, digest FROM events ORDER BY position"
        for position, *cells, digest in self._db.connection.execute(query):
            if position != previous.position + 1:
                self._problems.append(f"rows {previous.position + 1} to {position - 1} are missing")
            elif chain_digest(previous.digest, position, cells) != digest:
                self._problems.append(f"row {position} is not the one that was written")
            previous = ChainEnd(position, digest)
            self._check_row(position, cells)
        base = self._db.end("base")
        if base.position and base != self._pruned and base.position not in self._recovered_bases:
            self._problems.append(f"rows 1 to {base.position} are missing, and no row says why")
        self._check_documents()
        index_rows = self._db.connection.execute("SELECT * FROM latest")
        index: dict[tuple[str, str], int] = {(op, subject): position for op, subject, position in index_rows}
        for op, subject in self._latest.keys() | index.keys():
            if self._latest.get((op, subject)) != index.get((op, subject)):
                self._problems.append(f"the index of {op} is wrong about {subject}")
        problem = _compare_ends(self._db)
        return self._problems if problem is None else [*self._problems, problem]

    def _check_row(self, position: int, cells: Sequence[str | int]) -> None:
        run, seq, _, op, subject, text = cells
        expected = self._seqs.get(str(run))
        if expected is not None and seq != expected:
            self._problems.append(f"row {position} is out of the order of its run")
        self._seqs[str(run)] = int(seq) + 1
        try:
            facts = parse_facts(str(text), position)
        except DamagedStoreError as exc:
            self._problems.append(str(exc))
            return
        if subject:
            self._latest[str(op), str(subject)] = position
        for address in document_addresses(str(op), facts):
            self._needed.setdefault(address, position)
        manifest = facts.get("manifest")
        if op == "turn" and isinstance(manifest, str):
            self._manifests.setdefault(manifest, (position, find_withheld(facts)))
        if op == "recover":
            self._lost.update(filter_texts(facts.get("missing")))
            self._recovered_bases.add(facts.get("base"))
        if op == "prune":
            last, digest = facts.get("last"), facts.get("digest")
            if isinstance(last, int) and isinstance(digest, str):
                self._pruned = ChainEnd(last, digest)

    def _check_documents(self) -> None:
        stored: set[str] = set()
        for address, text in self._db.connection.execute("SELECT address, text FROM documents"):
            stored.add(address)
            if content_address(text) != address:
                self._problems.append(f"the document {address[:12]} was changed")
            elif address in self._manifests:
                position, withheld = self._manifests[address]
                for member in set(filter_texts(json.loads(text))) - withheld:
                    self._needed.setdefault(member, position)
        for address, position in self._needed.items():
            if address not in stored and address not in self._lost:
                self._problems.append(f"row {position} needs the document {address[:12]}: missing")
