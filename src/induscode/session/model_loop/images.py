"""Pictures, where a model takes none: what it is told in their place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic_ai import BinaryContent
from pydantic_ai.messages import ModelRequest, UserPromptPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.exceptions import ModelAPIError
    from pydantic_ai.messages import ModelMessage, ModelRequestPart


def about_pictures(error: ModelAPIError, messages: Sequence[ModelMessage]) -> bool:
    """Tell whether a model refused a request because of the pictures in it."""
    said = str(error).lower()
    blamed = any(word in said for word in ("image", "multimodal", "vision"))
    return blamed and any(without_pictures(one) is not one for one in messages)


def without_pictures(message: ModelMessage) -> ModelMessage:
    """Give a message with words in the place of pictures; itself if it has none."""
    if not isinstance(message, ModelRequest):
        return message
    parts = [_part_in_words(part) for part in message.parts]
    changed = any(one is not other for one, other in zip(parts, message.parts, strict=True))
    return replace(message, parts=parts) if changed else message


def _part_in_words(part: ModelRequestPart) -> ModelRequestPart:
    if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
        return part
    content = [in_words(one) if isinstance(one, BinaryContent) else one for one in part.content]
    return part if content == [*part.content] else replace(part, content=content)


def in_words(file: BinaryContent) -> str:
    """Name a picture that a model is not shown."""
    return f"[{file.media_type}, {len(file.data):,} bytes: left out, this model does not take it]"
