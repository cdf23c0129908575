"""MCP server over a tool box."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import cast

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.registry import ToolRegistry
from indusagi.capabilities.tool import DefinedTool
from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.interop.protocol_bridge.host import (
    ProviderHost,
    ProviderHostInfo,
    RunningProviderHost,
    create_provider_host,
)
from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
from indusagi.interop.protocol_bridge.host.server import HostTransport
from indusagi.runtime.contract import ToolBox

_DEFAULT = ProviderHostInfo()


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
        """Serve a tool box, a function that returns the present one, or tools.

        Tools run in `context`. Without one they have no files and no commands of this machine:
        `make_local_context(directory)` gives them those of a directory.
        """
        if callable(tools) or hasattr(tools, "descriptors"):
            box = cast("ToolBox | Callable[[], ToolBox]", tools)
        else:
            registry = ToolRegistry()
            registry.register_all(cast("Iterable[DefinedTool]", tools))
            box = registry.to_tool_box(context or make_inert_context())
        self._host = create_provider_host(box, ProviderHostInfo(name, version))

    @property
    def host(self) -> ProviderHost:
        """The provider host that does the work."""
        return self._host

    async def connect(self, transport: HostTransport) -> RunningProviderHost:
        """Serve one client over a transport; returns once serving has begun.

        Raises:
            ProtocolFault: The value is not a transport (kind `transport`).
        """
        return await self._host.connect(transport)

    async def serve_stdio(self, stop: CancelToken | None = None) -> None:
        """Serve the client that started this process, until it disconnects or `stop` is cancelled.

        Raises:
            ProtocolFault: Standard input or output cannot be used (kind `transport`).
        """
        await self._host.serve_stdio(stop)

    def serve_http(self, settings: HttpSettings | None = None) -> AbstractAsyncContextManager[HttpHost]:
        """Serve clients over HTTP while the block runs."""
        return self._host.serve_http(settings)

    def notify_changed(self) -> bool:
        """Read the tool box again, and notify every client if its tools have changed."""
        return self._host.refresh_tools()
