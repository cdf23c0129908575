"""The blocks a tool answers with, and the one flat value that stands for several of them.

There are two kinds. Text is text; everything else is JSON, and an image, a resource or a block
type nobody has heard of yet rides in a JSON block as the object it arrived as.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from indusagi.core.json import JsonObject, JsonValue


@dataclass(frozen=True, slots=True)
class TextContentBlock:
    """Text for the model, exactly as given."""

    kind: ClassVar[Literal["text"]] = "text"
    text: str
    extra: JsonObject | None = None
    """What a block of the MCP protocol carried besides its text (annotations, `_meta`)."""

    def __post_init__(self) -> None:
        # Refused where it is made, not where somebody trips over it.
        if not isinstance(self.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a text block holds text, not {type(self.text).__name__}")


@dataclass(frozen=True, slots=True)
class JsonContentBlock:
    """Any JSON value; a block of the MCP protocol is kept here verbatim."""

    kind: ClassVar[Literal["json"]] = "json"
    value: JsonValue


ToolContentBlock: TypeAlias = TextContentBlock | JsonContentBlock


def project_content(content: Sequence[ToolContentBlock]) -> JsonValue:
    """Fold blocks into one value: a lone text is its string, a lone JSON its value.

    None or several become an array of tagged fragments, so that nothing is dropped.
    """
    if len(content) == 1:
        (block,) = content
        return block.text if isinstance(block, TextContentBlock) else block.value
    return [_fragment(block) for block in content]


def _fragment(block: ToolContentBlock) -> JsonValue:
    if isinstance(block, TextContentBlock):
        return {"type": block.kind, "text": block.text}
    return {"type": block.kind, "value": block.value}
