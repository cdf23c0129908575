"""The relay: one server behind a host of ours, as if it were reached directly.

Nothing gets a prefix and nothing is translated. Whoever speaks the older protocol has a connection
to the server of its own; whoever speaks the newer one over HTTP shares one, since there each
request stands alone. A server that does not speak what it is asked in says so itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from indusagi.interop.protocol_bridge.client.supervision import Supervision
from indusagi.interop.protocol_bridge.contract import ServerConfig
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits
from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
from indusagi.interop.protocol_bridge.host.server import ServingHost
from indusagi.interop.protocol_bridge.relay.session import RelaySession
from indusagi.interop.protocol_bridge.relay.shared import SharedUpstream
from indusagi.interop.protocol_bridge.relay.upstream import ReconnectBackoff, ToolSchemas, UpstreamPool

_STOP_S = 2.5
"""Calls, and then the server behind them, have five seconds together."""


class RelayHost(ServingHost):
    """A server that clients reach through us. Make it with `create_relay_host`."""

    def __init__(self, config: ServerConfig, limits: HostLimits, rules: Supervision | None = None) -> None:
        super().__init__(limits)
        self.lines = UpstreamPool(config, limits.upstreams)
        self._rules = rules
        self._backoff = ReconnectBackoff(rules)
        self._schemas = ToolSchemas()

    def new_session(self) -> RelaySession:
        """Make what hands on the words of one client, over a connection of its own."""
        return RelaySession(self.lines, self._backoff, self.limits, self._schemas)

    @asynccontextmanager
    async def serve_http(self, settings: HttpSettings | None = None) -> AsyncGenerator[HttpHost]:
        """Serve clients over HTTP until the block is left; what runs then may finish for a while.

        Raises:
            ProtocolFault: It cannot be started (kind `transport`); the message says why.
        """
        from indusagi.interop.protocol_bridge.host.http import open_http  # noqa: PLC0415 — few serve over HTTP
        from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings  # noqa: PLC0415 — as above

        chosen = settings or HttpSettings()
        chosen = replace(chosen, stop_s=min(chosen.stop_s, self.limits.stop_s))
        lines, schemas = self.lines, self._schemas
        # Apart: a server that breaks at a question of the newer protocol may serve the older well.
        shared = SharedUpstream(lines, ReconnectBackoff(self._rules), schemas)

        def new_session(_: bytes) -> RelaySession:
            return RelaySession(lines, self._backoff, self.limits, schemas, shared)

        try:
            async with open_http(new_session, schemas.of, chosen) as serving:
                yield serving
        finally:
            await shared.close()


def create_relay_host(
    config: ServerConfig, *, limits: HostLimits | None = None, supervision: Supervision | None = None
) -> RelayHost:
    """Make a host that hands everything on to one server, and back, unchanged."""
    return RelayHost(config, limits or HostLimits(stop_s=_STOP_S), supervision)
