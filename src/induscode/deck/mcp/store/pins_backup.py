"""The pins file: a backup of all pins next to the ledger, in case the ledger is damaged or lost.

The ledger is the source of truth. Once `pin` rows are in it, the same pins are appended here: one JSON object per line,
with the documents it needs and a checksum. Lines that fail their checksum are skipped and counted. The file name
differs from the ledger's, so removing `ledger.db*` leaves it in place and the loss gets noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import field
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import locked_directory, read_small_file, replace_file
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from induscode.deck.mcp.store.events import content_address, document_addresses

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.mcp.store.events import Batch

PIN = "pin"
# Shared: `json.dumps` builds an encoder per call, which takes as long as encoding a line.
_ENCODER = json.JSONEncoder(separators=(",", ":"))
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
    return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


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
    text = _ENCODER.encode(content)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
