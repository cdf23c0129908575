"""Client of one MCP server."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonValue
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.contract import (
    EndpointStatus,
    RemoteCallResult,
    RemoteTool,
    ServerConfig,
    is_terminal_phase,
    is_usable_phase,
)
from indusagi.interop.protocol_bridge.endpoint import InjectedTransport, ServerEndpointImpl, create_server_endpoint
from indusagi.runtime.contract import ProgressSink


class MCPClient:
    """A client of one server, which can connect again after its connection has ended.

    Use it in an `async with` block, or call `connect` and `disconnect`.
    """

    def __init__(
        self, config: ServerConfig, transport: InjectedTransport | None = None, *, handlers: Handlers | None = None
    ) -> None:
        """Take the configuration of the server; a `transport` replaces that of the configuration."""
        self._config = config
        self._transport = transport
        self._handlers = handlers
        self._endpoint = self._make_endpoint()

    def _make_endpoint(self) -> ServerEndpointImpl:
        return create_server_endpoint(self._config, self._transport, handlers=self._handlers)

    @property
    def endpoint(self) -> ServerEndpointImpl:
        """The endpoint of the present connection."""
        return self._endpoint

    @property
    def connected(self) -> bool:
        """Whether tools can be called."""
        return is_usable_phase(self._endpoint.phase)

    def status(self) -> EndpointStatus:
        """Return the state of the connection."""
        return self._endpoint.status()

    async def connect(self) -> None:
        """Connect, also after the last connection has ended.

        Raises:
            ProtocolFault: The server cannot be reached.
        """
        if is_terminal_phase(self._endpoint.phase):
            self._endpoint = self._make_endpoint()
        await self._endpoint.open()

    async def list_tools(self) -> Sequence[RemoteTool]:
        """List the tools of the server.

        Raises:
            ProtocolFault: Not connected, or the listing failed.
        """
        return await self._endpoint.list_tools()

    async def call_tool(
        self,
        name: str,
        arguments: JsonValue = None,
        *,
        cancel: CancelToken | None = None,
        on_progress: ProgressSink | None = None,
    ) -> RemoteCallResult:
        """Call a tool by the server's own name for it.

        Raises:
            ProtocolFault: Not connected, refused, timed out, cancelled, or the connection was lost.
        """
        return await self._endpoint.invoke(name, arguments, cancel=cancel, on_progress=on_progress)

    async def disconnect(self) -> None:
        """End the connection; safe to call twice."""
        await self._endpoint.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()
