"""Pins that outlive the session: which definitions of a tool were seen first, or approved since.

A tool has a set of approved forms: one that alternates among them is stable. They belong to what
the server is, and not to its name alone: another command under the same id starts without any. All
are read once, when they are opened: they are compared with every tool of every listing, in the
event loop.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object
from indusagi.interop.protocol_bridge.client.tools import model_name
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.deck.mcp.canonical import canonical_digest
from induscode.deck.mcp.capability import definition_pin
from induscode.deck.mcp.config.trust import server_identity
from induscode.deck.mcp.drift import DisabledTool, Drift, DriftGrade, closest_drift
from induscode.deck.mcp.store.events import filter_texts
from induscode.deck.mcp.store.journal import build_tool_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import Row
    from induscode.deck.mcp.store.journal import Journal


@dataclass(frozen=True, slots=True)
class ApprovedForm:
    """One definition of a tool that was seen first, or approved since."""

    pin: str
    """The digest of the definition as it came."""
    canonical: str | None
    """The digest of its canonical form; None in rows of a ledger that is older than this form."""
    text: str | None
    """The definition; None where it was not kept, or is damaged."""

    def matches(self, pin: str, canonical: Callable[[], str]) -> bool:
        """Tell whether a definition with these digests differs from this form in order at most."""
        if self.pin == pin:
            return True
        own = self.canonical
        if own is None:
            definition = self.definition
            own = None if definition is None else canonical_digest(definition)
        return own == canonical()

    @property
    def definition(self) -> JsonObject | None:
        """The definition, read from its text."""
        return _definition(self.text)


class StorePins:
    """The approved forms of the tools of some servers. Open one with `open_pins`."""

    def __init__(
        self,
        journal: Journal | None,
        identities: Mapping[str, str],
        rows: Iterable[Row] = (),
        documents: Mapping[str, str] | None = None,
    ) -> None:
        self._journal = journal
        """None: nothing is written down, and a first definition is not pinned."""
        self._forms: dict[tuple[str, str], list[ApprovedForm]] = {}
        self._locked: Mapping[RemoteToolRef, JsonObject] = {}
        self.learn(identities, rows, documents or {})

    def learn(self, identities: Mapping[str, str], rows: Iterable[Row], documents: Mapping[str, str]) -> None:
        """Take the forms of servers from rows of the store, in place of those that they had."""
        self._forms = {key: kept for key, kept in self._forms.items() if key[0] not in identities}
        for row in rows:
            facts = row.facts
            server, tool, pin = facts.get("server"), facts.get("tool"), facts.get("pin")
            if not isinstance(server, str) or not isinstance(tool, str):
                continue
            if isinstance(pin, str) and identities.get(server) == facts.get("identity"):
                canonical, address = facts.get("canonical"), facts.get("definition")
                form = ApprovedForm(
                    pin,
                    canonical if isinstance(canonical, str) else None,
                    documents.get(address) if isinstance(address, str) else None,
                )
                self._forms.setdefault((server, tool), []).append(form)

    def lock(self, definitions: Mapping[RemoteToolRef, JsonObject]) -> None:
        """Compare first definitions of these servers' tools with those of the project's lock."""
        self._locked = definitions

    def check(self, ref: RemoteToolRef, raw: JsonObject) -> Drift | None:
        """Compare a definition with the approved forms; a first one becomes one of them.

        None: it is approved, whatever the order of its parts. Of a server that the project's lock
        names, a first definition must be the one of the lock.

        Raises:
            NotJson: It holds what JSON cannot carry.
        """
        pin = definition_pin(raw)
        forms = self._forms.get((ref.server, ref.name))
        if forms is None:
            drift = self._compare_with_lock(ref, raw)
            if self._journal is not None and (drift is None or not drift.disables):
                self._keep(ref, pin, raw)
            return drift
        canonical = cache(lambda: canonical_digest(raw))
        if any(form.matches(pin, canonical) for form in reversed(forms)):
            return None
        known = [one for form in forms if (one := form.definition) is not None]
        return closest_drift(ref, known, raw)

    def _compare_with_lock(self, ref: RemoteToolRef, raw: JsonObject) -> Drift | None:
        locked = self._locked.get(ref)
        if locked is None:
            named = any(one.server == ref.server for one in self._locked)
            return Drift(ref, DriftGrade.ROUTING, None, raw) if named else None
        if canonical_digest(locked) == canonical_digest(raw):
            return None
        return closest_drift(ref, [locked], raw)

    def approve(self, ref: RemoteToolRef, raw: JsonObject) -> None:
        """Approve this definition too; those that were approved earlier stay approved."""
        self._keep(ref, definition_pin(raw), raw)

    def _keep(self, ref: RemoteToolRef, pin: str, raw: JsonObject) -> None:
        forms = self._forms.setdefault((ref.server, ref.name), [])
        canonical = canonical_digest(raw)
        if self._journal is not None:
            self._journal.record_pin(ref.server, ref.name, pin, raw, canonical, further=bool(forms))
        forms.append(ApprovedForm(pin, canonical, compact_json(raw)))


async def open_pins(journal: Journal, servers: Iterable[ServerConfig]) -> StorePins:
    """Read the approved forms of servers' tools from the store of a journal."""
    pins = StorePins(journal, {})
    await load_pins(pins, journal.store, servers)
    return pins


