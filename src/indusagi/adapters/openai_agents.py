"""Adapter for the OpenAI Agents SDK: a `FunctionTool` for each tool of a toolbox.

Images and files are structured outputs of the tool. The SDK doesn't mark errors: the model gets a failed result as text
that starts with `Error:`. Cancelling the run cancels the call.

https://openai.github.io/openai-agents-python/tools/
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
# The library is optional and not installed for the other checks; `make adapters` checks types with it.

from __future__ import annotations

from typing import Any

from indusagi.adapters.calls import AdapterCalls, Attachment, Gate, copy_parameters, explain_missing, parse_arguments
from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import ToolBox, ToolCall, ToolDescriptor

with explain_missing("openai-agents"):
    from agents import FunctionTool, ToolOutputFileContent, ToolOutputImage, ToolOutputText
    from agents.tool_context import ToolContext


def to_openai_agents(
    box: ToolBox, *, gate: Gate | None = None, cancel: CancelToken | None = None
) -> list[FunctionTool]:
    """Give a toolbox's current tools to an agent of the OpenAI Agents SDK.

    Raises `MissingGateError` if there's no gate, and the toolbox doesn't check its calls.
    """
    calls = AdapterCalls(box, gate, cancel)
    return [_build_tool(calls, tool) for tool in calls.descriptors()]


def _build_tool(calls: AdapterCalls, tool: ToolDescriptor) -> FunctionTool:
    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        content = await calls.run_for_model(ToolCall(context.tool_call_id, tool.name, parse_arguments(arguments)))
        if not content.attachments:
            return content.marked_text
        text = [ToolOutputText(text=content.text)] if content.text else []
        return [*text, *map(_to_output, content.attachments)]

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=copy_parameters(tool),
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


def _to_output(file: Attachment) -> ToolOutputImage | ToolOutputFileContent:
    if file.is_image:
        return ToolOutputImage(image_url=file.to_data_url())
    return ToolOutputFileContent(file_data=file.to_data_url(), filename=file.file_name)
