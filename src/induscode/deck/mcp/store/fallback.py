"""The store behind its thread: the ledger's file with a backup of its pins, a recovered copy of it, or memory.

All methods block and belong to the store's thread. Any failure may mean a damaged file (see `is_damage`). A damaged
file is set aside once, and a new one starts with the backed-up pins. An unusable file is replaced by memory with the
same pins. Either way, the store adds a note. Without the backup, there is no record of approvals, and reading the pins
fails.

The backup is the pins file next to the ledger. The ledger is the source of truth. Once `pin` rows are in it, the same
pins are appended there: one JSON object per line, with the documents it needs and a checksum. Lines that fail their
checksum are skipped and counted. The file name differs from the ledger's, so removing `ledger.db*` leaves it in place
and the loss gets noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar

from indusagi.core.app_dirs import create_private_file, locked_directory, read_small_file, replace_file
from indusagi.core.faults import Note
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.sqlite import (
    ForeignDatabaseError,
    NewerDatabaseError,
    file_identity,
    is_damage,
    list_set_aside,
    prepare_database_file,
    remove_database,
    set_aside,
)
from indusagi.core.time import iso_utc, now_ms
from induscode.deck.mcp.store.database import DamagedStoreError, LedgerDb, prune
from induscode.deck.mcp.store.events import ENCODER, Batch, Event, content_address, document_addresses
from induscode.deck.mcp.store.verify import find_damage, find_end_damage, find_schema_damage

if TYPE_CHECKING:
    from induscode.deck.mcp.store.events import PruneResult, Retention, Row


PIN = "pin"
_MAX_BYTES = 256 * 1024 * 1024
_SPARE_LINES = 200
"""How many lines beyond two per pin trigger compaction."""


@record
class Pin:
    """A pin: subject, facts, and the documents it needs."""

    subject: str
    facts: JsonObject
    documents: Mapping[str, str] = field(default_factory=dict[str, str])


@record
class PinsBackup:
    """The content of a pins file."""

    pins: Mapping[str, Pin] = field(default_factory=dict[str, Pin])
    """By subject. The last line of a subject wins."""
    lines: int = 0
    damaged: int = 0
    """Lines that fail their checksum."""
    missing: bool = False
    """Whether the file is missing or unreadable."""
    unreadable: bool = False


def pins_path(ledger: str) -> str:
    """Return the path of a ledger's pins file."""
    return os.path.join(os.path.dirname(ledger), "pins.jsonl")


