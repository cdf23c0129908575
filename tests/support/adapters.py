"""A toolbox for adapters: a tool for each kind of result, and one that waits for its cancellation."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import anyio

from indusagi.capabilities import ToolRegistry, ToolSpec, define_tool
from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.runtime import JsonContentBlock, TextContentBlock, ToolResult

if TYPE_CHECKING:
    from indusagi.capabilities import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime import ToolBox

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4\n%%EOF\n"
TEXT: JsonObject = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
NOTHING: JsonObject = {"type": "object", "properties": {}}


class Shelf:
    """Tools that note what happens to them."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.started = anyio.Event()
        self.ended = anyio.Event()

    async def echo(self, arguments: JsonObject, ctx: ToolContext) -> str:
        self.events.append(f"echo {arguments['text']}")
        return str(arguments["text"])

    async def change(self, arguments: JsonObject, ctx: ToolContext) -> str:
        self.events.append("change begins")
        await anyio.lowlevel.checkpoint()
        self.events.append("change ends")
        return "changed"

    async def fail(self, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        return ToolResult.error("the shelf is empty", code="empty")

    async def picture(self, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        image: JsonObject = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PNG).decode()}
        blob: JsonObject = {
            "uri": "file:///a.pdf",
            "mimeType": "application/pdf",
            "blob": base64.b64encode(PDF).decode(),
        }
        document: JsonObject = {"type": "resource", "resource": blob}
        blocks = (TextContentBlock("a picture"), JsonContentBlock(image), JsonContentBlock(document))
        return ToolResult(blocks, structured={"count": 2})

    async def slow(self, arguments: JsonObject, ctx: ToolContext) -> JsonValue:
        self.events.append("slow begins")
        self.started.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.events.append("slow is cancelled")
            self.ended.set()

    def open_box(self) -> ToolBox:
        """Build the toolbox."""
        registry = ToolRegistry()
        for name, schema, run, read_only in (
            ("echo", TEXT, self.echo, True),
            ("change", NOTHING, self.change, False),
            ("fail", NOTHING, self.fail, True),
            ("picture", NOTHING, self.picture, True),
            ("slow", NOTHING, self.slow, True),
        ):
            spec = ToolSpec(name, f"The tool {name}.", schema, run, read_only=read_only)
            registry.register(define_tool(spec))
        return registry.to_tool_box(make_inert_context())
