"""Keeps the store going: in its file as long as that works, and in memory from then on.

Everything here blocks, and belongs to the thread of the store. A damaged file can make the database
and its readers raise anything (a flipped bit in the schema: `OverflowError`), so every failure to
use the file ends its use; only those that are known to come from outside of it (a full disk, a
lock, permissions) leave it in place.
"""

from __future__ import annotations

import json
import os
import sqlite3
from typing import TYPE_CHECKING, TypeVar, cast

from indusagi.core.notes import Note
from induscode.deck.mcp import store_file
from induscode.deck.mcp.store_check import damage_of, end_damage
from induscode.deck.mcp.store_db import DamagedStore, ForeignStore, LedgerDb
from induscode.deck.mcp.store_prune import prune
from induscode.deck.mcp.store_rows import Batch, Happening, address_of, needed_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from induscode.deck.mcp.store_rows import Pruned, Retention, Row, RowOp

T = TypeVar("T")

_OUTSIDE_CODES = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_AUTH,
    }
)
"""Result codes whose cause is outside of the file: https://www.sqlite.org/rescode.html."""
_ADOPTED = ("pin", "list")
_MOST_NOTES = 100
"""Of a store that fails at every step the first failures say enough."""


class Keeper:
    """One store, wherever it is kept at the moment."""

    def __init__(self, path: str | None) -> None:
        self.notes: list[Note] = []
        self._untold = 0
        self._identity: tuple[int, int] | None = None
        self._db = LedgerDb(None) if path is None else self._opened(path)

    @property
    def path(self) -> str | None:
        """The file; None while it is kept in memory."""
        return self._db.path

    def close(self) -> None:
        """Close what is open."""
        self._db.close()

    def _opened(self, path: str) -> LedgerDb:
        db: LedgerDb | None = None
        try:
            made = store_file.prepare(path)
            self._identity = store_file.identity_of(path)
            if made:
                self._say_what_is_gone(path)
            db = LedgerDb(path)
            damaged = end_damage(db, store_file.read_end(path))
            if damaged is not None:
                raise DamagedStore(damaged)
        except BaseException as exc:  # noqa: BLE001 — boundary: see the module's text
            if db is not None:
                db.close()
            return self._given_up(path, exc)
        return db

    def _say_what_is_gone(self, path: str) -> None:
        """A store was here that is not any more: say so, and begin anew."""
        known = store_file.read_end(path)
        if known is None:
            return
        os.replace(f"{path}-end", f"{path}-end.gone")
        said = f"it held {known.position} rows and is not there any more; a new one was begun"
        self.tell(Note(f"the ledger {path!r}", said))

    def _given_up(self, path: str, failure: BaseException) -> LedgerDb:
        """Go on in memory, and say why: once, since there is nothing to give up after that."""
        owner = f"the ledger {path!r}"
        reason = f"{failure}" or type(failure).__name__
        if not _is_damage(failure):
            said = f"it cannot be used ({reason}); what happens is kept until the session ends"
            self.tell(Note(owner, said, "make room, or see who owns the file"))
            return LedgerDb(None)
        try:
            aside = store_file.set_aside(path, self._identity)
        except OSError as exc:
            aside = f"still there: {exc}"
        said = f"it is damaged ({reason}); what happens is kept until the session ends"
        remedy = "the next session begins a new one"
        if aside is not None:
            remedy = f"the damaged one is {aside}; {remedy}"
        self.tell(Note(owner, said, remedy))
        return LedgerDb(None)

    def _fallen_back(self, failure: BaseException) -> None:
        """Leave the file, with what of it this session needs."""
        file = self._db
        assert file.path is not None
        memory = self._given_up(file.path, failure)
        try:
            if not _is_damage(failure):
                memory.append([_adopted(file)])
        except BaseException:  # noqa: BLE001 — boundary: see the module's text
            memory.close()
            memory = LedgerDb(None)
        finally:
            file.close()
        self._db = memory

    def tell(self, note: Note) -> None:
        """Take down what went wrong: each thing once, and a count of what there is no room for."""
        if note in self.notes:
            return
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(note)
            return
        self._untold += 1
        more = Note("the ledger", f"{self._untold:,} further failures are not listed")
        self.notes[_MOST_NOTES:] = [more]

    # -- writing ----------------------------------------------------------------------------

    def append(self, makers: Sequence[Callable[[], Batch]]) -> None:
        """Write batches in one step; in memory if the file will not take them."""
        batches = [batch for make in makers if (batch := self._made(make)) is not None]
        try:
            end = self._db.append(batches)
        except BaseException as exc:
            if self._db.path is None:
                raise
            self._fallen_back(exc)
            self._db.append(batches)
            return
        if self._db.path is not None:
            store_file.write_end(self._db.path, end)

    def _made(self, make: Callable[[], Batch]) -> Batch | None:
        try:
            return make()
        except BaseException as exc:  # noqa: BLE001 — boundary: one batch must not stop the thread
            said = f"something that happened could not be written down: {exc}"
            self.tell(Note("the ledger", said))
            return None

    def prune(self, keep: Retention, own_run: str) -> Pruned | None:
        """Take out old runs."""
        done = self.read(lambda db: prune(db, keep, own_run), None)
        if done is None:
            return None
        pruned, end = done
        if self._db.path is not None:
            store_file.write_end(self._db.path, end)
        said = f"{pruned.runs} old runs with {pruned.rows} rows were taken out; a row says so"
        self.tell(Note("the ledger", said))
        return pruned

    # -- reading ----------------------------------------------------------------------------

    def read(self, question: Callable[[LedgerDb], T], otherwise: T) -> T:
        """Ask the database; if its file fails, go on in memory and answer as if it were empty."""
        try:
            return question(self._db)
        except BaseException as exc:
            if self._db.path is None:
                raise
            self._fallen_back(exc)
            return otherwise

    def documents(self, addresses: Sequence[str]) -> Mapping[str, str]:
        """Read documents, and only those that are what their address says."""
        return self.read(lambda db: _intact_documents(db, addresses), {})

    def verify(self, *, set_aside: bool) -> Sequence[Note]:
        """List what is damaged; set a damaged file aside if told so."""
        path = self._db.path
        witness = None if path is None else store_file.read_end(path)
        found = damage_of(self._db, witness)
        if found and set_aside and path is not None:
            self._fallen_back(DamagedStore(found[0]))
        where = "the ledger in memory" if path is None else f"the ledger {path!r}"
        return tuple(Note(where, one) for one in found)


