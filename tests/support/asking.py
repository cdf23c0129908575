"""A host that asks its client back: in memory, over HTTP, and as a process (`python <this>`)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from indusagi.interop import HostLimits
from indusagi.interop.protocol_bridge.host import RunningProviderHost
from indusagi.interop.protocol_bridge.host.dispatcher import RequestDispatcher
from indusagi.interop.protocol_bridge.host.http import open_http
from indusagi.interop.protocol_bridge.host.stdio import standard_streams
from indusagi.interop.protocol_bridge.rpc.connection import METHOD_NOT_FOUND, RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.core.json import JsonObject
    from indusagi.interop import HttpHost, HttpSettings
    from indusagi.interop.protocol_bridge.host.dispatcher import HostRequest, PendingResult
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
    from indusagi.interop.protocol_bridge.host.outgoing import ResponseChannel

FORM: JsonObject = {
    "mode": "form",
    "message": "What is your name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}
SAMPLE: JsonObject = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Say something."}}],
    "maxTokens": 100,
}
ASKED: dict[str, JsonObject | None] = {
    "elicitation/create": FORM,
    "sampling/createMessage": SAMPLE,
    "roots/list": None,
    "ping": None,
}


class AskingClient:
    """Answers one client; its one tool asks it what its argument says, and tells the answer."""

    def __init__(self, limits: HostLimits | None = None) -> None:
        self.version: str | None = None
        self.notification_channel: ResponseChannel | None = None
        self.dispatcher = RequestDispatcher(self._serve, None, limits)
        self.failures: list[Exception] = []
        self.within_s = 20.0

    async def close(self, reason: str) -> None:
        await self.dispatcher.close(reason)

    def _serve(self, request: HostRequest) -> JsonObject | PendingResult:
        if request.method == "initialize":
            self.version = "2025-11-25"
            return {
                "protocolVersion": self.version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "asking", "version": "1"},
            }
        if request.method == "tools/list":
            return {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}
        if request.method != "tools/call":
            raise RpcError(METHOD_NOT_FOUND, "not here")
        arguments: Any = request.params["arguments"]
        return self._ask(request, arguments["method"], unasked=arguments.get("unasked", False))

    async def _ask(self, request: HostRequest, method: str, *, unasked: bool) -> JsonObject:
        try:
            if unasked:
                assert self.notification_channel is not None
                asking = self.dispatcher.send_request(
                    method, ASKED[method], self.notification_channel, within_s=self.within_s
                )
            else:
                asking = request.send_request(method, ASKED[method], within_s=self.within_s)
            return {"content": [], "structuredContent": await asking}
        except Exception as exc:
            self.failures.append(exc)
            raise


@asynccontextmanager
async def asking_http(
    settings: HttpSettings, clients: list[AskingClient], limits: HostLimits | None = None
) -> AsyncGenerator[HttpHost]:
    """Serve over HTTP; every client it makes is kept in a list."""

    def new_session(_: ClientIdentity) -> AskingClient:
        clients.append(AskingClient(limits))
        return clients[-1]

    async with open_http(new_session, lambda name: None, settings) as serving:
        yield serving


async def _main() -> None:
    async with standard_streams(1 << 20) as link:
        running = RunningProviderHost(AskingClient(), HostLimits())
        await running.start(link)
        await link.input_ended.wait()
        await running.cancel()


if __name__ == "__main__":
    asyncio.run(_main())
