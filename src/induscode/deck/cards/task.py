"""`task`: hands work to a sub-agent, if the host can run one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.protocols import offers
from indusagi.runtime.contract import JsonContentBlock, JsonSchema, TextContentBlock, ToolResult
from induscode.deck.contract import (
    AgentRoster,
    Capability,
    CapabilityCard,
    CardWrapper,
    DeckContext,
    DelegateReport,
    DelegateRequest,
    DelegateRunner,
    Profile,
    capability_id,
)

_ALIASES = {"prompt": "objective", "subagent_type": "agent"}
_PROPERTIES: JsonObject = {
    "objective": {"type": "string", "minLength": 1, "description": "The work, with every name and fact it needs."},
    "agent": {"type": "string"},
    "context": {"type": "string", "description": "Facts it needs."},
    "resume": {"type": "string", "description": "Id of a task: it goes on, or is waited for."},
    "maxTurns": {"type": "integer", "minimum": 1, "maximum": 200},
    "timeoutMs": {"type": "integer", "minimum": 1_000, "maximum": 3_600_000},
}
_BACKGROUND: JsonObject = {"type": "boolean", "description": "Give the id at once; a note reports the end."}


def task_card() -> CapabilityCard:
    """Return the row of the catalog."""
    summary = "Hand a piece of work to a sub-agent"
    return CapabilityCard(capability_id("task"), "Delegate task", summary, (Profile.ALL,), _build)


class TaskCard(CardWrapper):
    """The card with its runner. A task that only reads may run alongside other calls."""

    def __init__(self, inner: Capability, runner: DelegateRunner | None, lean: Capability | None = None) -> None:
        super().__init__(inner)
        self._runner = runner
        self._lean = lean

    @property
    def lean(self) -> Capability:
        """The card with just an objective and an agent.

        Small models fill in every parameter: they make up a task to resume and a limit that's too short.
        """
        return self._lean or self

    def can_overlap(self, arguments: JsonValue, /) -> bool:
        """Tell whether a task only reads, or runs in the background."""
        if not is_json_object(arguments) or not offers(self._runner, AgentRoster):
            return False
        agent, resume = arguments.get("agent", arguments.get("subagent_type")), arguments.get("resume")
        return arguments.get("background") is True or self._runner.is_reading(
            agent if isinstance(agent, str) and agent else None, resume if isinstance(resume, str) and resume else None
        )


def _build(deck: DeckContext) -> Capability:
    runner = deck.framework.delegate
    agents = tuple(runner.list_agents()) if runner is not None else ()
    has_background = offers(runner, AgentRoster) and runner.has_background
    parameters: JsonSchema = {
        "type": "object",
        "properties": {**_PROPERTIES, "background": _BACKGROUND} if has_background else _PROPERTIES,
        "required": ["objective"],
        "additionalProperties": False,
    }

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        if runner is None:
            stub: JsonObject = {"delegated": False, "reason": "no_runner"}
            message = "This session cannot run sub-agents: do the work yourself."
            blocks = (TextContentBlock(message), JsonContentBlock(stub))
            return ToolResult(blocks, is_error=True, details={"code": "no_runner", **stub})
        request = DelegateRequest(
            objective=str(arguments["objective"]),
            # Some models fill in every parameter, so treat an empty string as missing.
            agent=cast("str | None", arguments.get("agent") or None),
            context=cast("str | None", arguments.get("context") or None),
            resume=cast("str | None", arguments.get("resume") or None),
            max_turns=cast("int | None", arguments.get("maxTurns")),
            timeout_ms=cast("int | None", arguments.get("timeoutMs")),
            background=arguments.get("background") is True,
        )
        if request.agent is not None and agents and request.agent not in agents:
            message = f"There is no agent {request.agent!r}. There are: {', '.join(agents)}."
            return ToolResult.error(message, code="unknown_agent", delegated=False)
        report = await runner.run(request, ctx)
        facts = _list_facts(report)
        blocks = (TextContentBlock(format_report(report)), JsonContentBlock(facts))
        return ToolResult(blocks, is_error=not report.ok, details=facts)

    def build_card(parameters: JsonSchema) -> Capability:
        spec = ToolSpec(
            "task",
            _describe(runner, agents),
            parameters,
            run,
            title="Delegate task",
            prepare=coerce_to(parameters, _ALIASES),
            terse=True,
        )
        return define_tool(spec)

    named: JsonObject = {"type": "string", "enum": [*agents]} if agents else {"type": "string"}
    few: JsonObject = {"objective": _PROPERTIES["objective"], "agent": named}
    lean = TaskCard(build_card({**parameters, "properties": few}), runner)
    return TaskCard(build_card(parameters), runner, lean)


def format_report(report: DelegateReport) -> str:
    """Format the text of a report for a model."""
    text = report.text or "The agent reported nothing."
    return text if report.ok else f"Ended early ({report.reason or 'error'}). What there is:\n{text}"


def describe_work(report: DelegateReport) -> Sequence[str]:
    """Describe an agent's work, with a line each for files, calls, and requests and tokens."""
    calls = [f"{name} {count}" for name, count in report.calls.items()]
    usage = {key.replace("_", " "): value for key, value in report.usage.items()}
    lines = {
        "files changed": report.files,
        "calls": calls,
        "usage": [f"{value:,} {key}" for key, value in usage.items() if isinstance(value, int)],
    }
    return [f"{title}: {', '.join(facts)}" for title, facts in lines.items() if facts]


def _list_facts(report: DelegateReport) -> JsonObject:
    facts: JsonObject = {
        "delegated": True,
        "ok": report.ok,
        "reason": report.reason,
        "id": report.id,
        "files": list(report.files),
    }
    if report.is_running:
        facts["running"] = True
    if report.calls:
        facts["calls"] = dict[str, JsonValue](report.calls)
    if report.usage:
        facts["usage"] = dict(report.usage)
    return facts


def _describe(runner: DelegateRunner | None, agents: tuple[str, ...]) -> str:
    description = "Hand a piece of work to a sub-agent with a fresh context, and get its report."
    if offers(runner, AgentRoster):
        rows = "".join(f"\n- {name}: {purpose}" for name, purpose in runner.describe_agents().items())
        return f"{description} Agents that only read run at once if you call them together. Agents:{rows}"
    return f"{description} Agents: {', '.join(agents)}." if agents else description