def _is_damage(failure: BaseException) -> bool:
    """Tell whether the file is at fault, which it is unless a cause outside of it is known."""
    if isinstance(failure, ForeignStore | OSError):
        return False
    code: int | None = getattr(failure, "sqlite_errorcode", None)
    # Without a code it is Python that could not read what the database has.
    return code is None or code & 0xFF not in _OUTSIDE_CODES


def _intact_documents(db: LedgerDb, addresses: Sequence[str]) -> Mapping[str, str]:
    found = db.documents(addresses)
    return {address: text for address, text in found.items() if address_of(text) == address}


def _adopted(file: LedgerDb) -> Batch:
    """Collect what a session that loses its file goes on needing: its own rows, and pins."""
    rows: list[Row] = [row for op in _ADOPTED for row in file.latest(op)]
    known = {row.position for row in rows}
    for run in file.seqs:
        rows.extend(row for row in file.rows(run) if row.position not in known)
    rows.sort(key=lambda row: row.position)
    needed = {one for row in rows for one in needed_documents(row.op, row.facts)}
    documents = file.documents(needed)
    manifests = [documents.get(str(row.facts.get("manifest"))) for row in rows if row.op == "turn"]
    documents.update(file.documents(one for text in manifests if text for one in _listed(text)))
    return Batch(
        [Happening(row.run, row.at, cast("RowOp", row.op), row.facts, row.subject) for row in rows],
        documents,
    )


def _listed(manifest: str) -> list[str]:
    return cast("list[str]", json.loads(manifest))
