"""The server as a whole, over standard input and output or over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    EmptyResult,
    ListPromptsResult,
    ListToolsResult,
    PaginatedRequestParams,
    SetLevelRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from outside.conformance.server import prompts, resources, schemas, skills
from outside.conformance.server.content import said
from outside.conformance.server.events import Events
from outside.conformance.server.tools import Act, acts

if TYPE_CHECKING:
    from mcp.server.caching import CacheableMethod
    from mcp_types import CallToolRequestParams

    from outside.conformance.server.asking import Asked
    from outside.conformance.server.tools import Result

_NAME = "conformance"
_EXTRA = "test_sometimes_there"
_HINT = CacheHint(ttl_ms=1000, scope="public")
_HINTS: dict[CacheableMethod, CacheHint] = {
    "server/discover": _HINT,
    "tools/list": _HINT,
    "prompts/list": _HINT,
    "resources/list": _HINT,
    "resources/templates/list": _HINT,
    "resources/read": _HINT,
}
_CHANGING = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
_RETRY_MS = 200


class Subject:
    """Everything there is, of which one tool and one prompt come and go."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self._acts = acts()
        self._acts["test_trigger_tool_change"] = Act(self._change_tools, schemas.NOTHING)
        self._acts["test_trigger_prompt_change"] = Act(self._change_prompts, schemas.NOTHING)
        self._extra_prompt = False
        self.server = self._assemble_parts()

    def _assemble_parts(self) -> Server[Any]:
        server = Server[Any](
            _NAME,
            version="1.0",
            instructions="What the conformance suite calls by name.",
            cache_hints=_HINTS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=resources.list_resources,
            on_list_resource_templates=resources.list_templates,
            on_read_resource=resources.read,
            on_subscribe_resource=resources.subscribe,
            on_unsubscribe_resource=resources.unsubscribe,
            on_subscriptions_listen=ListenHandler(self._bus),
            on_list_prompts=self._list_prompts,
            on_get_prompt=prompts.get,
            on_completion=prompts.complete,
        )
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, _set_level)
        server.add_request_handler("skills/list", PaginatedRequestParams, skills.list_skills)
        server.add_request_handler("skills/get", skills.SkillParams, skills.get_skill)
        server.add_request_handler("resources/directory/read", skills.SkillParams, skills.read_directory)
        server.extensions[skills.EXTENSION] = skills.SETTINGS
        # A state that comes back is the one that was handed out, for the same call.
        security = RequestStateSecurity.ephemeral()
        server.middleware.append(RequestStateBoundary(security, default_audience=_NAME))
        return server

    async def over_stdio(self) -> None:
        """Serve the parent process."""
        async with stdio_server() as (read, write):
            options = self.server.create_initialization_options(_CHANGING)
            await self.server.run(read, write, options)

    async def over_http(self, port: int) -> None:
        """Serve this machine, until told to end."""
        app = self.server.streamable_http_app(event_store=Events(), retry_interval=_RETRY_MS)
        config = uvicorn.Config(app, "127.0.0.1", port, log_level="warning", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve()

    async def _list_tools(self, ctx: Asked, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[act.listed(name) for name, act in self._acts.items()])

    async def _call_tool(self, ctx: Asked, params: CallToolRequestParams) -> Result:
        act = self._acts.get(params.name)
        if act is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name}")
        given = params.arguments or {}
        if missing := [name for name in act.takes.get("required", ()) if name not in given]:
            raise MCPError(INVALID_PARAMS, f"{params.name} needs {', '.join(missing)}")
        return await act.run(ctx, params)

    async def _list_prompts(self, ctx: Asked, params: PaginatedRequestParams | None) -> ListPromptsResult:
        return ListPromptsResult(prompts=prompts.listed(with_extra=self._extra_prompt))

    async def _change_tools(self, ctx: Asked, params: CallToolRequestParams) -> Result:
        if self._acts.pop(_EXTRA, None) is None:
            self._acts[_EXTRA] = self._acts["test_simple_text"]
        await self._bus.publish(ToolsListChanged())
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            await ctx.session.send_tool_list_changed()
        return said("the list of tools has changed")

    async def _change_prompts(self, ctx: Asked, params: CallToolRequestParams) -> Result:
        self._extra_prompt = not self._extra_prompt
        await self._bus.publish(PromptsListChanged())
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            await ctx.session.send_prompt_list_changed()
        return said("the list of prompts has changed")


async def _set_level(ctx: Asked, params: SetLevelRequestParams) -> EmptyResult:
    """Agree: what is logged here is meant for everybody."""
    return EmptyResult()