async def read_pins(store: LedgerStore, servers: Iterable[ServerConfig]) -> StorePins:
    """Read the approved forms of servers' tools, to compare with and not to change."""
    pins = StorePins(None, {})
    await load_pins(pins, store, servers)
    return pins


async def load_pins(pins: StorePins, store: LedgerStore, servers: Iterable[ServerConfig]) -> None:
    """Read the approved forms of these servers' tools anew."""
    identities = build_identities(servers)
    rows = [row for row in await store.latest("pin") if _server(row, identities) is not None]
    documents = await store.documents(
        address for row in rows if isinstance(address := row.facts.get("definition"), str)
    )
    pins.learn(identities, rows, documents)


def build_identities(servers: Iterable[ServerConfig]) -> Mapping[str, str]:
    """Tell by id what servers are."""
    return {config.id: server_identity(config) for config in servers}


async def read_definitions(store: LedgerStore, servers: Iterable[ServerConfig]) -> Mapping[str, Sequence[JsonObject]]:
    """Read, for each server that was seen before, the definitions its deck had then.

    They are the pinned ones, in the server's order. A server of which one is missing or damaged is
    left out: a part of a deck would look like all of it.
    """
    configs = {config.id: config for config in servers}
    identities = {server: server_identity(config) for server, config in configs.items()}
    listings = {
        server: filter_texts(row.facts.get("tools"))
        for row in await store.latest("list")
        if (server := _server(row, identities)) is not None
        and row.facts.get("filter") == build_tool_filter(configs[server])
    }
    pins = {
        (server, str(row.facts.get("tool"))): str(row.facts.get("definition"))
        for row in await store.latest("pin")
        if (server := _server(row, identities)) is not None
    }
    documents = await store.documents(pins.values())
    found: dict[str, Sequence[JsonObject]] = {}
    for server, tools in listings.items():
        texts = [documents.get(pins.get((server, tool), "")) for tool in tools]
        definitions = [_definition(text) for text in texts]
        if tools and None not in definitions:
            found[server] = [one for one in definitions if one is not None]
    return found


async def read_disabled_tools(
    store: LedgerStore, servers: Iterable[ServerConfig]
) -> Mapping[str, Sequence[DisabledTool]]:
    """Read, for each server that was seen before, which of its tools were disabled then."""
    configs = {config.id: config for config in servers}
    identities = {server: server_identity(config) for server, config in configs.items()}
    found: dict[str, Sequence[DisabledTool]] = {}
    for row in await store.latest("list"):
        server, rows = _server(row, identities), row.facts.get("disabled")
        if server is None or row.facts.get("filter") != build_tool_filter(configs[server]):
            continue
        listed = rows if isinstance(rows, list) else []
        found[server] = [one for each in listed if (one := _disabled(server, each)) is not None]
    return found


def _disabled(server: str, facts: JsonValue) -> DisabledTool | None:
    tool = facts.get("tool") if is_json_object(facts) else None
    if not is_json_object(facts) or not isinstance(tool, str):
        return None
    ref = RemoteToolRef(server, tool)
    grades = {str(grade): grade for grade in DriftGrade}
    grade = grades.get(str(facts.get("grade")), DriftGrade.BREAKING)
    name = facts.get("name")
    shown = name if isinstance(name, str) else model_name(ref)
    return DisabledTool(ref, shown, grade, tuple(filter_texts(facts.get("fields"))))


def _server(row: Row, identities: Mapping[str, str]) -> str | None:
    server = row.facts.get("server")
    if not isinstance(server, str) or identities.get(server) != row.facts.get("identity"):
        return None
    return server


def _definition(text: str | None) -> JsonObject | None:
    try:
        found: JsonValue = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if is_json_object(found) else None
