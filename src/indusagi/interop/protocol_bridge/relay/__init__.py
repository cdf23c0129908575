"""The relay: serves one server through a host, as if clients reached it directly.

Nothing is renamed or translated. A client with a handshake gets a dedicated connection to the server. Clients of
revision 2026-07-28 share one over HTTP, because their requests are self-contained. The server itself refuses revisions
it doesn't support.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from indusagi.interop.protocol_bridge.client.start.policy import Supervision
from indusagi.interop.protocol_bridge.contract import ServerConfig
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits
from indusagi.interop.protocol_bridge.host.http import open_http
from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.interop.protocol_bridge.host.server import ServingHost
from indusagi.interop.protocol_bridge.relay.session import RelaySession, SharedUpstream
from indusagi.interop.protocol_bridge.relay.upstream import ReconnectBackoff, ToolSchemas, UpstreamPool

_STOP_S = 2.5
"""Calls and the server behind them get five seconds altogether to end."""


class RelayHost(ServingHost):
    """Serves one server to clients; see `create_relay_host`."""

    def __init__(self, config: ServerConfig, limits: HostLimits, rules: Supervision | None = None) -> None:
        super().__init__(limits)
        self.pool = UpstreamPool(config, limits.upstreams)
        self._rules = rules
        self._backoff = ReconnectBackoff(rules)
        self._schemas = ToolSchemas()

    def new_session(self) -> RelaySession:
        """Create a client's session with a dedicated connection to the server."""
        return RelaySession(self.pool, self._backoff, self.limits, self._schemas)

    @asynccontextmanager
    async def serve_http(self, settings: HttpSettings | None = None) -> AsyncGenerator[HttpHost]:
        """Serve clients over HTTP until the block exits; running calls may then finish within `stop_s`.

        Raises:
            ProtocolFault: It can't be started (kind `transport`); the message says why.
        """
        chosen = settings or HttpSettings()
        chosen = replace(chosen, stop_s=min(chosen.stop_s, self.limits.stop_s))
        pool, schemas = self.pool, self._schemas
        # Separate backoff: a server that breaks on the newer revision may serve older ones well.
        shared = SharedUpstream(pool, ReconnectBackoff(self._rules), schemas)

        def new_session(_: ClientIdentity) -> RelaySession:
            return RelaySession(pool, self._backoff, self.limits, schemas, shared)

        try:
            async with open_http(
                new_session, schemas.find, chosen, find_target=lambda method, params: (method, pool.config.id)
            ) as serving:
                yield serving
        finally:
            await shared.close()


def create_relay_host(
    config: ServerConfig, *, limits: HostLimits | None = None, supervision: Supervision | None = None
) -> RelayHost:
    """Create a host that passes every message to one server and back unchanged."""
    return RelayHost(config, limits or HostLimits(stop_s=_STOP_S), supervision)
