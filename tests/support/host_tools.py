"""A box of tools for tests of the provider host, and what its tools have seen."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.registry import ToolRegistry
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolProgress, ToolResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.registry import RegistryToolBox
    from indusagi.capabilities.tool import ToolAnswer
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import JsonSchema

PNG = "iVBORw0KGgo="
MEDIA: list[JsonObject] = [
    {"type": "image", "data": PNG, "mimeType": "image/png"},
    {"type": "audio", "data": PNG, "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "test://a", "mimeType": "text/plain", "text": "in"}},
    {"type": "resource_link", "uri": "test://b", "name": "b", "mimeType": "text/plain"},
]
EMPTY: JsonSchema = {"type": "object", "properties": {}}
ECHO: JsonSchema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"text": {"type": "string", "default": "x"}, "region": {"$ref": "#/$defs/r"}},
    "$defs": {"r": {"type": ["string", "null"]}},
    "additionalProperties": False,
}
COUNT: JsonSchema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
HEADED: JsonSchema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


@dataclass(eq=False)
class Bench:
    """The tools, and what happened in them."""

    seen: Counter[str] = field(default_factory=Counter[str])
    began: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    reasons: list[str | None] = field(default_factory=list["str | None"])
    asked: int = 0
    """How often the box was asked what is in it."""

    def __post_init__(self) -> None:
        self.registry = ToolRegistry()
        self.context = make_local_context("/")
        self.add("echo", self._echo, ECHO, title="Say it again", read_only=True)
        self.add("media", self._media)
        self.add("count", self._count, output_schema=COUNT)
        self.add("rows", self._rows, output_schema={"type": "array"})
        self.add("fail", self._fail)
        self.add("boom", self._boom)
        self.add("steps", self._steps)
        self.add("hang", self._hang)
        self.add("env", self._env)
        self.add("headed", self._echo, HEADED)

    def add(
        self,
        name: str,
        run: Callable[[JsonObject, ToolContext], Awaitable[ToolAnswer]],
        parameters: JsonSchema = EMPTY,
        *,
        title: str | None = None,
        read_only: bool = False,
        output_schema: JsonSchema | None = None,
    ) -> None:
        spec = ToolSpec(
            name,
            f"What {name} does.",
            parameters,
            run,
            title=title,
            read_only=read_only,
            output_schema=output_schema,
            annotations={"openWorldHint": False},
        )
        self.registry.register(define_tool(spec))

    def box(self) -> RegistryToolBox:
        self.asked += 1
        return self.registry.to_tool_box(self.context)

    async def _echo(self, arguments: JsonObject, ctx: ToolContext) -> ToolAnswer:
        self.seen["echo"] += 1
        return str(arguments.get("text", ""))

    async def _media(self, arguments: JsonObject, ctx: ToolContext) -> ToolAnswer:
        said = TextContentBlock("look", {"annotations": {"priority": 1}})
        return ToolResult(
            [said, *(JsonContentBlock(block) for block in MEDIA)],
            details={"_meta": {"vendor/key": [1, None]}, "path": "/secret/place"},
        )

    async def _count(self, arguments: JsonObject, ctx: ToolContext) -> ToolAnswer:
        return ToolResult([TextContentBlock('{"count":3}')], structured={"count": 3})

    async def _rows(self, arguments: JsonObject, ctx: ToolContext) -> ToolAnswer:
        return ToolResult([TextContentBlock("[1,2]")], structured=[1, 2])

    async def _fail(self, arguments: JsonObject, ctx: ToolContext) -> ToolAnswer:
        return ToolResult.error("There is no such file: look in docs/.", code="not_found")

    async def _boom(self, arguments: JsonObject, ctx: ToolContext) -> ToolAnswer:
        raise RuntimeError("wrong")

    async def _steps(self, arguments: JsonObject, ctx: ToolContext) -> ToolAnswer:
        for done in (1, 2, 2, 3):
            if ctx.on_progress is not None:
                ctx.on_progress(ToolProgress(done, 3, f"step {done}"))
            await asyncio.sleep(0)
        return "walked"

    async def _hang(self, arguments: JsonObject, ctx: ToolContext) -> ToolAnswer:
        self.seen["hang"] += 1
        self.began.set()
        try:
            await self.let_go.wait()
        finally:
            self.reasons.append(ctx.cancel.reason)
            self.ended.set()
        return "let go"

    async def _env(self, arguments: JsonObject, ctx: ToolContext) -> ToolAnswer:
        return dict(os.environ)
