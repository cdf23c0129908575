"""Calls of another library's models: checked by the gate, run by the toolbox, converted for the model."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import anyio

from indusagi.adapters.blocking import BlockingToolBox
from indusagi.adapters.content import ModelContent, to_model_content
from indusagi.adapters.gate import Gate, check_call, require_gate
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonValue
from indusagi.core.read_write_lock import ReadWriteLock
from indusagi.runtime.calls import current_check
from indusagi.runtime.contract import (
    PreparingRunner,
    ToolBox,
    ToolCall,
    ToolDescriptor,
    ToolOutcome,
    ToolResult,
    ToolRunner,
)

ResultT = TypeVar("ResultT")


class AdapterCalls:
    """The toolbox behind an adapter.

    Args:
        box: The toolbox. The work on that of `open_deck_sync` is done in its own thread, whichever loop or thread asks.
        gate: Decides about each call; questions come one at a time. It may be absent if the toolbox checks its calls.
        cancel: Ends running calls, which then have an error as their outcome. After that no call runs.

    Raises:
        MissingGateError: There is neither a gate nor a toolbox that checks its calls.
    """

    def __init__(self, box: ToolBox, gate: Gate | None, cancel: CancelToken | None) -> None:
        require_gate(box, gate)
        self._blocking = box if isinstance(box, BlockingToolBox) else None
        self._box = box.toolbox if isinstance(box, BlockingToolBox) else box
        self._gate, self._cancel = gate, cancel
        self._asking = anyio.Lock()

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the present tools; a toolbox in another thread is waited for."""
        return (self._blocking or self._box).descriptors()

    async def read_descriptors(self) -> Sequence[ToolDescriptor]:
        """List the present tools, without waiting in the event loop."""
        return self._box.descriptors() if self._blocking is None else await self._blocking.read_descriptors()

    async def run(self, call: ToolCall) -> ToolOutcome:
        """Run a call; a refusal and a failure are error outcomes. Cancelling the task cancels the call."""
        return await self._in_loop(self._run, call)

    async def run_for_model(self, call: ToolCall) -> ModelContent:
        """Run a call and convert its result."""
        return to_model_content((await self.run(call)).result)

    async def run_all(self, calls: Sequence[ToolCall]) -> Sequence[ModelContent]:
        """Run the calls of one response; those of read-only tools run side by side, the others alone and in order."""
        return await self._in_loop(self._run_all, calls)

    def run_sync(self, call: ToolCall) -> ToolOutcome:
        """Run a call from a thread without an event loop.

        Raises:
            TypeError: The toolbox belongs to an event loop.
        """
        return self._require_blocking().wait_for(self._run, call)

    def run_all_sync(self, calls: Sequence[ToolCall]) -> Sequence[ModelContent]:
        """Run the calls of one response from a thread without an event loop.

        Raises:
            TypeError: The toolbox belongs to an event loop.
        """
        return self._require_blocking().wait_for(self._run_all, calls)

    def _require_blocking(self) -> BlockingToolBox:
        if self._blocking is None:
            raise TypeError("a call without await needs the toolbox of open_deck_sync or open_blocking")
        return self._blocking

    async def _in_loop(self, work: Callable[..., Awaitable[ResultT]], argument: object) -> ResultT:
        if self._blocking is None:
            return await work(argument)
        return await self._blocking.call_async(work, argument)

    async def _run(self, call: ToolCall) -> ToolOutcome:
        runner, gate, cancel = self._box.runner, self._gate, self._cancel or CancelToken()
        # A call of an unknown tool is answered by the runner.
        if gate is None or cancel.cancelled or all(tool.name != call.name for tool in self._box.descriptors()):
            return await self._run_unless_cancelled(runner, call, cancel)
        prepared = await runner.prepare(call) if isinstance(runner, PreparingRunner) else call
        if isinstance(prepared, ToolOutcome):
            return prepared

        async def check(call: ToolCall) -> ToolResult | None:
            async with self._asking:
                return await check_call(gate, call)

        with cancel.guard():  # a gate may wait for the user
            refusal = await check(prepared)
            if refusal is not None:
                return ToolOutcome(call.id, refusal)
        current_check.set(check)  # for an interceptor that changes the arguments
        try:
            return await self._run_unless_cancelled(runner, prepared, cancel)
        finally:
            current_check.set(None)

    @staticmethod
    async def _run_unless_cancelled(runner: ToolRunner, call: ToolCall, cancel: CancelToken) -> ToolOutcome:
        # Here too, because the runner may be the program's own.
        if cancel.cancelled:
            return ToolOutcome(call.id, ToolResult.stopped(call.name, cancel))
        return await runner.run(call, cancel)

    async def _run_all(self, calls: Sequence[ToolCall]) -> Sequence[ModelContent]:
        reading = {
            tool.name for tool in self._box.descriptors() if (tool.annotations or {}).get("readOnlyHint") is True
        }
        contents: dict[int, ModelContent] = {}
        order = ReadWriteLock()

        async def run_one(place: int, call: ToolCall) -> None:
            async with order.hold(shared=call.name in reading):
                contents[place] = to_model_content((await self._run(call)).result)

        async with anyio.create_task_group() as tasks:
            for place, call in enumerate(calls):
                tasks.start_soon(run_one, place, call)
        return [contents[place] for place in range(len(calls))]


def is_read_only(tool: ToolDescriptor) -> bool:
    """Return whether a tool says that it changes nothing; that orders calls and permits none."""
    return (tool.annotations or {}).get("readOnlyHint") is True


def copy_parameters(tool: ToolDescriptor) -> dict[str, Any]:
    """Copy the schema of a tool for a library, which may change it."""
    return copy.deepcopy(dict(tool.parameters))


def parse_arguments(text: str) -> JsonValue:
    """Parse the arguments of a call; invalid JSON stays text, and the tool's own check explains it to the model."""
    try:
        return cast("JsonValue", json.loads(text)) if text else {}
    except (ValueError, RecursionError):
        return text