def read_backup(ledger: str) -> PinsBackup | None:
    """Read a ledger's pins file, or return `None` if it's missing; raises `OSError` if it can't be read."""
    try:
        data = read_small_file(pins_path(ledger), _MAX_BYTES, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    lines = data.splitlines()
    pins = [pin for line in lines if (pin := _parse_line(line)) is not None]
    return PinsBackup({pin.subject: pin for pin in pins}, len(lines), len(lines) - len(pins))


def append_pins(ledger: str, pins: Iterable[Pin]) -> None:
    """Append pins to the file in one synced write; raises `OSError` if it fails."""
    text = b"".join(map(_format_line, pins))
    if not text:
        return
    # With O_NONBLOCK, a pipe in the file's place raises instead of blocking forever.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with locked_directory(os.path.dirname(os.path.abspath(ledger))):
        handle = os.open(pins_path(ledger), flags, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                text = b"\n" + text  # a line truncated by a full disk doesn't damage the next
            os.write(handle, text)
            os.fsync(handle)
        finally:
            os.close(handle)


def compact_backup(ledger: str, backup: PinsBackup) -> None:
    """Rewrite the file if it has many superseded lines; raises `OSError` if it fails."""
    if backup.lines > 2 * len(backup.pins) + _SPARE_LINES:
        with locked_directory(os.path.dirname(os.path.abspath(ledger))):
            present = read_backup(ledger) or backup  # another process may have added pins
            replace_file(pins_path(ledger), b"".join(map(_format_line, present.pins.values())))


def collect_pins(batches: Iterable[Batch]) -> list[Pin]:
    """Collect the pins in batches, with their documents."""
    return [
        Pin(
            event.subject,
            event.facts,
            {
                address: batch.documents[address]
                for address in document_addresses(event.op, event.facts)
                if address in batch.documents
            },
        )
        for batch in batches
        for event in batch.events
        if event.op == PIN and event.subject
    ]


def _format_line(pin: Pin) -> bytes:
    content = [pin.subject, pin.facts, dict(pin.documents)]
    line = {"subject": pin.subject, "facts": pin.facts, "documents": content[2], "sum": _checksum(content)}
    return ENCODER.encode(line).encode("ascii") + b"\n"


def _parse_line(line: bytes) -> Pin | None:
    try:
        value: JsonValue = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not is_json_object(value):
        return None
    subject, facts, documents = (value.get(name) for name in ("subject", "facts", "documents"))
    if not isinstance(subject, str) or not is_json_object(facts) or not is_json_object(documents):
        return None
    texts = {name: text for name, text in documents.items() if isinstance(text, str) and content_address(text) == name}
    is_whole = len(texts) == len(documents) and value.get("sum") == _checksum([subject, facts, documents])
    return Pin(subject, facts, texts) if is_whole else None


def _checksum(content: object) -> str:
    return hashlib.sha256(ENCODER.encode(content).encode("ascii")).hexdigest()


# -- store ------------------------------------------------------------------------------------


T = TypeVar("T")

_TRUSTED_OPS = frozenset({PIN, "list"})
"""Rows that determine approvals."""
_MAX_NOTES = 100
"""A store that fails at every step has said enough after this many notes."""


class FallbackStore:
    """A ledger, wherever it's currently stored."""

    def __init__(self, path: str | None) -> None:
        self.notes: list[Note] = []
        self._uncounted = 0
        self._identity: tuple[int, int] | None = None
        self._recovered = False
        self._lost: str | None = None
        """Why neither the database nor the backup has the pins. `None`: they do, or none existed."""
        if path is None:
            self._db = LedgerDb(None)
            return
        try:
            self._db = self._open_file(path)
        except BaseException as exc:  # noqa: BLE001 — boundary: see the module's text
            self._db = self._replace(path, exc)

    @property
    def path(self) -> str | None:
        """The file, or `None` while the ledger is in memory."""
        return self._db.path

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    # -- opening and replacing --------------------------------------------------------------

    def _open_file(self, path: str) -> LedgerDb:
        created = prepare_database_file(path)
        self._identity = file_identity(path)
        try:
            db = LedgerDb(path)
        except NewerDatabaseError:
            raise
        except ForeignDatabaseError as exc:
            # A backup with pins means a ledger was here: its mark is damaged, or another file replaced it.
            if self._read_backup(path).pins:
                raise DamagedStoreError(f"a ledger was here, and now {exc}") from exc
            raise
        try:
            damage = None if created else find_schema_damage(db) or find_end_damage(db)
            if damage is not None:
                raise DamagedStoreError(damage)
            # Pins are backed up after their rows are written, so an empty ledger with a backup replaces a lost one.
            # `created` proves nothing, since another process may have written in between.
            backup = PinsBackup() if db.end("head").position else self._read_backup(path)
            if backup.unreadable:
                raise PermissionError(f"{pins_path(path)} can't be read")
            if backup.pins and db.append([_build_recovery_batch(backup, "the ledger was removed")], to_empty=True):
                message = f"it is not there any more; a new one was begun. {_describe_pins(backup)}"
                self.add_note(Note(f"the ledger {path!r}", message, "indus ledger verify"))
        except BaseException:
            db.close()
            raise
        return db

    def _replace(self, path: str, failure: BaseException) -> LedgerDb:
        """Return the replacement of a failed file: the recovered file (once), or memory with the pins."""
        damaged = is_damage(failure)
        reason = f"{failure}" or type(failure).__name__
        if damaged and not self._recovered:
            self._recovered = True
            try:
                return self._recover(path, reason)
            except BaseException as exc:  # noqa: BLE001 — boundary: see the module's text
                reason = f"{reason}; it could not be recovered: {exc}"
        backup = self._read_backup(path)
        state = "is damaged" if damaged else "cannot be used"
        message = f"it {state} ({reason}); what happens is kept until the session ends. {_describe_pins(backup)}"
        remedy = "indus ledger verify" if damaged else "make room, or see who owns the file"
        self.add_note(Note(f"the ledger {path!r}", message, remedy))
        is_foreign = isinstance(failure, ForeignDatabaseError) and not isinstance(failure, NewerDatabaseError)
        if backup.unreadable or (backup.missing and not is_foreign and _may_hold_rows(path)):
            self._lost = f"it {state} ({reason}), and its pins are in no other file"
        memory = LedgerDb(None)
        if backup.pins:
            try:
                memory.append([_build_recovery_batch(backup, reason)])
            except BaseException as exc:  # noqa: BLE001 — boundary: see the module's text
                self._lost = f"the ledger in memory has no pins: {exc}"
                self.add_note(Note("the ledger in memory", self._lost))
        return memory

    def _recover(self, path: str, reason: str) -> LedgerDb:
        """Set a damaged file aside and start a new one with the backed-up pins.

        Raises `DamagedStoreError` if the backup is missing.
        """
        with locked_directory(os.path.dirname(os.path.abspath(path))):
            try:
                replaced = file_identity(path) != self._identity
            except FileNotFoundError:
                replaced = True
            if not replaced:
                backup = self._read_backup(path)
                if backup.missing:
                    raise DamagedStoreError("its pins are in no other file; remove it to start over")
                fresh = f"{path}.{new_ulid()}.fresh"
                try:
                    os.close(create_private_file(fresh))
                    with closing(LedgerDb(fresh)) as db:
                        db.append([_build_recovery_batch(backup, reason)])
                    aside = set_aside(path, self._identity, fresh)
                finally:
                    remove_database(fresh)
                message = f"it is damaged ({reason}); a new one was begun. {_describe_pins(backup)}"
                self.add_note(Note(f"the ledger {path!r}", message, f"the damaged file is {aside}"))
        return self._open_file(path)

    def _read_backup(self, path: str) -> PinsBackup:
        try:
            backup = read_backup(path)
        except OSError as exc:
            self.add_note(Note(pins_path(path), f"it cannot be read: {exc}", "see who owns the file"))
            return PinsBackup(missing=True, unreadable=True)
        return PinsBackup(missing=True) if backup is None else backup

    def add_note(self, note: Note) -> None:
        """Add a note unless it's a duplicate. Past the limit, only count."""
        if note in self.notes:
            return
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(note)
            return
        self._uncounted += 1
        self.notes[_MAX_NOTES:] = [Note("the ledger", f"{self._uncounted:,} further failures are not listed")]

    def use(self, action: Callable[[LedgerDb], T], *, can_wait: bool = False) -> T:
        """Run an action on the database, or if its file fails, on its replacement (recovered file, then memory).

        Raises `BaseException` if the action failed in memory, or with `can_wait`, another process holds the file (which
        then isn't replaced).
        """
        while self._db.path is not None:
            try:
                return action(self._db)
            except BaseException as exc:  # boundary: see the module's text
                if can_wait and getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                    raise
                path = self._db.path
                self._db.close()
                self._db = self._replace(path, exc)
        return action(self._db)

    # -- writing ----------------------------------------------------------------------------

    def append(self, makers: Sequence[Callable[[], Batch]]) -> None:
        """Write batches in one transaction, in memory if the file fails."""
        batches: list[Batch] = []
        for make in makers:
            try:
                batches.append(make())
            except BaseException as exc:  # noqa: BLE001 — boundary: one batch must not stop the thread
                self.add_note(Note("the ledger", f"an event could not be written down: {exc}"))
        self.use(lambda db: db.append(batches))
        if self._db.path is not None:
            self._back_up(self._db.path, collect_pins(batches))

    def _back_up(self, path: str, pins: Sequence[Pin]) -> None:
        try:
            append_pins(path, pins)
        except OSError as exc:
            message = f"it cannot be written: {exc}. Pins would be lost with the ledger"
            self.add_note(Note(pins_path(path), message, "make room, or see who owns the file"))

    def prune(self, keep: Retention, own_run: str) -> PruneResult | None:
        """Remove old runs."""
        pruned = self.use(lambda db: prune(db, keep, own_run), can_wait=True)
        if pruned is not None:
            message = f"{pruned.runs} old runs with {pruned.rows} rows were removed; a row says so"
            self.add_note(Note("the ledger", message))
        return pruned

    # -- reading ----------------------------------------------------------------------------

    def latest(self, op: str) -> Sequence[Row]:
        """Read the latest row of every subject. Reading pins also syncs ledger and backup in both directions."""
        rows = self.use(lambda db: db.latest(op))
        if op in _TRUSTED_OPS and self._lost is not None:
            raise DamagedStoreError(self._lost)
        path = self._db.path
        if op != PIN or path is None:
            return rows
        backup = self._read_backup(path)
        subjects = {row.subject: row.facts for row in rows}
        lost = {subject: pin for subject, pin in backup.pins.items() if subject not in subjects}
        if lost:
            restored = replace(backup, pins=lost)
            self.append([lambda: _build_recovery_batch(restored, "pins were missing")])
            message = f"{len(lost)} pins were missing in it, and are restored from the pins file"
            self.add_note(Note(f"the ledger {path!r}", message, "indus ledger verify"))
        behind = [
            Pin(subject, facts, self.documents([*document_addresses(PIN, facts)]))
            for subject, facts in subjects.items()
            if subject not in backup.pins or backup.pins[subject].facts != facts
        ]
        self._back_up(path, behind)
        with suppress(OSError):  # the longer file works just as well
            compact_backup(path, backup)
        return self.use(lambda db: db.latest(op)) if lost else rows

    def documents(self, addresses: Sequence[str]) -> Mapping[str, str]:
        """Read documents whose content matches their address."""
        found = self.use(lambda db: db.documents(addresses))
        return {address: text for address, text in found.items() if content_address(text) == address}

    def verify(self, *, set_aside: bool) -> Sequence[Note]:
        """List current and earlier damage. With `set_aside`, replace a damaged file."""
        path = self._db.path
        damage = find_damage(self._db)
        if path is None:
            return tuple(Note("the ledger in memory", problem) for problem in damage)
        if damage and set_aside:
            self._db.close()
            self._db = self._replace(path, DamagedStoreError(damage[0]))
        owner = f"the ledger {path!r}"
        earlier = [
            Note(owner, f"a damaged ledger was set aside as {aside}", "remove it when it is done with")
            for aside in list_set_aside(path)
        ]
        return (*(Note(owner, problem) for problem in damage), *earlier)


def _may_hold_rows(path: str) -> bool:
    """Tell whether a failed file could be a ledger with pins."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def _build_recovery_batch(backup: PinsBackup, reason: str) -> Batch:
    """Build the rows that record a recovery and restore pins."""
    pins = [*backup.pins.values()]
    documents = {address: text for pin in pins for address, text in pin.documents.items()}
    needed = {address for pin in pins for address in document_addresses(PIN, pin.facts)}
    run, at = new_ulid(), iso_utc(now_ms())
    facts: JsonObject = {"reason": reason, "pins": len(pins), "missing": [*sorted(needed - documents.keys())]}
    rows = [Event(run, at, "recover", facts), *(Event(run, at, PIN, pin.facts, pin.subject) for pin in pins)]
    return Batch(rows, documents)


def _describe_pins(backup: PinsBackup) -> str:
    """Describe the fate of the pins after a ledger lost rows."""
    if backup.missing:
        return "The definitions of tools that were approved are not known"
    kept = f"The definitions of {len(backup.pins):,} tools that were approved are kept"
    return f"{kept}, {backup.damaged:,} are lost" if backup.damaged else kept
