"""Opens code mode for a run: the `run_code` card with its engine, which the run closes, and the calls of its scripts.

Each call goes through the toolbox that the script's own call came from. Permissions, interceptors, server budgets and
records treat such a call like one from the model; its id is the script's plus a number (`call_7/3`). Read-only calls
run concurrently, any other runs alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json
from indusagi.core.tasks import ReadWriteLock
from indusagi.core.text import format_count
from indusagi.runtime.calls import CallEntry, current_entry
from indusagi.runtime.contract import (
    Keep,
    TextContentBlock,
    ToolCall,
    ToolDescriptor,
    ToolProgress,
    ToolResult,
    project_content,
)
from induscode.code_mode.contract import RUN_CODE, CallReport, CodeLimits, EngineUnavailable, ScriptCallError
from induscode.code_mode.process import MontyEngine, find_engine_problem
from induscode.code_mode.stubs import FunctionTable, ToolFunction, format_stub, list_descriptors
from induscode.deck.contract import BackendFault, CardWrapper
from induscode.deck.provision import DeckToolBox
from induscode.launch.settings import CODE_CALLS, CODE_MEMORY_MB, CODE_TIMEOUT_S, Settings
from induscode.search.options import FIND_TOOLS

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from indusagi.capabilities.context import ToolContext
    from induscode.code_mode.contract import FunctionCall, ScriptFault, ScriptResult
    from induscode.search.index import ToolIndex


_DEFAULT_FOUND = 5
_MAX_FOUND = 50
_FIND_USAGE = f"{FIND_TOOLS}(query, limit={_DEFAULT_FOUND}) takes words, or a list of such texts"
_MAX_ERROR_CHARS = 8_000
_ERRORS = {
    "denied": "PermissionError",
    "unknown_tool": "NameError",
    "invalid_arguments": "ValueError",
    "timeout": "TimeoutError",
}
"""Builtin exceptions by error code; any other is a RuntimeError."""


class ScriptCalls:
    """The calls of one script."""

    def __init__(self, entry: CallEntry, ctx: ToolContext, limits: CodeLimits) -> None:
        self._entry, self._ctx, self._limits = entry, ctx, limits
        self.functions = FunctionTable(list_descriptors(entry.box))
        self.reports: list[CallReport] = []
        """Calls in the order of their start."""
        self._count = self._progress = 0
        self._order = ReadWriteLock()
        self._lock = Lock()
        self._index: ToolIndex | None = None

    async def call(self, call: FunctionCall) -> JsonValue:
        """Make a call, and return the tool's complete result.

        Raises `ScriptCallError` if the call was rejected, or the tool returned an error.
        """
        self._count += 1
        if call.name == FIND_TOOLS:
            return await self._find_tools(call)
        function = self._find_disabled(call.name) or self.functions.get(call.name)
        arguments, number = function.bind(call), self._count
        _measure(arguments, f"the arguments of {call.name}", self._limits)
        tool = function.descriptor.name
        async with self._order.hold(shared=function.descriptor.reads_only):
            self._report(tool)
            place = len(self.reports)
            self.reports.append(CallReport(call.name, "not finished"))
            tool_call = ToolCall(f"{self._entry.call_id}/{number}", tool, arguments)
            # Only in this call's task.
            current_entry.set(replace(self._entry, call_id=tool_call.id, is_whole=True))
            outcome = await self._entry.box.runner.run(
                tool_call,
                self._ctx.cancel,
                on_progress=lambda said: self._report(f"{tool}: {said.message}" if said.message else tool),
            )
            result = outcome.result
            code = str(result.details.get("code") or "error") if result.is_error else "ok"
            self.reports[place] = CallReport(call.name, code)
        if result.is_error:
            text = "\n".join(
                block.text if isinstance(block, TextContentBlock) else json.dumps(block.value)
                for block in result.content
            )
            text = text or f"{call.name} failed"
            raise ScriptCallError(_ERRORS.get(code, "RuntimeError"), text[:_MAX_ERROR_CHARS])
        value = result.structured if result.structured is not None else project_content(result.content)
        _measure(value, f"the result of {call.name}", self._limits)
        return value

    def _find_disabled(self, name: str) -> ToolFunction | None:
        """Find a disabled tool: its box answers a call with the reason, instead of suggesting another tool.

        Raises `ScriptCallError` if it's disabled, in a session.
        """
        box = self._entry.box
        if isinstance(box, DeckToolBox):
            if name in box.disabled:
                message = f"{name} is disabled: its definition is not the one that was approved"
                raise ScriptCallError("RuntimeError", f"{message}. A person can look at it: indus mcp diff")
            return None
        answers_unlisted = getattr(box, "answers_unlisted", None)
        if answers_unlisted is None or not answers_unlisted(name):
            return None
        return ToolFunction(name, ToolDescriptor(name, "", {"type": "object"}), {})

    def _report(self, message: str) -> None:
        self._progress += 1
        self._ctx.report(ToolProgress(self._progress, None, message))

    async def _find_tools(self, call: FunctionCall) -> JsonValue:
        """Find functions by description. Returns each one's name and stub, best first."""
        queries, limit = read_search(call)
        functions = {function.descriptor.name: function for function in self.functions.functions}

        def find() -> Sequence[str]:
            answer = self._open_index(functions).search(queries, limit=limit)
            return [hit.item.qualified_name for hit in answer.hits]

        try:
            found = await to_thread.run_sync(find)
        except CoreError as exc:  # a Python without full text search
            raise ScriptCallError("RuntimeError", str(exc)) from exc
        return [{"name": functions[name].name, "stub": format_stub(functions[name])} for name in found]

    def _open_index(self, functions: Mapping[str, ToolFunction]) -> ToolIndex:
        """Build the index of callable tools for the script's first search. Blocks."""
        from induscode.search.index import ToolIndex  # noqa: PLC0415 — for a script that searches
        from induscode.search.items import build_tool_item  # noqa: PLC0415 — for a script that searches

        with self._lock:
            if self._index is None:
                denied = self._entry.find_denied([*functions])
                self._index = ToolIndex(
                    build_tool_item(function.descriptor) for name, function in functions.items() if name not in denied
                )
            return self._index

    def close(self) -> None:
        """Free the search index, after the last call."""
        if self._index is not None:
            self._index.close()


