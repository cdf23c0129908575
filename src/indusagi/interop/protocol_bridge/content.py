"""Blocks of the MCP protocol ↔ blocks of the kernel. The only translator, and it loses nothing.

Text becomes a text block that keeps whatever else the block carried. Everything else, also a type
nobody has heard of, becomes a JSON block that holds the object it arrived as.
"""

from __future__ import annotations

from collections.abc import Sequence

from indusagi.core.json import JsonObject, JsonValue, compact_json
from indusagi.core.notes import Note
from indusagi.interop.protocol_bridge.contract import RemoteCallResult
from indusagi.runtime.content import JsonContentBlock, TextContentBlock, ToolContentBlock
from indusagi.runtime.contract import ToolResult

BLOCK_TYPES = frozenset({"text", "image", "audio", "resource", "resource_link"})


def read_result(answer: JsonObject, owner: str) -> RemoteCallResult:
    """Read the answer to a call; what is odd about it is noted, and nothing is thrown away."""
    content = answer.get("content")
    notes: list[Note] = []
    if not isinstance(content, list):
        found = "no content" if content is None else f"content of type {type(content).__name__}"
        notes.append(Note(owner, f"the answer has {found} instead of a list of blocks"))
        content = []
    meta = answer.get("_meta")
    return RemoteCallResult(
        content,
        answer.get("isError") is True,
        structured=answer.get("structuredContent"),
        meta=meta if isinstance(meta, dict) else None,
        notes=tuple(notes),
    )


def to_tool_result(result: RemoteCallResult) -> ToolResult:
    """Turn a server's answer into a tool's answer."""
    details: dict[str, JsonValue] = {}
    if result.meta is not None:
        details["_meta"] = result.meta
    if result.notes:
        details["notes"] = [str(note) for note in result.notes]
    blocks = [from_block(block) for block in result.content]
    return ToolResult(blocks, result.is_error, structured=result.structured, details=details)


def from_block(block: JsonValue) -> ToolContentBlock:
    """Turn one block of the protocol into one of the kernel."""
    if isinstance(block, dict) and block.get("type") == "text":
        text = block.get("text")
        if isinstance(text, str):
            if len(block) == 2:  # these two
                return TextContentBlock(text)
            extra = {key: value for key, value in block.items() if key not in {"type", "text"}}
            return TextContentBlock(text, extra)
    return JsonContentBlock(block)


def to_blocks(content: Sequence[ToolContentBlock]) -> list[JsonObject]:
    """Turn blocks of the kernel into blocks of the protocol."""
    return [to_block(block) for block in content]


def to_block(block: ToolContentBlock) -> JsonObject:
    """Turn one block into one of the protocol; JSON that is none travels as text."""
    if isinstance(block, TextContentBlock):
        return {"type": "text", "text": block.text, **(block.extra or {})}
    if isinstance(block.value, dict):
        kind = block.value.get("type")
        if isinstance(kind, str) and kind in BLOCK_TYPES:
            return block.value
    return {"type": "text", "text": compact_json(block.value)}
