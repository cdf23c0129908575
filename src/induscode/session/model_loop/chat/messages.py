"""Pictures, where a model takes none: what it is told in their place.

A conversation of the model loop as the messages of a Chat Completions request.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai import BinaryContent
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic_ai.exceptions import ModelAPIError
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, UserContent
    from pydantic_ai.tools import ToolDefinition


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


REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where servers put what a model thinks: DeepSeek, vLLM and llama.cpp; Ollama and OpenRouter."""
THINKING_TAGS = ("<think>", "</think>")


def write_messages(messages: Sequence[ModelMessage], instructions: Sequence[str], system: str) -> list[dict[str, Any]]:
    """Write a conversation, with the instructions of this request before it.

    What a model thought goes back in the field that it came in, to the server that it came from;
    DeepSeek refuses a call of a tool without it. Elsewhere it is text in tags.
    """
    written = [{"role": "system", "content": one} for one in instructions]
    for message in messages:
        if isinstance(message, ModelRequest):
            written.extend(_write_request(message))
        elif (answer := _write_response(message, system)) is not None:
            written.append(answer)
    _complete_reasoning(written)
    return written


def write_tool(tool: ToolDefinition) -> dict[str, Any]:
    """Write the definition of a tool."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
    return {"type": "function", "function": function}


def _write_request(message: ModelRequest) -> Iterator[dict[str, Any]]:
    files: list[UserContent] = []
    for part in message.parts:
        if isinstance(part, SystemPromptPart):
            yield {"role": "system", "content": part.content}
        elif isinstance(part, UserPromptPart):
            yield _write_prompt(part.content)
        elif isinstance(part, ToolReturnPart):
            text, beside = part.model_response_str_and_user_content()
            files.extend(beside)
            yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}
    if files:  # an answer of a tool is text here; what is not follows in a message of its own
        yield _write_prompt(files)


def _write_prompt(content: str | Sequence[UserContent]) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "user", "content": content}
    return {"role": "user", "content": [_write_content(one) for one in content]}


def _write_content(item: UserContent) -> dict[str, Any]:
    if isinstance(item, BinaryContent):
        return _write_file(item)
    text = item.content if isinstance(item, TextContent) else item
    return {"type": "text", "text": text if isinstance(text, str) else f"[{text!r}: left out]"}


def _write_file(file: BinaryContent) -> dict[str, Any]:
    if file.is_image:
        return {"type": "image_url", "image_url": {"url": file.data_uri}}
    if file.media_type in {"audio/wav", "audio/mpeg"}:
        audio = {"data": file.base64, "format": file.format}
        return {"type": "input_audio", "input_audio": audio}
    if file.media_type == "application/pdf":
        document = {"file_data": file.data_uri, "filename": "document.pdf"}
        return {"type": "file", "file": document}
    if file.media_type.startswith("text/") or file.media_type.endswith(("json", "xml", "yaml")):
        return {"type": "text", "text": file.data.decode("utf-8", "replace")}
    return {"type": "text", "text": in_words(file)}


def _write_response(message: ModelResponse, system: str) -> dict[str, Any] | None:
    """Write what a model said; None if there is nothing that may be sent back."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thoughts: dict[str, list[str]] = {}
    for part in message.parts:
        if isinstance(part, TextPart):
            texts.append(part.content)
        elif isinstance(part, ThinkingPart):
            if part.id in REASONING_FIELDS and part.provider_name == system:
                thoughts.setdefault(part.id, []).append(part.content)
            else:
                start, end = THINKING_TAGS
                texts.append(f"{start}\n{part.content}\n{end}")
        elif isinstance(part, ToolCallPart):
            function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
            calls.append({"id": part.tool_call_id, "type": "function", "function": function})
    if not texts and not calls:
        return None
    written: dict[str, Any] = {"role": "assistant"}
    written |= {field: "\n\n".join(pieces) for field, pieces in thoughts.items()}
    written["content"] = "\n\n".join(texts) if texts else None
    if calls:
        written["tool_calls"] = calls
    return written


def _complete_reasoning(written: list[dict[str, Any]]) -> None:
    """Add an empty field for reasoning to calls since the last prompt that have none.

    DeepSeek refuses them otherwise, once one of them has the field:
    https://api-docs.deepseek.com/guides/thinking_mode#tool-calls.
    """
    fields = {name for one in written for name in REASONING_FIELDS if name in one}
    if len(fields) != 1:
        return
    (field,) = fields
    for one in reversed(written):
        if one["role"] == "user":
            return
        if one.get("tool_calls"):
            one.setdefault(field, "")
