"""Looks for damage in the store: is it what was written, all of it, and in that order?

The chain is nobody's signature: whoever may write the file can write another chain. It finds what
went wrong with the file, and changes by whoever did not mean to forge it.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from induscode.deck.mcp.store.database import DamagedStoreError, read_facts
from induscode.deck.mcp.store.events import (
    chain_digest,
    content_address,
    document_addresses,
    filter_texts,
    find_withheld,
)
from induscode.deck.mcp.store.file import ChainEnd

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from indusagi.core.json import JsonObject
    from induscode.deck.mcp.store.database import LedgerDb

_MOST = 20
"""Findings that are told one by one; the rest is counted."""


def damage_of(db: LedgerDb, witness: ChainEnd | None) -> Sequence[str]:
    """List what is wrong with a store; nothing if it is what was written."""
    try:
        with _at_once(db):
            found = _Check(db, witness).run()
    except BaseException as exc:  # noqa: BLE001 — boundary: whatever reading raises is damage
        reason = f"{exc}" or type(exc).__name__
        return (f"the file cannot be read to its end: {reason}",)
    if len(found) > _MOST:
        return (*found[:_MOST], f"and {len(found) - _MOST} more")
    return tuple(found)


def end_damage(db: LedgerDb, witness: ChainEnd | None) -> str | None:
    """Look at the end alone, which costs the same however long the store is."""
    with _at_once(db):
        return _end_damage(db, witness)


@contextmanager
def _at_once(db: LedgerDb) -> Generator[None]:
    """Read in one transaction: what another process appends meanwhile is not half seen."""
    db.connection.execute("BEGIN")
    try:
        yield
    finally:
        if db.connection.in_transaction:
            db.connection.execute("ROLLBACK")


def schema_damage(db: LedgerDb) -> str | None:
    """Compare the tables of a store with those of a new one.

    A text or a root page that was changed can leave queries that find nothing and raise nothing.
    Root pages may differ in a store that was vacuumed: then all of it is looked at.
    """
    asked = "SELECT type, name, sql, rootpage FROM sqlite_master ORDER BY type, name"
    found = db.connection.execute(asked).fetchall()
    pristine = type(db)(None)
    try:
        wanted = pristine.connection.execute(asked).fetchall()
    finally:
        pristine.close()
    if found == wanted:
        return None
    if [row[:3] for row in found] != [row[:3] for row in wanted]:
        return "its tables are not those that were made"
    (said,) = db.connection.execute("PRAGMA integrity_check(1)").fetchone()
    return None if said == "ok" else f"the file: {said}"


def _end_damage(db: LedgerDb, witness: ChainEnd | None) -> str | None:
    head = db.end("head")
    base = db.end("base")
    asked = "SELECT position, digest FROM events ORDER BY position DESC LIMIT 1"
    found = db.connection.execute(asked).fetchone()
    last = base if found is None else ChainEnd(*found)
    if last != head:
        return f"it ends with row {last.position}, and was written up to {head.position}"
    return _unlike_witness(db, witness, base)


def _unlike_witness(db: LedgerDb, witness: ChainEnd | None, base: ChainEnd) -> str | None:
    if witness is None or witness.position <= base.position:
        return None
    asked = "SELECT digest FROM events WHERE position = ?"
    found = db.connection.execute(asked, (witness.position,)).fetchone()
    if found is None:
        return f"row {witness.position} was written, and it is not there any more"
    return None if found[0] == witness.digest else f"row {witness.position} is another one"


class _Check:
    def __init__(self, db: LedgerDb, witness: ChainEnd | None) -> None:
        self._db = db
        self._witness = witness
        self._found: list[str] = []
        self._latest: dict[tuple[str, str], int] = {}
        self._needed: dict[str, int] = {}
        self._manifests: dict[str, tuple[int, set[str]]] = {}
        self._pruned: ChainEnd | None = None
        self._lost: set[str] = set()
        """Documents that a recovery has found missing, and has written down."""
        self._recovered_bases: set[object] = set()
        """Rows after which a recovered ledger begins."""
        self._seqs: dict[str, int] = {}

    def run(self) -> list[str]:
        for (line,) in self._db.connection.execute("PRAGMA integrity_check(20)"):
            if line != "ok":
                self._found.append(f"the file: {line}")
        self._chain()
        self._base()
        self._documents()
        self._last_words()
        ended = _end_damage(self._db, self._witness)
        if ended is not None:
            self._found.append(ended)
        return self._found

    def _chain(self) -> None:
        previous = self._db.end("base")
        asked = "SELECT position, run, seq, at, op, subject, facts, digest FROM events ORDER BY position"
        for position, *cells, digest in self._db.connection.execute(asked):
            if position != previous.position + 1:
                between = f"{previous.position + 1} to {position - 1}"
                self._found.append(f"rows {between} are missing")
            elif chain_digest(previous.digest, position, cells) != digest:
                self._found.append(f"row {position} is not the one that was written")
            previous = ChainEnd(position, digest)
            self._row(position, cells)

    def _row(self, position: int, cells: Sequence[str | int]) -> None:
        run, seq, _, op, subject, text = cells
        expected = self._seqs.get(str(run))
        if expected is not None and seq != expected:
            self._found.append(f"row {position} is out of the order of its run")
        self._seqs[str(run)] = int(seq) + 1
        try:
            facts = read_facts(str(text), position)
        except DamagedStoreError as exc:
            self._found.append(str(exc))
            return
        if subject:
            self._latest[str(op), str(subject)] = position
        for address in document_addresses(str(op), facts):
            self._needed.setdefault(address, position)
        self._special(position, str(op), facts)

    def _special(self, position: int, op: str, facts: JsonObject) -> None:
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

    def _base(self) -> None:
        base = self._db.end("base")
        accounted = self._pruned == base or base.position in self._recovered_bases
        if base.position and not accounted:
            self._found.append(f"rows 1 to {base.position} are missing, and no row says why")

    def _documents(self) -> None:
        there: set[str] = set()
        for address, text in self._db.connection.execute("SELECT address, text FROM documents"):
            there.add(address)
            if content_address(text) != address:
                self._found.append(f"the document {address[:12]} was changed")
            elif address in self._manifests:
                position, kept_out = self._manifests[address]
                for one in set(filter_texts(json.loads(text))) - kept_out:
                    self._needed.setdefault(one, position)
        for address, position in self._needed.items():
            if address not in there and address not in self._lost:
                self._found.append(f"row {position} needs the document {address[:12]}: missing")

    def _last_words(self) -> None:
        kept = {
            (op, subject): position for op, subject, position in self._db.connection.execute("SELECT * FROM latest")
        }
        for op, subject in self._latest.keys() ^ kept.keys():
            self._found.append(f"the index of {op} is wrong about {subject}")
        for key in self._latest.keys() & kept.keys():
            if self._latest[key] != kept[key]:
                self._found.append(f"the index of {key[0]} is wrong about {key[1]}")
