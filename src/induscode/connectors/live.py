"""Connectors of a running session, which picks up `indus connectors add`, `approve` and `remove` without a restart.

Sessions look for changes between turns, and gateways every few seconds, but never during a call: we send exactly the
request that permissions checked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from indusagi.capabilities.ports import WebSettings
from induscode.connectors.store import ConnectorStore
from induscode.launch.settings import (
    SEARCH_SEARXNG_URL,
    WEB_ALLOW_PRIVATE,
    WEB_MAX_BYTES,
    WEB_PORTS,
    WEB_TIMEOUT_S,
    Settings,
)

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.connectors.gateway import ConnectorGateway
    from induscode.deck.contract import ActionTarget, SaasGatewayPort

SAAS_CARD = "saas-action"


class LiveConnectors:
    """The gateway to this user's connectors, as of the last refresh."""

    def __init__(self, web: WebSettings) -> None:
        self._web = web
        self._store = ConnectorStore()
        self._gateway: ConnectorGateway | None = None
        self._opened: list[ConnectorGateway] = []
        self._signature: object = self._store.read_signature()
        self.are_present = self._store.has_rows()
        """Whether there may be connectors."""
        self._known: Mapping[str, object] = {}
        if self.are_present:
            self._read_facts()

    def refresh(self) -> Sequence[str]:
        """Reread the connectors if their file changed, and describe the differences. Blocks."""
        signature = self._store.read_signature()
        if signature == self._signature:
            return []
        self._signature, before = signature, self._known
        self._read_facts()
        if self._known == before:
            return []  # only the time of the last comparison differs
        self._gateway = None
        parts = {
            "removed": [name for name in before if name not in self._known],
            "changed": [name for name, facts in self._known.items() if before.get(name, facts) != facts],
            "added": [name for name in self._known if name not in before],
        }
        return [f"connectors {word}: {', '.join(names)}" for word, names in parts.items() if names]

    def _read_facts(self) -> None:
        """Read the facts that a call depends on, by connector. A damaged file may hold connectors."""
        rows, is_damaged = self._store.read()
        # By the rows, not by the file: the last connector is removed before its file is.
        self.are_present = is_damaged or bool(rows)
        self._known = {
            name: (row.source, row.base_url, row.auth, row.source_digest, dict(row.digests), row.changed)
            for name, row in rows.items()
        }

    async def aclose(self) -> None:
        """Stop leftover work of calls, such as a token refresh."""
        for gateway in self._opened:
            await gateway.aclose()

    # -- SaasGatewayPort ------------------------------------------------------------------------

    async def discover(self, query: str | None, toolkits: Sequence[str]) -> Sequence[Mapping[str, JsonValue]]:
        """Find operations by what they do."""
        return await self._open().discover(query, toolkits)

    async def execute(self, slug: str, arguments: JsonObject) -> JsonValue:
        """Send an operation's request and return the parsed response.

        Raises `ActionError` if we couldn't send it, or the service rejected it.
        """
        return await self._open().execute(slug, arguments)

    async def find_target(self, slug: str, arguments: JsonObject) -> ActionTarget | None:
        """Return an action's request, or `None` if the slug is unknown."""
        return await self._open().find_target(slug, arguments)

    def _open(self) -> ConnectorGateway:
        if self._gateway is None:
            from induscode.connectors.gateway import ConnectorGateway  # noqa: PLC0415 — for the first call of an action

            self._gateway = ConnectorGateway(self._store, self._web, os.environ)
            self._opened.append(self._gateway)
        return self._gateway


def web_settings(settings: Settings) -> WebSettings:
    """Build the settings of the web tools."""
    return WebSettings(
        allow_private=settings.get(WEB_ALLOW_PRIVATE),
        ports=settings.get(WEB_PORTS),
        hard_bytes=settings.get(WEB_MAX_BYTES),
        default_bytes=min(WebSettings().default_bytes, settings.get(WEB_MAX_BYTES)),
        total_s=settings.get(WEB_TIMEOUT_S),
        searxng_url=settings.get(SEARCH_SEARXNG_URL),
    )


def build_connector_gateway(web: WebSettings | None) -> SaasGatewayPort | None:
    """Build the gateway to this user's connectors, or return `None` without any. Blocks."""
    connectors = LiveConnectors(web or WebSettings())
    return connectors if connectors.are_present else None
