"""Adapter for the official MCP SDK: a toolbox as a server inside this process.

The server is the SDK's own `mcp.server.Server`. The Claude Agent SDK takes it as the `instance` of a server of type
`sdk`, and `mcp.Client(server)` connects to it in memory. Content blocks pass through unchanged, errors have `isError`,
and cancelling a request cancels the call. To serve other processes, use `indusagi.mcp.MCPServer`.

https://docs.claude.com/en/api/agent-sdk/custom-tools
"""

from __future__ import annotations

from typing import Any

from indusagi import __version__
from indusagi.adapters.calls import AdapterCalls, Gate, explain_missing
from indusagi.core.cancel import CancelToken
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject
from indusagi.interop.protocol_bridge.contract import to_block
from indusagi.interop.protocol_bridge.host.catalog import build_tool_row
from indusagi.runtime.contract import ToolBox, ToolCall, ToolResult

with explain_missing("'indus-deck[mcp]'"):
    from mcp.server import Server, ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams


def to_mcp(
    box: ToolBox, *, gate: Gate | None = None, cancel: CancelToken | None = None, name: str = "indus"
) -> Server[dict[str, Any]]:
    """Give a toolbox to an MCP client in this process.

    Raises `MissingGateError` if there's no gate, and the toolbox doesn't check its calls.
    """
    calls = AdapterCalls(box, gate, cancel)

    async def list_tools(
        ctx: ServerRequestContext[dict[str, Any]], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        rows = [build_tool_row(tool) for tool in await calls.read_descriptors()]
        return ListToolsResult.model_validate({"tools": rows})

    async def call_tool(ctx: ServerRequestContext[dict[str, Any]], params: CallToolRequestParams) -> CallToolResult:
        outcome = await calls.run(ToolCall(new_ulid(), params.name, params.arguments or {}))
        try:
            return CallToolResult.model_validate(_build_result(outcome.result))
        except ValueError as exc:  # a block that this SDK doesn't know
            error = ToolResult.error(f"The answer cannot be sent: {exc}", code="bad_result")
            return CallToolResult.model_validate(_build_result(error))

    return Server(name, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _build_result(result: ToolResult) -> JsonObject:
    row: JsonObject = {"content": [to_block(block) for block in result.content], "isError": result.is_error}
    if isinstance(result.structured, dict):
        row["structuredContent"] = result.structured
    return row
