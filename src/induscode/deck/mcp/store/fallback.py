"""Keeps the store going: in its file, in what is recovered of it, and else in memory.

Everything here blocks, and belongs to the thread of the store. A damaged file can make the database
and its readers raise anything (a flipped bit in the schema: `OverflowError`), so every failure to
use the file ends its use; only those that are known to come from outside of it (a full disk, a
lock, permissions) leave it in place.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

from indusagi.core.app_dirs import locked_directory
from indusagi.core.ids import new_ulid
from indusagi.core.notes import Note
from induscode.deck.mcp.store import file as store_file
from induscode.deck.mcp.store.database import DamagedStoreError, ForeignStoreError, LedgerDb, NewerStoreError
from induscode.deck.mcp.store.events import Batch, Event, content_address, document_addresses
from induscode.deck.mcp.store.pins_backup import (
    PIN,
    Pin,
    PinsFile,
    append_pins,
    collect_pins,
    pins_path,
    read_pins_file,
    shorten_pins,
)
from induscode.deck.mcp.store.recovery import recovery_batch, salvage, write_recovered
from induscode.deck.mcp.store.retention import prune
from induscode.deck.mcp.store.verify import damage_of, end_damage, schema_damage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from induscode.deck.mcp.store.events import PruneResult, Retention, Row, RowOp
    from induscode.deck.mcp.store.file import ChainEnd

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


class FallbackStore:
    """One store, wherever it is kept at the moment."""

    def __init__(self, path: str | None) -> None:
        self.notes: list[Note] = []
        self._untold = 0
        self._identity: tuple[int, int] | None = None
        self._recovered = False
        self._db = LedgerDb(None) if path is None else self._open(path)

    @property
    def path(self) -> str | None:
        """The file; None while it is kept in memory."""
        return self._db.path

    def close(self) -> None:
        """Close what is open."""
        self._db.close()

    # -- opening and replacing --------------------------------------------------------------

    def _open(self, path: str) -> LedgerDb:
        try:
            return self._open_file(path)
        except BaseException as exc:  # noqa: BLE001 — boundary: see the module's text
            return self._replace(path, exc)

    def _open_file(self, path: str) -> LedgerDb:
        created = store_file.prepare(path)
        self._identity = store_file.identity_of(path)
        witness = store_file.read_end(path)
        try:
            db = LedgerDb(path)
        except NewerStoreError:
            raise
        except ForeignStoreError as exc:
            if witness is None:
                raise
            raise DamagedStoreError(f"a ledger was here, and now {exc}") from exc
        try:
            if created:
                self._begin_anew(db, path, witness)
            elif (damage := schema_damage(db) or end_damage(db, witness)) is not None:
                raise DamagedStoreError(damage)
            elif db.end("head").position == 0:
                self._begin_anew(db, path, None)
        except BaseException:
            db.close()
            raise
        return db

    def _begin_anew(self, db: LedgerDb, path: str, witness: ChainEnd | None) -> None:
        """Give an empty ledger the pins of one that was removed, if there was one, and say so."""
        pins = self._read_pins_file(path)
        if witness is None and not pins.pins:
            return
        if witness is not None:
            store_file.forget_end(path)
        end = db.append([_restored_pins(pins, "the ledger was removed")])
        store_file.write_end(path, end)
        held = "it" if witness is None else f"it held {witness.position} rows and"
        said = f"{held} is not there any more; a new one was begun. {_about_pins(pins)}"
        self.tell(Note(f"the ledger {path!r}", said, "indus ledger verify"))

    def _replace(self, path: str, failure: BaseException, adopted: Batch | None = None) -> LedgerDb:
        """Give a database in place of a file that failed: recovered if it is damaged, once.

        Otherwise it is in memory, with what the session has `adopted` from the file, or the pins.
        """
        damaged = _is_damage(failure)
        reason = f"{failure}" or type(failure).__name__
        if damaged and not self._recovered:
            self._recovered = True
            try:
                return self._recover(path, reason)
            except BaseException as exc:  # noqa: BLE001 — boundary: see the module's text
                reason = f"{reason}; it could not be recovered: {exc}"
        wrong = "is damaged" if damaged else "cannot be used"
        said = f"it {wrong} ({reason}); what happens is kept until the session ends."
        remedy = "indus ledger verify" if damaged else "make room, or see who owns the file"
        if adopted is None:
            pins = self._read_pins_file(path)
            adopted = _restored_pins(pins, reason) if pins.pins else Batch(())
            said = f"{said} {_about_pins(pins)}"
        self.tell(Note(f"the ledger {path!r}", said, remedy))
        memory = LedgerDb(None)
        try:
            memory.append([adopted])
        except BaseException as exc:  # noqa: BLE001 — boundary: see the module's text
            self.tell(Note("the ledger in memory", f"it has nothing of the file: {exc}"))
            memory.close()
            memory = LedgerDb(None)
        return memory

    def _recover(self, path: str, reason: str) -> LedgerDb:
        """Put what is still valid of a damaged file in its place, and set the file aside."""
        with locked_directory(os.path.dirname(os.path.abspath(path))):
            try:
                replaced = store_file.identity_of(path) != self._identity
            except FileNotFoundError:
                replaced = True
            if not replaced:
                self._swap(path, reason)
        return self._open_file(path)

    def _swap(self, path: str, reason: str) -> None:
        known = store_file.read_end(path)
        pins = self._read_pins_file(path)
        fresh = f"{path}.{new_ulid()}.fresh"
        try:
            done = write_recovered(fresh, salvage(path), pins.pins, known, reason)
            aside = store_file.set_aside(path, self._identity, fresh)
        finally:
            store_file.remove(fresh)
        store_file.write_end(path, done.end)
        total = max(done.kept, 0 if known is None else known.position)
        said = f"it is damaged ({reason}); {done.kept:,} of its {total:,} rows were kept."
        if done.kept < total:
            said = f"{said} {_about_pins(pins)}"
        self.tell(Note(f"the ledger {path!r}", said, f"the damaged file is {aside}"))

    def _fall_back(self, failure: BaseException) -> None:
        """Leave the file in the middle of a session, with what of it the session needs."""
        file = self._db
        assert file.path is not None
        adopted: Batch | None = None
        if not _is_damage(failure):
            with suppress(BaseException):  # a disk that gives nothing back
                adopted = _adopted(file)
        file.close()
        self._db = self._replace(file.path, failure, adopted)

    def _read_pins_file(self, path: str) -> PinsFile:
        try:
            found = read_pins_file(path)
        except OSError as exc:
            self.tell(Note(pins_path(path), f"it cannot be read: {exc}", "see who owns the file"))
            return PinsFile(missing=True)
        return PinsFile(missing=True) if found is None else found

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
        end = self._use(lambda db: db.append(batches))
        if self._db.path is not None:
            store_file.write_end(self._db.path, end)
            self._copy_pins(self._db.path, collect_pins(batches))

    def _use(self, action: Callable[[LedgerDb], T]) -> T:
        """Do something with the database; if its file fails, with the one that takes its place.

        That is at most: the file, the file after its recovery, and memory.

        Raises:
            BaseException: What the database in memory raised.
        """
        while self._db.path is not None:
            try:
                return action(self._db)
            except BaseException as exc:  # noqa: BLE001 — boundary: see the module's text
                self._fall_back(exc)
        return action(self._db)

    def _copy_pins(self, path: str, pins: Sequence[Pin]) -> None:
        try:
            append_pins(path, pins)
        except OSError as exc:
            said = f"it cannot be written: {exc}. Pins would be lost with the ledger"
            self.tell(Note(pins_path(path), said, "make room, or see who owns the file"))

    def _made(self, make: Callable[[], Batch]) -> Batch | None:
        try:
            return make()
        except BaseException as exc:  # noqa: BLE001 — boundary: one batch must not stop the thread
            said = f"something that happened could not be written down: {exc}"
            self.tell(Note("the ledger", said))
            return None

    def prune(self, keep: Retention, own_run: str) -> PruneResult | None:
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
        """Ask the database; `otherwise` if neither the file nor what replaces it has an answer."""
        try:
            return self._use(question)
        except BaseException as exc:  # noqa: BLE001 — boundary: see the module's text
            reason = f"{type(exc).__name__}: {exc}"
            self.tell(Note("the ledger", f"it could not be read: {reason}"))
            return otherwise

    def latest(self, op: str) -> Sequence[Row]:
        """Read the rows with the last word on their subjects; pins as the pins file has them too.

        A pin that is only in the pins file is restored, one that is only here is copied there.
        """
        rows = self.read(lambda db: db.latest(op), ())
        path = self._db.path
        if op != PIN or path is None:
            return rows
        known = self._read_pins_file(path)
        subjects = {row.subject: row.facts for row in rows}
        lost = {one: pin for one, pin in known.pins.items() if one not in subjects}
        if lost:
            restored = replace(known, pins=lost)
            self.append([lambda: _restored_pins(restored, "pins were missing")])
            said = f"{len(lost)} pins were missing in it, and are restored from the pins file"
            self.tell(Note(f"the ledger {path!r}", said, "indus ledger verify"))
        behind = [
            Pin(subject, facts, self.documents([*document_addresses(PIN, facts)]))
            for subject, facts in subjects.items()
            if subject not in known.pins or known.pins[subject].facts != facts
        ]
        self._copy_pins(path, behind)
        with suppress(OSError):  # it is as good as before, and longer
            shorten_pins(path, known)
        return self.read(lambda db: db.latest(op), ()) if lost else rows

    def documents(self, addresses: Sequence[str]) -> Mapping[str, str]:
        """Read documents, and only those that are what their address says."""
        return self.read(lambda db: _intact_documents(db, addresses), {})

    def verify(self, *, set_aside: bool) -> Sequence[Note]:
        """List what is damaged, now or earlier; replace a damaged file if told so."""
        path = self._db.path
        if path is None:
            return tuple(Note("the ledger in memory", one) for one in damage_of(self._db, None))
        found = damage_of(self._db, store_file.read_end(path))
        if found and set_aside:
            self._fall_back(DamagedStoreError(found[0]))
        owner = f"the ledger {path!r}"
        before = [
            Note(owner, f"a damaged ledger was set aside as {one}", "remove it when it is done with")
            for one in store_file.files_aside(path)
        ]
        before += [
            Note(owner, "a ledger that was here before is gone", f"remove {one} to be told no more")
            for one in store_file.ends_of_removed(path)
        ]
        return (*(Note(owner, one) for one in found), *before)


def _restored_pins(found: PinsFile, reason: str) -> Batch:
    return recovery_batch([*found.pins.values()], {"reason": reason})


def _about_pins(found: PinsFile) -> str:
    """Say what became of the pins of a ledger that lost rows."""
    if found.missing:
        return "The definitions of tools that were approved are not known: every tool is taken as it is now"
    kept = f"The definitions of {len(found.pins):,} tools that were approved are kept"
    return f"{kept}, {found.damaged:,} are lost" if found.damaged else kept


def _is_damage(failure: BaseException) -> bool:
    """Tell whether the file is at fault, which it is unless a cause outside of it is known."""
    if isinstance(failure, ForeignStoreError | OSError):
        return False
    code: int | None = getattr(failure, "sqlite_errorcode", None)
    # Without a code it is Python that could not read what the database has.
    return code is None or code & 0xFF not in _OUTSIDE_CODES


def _intact_documents(db: LedgerDb, addresses: Sequence[str]) -> Mapping[str, str]:
    found = db.documents(addresses)
    return {address: text for address, text in found.items() if content_address(text) == address}


def _adopted(file: LedgerDb) -> Batch:
    """Collect what a session that loses its file goes on needing: its own rows, and pins."""
    rows: list[Row] = [row for op in _ADOPTED for row in file.latest(op)]
    known = {row.position for row in rows}
    for run in file.seqs:
        rows.extend(row for row in file.rows(run) if row.position not in known)
    rows.sort(key=lambda row: row.position)
    needed = {one for row in rows for one in document_addresses(row.op, row.facts)}
    documents = file.documents(needed)
    manifests = [documents.get(str(row.facts.get("manifest"))) for row in rows if row.op == "turn"]
    documents.update(file.documents(one for text in manifests if text for one in _listed(text)))
    return Batch([Event(row.run, row.at, cast("RowOp", row.op), row.facts, row.subject) for row in rows], documents)


def _listed(manifest: str) -> list[str]:
    return cast("list[str]", json.loads(manifest))
