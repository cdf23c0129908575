"""The journal: writes the deck's history to the store as it happens.

It records ledger and server events, and the tools a model sees each turn. Methods run in the event loop and return
immediately; the store's thread encodes texts. The journal never stores secrets: it digests server configurations,
redacts faults, and withholds definitions that contain a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json
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
    from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteTool, RemoteToolRef, ServerConfig
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.ledger import BridgeEntry
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import RowOp, ServerOp

LISTED = ""
"""The name in a pin recording that a listed kind was empty. No item has this name."""
LATE = "late"
"""The subject of a `connect` row: a list or prompt waited for this start, then went ahead without it."""
STANDARD_ERROR = "stderr"
"""The subject of a `fault` row with a failed server's standard error."""
_MAX_DETAIL_CHARS = 2_000
_MAX_SEARCHES = 1_000
"""Maximum searches recorded per run."""
_MAX_QUERY_CHARS = 200
"""Maximum characters recorded per query."""


class _EncodedDescriptor(NamedTuple):
    """A descriptor with its text, cached across turns since decks rarely change."""

    descriptor: ToolDescriptor
    text: str
    address: str


class Journal:
    """Writes one run to a store."""

    def __init__(
        self,
        store: LedgerStore,
        servers: Iterable[ServerConfig] = (),
        *,
        run: str | None = None,
        now: Callable[[], str] = iso_utc,
        node: str = "",
    ) -> None:
        """Begin a run. A cluster publishes the run of a `node` to the others."""
        self.store = store
        self.run = run or new_ulid()
        """This run's id, a ULID: later runs sort later."""
        self.turns = 0
        """The number of recorded turns."""
        self._searches = 0
        self._now = now
        self._redaction = Redaction()
        self._configs: dict[str, ServerConfig] = {}
        self._identities: dict[str, str] = {}
        self._encoded: dict[int, _EncodedDescriptor] = {}
        self._listed: dict[tuple[str, ItemKind], tuple[Sequence[str], Sequence[DisabledTool]]] = {}
        self.add_servers(servers)
        facts: JsonObject = {"servers": [*self._identities]}
        self.record("run", {**facts, "node": node} if node else facts)

    def add_servers(self, servers: Iterable[ServerConfig]) -> None:
        """Add servers, learning their identities and secrets."""
        for config in servers:
            self._redaction.learn((config,))
            self._configs[config.id] = config
            self._identities[config.id] = server_identity(config)
            # Old listings belong to the old configuration.
            self._forget_listings(config.id)

    def hide_secrets(self, text: str) -> str:
        """Mask the secrets of all servers so far, and secrets of known shapes."""
        return self._redaction.hide(text)

    def remove_servers(self, servers: Iterable[str]) -> None:
        """Remove servers. Their secrets stay redacted."""
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
        """Set the listings the store already has, so only changes get recorded."""
        for server, names in listings.items():
            self._listed[server, kind] = tuple(names), tuple((disabled or {}).get(server, ()))

    # -- from an enrolment ------------------------------------------------------------------

    def record_entries(self, entries: Sequence[BridgeEntry]) -> None:
        """Record ledger events."""
        self.store.append(partial(self._build_entries, tuple(entries)))

    def record_event(self, op: ServerOp, server: str, subject: str, detail: str) -> None:
        """Record any other server event."""
        clean = self._redaction.clean
        facts: JsonObject = {"server": server, "subject": clean(subject), "detail": clean(detail)[:_MAX_DETAIL_CHARS]}
        identity = self._identities.get(server)
        # These determine how long the next start may take and whether a first list waits for it.
        is_outcome = (
            op == "ready" or (op, subject) == ("connect", LATE) or (op == "fault" and subject != STANDARD_ERROR)
        )
        if identity is not None and is_outcome:
            # The last timeout has its own subject, so other faults don't replace it.
            other = ("other",) if op == "fault" and subject != "timeout" else ()
            self.record(op, {**facts, "identity": identity}, build_subject(identity, server, *other))
        else:
            self.record(op, facts)

    def record_listing(
        self,
        server: str,
        tools: Sequence[RemoteTool],
        disabled: Sequence[DisabledTool],
        kind: ItemKind = "tool",
        asked: JsonObject | None = None,
    ) -> None:
        """Record a server's enrolled and disabled tools (or other items), if changed.

        `asked` is a behaviour that waits for approval.
        """
        names = tuple(tool.ref.name for tool in tools) if asked is None else (compact_json(asked),)
        identity = self._identities.get(server)
        listing = names, tuple(disabled)
        if identity is None or self._listed.get((server, kind)) == listing:
            return
        self._listed[server, kind] = listing
        facts: JsonObject = {"server": server, "identity": identity}
        if kind == "tool":
            facts |= {"filter": build_tool_filter(self._configs[server]), "tools": [*names]}
        else:
            facts |= {"kind": kind, "items": [*names]} if asked is None else {"kind": kind, "asked": asked}
        if disabled:
            facts["disabled"] = [
                {
                    "tool": tool.ref.name,
                    "name": tool.name,
                    "grade": str(tool.grade),
                    "fields": [*tool.fields],
                    **({tool.cause: True} if tool.cause in {"added", "review"} else {}),
                    **({"checks": [*tool.checks]} if tool.checks else {}),
                }
                for tool in disabled
            ]
        self.record("list", facts, build_subject(identity, server, *(() if kind == "tool" else (kind,))))

    def record_pin(
        self, ref: RemoteToolRef, pin: str, raw: JsonObject, canonical: str | None = None, *, further: bool = False
    ) -> None:
        """Record an approved definition. A `further` one adds to earlier approvals."""
        identity = self._identities.get(ref.server)
        if identity is not None:
            names = (identity, ref.server, ref.name)
            facts: JsonObject = {"identity": identity, "server": ref.server, "tool": ref.name, "pin": pin}
            if ref.kind != "tool":
                # More names than a tool's subject can have.
                names, facts["kind"] = (*names, "kind", ref.kind), ref.kind
            subject = build_subject(*names, pin) if further else build_subject(*names)
            if canonical is not None:
                facts["canonical"] = canonical
            self.store.append(partial(self._build_pin, self._now(), subject, facts, raw))

    def record_place(self, server: str, place: str, identity: str) -> None:
        """Record the identity of the server a row now describes. Empty: the row was removed."""
        self.record("place", {"server": server, "place": place, "identity": identity}, build_subject(place))

    def find_filter(self, server: str) -> JsonValue:
        """Return the tool filter of a server's row."""
        config = self._configs.get(server)
        return None if config is None else build_tool_filter(config)

    def record_client(self, principal: str, client_id: str, scopes: Sequence[str]) -> None:
        """Record a principal's first request to a host, without any part of its token."""
        self.record("client", {"principal": principal, "client": client_id, "scopes": [*scopes]})

    def record_search(self, queries: Sequence[str], server: str | None, found: Sequence[str], left_out: int) -> None:
        """Record a tool search, its queries and results, for the first thousand searches per run."""
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
            facts["last"] = True  # the last one recorded for this run
        self.record("search", facts)

    # -- from a session ---------------------------------------------------------------------

    def record_turn(self, descriptors: Sequence[ToolDescriptor]) -> str:
        """Record the tools a model sees in a new turn and return their digest.

        Raises `NotJson` if a schema holds a value JSON can't represent.
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

    def record(self, op: RowOp, facts: JsonObject, subject: str = "") -> None:
        """Record an event. The caller has replaced the secrets."""
        batch = Batch((self.make_event(op, facts, subject),))
        self.store.append(lambda: batch)

    # -- in the store's thread --------------------------------------------------------------

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
    """Describe a server's tool filter. Listings with different filters aren't comparable."""
    include = config.include_tools
    return {"include": None if include is None else [*include], "exclude": [*config.exclude_tools]}


class DocumentBatch:
    """Collects the documents of a batch, withholding ones with a secret."""

    def __init__(self, redaction: Redaction) -> None:
        self.stored: dict[str, str] = {}
        self._redaction = redaction
        self._withheld: list[JsonValue] = []

    def add(self, text: str, address: str | None = None) -> str:
        """Add a document unless it contains a secret. Always returns its address."""
        address = address or content_address(text)
        if address not in self.stored:
            if self._redaction.holds_secret(text):
                self._withheld.append(address)
            else:
                self.stored[address] = text
        return address

    def record_withheld(self, facts: JsonObject) -> None:
        """List the withheld documents in a row's facts."""
        if self._withheld:
            facts["withheld"], self._withheld = self._withheld, []
