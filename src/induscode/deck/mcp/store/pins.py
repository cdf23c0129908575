"""Pins that outlive the session: the approved definitions of every tool.

A tool has a set of approved forms, and may alternate among them. They belong to the server's identity (command,
arguments, variable names, or address), not to its id alone: another command under the same id starts without any. All
forms are read when the pins are opened, since the event loop compares them with every tool of every listing.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object
from indusagi.core.records import record
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
    from indusagi.interop.protocol_bridge.contract import ItemKind, ServerConfig
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import Row
    from induscode.deck.mcp.store.journal import Journal


@record
class ApprovedForm:
    """One definition of a tool that was seen first, or approved since."""

    pin: str
    """The digest of the definition as the server sent it."""
    canonical: str | None
    """The digest of its canonical form; None in rows of ledgers older than this form."""
    text: str | None
    """The definition; None if it was withheld or is damaged."""

    def matches(self, pin: str, canonical: Callable[[], str]) -> bool:
        """Tell whether a definition with these digests equals this form, order aside."""
        if self.pin == pin:
            return True
        own = self.canonical
        if own is None:
            definition = self.definition
            own = None if definition is None else canonical_digest(definition)
        return own == canonical()

    @property
    def definition(self) -> JsonObject | None:
        """The definition, parsed from its text."""
        return _parse_definition(self.text)


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
        """None: nothing is recorded, and a first definition is not pinned."""
        self._forms: dict[tuple[str, JsonValue, str], list[ApprovedForm]] = {}
        """By server, kind and name."""
        self.added = 0
        """How many forms were approved here so far."""
        self._locked: Mapping[RemoteToolRef, JsonObject] = {}
        self.learn(identities, rows, documents or {})

    def learn(self, identities: Mapping[str, str], rows: Iterable[Row], documents: Mapping[str, str]) -> None:
        """Replace the forms of servers by those in rows of the store."""
        self._forms = {key: forms for key, forms in self._forms.items() if key[0] not in identities}
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
                self._forms.setdefault((server, facts.get("kind", "tool"), tool), []).append(form)

    def lock(self, definitions: Mapping[RemoteToolRef, JsonObject]) -> None:
        """Compare first definitions with those of the project's lock file."""
        self._locked = definitions

    def check(self, ref: RemoteToolRef, raw: JsonObject) -> Drift | None:
        """Compare a definition with the approved forms; a first one becomes one of them. None: approved.

        A first definition of a server must match the lock file if that has items of its server and kind.

        Raises:
            NotJson: It holds a value that JSON cannot carry.
        """
        pin = definition_pin(raw)
        forms = self._forms.get((ref.server, ref.kind, ref.name))
        if forms is None:
            drift = None
            locked = self._locked.get(ref)
            if locked is not None and canonical_digest(locked) != canonical_digest(raw):
                drift = closest_drift(ref, [locked], raw)
            elif locked is None and any((other.server, other.kind) == (ref.server, ref.kind) for other in self._locked):
                drift = Drift(ref, DriftGrade.ROUTING, None, raw)
            if self._journal is not None and (drift is None or not drift.disables):
                self._add_form(ref, pin, raw)
            return drift
        canonical = cache(lambda: canonical_digest(raw))
        if any(form.matches(pin, canonical) for form in reversed(forms)):
            return None
        definitions = [definition for form in forms if (definition := form.definition) is not None]
        return closest_drift(ref, definitions, raw)

    def approve(self, ref: RemoteToolRef, raw: JsonObject) -> None:
        """Approve this definition too; those approved earlier stay approved."""
        self._add_form(ref, definition_pin(raw), raw)

    def _add_form(self, ref: RemoteToolRef, pin: str, raw: JsonObject) -> None:
        forms = self._forms.setdefault((ref.server, ref.kind, ref.name), [])
        canonical = canonical_digest(raw)
        if self._journal is not None:
            self._journal.record_pin(ref, pin, raw, canonical, further=bool(forms))
        forms.append(ApprovedForm(pin, canonical, compact_json(raw)))
        self.added += 1


async def open_pins(journal: Journal, servers: Iterable[ServerConfig]) -> StorePins:
    """Read the approved forms of servers' tools from the store of a journal."""
    pins = StorePins(journal, {})
    await load_pins(pins, journal.store, servers)
    return pins


