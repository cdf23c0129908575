"""Content blocks of tool results, and their JSON form.

There are two kinds: text, and JSON for everything else. An image, a resource or a block type of a later MCP revision is
a JSON block with the object as it arrived
(https://modelcontextprotocol.io/specification/2025-06-18/server/tools#tool-result).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record


@record
class TextContentBlock:
    """Text for the model."""

    kind: ClassVar[Literal["text"]] = "text"
    text: str
    extra: JsonObject | None = None
    """Further fields of an MCP block (`annotations`, `_meta`)."""

    def __post_init__(self) -> None:
        # Refused here, where the mistake is made.
        if not isinstance(self.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a text block holds text, not {type(self.text).__name__}")


@record
class JsonContentBlock:
    """Any JSON value, for example an MCP block other than text."""

    kind: ClassVar[Literal["json"]] = "json"
    value: JsonValue


ToolContentBlock: TypeAlias = TextContentBlock | JsonContentBlock


def project_content(content: Sequence[ToolContentBlock]) -> JsonValue:
    """Fold blocks into one value: a single text block is its string, a single JSON block its value.

    None or several become an array of tagged objects, so that nothing is lost.
    """
    if len(content) == 1:
        (block,) = content
        return block.text if isinstance(block, TextContentBlock) else block.value
    return [
        {"type": block.kind, "text": block.text}
        if isinstance(block, TextContentBlock)
        else {"type": block.kind, "value": block.value}
        for block in content
    ]
