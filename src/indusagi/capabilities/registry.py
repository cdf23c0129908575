"""A registry of tools, and the box a loop calls them through."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from indusagi.capabilities.arguments import find_similar_name
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.overflow import fit_result
from indusagi.capabilities.tool import DefinedTool
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonValue, NotJson, compact_json
from indusagi.core.notes import Note
from indusagi.runtime.contract import ProgressSink, ToolCall, ToolDescriptor, ToolOutcome, ToolResult
from indusagi.runtime.foreign import clean_result


class ToolRegistry:
    """Tools by name. The last registration of a name wins, and a note says so."""

    def __init__(self) -> None:
        self._tools: dict[str, DefinedTool] = {}
        self._notes: list[Note] = []

    @property
    def notes(self) -> Sequence[Note]:
        """What was replaced."""
        return tuple(self._notes)

    def register(self, tool: DefinedTool) -> None:
        """Add a tool; one that takes the place of another leaves a note."""
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
        """Find a tool by its name."""
        return self._tools.get(name)

    def has(self, name: str) -> bool:
        """Tell whether there is a tool of this name."""
        return name in self._tools

    def names(self) -> Sequence[str]:
        """List the names in the order they were first registered."""
        return tuple(self._tools)

    def to_tool_box(self, ctx: ToolContext) -> RegistryToolBox:
        """Put the tools there are now into a box that runs them in this context."""
        tools = dict(self._tools)
        foreign = frozenset(name for name, tool in tools.items() if tool.spec.foreign)
        return RegistryToolBox(RegistryRunner(tools, ctx, foreign), tools)


class Runnable(Protocol):
    """Whatever answers arguments with a result."""

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Do the work; what goes wrong comes back as an error result."""
        ...


@dataclass(frozen=True, slots=True)
class RegistryRunner:
    """Finds the tool of a call, runs it in the box's context, and keeps to the budget."""

    tools: Mapping[str, Runnable]
    context: ToolContext
    foreign: Collection[str] = ()
    """The names of those whose answers another party writes."""

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call; an unknown tool is an error outcome."""
        tool = self.tools.get(call.name)
        if tool is None:
            return ToolOutcome(call.id, _unknown_tool(call.name, self.tools))
        base = self.context
        ctx = base if on_progress is None else base.with_progress(on_progress)
        if cancel is None:
            result = await tool.run(call.input, ctx)
        else:
            token = cancel.child()
            # Whoever ends the session ends its calls, also those with a token of their own.
            forget = base.cancel.on_cancel(lambda: _follow(token, base.cancel))
            try:
                result = await tool.run(call.input, ctx.with_cancel(token))
            finally:
                forget()
        if call.name in self.foreign:
            result = clean_result(result, base.clean_foreign)
        try:
            if result.structured is not None or result.details:
                compact_json([result.structured, dict(result.details)])
            fitted = await fit_result(result, base.budget, base.session_dir, call.name)
        except NotJson as exc:
            said = f"{call.name} answered with what is {exc}"
            fitted = ToolResult.error(said, code="bad_result")
        return ToolOutcome(call.id, fitted)


@dataclass(frozen=True, slots=True)
class RegistryToolBox:
    """The tools of a registry, as they were when the box was made."""

    runner: RegistryRunner
    tools: Mapping[str, DefinedTool]

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the tools in the order of their registration."""
        return tuple(tool.descriptor for tool in self.tools.values())


def _follow(token: CancelToken, above: CancelToken) -> None:
    token.cancel(above.reason or "cancelled")


def _unknown_tool(name: str, names: Iterable[str]) -> ToolResult:
    meant = find_similar_name(name, names)
    hint = f" Did you mean {meant!r}?" if meant else ""
    return ToolResult.error(f"There is no tool named {name!r}.{hint}", code="unknown_tool")


def __getattr__(name: str) -> object:
    """Give the factories of the native tools, which are documented as part of the registry."""
    from indusagi.capabilities import tools  # noqa: PLC0415 — the tools are built on this module

    if name.startswith("_") or name not in tools.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(tools, name)
