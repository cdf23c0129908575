"""The host that the conformance suite judges: `python -m outside.conformance.host [port]`.

A box of tools under the names that the suite calls, behind a provider host of ours, over HTTP and
without a token, which the suite cannot send. It prints its address and serves until it is told to
end. Nothing in here knows the protocol: that is the business of the host under test.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from indusagi.capabilities import ToolRegistry, ToolSpec, define_tool, make_local_context
from indusagi.core.cancel import ending_signals
from indusagi.interop import HttpSettings, ProviderHostInfo, create_provider_host
from indusagi.runtime import JsonContentBlock, TextContentBlock, ToolProgress, ToolResult
from outside.conformance.questions import OF_TEXT, PLAIN
from outside.conformance.server import schemas
from outside.conformance.server.samples import PNG, WAV
from outside.say import say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from indusagi.capabilities import ToolBox, ToolContext
    from indusagi.core.json import JsonLike, JsonObject
    from indusagi.interop import ProviderHost
    from indusagi.runtime import JsonSchema

_IMAGE: JsonObject = {"type": "image", "data": PNG, "mimeType": "image/png"}
_AUDIO: JsonObject = {"type": "audio", "data": WAV, "mimeType": "audio/wav"}


def _resource(uri: str, kind: str, text: str) -> JsonObject:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": text}}


def _answering(answer: ToolResult) -> Callable[[JsonObject, ToolContext], Awaitable[ToolResult]]:
    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        return answer

    return run


def _blocks(*blocks: JsonObject) -> ToolResult:
    return ToolResult([JsonContentBlock(block) for block in blocks])


async def _progress(arguments: JsonObject, ctx: ToolContext) -> JsonLike:
    for done in (0, 50, 100):
        if ctx.on_progress is not None:
            ctx.on_progress(ToolProgress(done, 100, f"{done} of 100"))
        await asyncio.sleep(0.05)
    return "done"


class Subject:
    """The box, which grows by a tool whenever it is told to."""

    def __init__(self) -> None:
        self.host: ProviderHost = create_provider_host(self.box, ProviderHostInfo("indus-conformance", "1.0"))
        self._registry = ToolRegistry()
        self._context = make_local_context(".")
        self._grown = 0
        mixed = ToolResult(
            [
                TextContentBlock("Multiple content types test:"),
                JsonContentBlock(_IMAGE),
                JsonContentBlock(_resource("test://mixed", "application/json", '{"test":"data"}')),
            ]
        )
        embedded = _resource("test://embedded-resource", "text/plain", "An embedded resource.")
        failed = ToolResult.error("This tool intentionally returns an error", code="failed")
        text = ToolResult.text("This is a simple text response for testing.")
        self._add("test_simple_text", _answering(text))
        self._add("test_image_content", _answering(_blocks(_IMAGE)))
        self._add("test_audio_content", _answering(_blocks(_AUDIO)))
        self._add("test_embedded_resource", _answering(_blocks(embedded)))
        self._add("test_multiple_content_types", _answering(mixed))
        self._add("test_error_handling", _answering(failed))
        self._add("test_tool_with_progress", _progress)
        self._add("test_trigger_tool_change", self._grow)
        self._add("json_schema_2020_12_tool", _answering(text), schemas.RICH)
        self._add("test_x_mcp_header", _answering(text), schemas.HEADER)
        for name, run in PLAIN.items():
            self._add(name, run)
        for name, (argument, run) in OF_TEXT.items():
            self._add(name, run, schemas.of_text(argument))

    def box(self) -> ToolBox:
        """Give the tools there are now."""
        return self._registry.to_tool_box(self._context)

    def _add(
        self,
        name: str,
        run: Callable[[JsonObject, ToolContext], Awaitable[ToolResult | JsonLike]],
        parameters: JsonSchema = schemas.NOTHING,
    ) -> None:
        spec = ToolSpec(name, f"What {name} is for.", parameters, run)
        self._registry.register(define_tool(spec))

    async def _grow(self, arguments: JsonObject, ctx: ToolContext) -> JsonLike:
        self._grown += 1
        self._add(f"grown_{self._grown}", _answering(ToolResult.text("here I am")))
        self.host.refresh_tools()
        return "the list of tools has changed"


async def main(port: int) -> None:
    """Serve until told to end."""
    settings = HttpSettings(port=port, without_token=True, sessions=64)
    async with ending_signals() as told, Subject().host.serve_http(settings) as serving:
        say(serving.url.replace("127.0.0.1", "localhost"))
        await told


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
