"""The pins file: a copy of every pin beside the ledger, for a ledger that is damaged or lost.

The ledger is the one source of truth. After rows of the op `pin` are in it, the same pins are
appended here: one JSON object a line, with the documents it needs and a checksum of all that. A
line that does not fit its checksum is left out and counted. The file's name does not begin with the
ledger's, so that removing `ledger.db*` leaves it, and the loss is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeGuard, cast

from indusagi.core.app_dirs import read_small_file, replace_private_file
from indusagi.core.json import is_json_object
from induscode.deck.mcp.store.events import content_address, document_addresses

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.mcp.store.events import Batch

PIN = "pin"
_LARGEST_BYTES = 256 * 1024 * 1024
_SPARE_LINES = 200
"""So many lines beyond two for each pin there may be before the file is written anew."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One pin: what it is about, what it says, and the documents it needs."""

    subject: str
    facts: JsonObject
    documents: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class PinsFile:
    """What a pins file holds."""

    pins: Mapping[str, Pin] = field(default_factory=dict[str, Pin])
    """By subject; the last line about one holds."""
    lines: int = 0
    damaged: int = 0
    """Lines that are not what was written."""
    missing: bool = False
    """Whether there is no file, or none that can be read."""


def pins_path(ledger: str) -> str:
    """Name the pins file of a ledger."""
    return os.path.join(os.path.dirname(ledger), "pins.jsonl")


def read_pins_file(ledger: str) -> PinsFile | None:
    """Read the pins file of a ledger; None if there is none.

    Raises:
        OSError: It is there and cannot be read.
    """
    try:
        data = read_small_file(pins_path(ledger), _LARGEST_BYTES, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    pins: dict[str, Pin] = {}
    damaged = 0
    lines = data.splitlines()
    for line in lines:
        pin = _read_line(line)
        if pin is None:
            damaged += 1
        else:
            pins[pin.subject] = pin
    return PinsFile(pins, len(lines), damaged)


def append_pins(ledger: str, pins: Iterable[Pin]) -> None:
    """Add pins to the file, in one write, and have them on the disk.

    Raises:
        OSError: It cannot be written.
    """
    text = b"".join(_line_of(one) for one in pins)
    if not text:
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(pins_path(ledger), flags, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            text = b"\n" + text  # a line that a full disk cut off costs no other line
        os.write(handle, text)
        os.fsync(handle)
    finally:
        os.close(handle)


def shorten_pins(ledger: str, found: PinsFile) -> None:
    """Write the file anew without lines that hold no longer, if there are many.

    Raises:
        OSError: It cannot be written.
    """
    if found.lines > 2 * len(found.pins) + _SPARE_LINES:
        text = b"".join(_line_of(one) for one in found.pins.values())
        replace_private_file(pins_path(ledger), text)


def collect_pins(batches: Iterable[Batch]) -> list[Pin]:
    """Give the pins that are written with batches."""
    return [
        Pin(
            one.subject,
            one.facts,
            {
                address: batch.documents[address]
                for address in document_addresses(one.op, one.facts)
                if address in batch.documents
            },
        )
        for batch in batches
        for one in batch.events
        if one.op == PIN and one.subject
    ]


def _line_of(pin: Pin) -> bytes:
    content = [pin.subject, pin.facts, dict(pin.documents)]
    line = {"subject": pin.subject, "facts": pin.facts, "documents": content[2], "sum": _checksum(content)}
    return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


def _read_line(line: bytes) -> Pin | None:
    try:
        found: JsonValue = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not is_json_object(found):
        return None
    subject, facts, documents = (found.get(name) for name in ("subject", "facts", "documents"))
    if not isinstance(subject, str) or not is_json_object(facts) or not _are_documents(documents):
        return None
    if found.get("sum") != _checksum([subject, facts, documents]):
        return None
    return Pin(subject, facts, documents)


def _are_documents(value: JsonValue) -> TypeGuard[dict[str, str]]:
    return is_json_object(value) and all(
        isinstance(text, str) and content_address(text) == address for address, text in value.items()
    )


def _checksum(content: object) -> str:
    text = json.dumps(cast("JsonValue", content), separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
