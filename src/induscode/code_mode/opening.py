"""Opens code mode for a run: the `run_code` card with its engine, which the run closes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.json import compact_json
from indusagi.core.text import format_count
from indusagi.runtime.calls import CallEntry, current_entry
from indusagi.runtime.contract import Keep, TextContentBlock, ToolResult
from induscode.code_mode.calls import ScriptCalls
from induscode.code_mode.contract import RUN_CODE, CodeLimits, EngineUnavailable
from induscode.code_mode.process import MontyEngine, find_engine_problem
from induscode.deck.contract import BackendFault
from induscode.launch.settings import CODE_CALLS, CODE_MEMORY_MB, CODE_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.tool import DefinedTool
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.code_mode.contract import CallReport, ScriptFault, ScriptResult
    from induscode.launch.settings import Settings


async def open_code_card(stack: AsyncExitStack, settings: Settings) -> RunCodeCard:
    """Build the `run_code` card. `stack` ends its engine's processes.

    Raises:
        BackendFault: The extra `code` isn't installed.
    """
    if problem := find_engine_problem():
        raise BackendFault(problem)
    engine = MontyEngine()
    stack.push_async_callback(engine.aclose)
    limits = CodeLimits(
        wall_s=settings.get(CODE_TIMEOUT_S),
        calls=settings.get(CODE_CALLS),
        memory_bytes=settings.get(CODE_MEMORY_MB) * 1024 * 1024,
    )
    return RunCodeCard(engine, limits)


# -- card -------------------------------------------------------------------------------------
#
# Scripts get complete tool results; the model gets the script's output and the value of its last expression, within the
# output budget. A failing script reports the line, the call, and the calls made before: it's never rerun automatically.


_DESCRIPTION = """\
Run a Python script that calls your tools as functions: for many calls, loops, or results you only need a part of. \
You get back what it prints and the value of its last expression.
`await name(key=value)` calls the tool `name` (other characters than letters, digits and _ become _) and gives its \
whole result: JSON, or text. `await asyncio.gather(...)` runs calls at once. A refused or failed call raises; \
PermissionError means denied. `await find_tools("words")` lists functions with their types.
No files and no network but by tools; json, re, math, datetime, asyncio can be imported. At most {calls} calls."""
_FAULT_CODES = {"syntax": "syntax_error", "exception": "script_failed", "limit": "limit", "crash": "interpreter_ended"}
_MAX_LISTED = 12


class RunCodeCard:
    """The `run_code` card. Its calls never overlap with others of the same response: they may change something."""

    label = "Run a script"
    read_only = False

    def __init__(self, engine: MontyEngine, limits: CodeLimits | None = None) -> None:
        self.engine = engine
        self._limits = limits or CodeLimits()
        schema: JsonObject = {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The script."}},
            "required": ["code"],
            "additionalProperties": False,
        }
        self._tool: DefinedTool = define_tool(
            ToolSpec(
                RUN_CODE,
                _DESCRIPTION.format(calls=self._limits.calls),
                schema,
                self._run,
                title=self.label,
                # It can do anything its tools can, so a client should ask as for the strongest of them.
                annotations={"destructiveHint": True, "openWorldHint": True},
                terse=True,
            )
        )
        self.name, self.description = self._tool.name, self._tool.description
        self.parameters, self.descriptor = self._tool.parameters, self._tool.descriptor

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run a script. Whatever happens to it is a result."""
        return await self._tool.run(arguments, ctx)

    async def _run(self, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        entry, code = current_entry.get(), str(arguments["code"])
        if entry is None or entry.is_whole:
            reason = "a script starts no script" if entry is not None else "it was called without a toolbox"
            return ToolResult.error(f"{RUN_CODE} was not run: {reason}.", code="unavailable")
        if len(code) > self._limits.code_chars:
            message = (
                f"Nothing ran: the script has {len(code):,} characters, and {self._limits.code_chars:,} are allowed."
            )
            return ToolResult.error(message, code="limit")
        return await self.run_script(code, entry, ctx)

    async def run_script(self, code: str, entry: CallEntry, ctx: ToolContext) -> ToolResult:
        """Run a script whose calls go through the toolbox of `entry`."""
        calls = ScriptCalls(entry, ctx, self._limits)
        try:
            result = await self.engine.run(code, calls.functions.names, calls.call, self._limits)
        except EngineUnavailable as exc:
            return ToolResult.error(f"Nothing ran: {exc}", code="unavailable")
        finally:
            calls.close()
        details: dict[str, JsonValue] = {
            "engine": self.engine.name,
            "calls": [{"name": report.name, "state": report.state} for report in calls.reports],
        }
        if result.fault is None:
            return ToolResult((TextContentBlock(_format_output(result)),), keep=Keep.ENDS, details=details)
        text = _format_fault(result, result.fault, calls.reports)
        details["code"] = _FAULT_CODES[result.fault.kind]
        return ToolResult((TextContentBlock(text),), is_error=True, keep=Keep.ENDS, details=details)


def _format_output(result: ScriptResult) -> str:
    """Join the script's output and its value: text as it is, anything else as JSON."""
    value = result.value
    shown = "" if value is None else value if isinstance(value, str) else compact_json(value)
    text = "\n".join(part for part in (result.output.rstrip("\n"), shown) if part)
    ends = "its value is an empty text" if value == "" else "its last line is no expression with a value"
    return text or f"The script printed nothing, and {ends}."


def _format_fault(result: ScriptResult, fault: ScriptFault, reports: Sequence[CallReport]) -> str:
    parts = [result.output.rstrip("\n")] if result.output else []
    for line in fault.lines:
        where = f" in {line.function}" if line.function not in {"", "<module>"} else ""
        parts.append(f"line {line.number}{where}: {line.text}".rstrip(": "))
    parts.append(fault.message)
    if fault.kind == "syntax":
        parts.append("Nothing ran.")
    elif not reports:
        parts.append("No call was made.")
    else:
        counts = Counter((report.name, report.state) for report in reports)
        listed = [f"{name} {state}" + (f" ({count})" if count > 1 else "") for (name, state), count in counts.items()]
        more = f", and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
        parts.append(
            f"{format_count(len(reports), 'call')} made before, not undone: {', '.join(listed[:_MAX_LISTED])}{more}."
        )
    return "\n".join(parts)
