"""Events, rows and documents of the store, as values.

Pure. Each row's digest covers its content and the previous row's digest, so changed, removed, inserted or moved rows
don't fit their neighbours. Definitions and descriptors are documents: stored once, under the SHA-256 of their text,
and referenced by rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias, cast

from indusagi.core.json import JsonLike, JsonObject, JsonValue, compact_json
from indusagi.core.records import record
from indusagi.runtime.contract import ToolDescriptor

RowOp: TypeAlias = Literal[
    "run", "enroll", "retire", "connect", "ready", "fault", "drift", "approve",
    "pin", "list", "place", "turn", "prune", "recover", "client", "search", "approval", "join", "token",
]  # fmt: skip
ServerOp: TypeAlias = Literal["connect", "ready", "fault", "drift", "approve"]
"""Rows about servers other than the ledger's own."""
_DOCUMENT_FACTS = {"enroll": ("definition", "descriptor"), "pin": ("definition",), "turn": ("manifest",)}
"""Facts of a row that hold document addresses."""
GENESIS = "0" * 64
"""The digest before the first row."""
# Shared: `json.dumps` builds an encoder per call, which takes as long as encoding a row.
ENCODER = json.JSONEncoder(separators=(",", ":"))


@record
class Event:
    """An event to write. The store assigns its position."""

    run: str
    at: str
    op: RowOp
    facts: JsonObject
    subject: str = ""
    """The topic of the event, if any. The latest event per op and subject is the one in force."""


@record
class Row:
    """A written event."""

    position: int
    """Its number among all rows of the store, from 1."""
    run: str
    seq: int
    """Its number among the rows of its run, from 1."""
    at: str
    op: str
    subject: str
    facts: JsonObject
    digest: str


@record
class Batch:
    """Events and documents written atomically."""

    events: Sequence[Event]
    documents: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts by address."""


@record
class RunFacts:
    """One run of the store."""

    run: str
    began: str
    rows: int
    first: int
    """The position of its first row."""


@record
class Retention:
    """How much history to keep: the last `runs` runs, up to `days` old."""

    runs: int = 200
    days: int = 180


@record
class PruneResult:
    """The number of removed runs and rows."""

    runs: int
    rows: int


def encode_facts(facts: JsonObject) -> str:
    """Encode a row's facts in ASCII, which works for any server-chosen name."""
    return json.dumps(facts, separators=(",", ":"), allow_nan=False)


def chain_digest(previous: str, position: int, cells: Sequence[str | int]) -> str:
    """Digest a row together with the previous row's digest."""
    text = ENCODER.encode([previous, position, *cells])
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def content_address(text: str) -> str:
    """Return a document's address: the SHA-256 of its text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def document_addresses(op: str, facts: JsonObject) -> set[str]:
    """Find the documents a row refers to, except withheld ones."""
    addresses = [facts.get(name) for name in _DOCUMENT_FACTS.get(op, ())]
    return {address for address in addresses if isinstance(address, str)} - find_withheld(facts)


def find_withheld(facts: JsonObject) -> set[str]:
    """Find the documents a row records as withheld."""
    return set(filter_texts(facts.get("withheld")))


def filter_texts(value: JsonValue) -> list[str]:
    """Return the strings in a JSON array, or an empty list for any other value."""
    return [member for member in value if isinstance(member, str)] if isinstance(value, list) else []


def build_subject(*names: str) -> str:
    """Join names into an unambiguous subject."""
    return json.dumps(names, separators=(",", ":"))


# -- descriptors and decks --------------------------------------------------------------------


def descriptor_text(descriptor: ToolDescriptor) -> str:
    """Encode a tool as models see it; raises `NotJson` if its schema holds a value JSON can't represent."""
    shown: dict[str, JsonLike] = {
        "name": descriptor.name,
        "description": descriptor.description,
        "parameters": dict(descriptor.parameters),
    }
    if descriptor.title is not None:
        shown["title"] = descriptor.title
    if descriptor.annotations is not None:
        shown["annotations"] = dict(descriptor.annotations)
    if descriptor.output_schema is not None:
        shown["outputSchema"] = dict(descriptor.output_schema)
    return compact_json(shown)


def parse_descriptor(text: str) -> ToolDescriptor:
    """Parse the text of `descriptor_text`; raises `ValueError` for anything else."""
    try:
        shown = cast("dict[str, object]", json.loads(text))
        return ToolDescriptor(
            cast("str", shown["name"]),
            cast("str", shown["description"]),
            cast("JsonObject", shown["parameters"]),
            title=cast("str | None", shown.get("title")),
            annotations=cast("JsonObject | None", shown.get("annotations")),
            output_schema=cast("JsonObject | None", shown.get("outputSchema")),
        )
    except (TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ValueError(f"not the descriptor of a tool: {exc}") from exc


def join_json_array(texts: Iterable[str]) -> str:
    """Join encoded values into a JSON array."""
    return f"[{','.join(texts)}]"
