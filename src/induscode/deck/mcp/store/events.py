"""What the store keeps, as values: rows in one chain, and documents named by what is in them.

Pure. Every row carries the digest of the row before it together with its own content, so a row that
was changed, taken out, put in or moved does not fit its neighbours. Definitions and descriptors are
documents: kept once, under the digest of their text, and named by the rows that need them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from indusagi.core.json import compact_json
from indusagi.runtime.contract import ToolDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonLike, JsonObject, JsonValue

RowOp: TypeAlias = Literal[
    "run", "enroll", "retire", "connect", "ready", "fault", "drift", "approve",
    "pin", "list", "turn", "prune", "recover",
]  # fmt: skip

_NEEDS = {"enroll": ("definition", "descriptor"), "pin": ("definition",), "turn": ("manifest",)}
"""Where rows name the documents they need."""
GENESIS = "0" * 64
"""Stands for the row before the first one."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something to write down; the store gives it its place."""

    run: str
    at: str
    op: RowOp
    facts: JsonObject
    subject: str = ""
    """What it is the last word on, until another of the same op and subject; nothing if empty."""


@dataclass(frozen=True, slots=True)
class Row:
    """Something that was written down."""

    position: int
    """Where it stands among all rows of the store, from 1 on."""
    run: str
    seq: int
    """Where it stands among those of its run, from 1 on."""
    at: str
    op: str
    subject: str
    facts: JsonObject
    digest: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What is written together or not at all."""

    events: Sequence[Event]
    documents: Mapping[str, str] = field(default_factory=dict[str, str])
    """By their address."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run, as far as its rows are there."""

    run: str
    began: str
    rows: int
    first: int
    """The position of its first row."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What stays: the last `runs` runs, as long as they are not older than `days`."""

    runs: int = 200
    days: int = 180


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What went."""

    runs: int
    rows: int


def encode_facts(facts: JsonObject) -> str:
    """Write the facts of a row: ASCII only, so that any name a server has can be kept."""
    return json.dumps(facts, separators=(",", ":"), allow_nan=False)


def chain_digest(previous: str, position: int, cells: Sequence[str | int]) -> str:
    """Digest a row together with the digest of the row before it."""
    text = json.dumps([previous, position, *cells], separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def content_address(text: str) -> str:
    """Name a document by what is in it."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def document_addresses(op: str, facts: JsonObject) -> set[str]:
    """Name the documents that a row needs, other than those it says were withheld."""
    wanted = [facts.get(name) for name in _NEEDS.get(op, ())]
    return {one for one in wanted if isinstance(one, str)} - find_withheld(facts)


def find_withheld(facts: JsonObject) -> set[str]:
    """Name the documents that a row speaks of and that were not kept."""
    return set(filter_texts(facts.get("withheld")))


def filter_texts(value: JsonValue) -> list[str]:
    """Give the texts of a list; whatever else is there is left out."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def build_subject(*names: str) -> str:
    """Join names to a subject that no other names join to."""
    return json.dumps(names, separators=(",", ":"))


# -- descriptors and decks --------------------------------------------------------------------


def descriptor_text(descriptor: ToolDescriptor) -> str:
    """Write what a model is told about a tool.

    Raises:
        NotJson: Its schema holds what JSON cannot carry.
    """
    shown: dict[str, JsonLike] = {
        "name": descriptor.name,
        "description": descriptor.description,
        "parameters": _plain(descriptor.parameters),
    }
    if descriptor.title is not None:
        shown["title"] = descriptor.title
    if descriptor.annotations is not None:
        shown["annotations"] = dict(descriptor.annotations)
    if descriptor.output_schema is not None:
        shown["outputSchema"] = _plain(descriptor.output_schema)
    return compact_json(shown)


def _plain(schema: Mapping[str, JsonLike]) -> dict[str, JsonLike]:
    return dict(schema)


def parse_descriptor(text: str) -> ToolDescriptor:
    """Read what `descriptor_text` wrote.

    Raises:
        ValueError: It is something else.
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
        raise ValueError(f"no descriptor of a tool: {exc}") from exc


def deck_text(descriptors: Iterable[ToolDescriptor]) -> str:
    """Write the tools of a deck in order, exactly as they are shown."""
    return join_json_array(map(descriptor_text, descriptors))


def join_json_array(texts: Iterable[str]) -> str:
    """Write the array of values that are written already."""
    return f"[{','.join(texts)}]"


def deck_digest(descriptors: Iterable[ToolDescriptor]) -> str:
    """Digest what is shown of a deck: the same tools in the same order, the same digest."""
    return content_address(deck_text(descriptors))
