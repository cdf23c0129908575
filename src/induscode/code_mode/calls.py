"""Calls of a script: each goes through the toolbox by which the script's own call came in.

Permissions, interceptors, budgets of servers and records see such a call as they see one of the model; its id is that
of the script with a number (`call_7/3`). Calls that only read run beside each other, any other runs alone.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.json import NotJson, compact_json
from indusagi.core.read_write_lock import ReadWriteLock
from indusagi.runtime.calls import CallEntry, current_entry
from indusagi.runtime.contract import TextContentBlock, ToolCall, ToolProgress, project_content
from induscode.code_mode.contract import CallReport, ScriptCallError
from induscode.code_mode.functions import FunctionTable, list_descriptors
from induscode.code_mode.stubs import format_stub
from induscode.search.names import FIND_TOOLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ProgressSink, ToolResult
    from induscode.code_mode.contract import CodeLimits, FunctionCall

_FOUND = 5
_MOST_FOUND = 50
_LONGEST_ERROR = 8_000
_ERRORS = {
    "denied": "PermissionError",
    "unknown_tool": "NameError",
    "invalid_arguments": "ValueError",
    "timeout": "TimeoutError",
}
"""The builtin exception that the code of an error raises; any other is a RuntimeError."""


class ScriptCalls:
    """The calls of one script."""

    def __init__(self, entry: CallEntry, ctx: ToolContext, limits: CodeLimits) -> None:
        self._entry, self._ctx, self._limits = entry, ctx, limits
        self.functions = FunctionTable(list_descriptors(entry.box))
        self.reports: list[CallReport] = []
        """The calls that were made, in the order of their start."""
        self._count = self._progress = 0
        self._slots = anyio.CapacityLimiter(limits.parallel)
        self._order = ReadWriteLock()

    async def call(self, call: FunctionCall) -> JsonValue:
        """Make a call, and return the result of the tool, whole.

        Raises:
            ScriptCallError: The call was refused, or the tool answered with an error.
        """
        self._count += 1
        if self._count > self._limits.calls:
            raise ScriptCallError("RuntimeError", f"a script makes {self._limits.calls} calls at most")
        if call.name == FIND_TOOLS:
            return await self._find_tools(call)
        function = self.functions.get(call.name)
        arguments, number = function.bind(call), self._count
        _measure(arguments, f"the arguments of {call.name}", self._limits)
        tool = function.descriptor.name
        async with self._slots, self._order.hold(shared=function.descriptor.reads_only):
            self._report(tool)
            place = len(self.reports)
            self.reports.append(CallReport(call.name, "not finished"))
            tool_call = ToolCall(f"{self._entry.call_id}/{number}", tool, arguments)
            # In the task of this call alone.
            current_entry.set(replace(self._entry, call_id=tool_call.id, is_whole=True))
            outcome = await self._entry.box.runner.run(
                tool_call, self._ctx.cancel, on_progress=self._pass_progress(tool)
            )
            result = outcome.result
            code = str(result.details.get("code") or "error") if result.is_error else "ok"
            self.reports[place] = CallReport(call.name, code)
        if result.is_error:
            text = _to_text(result) or f"{call.name} failed"
            raise ScriptCallError(_ERRORS.get(code, "RuntimeError"), text[:_LONGEST_ERROR])
        value = result.structured if result.structured is not None else project_content(result.content)
        _measure(value, f"the result of {call.name}", self._limits)
        return value

    def _report(self, message: str) -> None:
        self._progress += 1
        self._ctx.report(ToolProgress(self._progress, None, message))

    def _pass_progress(self, tool: str) -> ProgressSink:
        return lambda progress: self._report(f"{tool}: {progress.message}" if progress.message else tool)

    async def _find_tools(self, call: FunctionCall) -> JsonValue:
        """Find functions by what they do: the name and the stub of each, the best one first."""
        from induscode.search.index import ToolIndex  # noqa: PLC0415 — for a script that searches
        from induscode.search.items import build_tool_item  # noqa: PLC0415 — for a script that searches

        words = [value for value in (*call.positional, *call.named.values()) if isinstance(value, str)]
        numbers = [value for value in (*call.positional, *call.named.values()) if isinstance(value, int)]
        if not words:
            raise ScriptCallError("TypeError", f"{FIND_TOOLS}(query, limit=5) takes words")
        functions = {function.descriptor.name: function for function in self.functions.functions}

        def search() -> Sequence[str]:
            denied = self._entry.find_denied([*functions])
            items = [build_tool_item(function.descriptor) for name, function in functions.items() if name not in denied]
            index = ToolIndex(items)
            try:
                answer = index.search(words, limit=min(numbers[0] if numbers else _FOUND, _MOST_FOUND))
            finally:
                index.close()
            return [hit.item.qualified_name for hit in answer.hits]

        found = await to_thread.run_sync(search)
        return [{"name": functions[name].name, "stub": format_stub(functions[name])} for name in found]


def _measure(value: JsonValue, subject: str, limits: CodeLimits) -> None:
    """Refuse a value that is too large for the interpreter, or no JSON.

    Raises:
        ScriptCallError: It is.
    """
    try:
        size = len(compact_json(value))
    except (NotJson, RecursionError) as exc:
        raise ScriptCallError("ValueError", f"{subject} are {exc}") from exc
    if size > limits.value_bytes:
        message = f"{subject} take {size:,} characters as JSON, and {limits.value_bytes:,} are the limit"
        raise ScriptCallError("MemoryError", message)


def _to_text(result: ToolResult) -> str:
    return "\n".join(
        block.text if isinstance(block, TextContentBlock) else json.dumps(block.value) for block in result.content
    )
