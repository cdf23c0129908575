"""History: reads back the deck at any turn or time of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import anyio.to_thread

from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import format_count
from indusagi.interop.protocol_bridge.contract import ITEM_KINDS, RemoteToolRef, freeze_definition
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
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import Row


@record
class DeckRecord:
    """The deck of a run at a point in time."""

    run: str
    turn: int
    """The last turn begun by then, or 0."""
    at: str
    digest: str
    """The digest of the tools shown at that turn, or empty without a turn."""
    text: str | None
    """The tools as shown, byte for byte, or `None` if part of it wasn't stored."""
    descriptors: Sequence[ToolDescriptor]
    capabilities: Sequence[BridgeCapability]
    """The enrolled remote tools, without runners."""
    notes: Sequence[Note] = ()


async def read_ledger_log(store: LedgerStore, run: str) -> tuple[Sequence[BridgeEntry], Sequence[Note]]:
    """Read a run's ledger events, with notes about unreadable ones."""
    return await _read_entries(store, await store.rows(run))


async def deck_at(store: LedgerStore, run: str, *, turn: int | None = None, at: str | None = None) -> DeckRecord | None:
    """Read the deck of a run at a turn, at a time, or at its end.

    Returns `None` if the run or turn is unknown, or the run hadn't begun by then.
    """
    rows = [row for row in await store.rows(run) if at is None or row.at <= at]
    turns = [index for index, row in enumerate(rows) if row.op == "turn"]
    if turn is not None:
        numbered = [index for index in turns if rows[index].facts.get("turn") == turn]
        if not numbered:
            return None
        rows, turns = rows[: numbered[0] + 1], numbered[:1]
    if not rows:
        return None
    entries, notes = await _read_entries(store, rows)
    live = BridgeLedger.from_log(entries).live_capabilities()
    if not turns:
        return DeckRecord(run, 0, rows[-1].at, "", None, (), live, notes)
    facts, end = rows[turns[-1]].facts, rows[-1].at
    number, digest = facts.get("turn"), facts.get("deck")
    assert isinstance(number, int)
    assert isinstance(digest, str)
    manifest = str(facts.get("manifest"))
    listing = (await store.documents([manifest])).get(manifest)
    addresses = filter_texts(json.loads(listing)) if listing is not None else []
    documents = await store.documents(addresses)
    texts = [documents[address] for address in addresses if address in documents]
    text = join_json_array(texts)
    if content_address(text) == digest:
        shown = tuple(map(parse_descriptor, texts))
        return DeckRecord(run, number, end, digest, text, shown, live, notes)
    message = f"{len(addresses) - len(texts)} of the {len(addresses)} tools it showed were not kept, or are damaged"
    notes = (*notes, Note(f"turn {number} of the run {run}", message))
    return DeckRecord(run, number, end, digest, None, (), live, notes)


async def _read_entries(store: LedgerStore, rows: Sequence[Row]) -> tuple[Sequence[BridgeEntry], Sequence[Note]]:
    events = [row for row in rows if row.op in {"enroll", "retire"}]
    documents = await store.documents(address for row in events for address in document_addresses(row.op, row.facts))
    return await anyio.to_thread.run_sync(_EntryParser(documents).parse, events)


class _EntryParser:
    """Builds ledger events from rows. Tools recur, so it parses each document once."""

    def __init__(self, documents: Mapping[str, str]) -> None:
        self._notes: list[Note] = []
        self._documents = documents
        self._tools: dict[tuple[JsonValue, JsonValue], tuple[ToolDescriptor, JsonObject]] = {}

    def parse(self, rows: Sequence[Row]) -> tuple[Sequence[BridgeEntry], Sequence[Note]]:
        """Parse all rows. Run it in a thread, since a long log takes time."""
        entries = tuple(entry for row in rows if (entry := self._parse_row(row)))
        return entries, tuple(self._notes)

    def _parse_row(self, row: Row) -> BridgeEntry | None:
        facts = row.facts
        try:
            capability = None
            if row.op == "enroll":
                kind = facts.get("kind", "tool")
                if kind not in ITEM_KINDS:
                    raise ValueError(f"{kind!r} is no kind of item")
                ref = RemoteToolRef(_get_text(facts, "of"), _get_text(facts, "tool"), kind)
                descriptor, raw = self._parse_tool(facts)
                capability = BridgeCapability.from_definition(descriptor, ref, raw)
            supersedes = facts.get("supersedes")
            return BridgeEntry(
                BridgeOp(row.op),
                BridgeKey(_get_text(facts, "key")),
                _get_text(facts, "server"),
                capability,
                cast("int", facts["entry"]),
                row.at,
                None if supersedes is None else BridgeKey(supersedes),
            )
        except (DeckFault, KeyError, ValueError, TypeError) as exc:
            owner = f"row {row.seq} of the run {row.run}"
            self._notes.append(Note(owner, f"the tool it enrolled cannot be shown: {exc}"))
            return None

    def _parse_tool(self, facts: JsonObject) -> tuple[ToolDescriptor, JsonObject]:
        key = facts["descriptor"], facts["definition"]
        tool = self._tools.get(key)
        if tool is None:
            descriptor = parse_descriptor(self._get_document(facts, "descriptor"))
            raw = _parse_definition(self._get_document(facts, "definition"))
            # Frozen here, or every event would freeze its own copy.
            tool = self._tools[key] = freeze_definition(descriptor, raw)
        return tool

    def _get_document(self, facts: JsonObject, name: str) -> str:
        address = facts.get(name)
        text = self._documents.get(address) if isinstance(address, str) else None
        if text is None:
            raise ValueError(f"its {name} was not kept, or is damaged")
        return text


