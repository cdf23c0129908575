"""`task`: hands work to a sub-agent, if the host can run one."""

from __future__ import annotations

from typing import cast

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.json import JsonObject
from indusagi.runtime.contract import JsonContentBlock, JsonSchema, TextContentBlock, ToolResult
from induscode.deck.contract import Capability, CapabilityCard, DeckContext, DelegateRequest, Profile, capability_id

_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "objective": {
            "type": "string",
            "minLength": 1,
            "description": "Complete in itself: the agent sees nothing else.",
        },
        "agent": {"type": "string"},
        "context": {"type": "string", "description": "Facts it needs."},
        "resume": {"type": "string", "description": "Id of a task that ended early."},
        "maxTurns": {"type": "integer", "minimum": 1, "maximum": 200},
        "timeoutMs": {"type": "integer", "minimum": 1_000, "maximum": 3_600_000},
    },
    "required": ["objective"],
    "additionalProperties": False,
}


def task_card() -> CapabilityCard:
    """Return the row of the catalog."""
    summary = "Hand a piece of work to a sub-agent"
    return CapabilityCard(capability_id("task"), "Delegate task", summary, (Profile.ALL,), _build)


def _build(deck: DeckContext) -> Capability:
    runner = deck.framework.delegate
    agents = tuple(runner.list_agents()) if runner is not None else ()

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        if runner is None:
            stub: JsonObject = {"delegated": False, "reason": "no_runner"}
            message = "This session cannot run sub-agents: do the work yourself."
            blocks = (TextContentBlock(message), JsonContentBlock(stub))
            return ToolResult(blocks, is_error=True, details={"code": "no_runner", **stub})
        request = DelegateRequest(
            objective=str(arguments["objective"]),
            agent=cast("str | None", arguments.get("agent")),
            context=cast("str | None", arguments.get("context")),
            resume=cast("str | None", arguments.get("resume")),
            max_turns=cast("int | None", arguments.get("maxTurns")),
            timeout_ms=cast("int | None", arguments.get("timeoutMs")),
        )
        if request.agent is not None and agents and request.agent not in agents:
            message = f"There is no agent {request.agent!r}. There are: {', '.join(agents)}."
            return ToolResult.error(message, code="unknown_agent", delegated=False)
        report = await runner.run(request, ctx)
        text = report.text or "The agent reported nothing."
        if not report.ok:
            text = f"Ended early ({report.reason or 'error'}). What there is:\n{text}"
        facts: JsonObject = {
            "delegated": True,
            "ok": report.ok,
            "reason": report.reason,
            "id": report.id,
            "files": list(report.files),
        }
        blocks = (TextContentBlock(text), JsonContentBlock(facts))
        return ToolResult(blocks, is_error=not report.ok, details=facts)

    description = "Hand a piece of work to a sub-agent with a fresh context, and get its report."
    spec = ToolSpec(
        "task",
        f"{description} Agents: {', '.join(agents)}." if agents else description,
        _PARAMETERS,
        run,
        title="Delegate task",
        prepare=coerce_to(_PARAMETERS, {"prompt": "objective", "subagent_type": "agent"}),
        terse=True,
    )
    return define_tool(spec)
