"""Events, rows and documents of the store, as values.

Pure. The digest of every row covers its content and the digest of the row before it, so a row that was changed,
removed, inserted or moved does not fit its neighbours. Definitions and descriptors are documents: stored once, under
the SHA-256 of their text, and named by the rows that need them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from indusagi.core.json import compact_json
from indusagi.core.records import record
from indusagi.runtime.contract import ToolDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonLike, JsonObject, JsonValue

RowOp: TypeAlias = Literal[
    "run", "enroll", "retire", "connect", "ready", "fault", "drift", "approve",
    "pin", "list", "place", "turn", "prune", "recover", "client", "search",
]  # fmt: skip

_DOCUMENT_FACTS = {"enroll": ("definition", "descriptor"), "pin": ("definition",), "turn": ("manifest",)}
"""The facts of a row that are addresses of documents."""
GENESIS = "0" * 64
"""The digest before the first row."""
# Built once: `json.dumps` builds an encoder per call, which takes as long as encoding a row.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


@record
class Event:
    """An event to be written; the store gives it its position."""

    run: str
    at: str
    op: RowOp
    facts: JsonObject
    subject: str = ""
    """What the event is about: the latest event of an op and subject applies. Empty: none."""


@record
class Row:
    """An event that was written."""

    position: int
    """Its place among all rows of the store, from 1."""
    run: str
    seq: int
    """Its place among the rows of its run, from 1."""
    at: str
    op: str
    subject: str
    facts: JsonObject
    digest: str


@record
class Batch:
    """Events and documents that are written together or not at all."""

    events: Sequence[Event]
    documents: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts by their address."""


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
    """What the store keeps: the last `runs` runs that are not older than `days`."""

    runs: int = 200
    days: int = 180


@record
class PruneResult:
    """How much was removed."""

    runs: int
    rows: int


def encode_facts(facts: JsonObject) -> str:
    """Encode the facts of a row in ASCII, which can carry any name a server has."""
    return json.dumps(facts, separators=(",", ":"), allow_nan=False)


def chain_digest(previous: str, position: int, cells: Sequence[str | int]) -> str:
    """Digest a row together with the digest of the row before it."""
    text = _ENCODER.encode([previous, position, *cells])
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def content_address(text: str) -> str:
    """Return the address of a document: the SHA-256 of its text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def document_addresses(op: str, facts: JsonObject) -> set[str]:
    """Find the documents that a row needs, without those it records as withheld."""
    addresses = [facts.get(name) for name in _DOCUMENT_FACTS.get(op, ())]
    return {address for address in addresses if isinstance(address, str)} - find_withheld(facts)


def find_withheld(facts: JsonObject) -> set[str]:
    """Find the documents that a row names and that were not stored."""
    return set(filter_texts(facts.get("withheld")))


def filter_texts(value: JsonValue) -> list[str]:
    """Return the texts of a JSON array; other values are left out."""
    return [member for member in value if isinstance(member, str)] if isinstance(value, list) else []


def build_subject(*names: str) -> str:
    """Join names to a subject that no other names join to."""
    return json.dumps(names, separators=(",", ":"))


# -- descriptors and decks --------------------------------------------------------------------


def descriptor_text(descriptor: ToolDescriptor) -> str:
    """Encode what a model is shown of a tool.

    Raises:
        NotJson: Its schema holds a value that JSON cannot carry.
    """
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
    """Parse the text of `descriptor_text`.

    Raises:
        ValueError: The text is something else.
    """
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


def deck_text(descriptors: Iterable[ToolDescriptor]) -> str:
    """Encode the tools of a deck in order, exactly as a model is shown them."""
    return join_json_array(map(descriptor_text, descriptors))


def join_json_array(texts: Iterable[str]) -> str:
    """Join encoded values to a JSON array."""
    return f"[{','.join(texts)}]"


def deck_digest(descriptors: Iterable[ToolDescriptor]) -> str:
    """Digest what a model is shown of a deck."""
    return content_address(deck_text(descriptors))