def _get_text(facts: JsonObject, name: str) -> str:
    value = facts[name]
    if not isinstance(value, str):
        raise TypeError(f"its {name} is not text")
    return value


def _parse_definition(text: str) -> JsonObject:
    try:
        definition: JsonValue = json.loads(text)
    except RecursionError as exc:
        raise ValueError("its definition is too deep") from exc
    if not is_json_object(definition):
        raise ValueError("its definition is not an object")
    return definition


# -- summaries --------------------------------------------------------------------------------


_KEY_LENGTH = 15
NOTABLE = frozenset({"fault", "drift", "approve", "approval", "token", "client"})
"""The events that a summary of a run doesn't count."""


def summarize_run(rows: Sequence[Row]) -> str:
    """Summarize the events of a run: `38 tools of 4 servers enrolled, 2 turns`."""
    enrolled = [str(row.facts.get("server")) for row in rows if row.op == "enroll"]
    servers = {str(row.facts.get("server")) for row in rows if row.op == "ready"} or {*enrolled}
    turns, searches = (sum(row.op == op for row in rows) for op in ("turn", "search"))
    parts = [
        f"{format_count(len(enrolled), 'tool')} of {format_count(len({*enrolled}), 'server')} enrolled"
        if enrolled
        else f"{format_count(len(servers), 'server')} ready" if servers else "",
        format_count(turns, "turn") if turns else "",
        format_count(searches, "search", "searches") if searches else "",
    ]  # fmt: skip
    return ", ".join(filter(None, parts)) or "no tools"


def find_notable(rows: Iterable[Row]) -> Sequence[tuple[Row, str]]:
    """Find the events that a summary doesn't count, each described once."""
    seen: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.op in NOTABLE:
            seen.setdefault((row.op, _name_event(row)), row)
    return [(row, text) for (_, text), row in seen.items()]


def _name_event(row: Row) -> str:
    verb = {"fault": "failed", "drift": "changed", "approve": "approved"}.get(row.op, row.op)
    subject = format_subject(row)
    detail = "" if row.op == "approve" else format_detail(row).removeprefix(f"{row.facts.get('subject', '')} ")
    name = (
        f"{subject} → {row.facts['subject']}"
        if row.op in {"drift", "approve"} and row.facts.get("subject")
        else subject
    )
    detail = detail.removeprefix(f"server {subject!r}: ").removeprefix(f"{verb}: ")
    return f"{name} {verb}" + (f": {detail}" if detail else "")


def format_subject(row: Row) -> str:
    """Name the subject of an event."""
    facts = row.facts
    if row.op == "turn":
        return f"turn {facts.get('turn')}"
    if row.op == "retire":
        return str(facts.get("key", ""))[:_KEY_LENGTH]
    if row.op == "search":
        queries = facts.get("queries")
        return "; ".join(map(str, queries)) if isinstance(queries, list) else ""
    named = facts.get("principal" if row.op == "client" else "name")
    if isinstance(named, str):
        return named
    tool = f"/{facts['tool']}" if "tool" in facts else ""
    return f"{facts.get('server', '')}{tool}"


def format_detail(row: Row) -> str:
    """Describe an event, on one line."""
    facts = row.facts
    if row.op == "turn":
        return f"deck {str(facts.get('deck'))[:12]}"
    if row.op in {"run", "list"}:
        noun = "server" if row.op == "run" else "tool"
        named = facts.get(f"{noun}s")
        return format_count(len(named), noun) if isinstance(named, list) else ""
    if row.op == "search":
        found = facts.get("found")
        return ", ".join(map(str, found)) if isinstance(found, list) else ""
    if row.op == "client":
        scopes = facts.get("scopes")
        granted = " ".join(map(str, scopes)) if isinstance(scopes, list) else ""
        return f"{facts.get('client', '')}: {granted}"
    if row.op in {"enroll", "pin"}:
        return str(facts.get("key", facts.get("pin", "")))[:_KEY_LENGTH]
    return f"{facts.get('subject', '')} {facts.get('detail', '')}".strip().partition("\n")[0]
