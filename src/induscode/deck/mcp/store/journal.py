"""The journal: what happens to the deck, written to the store as it happens.

It records the events of the ledger and of its servers, and what a model is shown at every turn. Its methods are called
in the event loop and return at once; texts are encoded in the thread of the store. It stores no secrets: of a server's
configuration only a digest, of faults only what redaction leaves, and a definition that holds a secret is withheld.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from indusagi.core.ids import new_ulid
from indusagi.core.json import NotJson, compact_json
from indusagi.core.time import iso_utc
from indusagi.interop.protocol_bridge.redaction import Redaction
from indusagi.runtime.calls import current_client
from induscode.deck.mcp.store.events import (
    Batch,
    Event,
    build_subject,
    content_address,
    descriptor_text,
    join_json_array,
)
from induscode.servers.config.trust import server_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteTool, RemoteToolRef, ServerConfig
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.enrolment import JournalOp
    from induscode.deck.mcp.ledger import BridgeEntry
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import RowOp

LISTED = ""
"""The name in a pin that says that a kind was listed and had nothing: no item has it."""
LATE = "late"
"""The subject of a `connect` row: a list or a prompt has waited for this start, and went on without it."""
STANDARD_ERROR = "stderr"
"""The subject of a `fault` row with what a server wrote to standard error before it failed."""
_MAX_DETAIL_CHARS = 2_000
_MAX_SEARCHES = 1_000
"""Searches of one run that are recorded."""
_MAX_QUERY_CHARS = 200
"""Characters of a query that are recorded."""


class _EncodedDescriptor(NamedTuple):
    """A descriptor with its text; kept from turn to turn, since decks seldom change."""

    descriptor: ToolDescriptor
    text: str
    address: str


class Journal:
    """Writes one run into a store; the event sink of an enrolment."""

    def __init__(
        self,
        store: LedgerStore,
        servers: Iterable[ServerConfig] = (),
        *,
        run: str | None = None,
        now: Callable[[], str] = iso_utc,
        node: str = "",
    ) -> None:
        """Begin a run; that of a `node` of a cluster is published to the others."""
        self.store = store
        self.run = run or new_ulid()
        """The id of this run, a ULID: later runs sort later."""
        self.turns = 0
        """How many turns were recorded."""
        self._searches = 0
        self._now = now
        self._redaction = Redaction()
        self._configs: dict[str, ServerConfig] = {}
        self._identities: dict[str, str] = {}
        self._encoded: dict[int, _EncodedDescriptor] = {}
        self._listed: dict[tuple[str, ItemKind], tuple[Sequence[str], Sequence[DisabledTool]]] = {}
        self.add_servers(servers)
        facts: JsonObject = {"servers": [*self._identities]}
        self._append("run", {**facts, "node": node} if node else facts)

    def add_servers(self, servers: Iterable[ServerConfig]) -> None:
        """Add servers with their identities and the secrets of their configurations."""
        for config in servers:
            self._redaction.learn((config,))
            self._configs[config.id] = config
            self._identities[config.id] = server_identity(config)
            # The former listing belongs to the former configuration.
            self._forget_listings(config.id)

    def hide_secrets(self, text: str) -> str:
        """Replace the secrets of all servers so far, and secrets of known shapes."""
        return self._redaction.hide(text)

    def remove_servers(self, servers: Iterable[str]) -> None:
        """Remove servers; their secrets stay redacted."""
        for server in servers:
            self._forget_listings(server)
            for known in (self._configs, self._identities):
                known.pop(server, None)

    def _forget_listings(self, server: str) -> None:
        self._listed = {key: listing for key, listing in self._listed.items() if key[0] != server}

    def set_known_listings(
        self,
        listings: Mapping[str, Sequence[str]],
        disabled: Mapping[str, Sequence[DisabledTool]] | None = None,
        kind: ItemKind = "tool",
    ) -> None:
        """Set the listings that the store has already: only a different one is recorded."""
        for server, names in listings.items():
            self._listed[server, kind] = tuple(names), tuple((disabled or {}).get(server, ()))

    # -- from an enrolment ------------------------------------------------------------------

    def record_entries(self, entries: Sequence[BridgeEntry]) -> None:
        """Record events of the ledger."""
        self.store.append(partial(self._build_entries, tuple(entries)))

    def record_event(self, op: JournalOp, server: str, subject: str, detail: str) -> None:
        """Record another event of a server."""
        clean = self._redaction.clean
        facts: JsonObject = {"server": server, "subject": clean(subject), "detail": clean(detail)[:_MAX_DETAIL_CHARS]}
        identity = self._identities.get(server)
        # These decide how long the next start may take, and whether a first list waits for it.
        is_outcome = (
            op == "ready" or (op, subject) == ("connect", LATE) or (op == "fault" and subject != STANDARD_ERROR)
        )
        if identity is not None and is_outcome:
            # The last timeout is looked for alone: another fault must not take its place.
            other = ("other",) if op == "fault" and subject != "timeout" else ()
            self._append(op, {**facts, "identity": identity}, build_subject(identity, server, *other))
        else:
            self._append(op, facts)

    def record_listing(
        self, server: str, tools: Sequence[RemoteTool], disabled: Sequence[DisabledTool], kind: ItemKind = "tool"
    ) -> None:
        """Record which tools or other items of a server are enrolled or disabled, if that has changed."""
        names = tuple(tool.ref.name for tool in tools)
        identity = self._identities.get(server)
        listing = names, tuple(disabled)
        if identity is None or self._listed.get((server, kind)) == listing:
            return
        self._listed[server, kind] = listing
        facts: JsonObject = {"server": server, "identity": identity}
        if kind == "tool":
            facts |= {"filter": build_tool_filter(self._configs[server]), "tools": [*names]}
        else:
            facts |= {"kind": kind, "items": [*names]}
        if disabled:
            facts["disabled"] = [
                {
                    "tool": tool.ref.name,
                    "name": tool.name,
                    "grade": str(tool.grade),
                    "fields": [*tool.fields],
                    **({"added": True} if tool.cause == "added" else {}),
                }
                for tool in disabled
            ]
        self._append("list", facts, build_subject(identity, server, *(() if kind == "tool" else (kind,))))

    def record_pin(
        self, ref: RemoteToolRef, pin: str, raw: JsonObject, canonical: str | None = None, *, further: bool = False
    ) -> None:
        """Record an approved definition of an item; a `further` one is added to those approved before."""
        identity = self._identities.get(ref.server)
        if identity is not None:
            names = (identity, ref.server, ref.name)
            facts: JsonObject = {"identity": identity, "server": ref.server, "tool": ref.name, "pin": pin}
            if ref.kind != "tool":
                # More names than a tool's subject ever has.
                names, facts["kind"] = (*names, "kind", ref.kind), ref.kind
            subject = build_subject(*names, pin) if further else build_subject(*names)
            if canonical is not None:
                facts["canonical"] = canonical
            self.store.append(partial(self._build_pin, self._now(), subject, facts, raw))

    def record_place(self, server: str, place: str, identity: str) -> None:
        """Record the identity of the server that a row of a file describes now; empty: the row was removed."""
        self._append("place", {"server": server, "place": place, "identity": identity}, build_subject(place))

    def find_filter(self, server: str) -> JsonValue:
        """Describe which tools of a server its row lets in."""
        config = self._configs.get(server)
        return None if config is None else build_tool_filter(config)

    def record_client(self, principal: str, client_id: str, scopes: Sequence[str]) -> None:
        """Record the first request of a principal to a host; no part of its token."""
        self._append("client", {"principal": principal, "client": client_id, "scopes": [*scopes]})

    def record_search(self, queries: Sequence[str], server: str | None, found: Sequence[str], left_out: int) -> None:
        """Record a search of tools: what was looked for, and which tools were shown; of one run the first thousand."""
        self._searches += 1
        if self._searches > _MAX_SEARCHES:
            return
        clean = self._redaction.clean
        facts: JsonObject = {
            "queries": [clean(query)[:_MAX_QUERY_CHARS] for query in queries],
            "found": [*found],
            "left_out": left_out,
        }
        client = current_client.get()
        if client is not None and client.principal:
            facts["principal"] = client.principal
        if server is not None:
            facts["server"] = server
        if self._searches == _MAX_SEARCHES:
            facts["last"] = True  # further searches of this run are not recorded
        self._append("search", facts)

    # -- from a session ---------------------------------------------------------------------

    def record_turn(self, descriptors: Sequence[ToolDescriptor]) -> str:
        """Record what a model is shown at the turn that begins, and return the digest of it.

        Raises:
            NotJson: A schema holds a value that JSON cannot carry.
        """
        shown = [self._encode(descriptor) for descriptor in descriptors]
        self._encoded = {id(encoded.descriptor): encoded for encoded in shown}
        self.turns += 1
        digest = content_address(join_json_array(encoded.text for encoded in shown))
        self.store.append(partial(self._build_turn, self._now(), self.turns, digest, shown))
        return digest

    def _encode(self, descriptor: ToolDescriptor) -> _EncodedDescriptor:
        known = self._encoded.get(id(descriptor))
        if known is not None and known.descriptor is descriptor:
            return known
        text = descriptor_text(descriptor)
        return _EncodedDescriptor(descriptor, text, content_address(text))

    def make_event(self, op: RowOp, facts: JsonObject, subject: str = "") -> Event:
        """Make an event of this run, for the caller to append."""
        return Event(self.run, self._now(), op, facts, subject)

    def _append(self, op: RowOp, facts: JsonObject, subject: str = "") -> None:
        batch = Batch((self.make_event(op, facts, subject),))
        self.store.append(lambda: batch)

    # -- in the thread of the store ---------------------------------------------------------

    def _build_entries(self, entries: Sequence[BridgeEntry]) -> Batch:
        documents = DocumentBatch(self._redaction)
        events: list[Event] = []
        for entry in entries:
            facts: JsonObject = {"entry": entry.seq, "key": entry.key, "server": entry.server}
            capability = entry.capability
            if capability is not None:
                facts["of"], facts["tool"] = capability.ref.server, capability.ref.name
                facts["name"] = capability.name
                if capability.ref.kind != "tool":
                    facts["kind"] = capability.ref.kind
                facts["supersedes"] = entry.supersedes
                try:
                    facts["definition"] = documents.add(compact_json(capability.raw))
                    facts["descriptor"] = documents.add(descriptor_text(capability.descriptor))
                except NotJson as exc:
                    facts["unwritable"] = str(exc)
                documents.record_withheld(facts)
            events.append(Event(self.run, entry.at, entry.op.value, facts))
        return Batch(events, documents.stored)

    def _build_pin(self, at: str, subject: str, facts: JsonObject, raw: JsonObject) -> Batch:
        documents = DocumentBatch(self._redaction)
        with_definition: JsonObject = {**facts, "definition": documents.add(compact_json(raw))}
        documents.record_withheld(with_definition)
        return Batch((Event(self.run, at, "pin", with_definition, subject),), documents.stored)

    def _build_turn(self, at: str, number: int, digest: str, shown: Sequence[_EncodedDescriptor]) -> Batch:
        documents = DocumentBatch(self._redaction)
        manifest = compact_json([documents.add(encoded.text, encoded.address) for encoded in shown])
        facts: JsonObject = {"turn": number, "deck": digest, "manifest": documents.add(manifest)}
        documents.record_withheld(facts)
        return Batch((Event(self.run, at, "turn", facts),), documents.stored)


def build_tool_filter(config: ServerConfig) -> JsonObject:
    """Describe which tools of a server are used: a listing made with another filter is not comparable."""
    include = config.include_tools
    return {"include": None if include is None else [*include], "exclude": [*config.exclude_tools]}


class DocumentBatch:
    """Collects the documents of a batch and withholds those that hold a secret."""

    def __init__(self, redaction: Redaction) -> None:
        self.stored: dict[str, str] = {}
        self._redaction = redaction
        self._withheld: list[JsonValue] = []

    def add(self, text: str, address: str | None = None) -> str:
        """Add a document unless it holds a secret, and return its address in any case."""
        address = address or content_address(text)
        if address not in self.stored:
            if self._redaction.holds_secret(text):
                self._withheld.append(address)
            else:
                self.stored[address] = text
        return address

    def record_withheld(self, facts: JsonObject) -> None:
        """Name the withheld documents in the facts of a row."""
        if self._withheld:
            facts["withheld"], self._withheld = self._withheld, []