def read_search(call: FunctionCall) -> tuple[Sequence[str], int]:
    """Read a `find_tools` call's queries and limit: one text or several, as `query` or `queries`.

    Raises `ScriptCallError` if the arguments are invalid.
    """
    names = ("queries", "limit")
    given: dict[str, JsonValue] = {}
    for name, value in (*zip(names, call.positional, strict=False), *call.named.items()):
        key = "queries" if name == "query" else name
        if key in given or key not in names:
            raise ScriptCallError("TypeError", f"{_FIND_USAGE}, and got {name!r}{' twice' if key in given else ''}")
        given[key] = value
    if len(call.positional) > len(names):
        raise ScriptCallError("TypeError", f"{_FIND_USAGE}, and got {len(call.positional)} arguments")
    value, limit = given.get("queries"), given.get("limit")
    texts = value if isinstance(value, list) else [value]
    queries = [text for text in texts if isinstance(text, str) and text.strip()]
    if not queries or len(queries) < len(texts):
        raise ScriptCallError("TypeError", _FIND_USAGE)
    if limit is None:
        limit = _DEFAULT_FOUND
    if not isinstance(limit, int) or not 1 <= limit <= _MAX_FOUND:
        raise ScriptCallError("ValueError", f"{_FIND_USAGE}; the limit is a number from 1 to {_MAX_FOUND}")
    return queries, limit


def _measure(value: JsonValue, subject: str, limits: CodeLimits) -> None:
    """Check that a value is JSON and fits into the interpreter; raises `ScriptCallError` if it isn't, or doesn't."""
    try:
        size = len(compact_json(value))
    except (NotJson, RecursionError) as exc:
        raise ScriptCallError("ValueError", f"{subject}: {exc}") from exc
    if size > limits.value_bytes:
        message = f"{subject}: {size:,} characters as JSON, and {limits.value_bytes:,} are the limit"
        raise ScriptCallError("MemoryError", message)


# -- opening ----------------------------------------------------------------------------------


async def open_code_card(stack: AsyncExitStack, settings: Settings) -> RunCodeCard:
    """Build the `run_code` card. `stack` ends its engine's processes.

    Raises `BackendFault` if the extra `code` isn't installed.
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


class RunCodeCard(CardWrapper):
    """The `run_code` card. Its calls never overlap with others of the same response: they may change something."""

    def __init__(self, engine: MontyEngine, limits: CodeLimits | None = None) -> None:
        self.engine = engine
        self._limits = limits or CodeLimits()
        schema: JsonObject = {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The script."}},
            "required": ["code"],
            "additionalProperties": False,
        }
        spec = ToolSpec(
            RUN_CODE,
            _DESCRIPTION.format(calls=self._limits.calls),
            schema,
            self._run,
            title="Run a script",
            # It can do anything its tools can, so a client should ask as for the strongest of them.
            annotations={"destructiveHint": True, "openWorldHint": True},
            terse=True,
        )
        super().__init__(define_tool(spec))

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
