"""Registry of tools, and the toolbox an agent loop calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from indusagi.capabilities.arguments import find_similar_name
from indusagi.capabilities.budget import UNLIMITED, fit_result
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import DefinedTool, make_result
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import Note, describe_error
from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json
from indusagi.core.protocols import offers
from indusagi.core.records import record
from indusagi.runtime.calls import UserWait, current_entry, current_wait
from indusagi.runtime.contract import (
    CallsByName,
    ProgressSink,
    ToolCall,
    ToolDescriptor,
    ToolOutcome,
    ToolResult,
    clean_result,
)


class ToolRegistry:
    """Tools by name. The last registration of a name wins and leaves a note."""

    def __init__(self) -> None:
        self._tools: dict[str, DefinedTool] = {}
        self._notes: list[Note] = []

    @property
    def notes(self) -> Sequence[Note]:
        """One note per replaced tool."""
        return tuple(self._notes)

    def register(self, tool: DefinedTool) -> None:
        """Add a tool; replacing another one leaves a note."""
        known = self._tools.get(tool.name)
        if known is not None and known is not tool:
            message = "registered more than once; the last registration is used"
            self._notes.append(Note(f"tool {tool.name!r}", message, "give one another name"))
        self._tools[tool.name] = tool

    def register_all(self, tools: Iterable[DefinedTool]) -> None:
        """Add several tools in order."""
        for tool in tools:
            self.register(tool)

    def get(self, name: str) -> DefinedTool | None:
        """Return the tool with this name, if any."""
        return self._tools.get(name)

    def has(self, name: str) -> bool:
        """Return whether there's a tool with this name."""
        return name in self._tools

    def names(self) -> Sequence[str]:
        """List the names in registration order."""
        return tuple(self._tools)

    def to_tool_box(self, ctx: ToolContext) -> RegistryToolBox:
        """Create a toolbox from the current tools, running in `ctx`."""
        tools = dict(self._tools)
        foreign = frozenset(name for name, tool in tools.items() if tool.spec.foreign)
        return RegistryToolBox(RegistryRunner(tools, ctx, foreign), tools)


class Runnable(Protocol):
    """Anything that runs with arguments in a context. If it returns a plain value, we convert it to a result."""

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run with `arguments`."""
        ...


class PreparingTool(Protocol):
    """A tool that fixes and checks its arguments, such as `DefinedTool`."""

    async def prepare_call(self, arguments: JsonValue) -> JsonObject | ToolResult:
        """Return arguments that `run` accepts as is, or an error result."""
        ...


async def prepare_arguments(tool: object, arguments: JsonValue) -> JsonValue | ToolResult:
    """Return the arguments a tool (or the tool inside a card) will run with, or an error result.

    Returns the arguments unchanged for a server's tool and for a card that prepares nothing.
    """
    while tool is not None and not offers(tool, PreparingTool):
        tool = getattr(tool, "inner", None)
    return arguments if tool is None else await tool.prepare_call(arguments)


async def run_tool(name: str, tool: Runnable, arguments: JsonValue, ctx: ToolContext) -> ToolResult:
    """Run a tool, converting exceptions and plain return values to results.

    Doesn't run a tool, no matter whose, if the token is already cancelled.
    """
    if ctx.cancel.cancelled:
        return ToolResult.stopped(name, ctx.cancel)
    try:
        result = await tool.run(arguments, ctx)
    except Exception as exc:  # noqa: BLE001 — boundary: a card may be third-party code
        return ToolResult.error(f"{name} failed: {type(exc).__name__}: {describe_error(exc)}", code="failed")
    if result is None:  # pyright: ignore[reportUnnecessaryComparison] — see above
        return ToolResult.error(f"{name} gave no result", code="bad_result")
    return result if isinstance(result, ToolResult) else make_result(name, result)  # pyright: ignore[reportUnnecessaryIsInstance] — see above


class RegistryRunner:
    """Runs the tool of a call in the toolbox's context, and fits its result into the budget.

    The results of `foreign` tools come from a third party.
    """

    def __init__(self, tools: Mapping[str, Runnable], context: ToolContext, foreign: Collection[str] = ()) -> None:
        self.tools = tools
        self.context = context
        self.foreign = foreign

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call; unknown tools and failures become error outcomes."""
        tool, observer = self.tools.get(call.name), self.context.framework.observer
        if observer is None:
            return await self._run(call, tool, cancel, on_progress)
        token = current_wait.set(UserWait(current_wait.get()))
        observed = observer.start(call, tool)
        try:
            outcome = await self._run(call, tool, cancel, on_progress)
        except BaseException:
            observed.finish(None)
            raise
        finally:
            current_wait.reset(token)
        observed.finish(outcome)
        return outcome

    async def prepare(self, call: ToolCall) -> ToolCall | ToolOutcome:
        """Return the call with its final arguments, or the outcome if the arguments are invalid."""
        prepared = await prepare_arguments(self.tools.get(call.name), call.input)
        if isinstance(prepared, ToolResult):
            return ToolOutcome(call.id, prepared)
        return ToolCall(call.id, call.name, prepared)

    async def _run(
        self, call: ToolCall, tool: Runnable | None, cancel: CancelToken | None, on_progress: ProgressSink | None
    ) -> ToolOutcome:
        if tool is None:
            similar = find_similar_name(call.name, self.tools)
            hint = f" Did you mean {similar!r}?" if similar else ""
            message = f"There is no tool named {call.name!r}.{hint}"
            return ToolOutcome(call.id, ToolResult.error(message, code="unknown_tool"))
        entry = current_entry.get()
        is_whole = entry is not None and entry.is_whole
        ctx = base = replace(self.context, budget=UNLIMITED) if is_whole else self.context
        if cancel is not None or on_progress is not None:
            # Honor the context's token too, since it ends all calls of a session.
            token = base.cancel if cancel is None else CancelToken(cancel, base.cancel)
            ctx = replace(base, cancel=token, on_progress=on_progress or base.on_progress)
        result = await run_tool(call.name, tool, call.input, ctx)
        if call.name in self.foreign:
            result = clean_result(result, base.clean_foreign)
        try:
            if result.structured is not None or result.details:
                compact_json([result.structured, dict(result.details)])
            fitted = await fit_result(result, base.budget, base.session_dir, call.name)
        except NotJson as exc:
            fitted = ToolResult.error(f"{call.name} answered with what is {exc}", code="bad_result")
        return ToolOutcome(call.id, fitted)


@record
class RegistryToolBox(CallsByName):
    """A snapshot of the tools in a registry."""

    runner: RegistryRunner
    tools: Mapping[str, DefinedTool]

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the tools in registration order."""
        return tuple(tool.descriptor for tool in self.tools.values())


def __getattr__(name: str) -> object:
    """Return a native tool's factory, documented as part of the registry."""
    from indusagi.capabilities import tools  # noqa: PLC0415 — the tools are built on this module

    if name.startswith("_") or name not in tools.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(tools, name)
