"""Many tools of made-up servers, and a toolbox with them."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.contract import JsonContentBlock, ToolDescriptor, ToolOutcome, ToolResult
from induscode.deck.mcp.drift import DisabledTool, DriftGrade

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolCall

_VERBS = ("create", "list", "delete", "update", "search", "archive", "export")
_THINGS = {
    "tracker": ("issue", "milestone", "label", "comment", "project"),
    "calendar": ("event", "reminder", "invitation", "holiday"),
    "mail": ("message", "draft", "folder", "filter", "signature"),
    "shop": ("order", "invoice", "refund", "customer", "coupon", "shipment"),
    "music": ("song", "album", "playlist", "artist"),
    "weather": ("forecast", "alert", "station"),
}
IMAGE: JsonObject = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def make_tools(count: int = 527) -> list[ToolDescriptor]:
    """Make definitions of the size that real ones have."""
    tools: dict[str, ToolDescriptor] = {}
    for suffix, server, verb in product(("", "_batch", "_shared", "_old"), _THINGS, _VERBS):
        for thing in _THINGS[server]:
            tool = _make_tool(server, verb, thing, suffix)
            tools[tool.name] = tool
    return [*tools.values()][:count]


def _make_tool(server: str, verb: str, thing: str, suffix: str) -> ToolDescriptor:
    properties: JsonObject = {
        f"{thing}_{part}": {"type": "string", "description": f"The {part} of the {thing}, as the service knows it."}
        for part in ("id", "title", "owner", "state", "description")
    }
    schema: JsonObject = {"type": "object", "properties": properties, "required": [f"{thing}_id"]}
    text = f"{verb.capitalize()} one {thing} of the {server} service. Needs the right to {verb} {suffix or 'it'}."
    return ToolDescriptor(f"{server}__{verb}_{thing}{suffix}", text, schema)


class SearchableTools:
    """A toolbox as a gateway has it: tools of servers, `tracker__lost` disabled, some denied."""

    def __init__(self, tools: Sequence[ToolDescriptor] | None = None, denied: Collection[str] = ()) -> None:
        self.tools = [*(make_tools() if tools is None else tools)]
        self.denied = denied
        self.called: list[ToolCall] = []

    @property
    def runner(self) -> SearchableTools:
        return self

    @property
    def context(self) -> ToolContext:
        return make_inert_context()

    def descriptors(self) -> list[ToolDescriptor]:
        return self.tools

    async def run(self, call: ToolCall, *_: object, **__: object) -> ToolOutcome:
        self.called.append(call)
        return ToolOutcome(call.id, ToolResult((JsonContentBlock(IMAGE),), structured={"called": call.name}))

    def answers_unlisted(self, name: str) -> bool:
        return name == "tracker__lost"

    def forwards_input(self, name: str) -> bool:
        return True

    def find_server(self, name: str) -> str | None:
        server, mark, _ = name.partition("__")
        return server if mark else None

    def find_ref(self, name: str) -> RemoteToolRef | None:
        server, mark, own = name.partition("__")
        return RemoteToolRef(server, own) if mark else None

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        return {name for name in names if name in self.denied}

    def list_disabled(self) -> list[DisabledTool]:
        return [DisabledTool(RemoteToolRef("tracker", "lost"), "tracker__lost", DriftGrade.BREAKING, ("description",))]
