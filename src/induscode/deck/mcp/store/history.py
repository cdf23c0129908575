"""What the deck was: read back from the store, at any turn and any moment of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import anyio.to_thread

from indusagi.core.json import is_json_object
from indusagi.core.notes import Note
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.deck.contract import DeckFault
from induscode.deck.mcp.capability import BridgeCapability, BridgeKey
from induscode.deck.mcp.ledger import BridgeEntry, BridgeLedger, BridgeOp
from induscode.deck.mcp.store.events import (
    content_address,
    document_addresses,
    filter_texts,
    join_json_array,
    parse_descriptor,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import Row


@dataclass(frozen=True, slots=True)
class DeckRecord:
    """The deck of a run at some moment."""

    run: str
    turn: int
    """The last turn that had begun; 0 if none had."""
    at: str
    digest: str
    """Of what was shown at that turn; empty if there was none."""
    text: str | None
    """What was shown, byte for byte; None if a part of it was not kept."""
    descriptors: Sequence[ToolDescriptor]
    capabilities: Sequence[BridgeCapability]
    """The remote tools that were enrolled, without anybody to run them."""
    notes: Sequence[Note] = ()


async def read_ledger_log(store: LedgerStore, run: str) -> tuple[Sequence[BridgeEntry], Sequence[Note]]:
    """Read the events of a run's ledger, and say which could not be read."""
    return await _entries(store, await store.rows(run))


async def deck_at(store: LedgerStore, run: str, *, turn: int | None = None, at: str | None = None) -> DeckRecord | None:
    """Tell what the deck was at a turn, or at a moment; at the end if neither is given.

    None: there is no such run, or it had no such turn, or had not begun by then.
    """
    rows = [row for row in await store.rows(run) if at is None or row.at <= at]
    turns = [at for at, row in enumerate(rows) if row.op == "turn"]
    if turn is not None:
        numbered = [place for place in turns if rows[place].facts.get("turn") == turn]
        if not numbered:
            return None
        rows, turns = rows[: numbered[0] + 1], numbered[:1]
    if not rows:
        return None
    entries, notes = await _entries(store, rows)
    live = BridgeLedger.from_log(entries).live_capabilities()
    if not turns:
        return DeckRecord(run, 0, rows[-1].at, "", None, (), live, notes)
    return await _shown(store, rows[turns[-1]], rows[-1].at, live, notes)


async def _shown(
    store: LedgerStore, row: Row, at: str, live: Sequence[BridgeCapability], notes: Sequence[Note]
) -> DeckRecord:
    number, digest = row.facts.get("turn"), row.facts.get("deck")
    assert isinstance(number, int)
    assert isinstance(digest, str)
    manifest = str(row.facts.get("manifest"))
    found = (await store.documents([manifest])).get(manifest)
    addresses = filter_texts(json.loads(found)) if found is not None else []
    documents = await store.documents(addresses)
    texts = [documents[one] for one in addresses if one in documents]
    text = join_json_array(texts)
    if content_address(text) == digest:
        shown = tuple(map(parse_descriptor, texts))
        return DeckRecord(row.run, number, at, digest, text, shown, live, notes)
    gone = len(addresses) - len(texts)
    said = f"{gone} of the {len(addresses)} tools it showed were not kept, or are damaged"
    told = (*notes, Note(f"turn {number} of the run {row.run}", said))
    return DeckRecord(row.run, number, at, digest, None, (), live, told)


async def _entries(store: LedgerStore, rows: Sequence[Row]) -> tuple[Sequence[BridgeEntry], Sequence[Note]]:
    events = [row for row in rows if row.op in {"enroll", "retire"}]
    documents = await store.documents(one for row in events for one in document_addresses(row.op, row.facts))
    return await anyio.to_thread.run_sync(_Reader(documents).entries, events)


class _Reader:
    """Makes events of rows."""

    def __init__(self, documents: Mapping[str, str]) -> None:
        self.notes: list[Note] = []
        self._documents = documents
        # Tools come again and again: what is made of a document is made once.
        self._descriptors: dict[JsonValue, ToolDescriptor] = {}
        self._definitions: dict[JsonValue, JsonObject] = {}

    def entries(self, rows: Sequence[Row]) -> tuple[Sequence[BridgeEntry], Sequence[Note]]:
        """Make what can be made; a long log takes its time, and is best read in a thread."""
        made = tuple(entry for row in rows if (entry := self._entry(row)))
        return made, tuple(self.notes)

    def _entry(self, row: Row) -> BridgeEntry | None:
        facts = row.facts
        try:
            capability = self._capability(facts) if row.op == "enroll" else None
            supersedes = facts.get("supersedes")
            return BridgeEntry(
                BridgeOp(row.op),
                BridgeKey(_text(facts, "key")),
                _text(facts, "server"),
                capability,
                cast("int", facts["entry"]),
                row.at,
                None if supersedes is None else BridgeKey(supersedes),
            )
        except (DeckFault, KeyError, ValueError, TypeError) as exc:
            owner = f"row {row.seq} of the run {row.run}"
            self.notes.append(Note(owner, f"the tool it enrolled cannot be shown: {exc}"))
            return None

    def _capability(self, facts: JsonObject) -> BridgeCapability:
        ref = RemoteToolRef(_text(facts, "of"), _text(facts, "tool"))
        descriptor = self._descriptors.get(facts["descriptor"])
        if descriptor is None:
            descriptor = parse_descriptor(self._document(facts, "descriptor"))
            self._descriptors[facts["descriptor"]] = descriptor
        raw = self._definitions.get(facts["definition"])
        if raw is None:
            raw = _definition(self._document(facts, "definition"))
            self._definitions[facts["definition"]] = raw
        return BridgeCapability.from_definition(descriptor, ref, raw)

    def _document(self, facts: JsonObject, name: str) -> str:
        address = facts.get(name)
        found = self._documents.get(address) if isinstance(address, str) else None
        if found is None:
            raise ValueError(f"its {name} was not kept, or is damaged")
        return found


def _text(facts: JsonObject, name: str) -> str:
    value = facts[name]
    if not isinstance(value, str):
        raise TypeError(f"its {name} is no text")
    return value


def _definition(text: str) -> JsonObject:
    try:
        found: JsonValue = json.loads(text)
    except RecursionError as exc:
        raise ValueError("its definition is too deep") from exc
    if not is_json_object(found):
        raise ValueError("its definition is no object")
    return found
