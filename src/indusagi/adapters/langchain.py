"""Adapter for LangChain and LangGraph: a `langchain-core` tool for each tool of a toolbox.

Images and files become content blocks of the tool message, and its artifact holds the structured content. A failure is
a `ToolException`, which becomes a message with status `error`. Cancelling the task of `ainvoke` cancels the call.

https://docs.langchain.com/oss/python/langchain/tools
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# The library is optional and not installed for the other checks; `make adapters` checks types with it.

from __future__ import annotations

from typing import Any, Literal, cast

from indusagi.adapters.calls import AdapterCalls, Attachment, Gate, copy_parameters, explain_missing, to_model_content
from indusagi.core.cancel import CancelToken
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue
from indusagi.runtime.contract import ToolBox, ToolCall, ToolOutcome

with explain_missing("langchain-core"):
    from langchain_core.tools import BaseTool, ToolException


def to_langchain(box: ToolBox, *, gate: Gate | None = None, cancel: CancelToken | None = None) -> list[BaseTool]:
    """Give a toolbox's current tools to LangChain.

    `invoke` without `await` needs a toolbox from `open_deck_sync`. Raises `MissingGateError` if there's no gate, and
    the toolbox doesn't check its calls.
    """
    calls = AdapterCalls(box, gate, cancel)
    return [
        ToolBoxTool(calls, name=tool.name, description=tool.description, args_schema=copy_parameters(tool))
        for tool in calls.descriptors()
    ]


class ToolBoxTool(BaseTool):
    """A tool of a toolbox. It gets its arguments as the model wrote them, and checks them itself."""

    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: Any = True

    def __init__(self, calls: AdapterCalls, **fields: Any) -> None:
        super().__init__(**fields)
        self._calls = calls

    _calls: AdapterCalls

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # As one value: an argument may have the same name as a parameter of `_run`.
        return (tool_input, tool_call_id), {}

    def _run(self, arguments: Any, call_id: str | None, /) -> tuple[Any, Any]:
        return _to_message(self._calls.run_sync(self._build_call(arguments, call_id)))

    async def _arun(self, arguments: Any, call_id: str | None, /) -> tuple[Any, Any]:
        return _to_message(await self._calls.run(self._build_call(arguments, call_id)))

    def _build_call(self, arguments: Any, call_id: str | None) -> ToolCall:
        return ToolCall(call_id or new_ulid(), self.name, cast("JsonValue", arguments))


def _to_message(outcome: ToolOutcome) -> tuple[Any, Any]:
    """Build a tool message's content and artifact. Raises `ToolException` if the call failed."""
    content = to_model_content(outcome.result)
    if content.is_error:
        raise ToolException(content.text)
    artifact = None if outcome.structured is None else {"structured_content": outcome.structured}
    if not content.attachments:
        return content.text, artifact
    text = [{"type": "text", "text": content.text}] if content.text else []
    return [*text, *map(_to_block, content.attachments)], artifact


def _to_block(file: Attachment) -> JsonObject:
    block: JsonObject = {"base64": file.encode(), "mime_type": file.media_type}
    return {"type": "image", **block} if file.is_image else {"type": "file", **block, "filename": file.file_name}
