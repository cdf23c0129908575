"""Adapter for the Anthropic Messages API: tools, and the messages that answer a response's calls.

It's all plain JSON, so you don't need the package `anthropic`. Images and PDF documents are blocks of the result, and a
failed result has `is_error`.

https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/implement-tool-use
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from indusagi.adapters.calls import (
    AdapterCalls,
    Attachment,
    Gate,
    ModelContent,
    PlainTools,
    copy_parameters,
    to_plain_object,
)
from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import ToolBox, ToolCall


def to_anthropic(box: ToolBox, *, gate: Gate | None = None, cancel: CancelToken | None = None) -> AnthropicTools:
    """Give a toolbox to models of the Anthropic API.

    Raises `MissingGateError` if there's no gate, and the toolbox doesn't check its calls.
    """
    return AnthropicTools(AdapterCalls(box, gate, cancel))


class AnthropicTools(PlainTools):
    """Tools for `messages.create`."""

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The current tools, for the parameter `tools`."""
        return [
            {"name": tool.name, "description": tool.description, "input_schema": copy_parameters(tool)}
            for tool in self.calls.descriptors()
        ]

    def read(self, response: Any) -> tuple[Sequence[dict[str, Any]], Sequence[ToolCall]]:
        """Return the content of a response, and its calls."""
        content = [to_plain_object(block) for block in to_plain_object(response).get("content") or ()]
        calls = [
            ToolCall(str(block.get("id")), str(block.get("name")), block.get("input"))
            for block in content
            if block.get("type") == "tool_use"
        ]
        return content, calls

    def answer(
        self, output: Sequence[dict[str, Any]], calls: Sequence[ToolCall], contents: Sequence[ModelContent]
    ) -> list[dict[str, Any]]:
        """Build the model's message and the one with the results."""
        results: list[dict[str, Any]] = []
        for call, result in zip(calls, contents, strict=True):
            # A text block must not be empty.
            text = [{"type": "text", "text": result.text}] if result.text else []
            blocks = [*text, *map(_to_block, result.attachments)]
            mark = {"is_error": True} if result.is_error else {}
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": blocks, **mark})
        return [{"role": "assistant", "content": [*output]}, {"role": "user", "content": results}]


def _to_block(file: Attachment) -> dict[str, Any]:
    source = {"type": "base64", "media_type": file.media_type, "data": file.encode()}
    return {"type": "image" if file.is_image else "document", "source": source}
