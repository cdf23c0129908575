"""Facade for MCP: a client for one server, and a server for a tool box.

`MCPClient` holds one `indusagi.interop` endpoint per connection; `MCPServer` is a provider host. `indusagi.interop` has
everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self, cast

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.registry import ToolRegistry
from indusagi.capabilities.tool import DefinedTool
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject, JsonValue
from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.contract import (
    EndpointStatus,
    ItemKind,
    RemoteCallResult,
    RemoteTool,
    ServerConfig,
    is_terminal_phase,
    is_usable_phase,
)
from indusagi.interop.protocol_bridge.endpoint import InjectedTransport, ServerEndpointImpl, create_server_endpoint
from indusagi.interop.protocol_bridge.host import (
    HostTransport,
    ProviderHostInfo,
    RunningProviderHost,
    create_provider_host,
)
from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
from indusagi.runtime.contract import ProgressSink, ToolBox

__all__ = ["MCPClient", "MCPServer"]

_DEFAULT = ProviderHostInfo()


class MCPClient:
    """A client of one server that can reconnect after its connection ends.

    Use it in an `async with` block, or call `connect` and `disconnect`.
    """

    def __init__(
        self, config: ServerConfig, transport: InjectedTransport | None = None, *, handlers: Handlers | None = None
    ) -> None:
        """Set the server's configuration; `transport` overrides its transport."""
        self._config = config
        self._transport = transport
        self._handlers = handlers
        self.endpoint = self._make_endpoint()
        """The endpoint of the current connection."""

    def _make_endpoint(self) -> ServerEndpointImpl:
        return create_server_endpoint(self._config, self._transport, handlers=self._handlers)

    @property
    def connected(self) -> bool:
        """Whether tools can be called."""
        return is_usable_phase(self.endpoint.phase)

    def status(self) -> EndpointStatus:
        """Return the state of the connection."""
        return self.endpoint.status()

    async def connect(self) -> None:
        """Connect, or reconnect after the last connection ended.

        Raises `ProtocolFault` if the server can't be reached.
        """
        if is_terminal_phase(self.endpoint.phase):
            self.endpoint = self._make_endpoint()
        await self.endpoint.open()

    async def list_tools(self) -> Sequence[RemoteTool]:
        """List the server's tools. Raises `ProtocolFault` if not connected, or the listing failed."""
        return await self.endpoint.list_tools()

    async def list_items(self, kind: ItemKind) -> Sequence[RemoteTool]:
        """List the server's resources, templates or prompts.

        Raises `ProtocolFault` if not connected, or the listing failed.
        """
        return await self.endpoint.list_items(kind)

    async def read_resource(self, uri: str) -> JsonObject:
        """Read a resource; the result has its `contents`.

        Raises `ProtocolFault` if not connected, refused, timed out, or the connection was lost.
        """
        return await self.endpoint.request("resources/read", {"uri": uri})

    async def get_prompt(self, name: str, arguments: JsonObject | None = None) -> JsonObject:
        """Get a prompt; the result has its `messages`.

        Raises `ProtocolFault` if not connected, refused, timed out, or the connection was lost.
        """
        return await self.endpoint.request("prompts/get", {"name": name, "arguments": arguments or {}})

    async def call_tool(
        self,
        name: str,
        arguments: JsonValue = None,
        *,
        cancel: CancelToken | None = None,
        on_progress: ProgressSink | None = None,
    ) -> RemoteCallResult:
        """Call a tool by the server's own name for it.

        Raises `ProtocolFault` if not connected, refused, timed out, cancelled, or the connection was lost.
        """
        return await self.endpoint.invoke(name, arguments, cancel=cancel, on_progress=on_progress)

    async def disconnect(self) -> None:
        """End the connection. Safe to call twice."""
        await self.endpoint.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()


class MCPServer:
    """Tools that MCP clients can list and call."""

    def __init__(
        self,
        tools: ToolBox | Callable[[], ToolBox] | Iterable[DefinedTool],
        *,
        name: str = _DEFAULT.name,
        version: str = _DEFAULT.version,
        context: ToolContext | None = None,
    ) -> None:
        """Serve a tool box, a function that returns the current one, or tools.

        Tools run in `context`. Without one they can't access files or run commands on this machine;
        `make_local_context(directory)` gives them access to a directory.
        """
        if callable(tools) or hasattr(tools, "descriptors"):
            box = cast("ToolBox | Callable[[], ToolBox]", tools)
        else:
            registry = ToolRegistry()
            registry.register_all(cast("Iterable[DefinedTool]", tools))
            box = registry.to_tool_box(context or make_inert_context())
        self.host = create_provider_host(box, ProviderHostInfo(name, version))
        """The provider host that does the work."""

    async def connect(self, transport: HostTransport) -> RunningProviderHost:
        """Serve one client over a transport; return once serving has started.

        Raises `ProtocolFault` if `transport` isn't a transport (kind `transport`).
        """
        return await self.host.connect(transport)

    async def serve_stdio(self, stop: CancelToken | None = None) -> None:
        """Serve the client that started this process, until it disconnects or `stop` is cancelled.

        Raises `ProtocolFault` if standard input or output can't be used (kind `transport`).
        """
        await self.host.serve_stdio(stop)

    def serve_http(self, settings: HttpSettings | None = None) -> AbstractAsyncContextManager[HttpHost]:
        """Serve clients over HTTP while the block runs."""
        return self.host.serve_http(settings)

    def notify_changed(self) -> bool:
        """Read the tool box again, and notify all clients if its tools changed."""
        return self.host.refresh_tools()
