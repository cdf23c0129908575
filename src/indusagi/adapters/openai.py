"""Adapter for the OpenAI API: function tools, and the items or messages that answer a response's calls.

It's all plain JSON, so you don't need the package `openai`. The Responses API supports images and files in results. The
Chat Completions API only supports text, so they follow in a user message. Neither marks errors: a failed result starts
with `Error:`.

https://platform.openai.com/docs/guides/function-calling
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from indusagi.adapters.calls import (
    AdapterCalls,
    Attachment,
    Gate,
    ModelContent,
    PlainTools,
    copy_parameters,
    parse_arguments,
    to_plain_object,
)
from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import ToolBox, ToolCall


def to_openai(
    box: ToolBox,
    *,
    gate: Gate | None = None,
    cancel: CancelToken | None = None,
    api: Literal["responses", "chat"] = "responses",
) -> OpenAITools:
    """Give a toolbox to models of the OpenAI API.

    Raises `MissingGateError` if there's no gate, and the toolbox doesn't check its calls.
    """
    calls = AdapterCalls(box, gate, cancel)
    return OpenAITools(calls) if api == "responses" else OpenAIChatTools(calls)


class OpenAITools(PlainTools):
    """Tools for `responses.create`."""

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The current tools, for the parameter `tools`."""
        return [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": copy_parameters(tool),
                "strict": False,
            }
            for tool in self.calls.descriptors()
        ]

    def read(self, response: Any) -> tuple[Sequence[dict[str, Any]], Sequence[ToolCall]]:
        """Return the output of a response, and its calls."""
        output = [to_plain_object(item) for item in to_plain_object(response).get("output") or ()]
        calls = [
            ToolCall(str(item.get("call_id")), str(item.get("name")), parse_arguments(item.get("arguments") or ""))
            for item in output
            if item.get("type") == "function_call"
        ]
        return output, calls

    def answer(
        self, output: Sequence[dict[str, Any]], calls: Sequence[ToolCall], contents: Sequence[ModelContent]
    ) -> list[dict[str, Any]]:
        """Build the model's output and the results."""
        answers: list[dict[str, Any]] = []
        for call, content in zip(calls, contents, strict=True):
            value: Any = content.marked_text
            if content.attachments:
                text = [{"type": "input_text", "text": value}] if value else []
                value = [*text, *map(_to_input_part, content.attachments)]
            answers.append({"type": "function_call_output", "call_id": call.id, "output": value})
        return [*output, *answers]


class OpenAIChatTools(OpenAITools):
    """Tools for `chat.completions.create`."""

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The current tools, for the parameter `tools`."""
        rows = super().definitions
        return [{"type": row.pop("type"), "function": row} for row in rows]

    def read(self, response: Any) -> tuple[Sequence[dict[str, Any]], Sequence[ToolCall]]:
        """Return the output of a response, and its calls."""
        choices = to_plain_object(response).get("choices") or ()
        if not choices:
            return [], []
        message = to_plain_object(to_plain_object(choices[0]).get("message") or {})
        functions = [(row.get("id"), to_plain_object(row["function"])) for row in message.get("tool_calls") or ()]
        calls = [
            ToolCall(str(id), str(function.get("name")), parse_arguments(function.get("arguments") or ""))
            for id, function in functions
        ]
        return [message], calls

    def answer(
        self, output: Sequence[dict[str, Any]], calls: Sequence[ToolCall], contents: Sequence[ModelContent]
    ) -> list[dict[str, Any]]:
        """Build the model's output and the results."""
        messages: list[dict[str, Any]] = [*output]
        parts: list[dict[str, Any]] = []
        for call, content in zip(calls, contents, strict=True):
            text = content.marked_text
            if content.attachments:
                parts.append({"type": "text", "text": f"{call.name} also returned:"})
                parts.extend(map(_to_chat_part, content.attachments))
                text = text or "The result follows."
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return [*messages, {"role": "user", "content": parts}] if parts else messages


def _to_input_part(file: Attachment) -> dict[str, Any]:
    if file.is_image:
        return {"type": "input_image", "image_url": file.to_data_url(), "detail": "auto"}
    return {"type": "input_file", "filename": file.file_name, "file_data": file.to_data_url()}


def _to_chat_part(file: Attachment) -> dict[str, Any]:
    if file.is_image:
        return {"type": "image_url", "image_url": {"url": file.to_data_url()}}
    return {"type": "file", "file": {"filename": file.file_name, "file_data": file.to_data_url()}}
