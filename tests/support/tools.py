"""Small tools and contexts for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.registry import ToolRegistry
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.runtime.contract import ToolCall, ToolOutcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from indusagi.capabilities.budget import OutputBudget
    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.registry import RegistryToolBox
    from indusagi.capabilities.tool import ToolAnswer
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import JsonSchema

ANYTHING: JsonSchema = {"type": "object"}
NOTHING: JsonSchema = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(
    run: Callable[[JsonObject, ToolContext], Awaitable[ToolAnswer]],
    *,
    name: str = "probe",
    parameters: JsonSchema = ANYTHING,
    read_only: bool = False,
) -> DefinedTool:
    """Define a tool with as little ceremony as possible."""
    return define_tool(ToolSpec(name, "A tool for tests.", parameters, run, read_only=read_only))


def returning(answer: ToolAnswer, *, name: str = "probe") -> DefinedTool:
    """Define a tool that always gives this answer."""

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolAnswer:
        return answer

    return tool(run, name=name)


def context(tmp_path: Path, budget: OutputBudget | None = None) -> ToolContext:
    """Make a context in a folder of the test's own."""
    ctx = make_local_context(tmp_path)
    return ctx if budget is None else replace(ctx, budget=budget)


def box_of(ctx: ToolContext, *tools: DefinedTool) -> RegistryToolBox:
    """Put tools into a box."""
    registry = ToolRegistry()
    registry.register_all(tools)
    return registry.to_tool_box(ctx)


async def call(box: RegistryToolBox, name: str, arguments: JsonValue = None) -> ToolOutcome:
    """Call a tool of a box."""
    return await box.runner.run(ToolCall("call-1", name, arguments))
