"""`saas-action`: actions of services connected by the host or a connector."""

from __future__ import annotations

from typing import cast

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json
from indusagi.core.protocols import offers
from indusagi.runtime.contract import JsonContentBlock, JsonSchema, TextContentBlock, ToolResult
from induscode.deck.contract import (
    ActionError,
    ActionTarget,
    ActionTargets,
    Capability,
    CapabilityCard,
    CardWrapper,
    DeckContext,
    Profile,
    capability_id,
)

_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["discover", "execute"]},
        "slug": {"type": "string", "description": "execute: as discover names it."},
        "arguments": {"type": "object"},
        "toolkits": {"type": "array", "items": {"type": "string"}, "description": "discover: only these."},
        "query": {"type": "string", "description": "discover: what it should do."},
    },
    "required": ["action"],
    "additionalProperties": False,
}


def saas_card() -> CapabilityCard:
    """Return the row of the catalog."""
    summary = "Find and run actions of connected services"
    identity = capability_id("saas-action")
    return CapabilityCard(identity, "SaaS action", summary, (Profile.ALL,), _build)


def _build(deck: DeckContext) -> Capability:
    gateway = deck.framework.saas

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        if gateway is None:
            executing = arguments["action"] == "execute"
            message = "No services are connected in this session."
            if executing:
                message += " Nothing was executed."
            stub: JsonObject = {"connected": False, "reason": "no_gateway"}
            blocks = (TextContentBlock(message), JsonContentBlock(stub))
            return ToolResult(blocks, executing, details={"code": "no_gateway", **stub})
        if arguments["action"] == "discover":
            query = cast("str | None", arguments.get("query"))
            toolkits = cast("list[str]", arguments.get("toolkits") or [])
            try:
                actions: JsonValue = [dict(action) for action in await gateway.discover(query, toolkits)]
            except ActionError as exc:
                return ToolResult.error(str(exc), code=exc.code, **exc.facts)
            return _to_result({"actions": actions}, "discover")
        slug = arguments.get("slug")
        if not isinstance(slug, str) or not slug:
            message = "To execute, name the action in `slug`; discover lists them."
            return ToolResult.error(message, code="invalid_arguments")
        action_arguments = cast("JsonObject", arguments.get("arguments") or {})
        try:
            return _to_result(await gateway.execute(slug, action_arguments), slug)
        except ActionError as exc:
            return ToolResult.error(str(exc), code=exc.code, **exc.facts)

    description = "Use connected services. `discover` finds actions by what they do; `execute` runs one."
    tool = define_tool(
        ToolSpec(
            "saas-action",
            description,
            _PARAMETERS,
            run,
            title="SaaS action",
            prepare=coerce_to(_PARAMETERS, {}),
            terse=True,
        )
    )
    return SaasActionCard(tool, gateway) if offers(gateway, ActionTargets) else tool


class SaasActionCard(CardWrapper):
    """The card for a gateway that can preview its actions' requests."""

    def __init__(self, inner: Capability, gateway: ActionTargets) -> None:
        super().__init__(inner)
        self._gateway = gateway

    async def find_target(self, arguments: JsonObject) -> ActionTarget | None:
        """Return the request of an `execute` call."""
        slug, action_arguments = arguments.get("slug"), arguments.get("arguments")
        if arguments.get("action") != "execute" or not isinstance(slug, str):
            return None
        return await self._gateway.find_target(slug, cast("JsonObject", action_arguments or {}))


def _to_result(value: JsonValue, action: str) -> ToolResult:
    try:
        compact_json(value)
    except NotJson as exc:
        return ToolResult.error(f"{action} answered with what is {exc}", code="bad_result")
    return ToolResult.json(value)