async def read_pins(store: LedgerStore, servers: Iterable[ServerConfig]) -> StorePins:
    """Read the approved forms of servers' tools, for comparison only."""
    pins = StorePins(None, {})
    await load_pins(pins, store, servers)
    return pins


async def load_pins(pins: StorePins, store: LedgerStore, servers: Iterable[ServerConfig]) -> None:
    """Read the approved forms of these servers' tools into `pins`; a store that is late changes none."""
    identities = build_identities(servers)
    while True:
        added = pins.added
        rows = [row for row in await store.latest("pin") if _find_server(row, identities) is not None]
        addresses = [address for row in rows if isinstance(address := row.facts.get("definition"), str)]
        documents = await store.documents(addresses)
        if pins.added == added:
            break
        # One was approved here meanwhile, and the rows may be without it.
    if rows:
        pins.learn(identities, rows, documents)


def build_identities(servers: Iterable[ServerConfig]) -> Mapping[str, str]:
    """Map the ids of servers to their identities."""
    return {config.id: server_identity(config) for config in servers}


async def read_definitions(
    store: LedgerStore, servers: Iterable[ServerConfig], kind: ItemKind = "tool"
) -> Mapping[str, Sequence[JsonObject]]:
    """Read, for each server seen before, the definitions of its last listing: the pinned ones, in its order.

    A server with a missing or damaged definition is left out: an incomplete listing would look complete.
    """
    configs = {config.id: config for config in servers}
    identities = build_identities(configs.values())
    listings = {
        server: filter_texts(row.facts.get("tools" if kind == "tool" else "items"))
        for server, row in await _read_listings(store, configs, identities, kind)
    }
    pins = {
        (server, str(row.facts.get("tool"))): str(row.facts.get("definition"))
        # Where nothing is listed no pin is of use, and reading them all takes longer than the rest of a command.
        for row in (await store.latest("pin") if any(listings.values()) else ())
        if (server := _find_server(row, identities)) is not None and row.facts.get("kind", "tool") == kind
    }
    documents = await store.documents(pins.values())
    definitions: dict[str, Sequence[JsonObject]] = {}
    for server, tools in listings.items():
        parsed = [_parse_definition(documents.get(pins.get((server, tool), ""))) for tool in tools]
        # Beside tools most servers have nothing, which is worth knowing without a start.
        if (tools or kind != "tool") and None not in parsed:
            definitions[server] = [definition for definition in parsed if definition is not None]
    return definitions


async def read_disabled_tools(
    store: LedgerStore, servers: Iterable[ServerConfig], kind: ItemKind = "tool"
) -> Mapping[str, Sequence[DisabledTool]]:
    """Read, for each server seen before, which of its tools, or items of another kind, were disabled then."""
    configs = {config.id: config for config in servers}
    grades = {str(grade): grade for grade in DriftGrade}
    disabled: dict[str, Sequence[DisabledTool]] = {}
    for server, row in await _read_listings(store, configs, build_identities(configs.values()), kind):
        rows = row.facts.get("disabled")
        tools: list[DisabledTool] = []
        for facts in filter(is_json_object, rows if isinstance(rows, list) else ()):
            tool, name = facts.get("tool"), facts.get("name")
            if isinstance(tool, str):
                ref = RemoteToolRef(server, tool, kind)
                shown = name if isinstance(name, str) else model_name(ref)
                grade = grades.get(str(facts.get("grade")), DriftGrade.BREAKING)
                tools.append(DisabledTool(ref, shown, grade, tuple(filter_texts(facts.get("fields")))))
        disabled[server] = tools
    return disabled


async def _read_listings(
    store: LedgerStore, configs: Mapping[str, ServerConfig], identities: Mapping[str, str], kind: ItemKind
) -> list[tuple[str, Row]]:
    """Read the last listing of each server that was made with its present configuration and filter."""
    return [
        (server, row)
        for row in await store.latest("list")
        if (server := _find_server(row, identities)) is not None
        and row.facts.get("kind", "tool") == kind
        and (kind != "tool" or row.facts.get("filter") == build_tool_filter(configs[server]))
    ]


def _find_server(row: Row, identities: Mapping[str, str]) -> str | None:
    server = row.facts.get("server")
    if not isinstance(server, str) or identities.get(server) != row.facts.get("identity"):
        return None
    return server


def _parse_definition(text: str | None) -> JsonObject | None:
    try:
        definition: JsonValue = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return definition if is_json_object(definition) else None
