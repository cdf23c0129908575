"""Pins that outlive the session: which definition of which tool was seen first, or approved since.

A pin belongs to what the server is, and not to its name alone: another command under the same id
starts without pins. All pins are read once, when the book is opened: it is asked for every tool of
every listing, and in the event loop.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from induscode.deck.mcp.capability import definition_pin
from induscode.deck.mcp.journal import filter_of
from induscode.deck.mcp.store_rows import texts_of
from induscode.deck.mcp.trust import server_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef, ServerConfig
    from induscode.deck.mcp.enrolment import PinVerdict
    from induscode.deck.mcp.journal import Journal
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store_rows import Row


class StorePins:
    """The pins of some servers. Open one with `open_pins`."""

    def __init__(
        self, journal: Journal, identities: Mapping[str, str], rows: Iterable[Row] = ()
    ) -> None:
        self._journal = journal
        self._pins: dict[tuple[str, str], str] = {}
        self.learn(identities, rows)

    def learn(self, identities: Mapping[str, str], rows: Iterable[Row]) -> None:
        """Take the pins of servers from rows of the store, in place of those that they had."""
        self._pins = {key: pin for key, pin in self._pins.items() if key[0] not in identities}
        for row in rows:
            facts = row.facts
            server, tool, pin = facts.get("server"), facts.get("tool"), facts.get("pin")
            if not isinstance(server, str) or not isinstance(tool, str):
                continue
            if isinstance(pin, str) and identities.get(server) == facts.get("identity"):
                self._pins[server, tool] = pin

    def check(self, ref: RemoteToolRef, raw: JsonObject) -> PinVerdict:
        """Compare a definition with the pinned one; a first one becomes it."""
        pin = definition_pin(raw)
        known = self._pins.get((ref.server, ref.name))
        if known is None:
            self._keep(ref, pin, raw)
            return "first"
        return "same" if known == pin else "drift"

    def approve(self, ref: RemoteToolRef, raw: JsonObject) -> None:
        """Pin this definition from now on."""
        self._keep(ref, definition_pin(raw), raw)

    def _keep(self, ref: RemoteToolRef, pin: str, raw: JsonObject) -> None:
        self._pins[ref.server, ref.name] = pin
        self._journal.pinned(ref.server, ref.name, pin, raw)


async def open_pins(journal: Journal, servers: Iterable[ServerConfig]) -> StorePins:
    """Read the pins of servers from the store of a journal."""
    return StorePins(journal, identities_of(servers), await journal.store.latest("pin"))


def identities_of(servers: Iterable[ServerConfig]) -> Mapping[str, str]:
    """Tell by id what servers are."""
    return {config.id: server_identity(config) for config in servers}


async def definitions_of(
    store: LedgerStore, servers: Iterable[ServerConfig]
) -> Mapping[str, Sequence[JsonObject]]:
    """Read, for each server that was seen before, the definitions its deck had then.

    They are the pinned ones, in the server's order. A server of which one is missing or damaged is
    left out: a part of a deck would look like all of it.
    """
    configs = {config.id: config for config in servers}
    identities = {server: server_identity(config) for server, config in configs.items()}
    listings = {
        server: texts_of(row.facts.get("tools"))
        for row in await store.latest("list")
        if (server := _server(row, identities)) is not None
        and row.facts.get("filter") == filter_of(configs[server])
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
