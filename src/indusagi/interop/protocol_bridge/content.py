"""Conversion between content blocks of MCP and content blocks of the kernel; nothing is lost.

https://modelcontextprotocol.io/specification/2025-06-18/server/tools#tool-result. A text block becomes a text block
that keeps the other keys of the object. Every other block, of a known or unknown type, becomes a JSON block with the
object as it came.
"""

from __future__ import annotations

from collections.abc import Sequence

from indusagi.core.json import JsonObject, JsonValue, compact_json
from indusagi.core.notes import Note
from indusagi.interop.protocol_bridge.contract import RemoteCallResult
from indusagi.runtime.content import JsonContentBlock, TextContentBlock, ToolContentBlock
from indusagi.runtime.contract import ToolResult

BLOCK_TYPES = frozenset({"text", "image", "audio", "resource", "resource_link"})


def parse_call_result(result: JsonObject, owner: str) -> RemoteCallResult:
    """Parse the result of `tools/call`; `owner` names the tool in notes about what is odd."""
    content = result.get("content")
    notes: list[Note] = []
    if not isinstance(content, list):
        shown = "no content" if content is None else f"content of type {type(content).__name__}"
        notes.append(Note(owner, f"the answer has {shown} instead of a list of blocks"))
        content = []
    meta = result.get("_meta")
    return RemoteCallResult(
        content,
        result.get("isError") is True,
        structured=result.get("structuredContent"),
        meta=meta if isinstance(meta, dict) else None,
        notes=tuple(notes),
    )


def to_tool_result(result: RemoteCallResult) -> ToolResult:
    """Convert the result of a remote call into a tool result."""
    details: dict[str, JsonValue] = {}
    if result.meta is not None:
        details["_meta"] = result.meta
    if result.notes:
        details["notes"] = [str(note) for note in result.notes]
    blocks = [from_block(block) for block in result.content]
    return ToolResult(blocks, result.is_error, structured=result.structured, details=details)


def from_block(block: JsonValue) -> ToolContentBlock:
    """Convert one block of MCP into one of the kernel."""
    if isinstance(block, dict) and block.get("type") == "text":
        text = block.get("text")
        if isinstance(text, str):
            if len(block) == 2:  # `type` and `text`
                return TextContentBlock(text)
            extra = {key: value for key, value in block.items() if key not in {"type", "text"}}
            return TextContentBlock(text, extra)
    return JsonContentBlock(block)


def to_blocks(content: Sequence[ToolContentBlock]) -> list[JsonObject]:
    """Convert blocks of the kernel into blocks of MCP."""
    return [to_block(block) for block in content]


def to_block(block: ToolContentBlock) -> JsonObject:
    """Convert one block of the kernel into one of MCP; JSON that is not a block becomes text."""
    if isinstance(block, TextContentBlock):
        return {"type": "text", "text": block.text, **(block.extra or {})}
    if isinstance(block.value, dict):
        kind = block.value.get("type")
        if isinstance(kind, str) and kind in BLOCK_TYPES:
            return block.value
    return {"type": "text", "text": compact_json(block.value)}
