"""What happens to the deck, written down as it happens.

That is: events of the ledger and of its servers, and what a model was shown at every turn. It is
called in the event loop and does not wait; texts are made in the thread of the store. Nothing
secret is written: of a server's configuration only a digest, of faults only what is left of them
when every known value and every address is cleaned.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from indusagi.core.ids import new_ulid
from indusagi.core.json import NotJson, compact_json
from induscode.deck.mcp.config.trust import server_identity
from induscode.deck.mcp.enrolment import iso_now
from induscode.deck.mcp.redaction import Redaction
from induscode.deck.mcp.store.events import (
    Batch,
    Event,
    build_subject,
    content_address,
    descriptor_text,
    join_json_array,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import RemoteTool, ServerConfig
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.enrolment import JournalOp
    from induscode.deck.mcp.ledger import BridgeEntry
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import RowOp

_LONGEST_DETAIL = 2_000


class _Shown(NamedTuple):
    """A descriptor as it is written; kept from turn to turn, since decks seldom change."""

    descriptor: ToolDescriptor
    text: str
    address: str


class Journal:
    """Writes one run into a store. It keeps what an enrolment tells it."""

    def __init__(
        self,
        store: LedgerStore,
        servers: Iterable[ServerConfig] = (),
        *,
        run: str | None = None,
        now: Callable[[], str] = iso_now,
    ) -> None:
        self.store = store
        self.run = run or new_ulid()
        """The name of this run; later runs have greater names."""
        self.turns = 0
        """How many turns were written down."""
        self._now = now
        self._redaction = Redaction()
        self._configs: dict[str, ServerConfig] = {}
        self._identities: dict[str, str] = {}
        self._shown: dict[int, _Shown] = {}
        self._listed: dict[str, tuple[Sequence[str], Sequence[DisabledTool]]] = {}
        self.add_servers(servers)
        self._append("run", {"servers": [*self._identities]})

    def add_servers(self, servers: Iterable[ServerConfig]) -> None:
        """Get to know servers: what they are, and which values of theirs are secret."""
        for config in servers:
            self._redaction.learn((config,))
            self._configs[config.id] = config
            self._identities[config.id] = server_identity(config)
            # Which tools it had belongs to what it was.
            self._listed.pop(config.id, None)

    def remove_servers(self, servers: Iterable[str]) -> None:
        """Know no longer what servers were that are gone; their secrets stay secret."""
        for server in servers:
            for known in (self._configs, self._identities, self._listed):
                known.pop(server, None)

    def set_known_listings(
        self, listings: Mapping[str, Sequence[str]], disabled: Mapping[str, Sequence[DisabledTool]] | None = None
    ) -> None:
        """Take for known which tools servers had when they were seen last."""
        for server, names in listings.items():
            self._listed[server] = tuple(names), tuple((disabled or {}).get(server, ()))

    # -- told by an enrolment ---------------------------------------------------------------

    def record_entries(self, entries: Sequence[BridgeEntry]) -> None:
        """Write down events of the ledger."""
        self.store.append(partial(self._entries, tuple(entries)))

    def record_event(self, op: JournalOp, server: str, subject: str, detail: str) -> None:
        """Write down something else that happened at a server."""
        clean = self._redaction.clean
        facts: JsonObject = {"server": server, "subject": clean(subject), "detail": clean(detail)[:_LONGEST_DETAIL]}
        identity = self._identities.get(server)
        # What decides how long the next start may take: it was up, or it took too long.
        if identity is not None and (op == "ready" or (op == "fault" and subject == "timeout")):
            self._append(op, {**facts, "identity": identity}, build_subject(identity, server))
        else:
            self._append(op, facts)

    def record_listing(self, server: str, tools: Sequence[RemoteTool], disabled: Sequence[DisabledTool]) -> None:
        """Write down which tools of a server are in the deck, or disabled, unless that is known."""
        names = tuple(tool.ref.name for tool in tools)
        identity = self._identities.get(server)
        listing = names, tuple(disabled)
        if identity is None or self._listed.get(server) == listing:
            return
        self._listed[server] = listing
        facts: JsonObject = {
            "server": server,
            "identity": identity,
            "filter": build_tool_filter(self._configs[server]),
            "tools": [*names],
        }
        if disabled:
            facts["disabled"] = [
                {"tool": one.ref.name, "name": one.name, "grade": str(one.grade), "fields": [*one.fields]}
                for one in disabled
            ]
        self._append("list", facts, build_subject(identity, server))

    def record_pin(
        self, server: str, tool: str, pin: str, raw: JsonObject, canonical: str | None = None, *, further: bool = False
    ) -> None:
        """Write down a definition of a tool that holds from now on; a `further` one is added."""
        identity = self._identities.get(server)
        if identity is not None:
            at = self._now()
            names = (identity, server, tool)
            subject = build_subject(*names, pin) if further else build_subject(*names)
            facts: JsonObject = {"identity": identity, "server": server, "tool": tool, "pin": pin}
            if canonical is not None:
                facts["canonical"] = canonical
            self.store.append(partial(self._pin, at, subject, facts, raw))

    # -- told by a session ------------------------------------------------------------------

    def record_turn(self, descriptors: Sequence[ToolDescriptor]) -> str:
        """Write down what a model is shown at the turn that begins; give the digest of it.

        Raises:
            NotJson: A schema holds what JSON cannot carry.
        """
        shown = [self._written(descriptor) for descriptor in descriptors]
        self._shown = {id(one.descriptor): one for one in shown}
        self.turns += 1
        digest = content_address(join_json_array(one.text for one in shown))
        self.store.append(partial(self._turn, self._now(), self.turns, digest, shown))
        return digest

    def _written(self, descriptor: ToolDescriptor) -> _Shown:
        known = self._shown.get(id(descriptor))
        if known is not None and known.descriptor is descriptor:
            return known
        text = descriptor_text(descriptor)
        return _Shown(descriptor, text, content_address(text))

    # -- in the thread of the store ---------------------------------------------------------

    def _append(self, op: RowOp, facts: JsonObject, subject: str = "") -> None:
        batch = Batch((Event(self.run, self._now(), op, facts, subject),))
        self.store.append(lambda: batch)

    def _entries(self, entries: Sequence[BridgeEntry]) -> Batch:
        documents = _DocumentBatch(self._redaction)
        events = [Event(self.run, entry.at, entry.op.value, _entry_facts(entry, documents)) for entry in entries]
        return Batch(events, documents.kept)

    def _pin(self, at: str, subject: str, facts: JsonObject, raw: JsonObject) -> Batch:
        documents = _DocumentBatch(self._redaction)
        written: JsonObject = {**facts, "definition": documents.take(compact_json(raw))}
        documents.record_withheld(written)
        return Batch((Event(self.run, at, "pin", written, subject),), documents.kept)

    def _turn(self, at: str, number: int, digest: str, shown: Sequence[_Shown]) -> Batch:
        documents = _DocumentBatch(self._redaction)
        manifest = compact_json([documents.take(one.text, one.address) for one in shown])
        facts: JsonObject = {"turn": number, "deck": digest, "manifest": documents.take(manifest)}
        documents.record_withheld(facts)
        return Batch((Event(self.run, at, "turn", facts),), documents.kept)


def build_tool_filter(config: ServerConfig) -> JsonObject:
    """Give which of its tools a server is to show: a list that was made under another is none."""
    include = config.include_tools
    return {"include": None if include is None else [*include], "exclude": [*config.exclude_tools]}


class _DocumentBatch:
    """Collects the documents of a batch, other than those with a secret in them."""

    def __init__(self, redaction: Redaction) -> None:
        self.kept: dict[str, str] = {}
        self._redaction = redaction
        self._withheld: list[JsonValue] = []

    def take(self, text: str, address: str | None = None) -> str:
        """Keep a document if that is safe, and give its address in any case."""
        where = address or content_address(text)
        if where in self.kept:
            return where
        if self._redaction.holds_secret(text):
            self._withheld.append(where)
        else:
            self.kept[where] = text
        return where

    def record_withheld(self, facts: JsonObject) -> None:
        """Have a row say which of its documents are not kept."""
        if self._withheld:
            facts["withheld"], self._withheld = self._withheld, []


def _entry_facts(entry: BridgeEntry, documents: _DocumentBatch) -> JsonObject:
    facts: JsonObject = {"entry": entry.seq, "key": entry.key, "server": entry.server}
    capability = entry.capability
    if capability is None:
        return facts
    facts["of"], facts["tool"] = capability.ref.server, capability.ref.name
    facts["name"] = capability.name
    facts["supersedes"] = entry.supersedes
    try:
        facts["definition"] = documents.take(compact_json(capability.raw))
        facts["descriptor"] = documents.take(descriptor_text(capability.descriptor))
    except NotJson as exc:
        facts["unwritable"] = str(exc)
    documents.record_withheld(facts)
    return facts
