"""Converts servers' sampling requests to model requests, and the response to their result.

https://modelcontextprotocol.io/specification/2025-06-18/client/sampling#creating-messages. The session's model answers
without tools and without the conversation, so a server learns nothing that it didn't send.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from pydantic_ai import BinaryContent
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.settings import ModelSettings

from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from indusagi.core.json import JsonObject, JsonValue

_STOP_REASONS = {"stop": "endTurn", "length": "maxTokens"}


def parse_sampling_request(params: JsonObject) -> tuple[list[ModelMessage], ModelSettings]:
    """Convert the parameters of `sampling/createMessage` to messages and settings of a model request.

    Raises:
        RpcError: They're invalid or require an unsupported feature.
    """
    if params.get("tools"):
        raise RpcError(INVALID_PARAMS, "sampling with tools is not offered")
    limit, rows = params.get("maxTokens"), params.get("messages")
    if not isinstance(limit, int) or limit < 1:
        raise RpcError(INVALID_PARAMS, "maxTokens must be a positive number")
    messages = [_parse_message(row) for row in rows] if isinstance(rows, list) else []
    if not messages or not isinstance(messages[-1], ModelRequest):
        raise RpcError(INVALID_PARAMS, "the last message must be one of the user")
    system = params.get("systemPrompt")
    if isinstance(system, str) and system:
        messages[-1].instructions = system
    settings = ModelSettings(max_tokens=limit)
    temperature, stops = params.get("temperature"), params.get("stopSequences")
    if isinstance(temperature, (int, float)):
        settings["temperature"] = temperature
    if isinstance(stops, list) and stops:
        settings["stop_sequences"] = [stop for stop in stops if isinstance(stop, str)]
    return messages, settings


def _parse_message(row: JsonValue) -> ModelMessage:
    role = row.get("role") if is_json_object(row) else None
    if not is_json_object(row) or role not in ("user", "assistant"):
        raise RpcError(INVALID_PARAMS, f"a message has the role {role!r}")
    content = row.get("content")
    blocks = [_parse_block(block) for block in (content if isinstance(content, list) else [content])]
    if role == "user":
        return ModelRequest(parts=[UserPromptPart(blocks)])
    return ModelResponse(parts=[TextPart(block) for block in blocks if isinstance(block, str)])


def _parse_block(block: JsonValue) -> str | BinaryContent:
    kind = block.get("type") if is_json_object(block) else None
    if is_json_object(block) and kind == "text" and isinstance(text := block.get("text"), str):
        return text
    if is_json_object(block) and kind in ("image", "audio") and isinstance(data := block.get("data"), str):
        try:
            return BinaryContent(base64.b64decode(data, validate=True), media_type=str(block.get("mimeType")))
        except binascii.Error as exc:
            raise RpcError(INVALID_PARAMS, f"the data of a message is not valid base64: {exc}") from exc
    raise RpcError(INVALID_PARAMS, f"a message holds content of type {kind!r}")


def build_sampling_result(response: ModelResponse, model: str) -> JsonObject:
    """Convert a model response to the result of `sampling/createMessage`."""
    text = "\n\n".join(part.content for part in response.parts if isinstance(part, TextPart))
    result: JsonObject = {
        "role": "assistant",
        "content": {"type": "text", "text": text},
        "model": response.model_name or model,
    }
    details = response.provider_details or {}
    if details.get("finish_reason") == "stop_sequence":
        result["stopReason"] = "stopSequence"
    elif response.finish_reason in _STOP_REASONS:
        result["stopReason"] = _STOP_REASONS[response.finish_reason]
    return result
