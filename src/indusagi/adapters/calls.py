"""Calls of another library's models: checked by the gate, run by the toolbox, converted for the model."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import anyio
from anyio import to_thread

from indusagi.adapters.blocking import BlockingToolBox
from indusagi.adapters.content import ModelContent, to_model_content
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonValue
from indusagi.core.records import record
from indusagi.core.tasks import ReadWriteLock
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


# -- libraries --------------------------------------------------------------------------------


@runtime_checkable
class _PydanticModel(Protocol):
    def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, Any]: ...


def to_plain_object(value: Any) -> dict[str, Any]:
    """Return an object of a client library (a pydantic model) or a mapping as a dictionary, as it was received.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if isinstance(value, _PydanticModel):
        return value.model_dump(mode="json", exclude_unset=True)
    raise TypeError(f"neither a JSON object nor a response of a client library: {type(value).__name__}")


@contextmanager
def explain_missing(distribution: str) -> Generator[None]:
    """Name the package to install where the library of an adapter is missing.

    Raises:
        ImportError: It is missing.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        raise ImportError(f"this adapter needs {distribution}: pip install {distribution}", name=exc.name) from exc


# -- gate -------------------------------------------------------------------------------------
#
# It receives a `GateRequest` and returns True, or False, or a text with the reason for the model. A plain function
# runs in a thread, so that it may wait for a person; an async one in the event loop. A call runs after True and after
# nothing else: a gate that raises has denied the call.


@record(kw_only=True)
class GateRequest:
    """A call that waits for a decision: what is shown is what runs."""

    tool: str
    arguments: JsonValue
    title: str
    """What will happen, in one line of printable ASCII characters."""
    reasons: tuple[str, ...] = ()
    """Why the gate is asked, where rules say so."""


GateAnswer: TypeAlias = bool | str
Gate: TypeAlias = Callable[[GateRequest], GateAnswer | Awaitable[GateAnswer]]


class MissingGateError(TypeError):
    """A toolbox that checks no call was given to an adapter without a gate."""


def allow_all(_: GateRequest) -> bool:
    """Allow every call: the gate of a program whose tools may all run."""
    return True


def is_gated(box: ToolBox) -> bool:
    """Return whether a toolbox decides about its calls by itself, as that of `open_deck` does."""
    return getattr(box, "is_gated", False) is True


def require_gate(box: ToolBox, gate: Gate | None) -> None:
    """Refuse a toolbox whose calls are checked by nothing.

    Raises:
        MissingGateError: There is neither a gate nor a toolbox that checks.
    """
    if gate is None and not is_gated(box):
        raise MissingGateError(
            "this toolbox runs every call of a model unasked: give gate=FUNCTION, which decides about each call, "
            "or gate=allow_all (indusagi.adapters.calls)"
        )


def build_gate_request(call: ToolCall) -> GateRequest:
    """Build the request of a call about which nothing else is known."""
    title = f"{json.dumps(call.name)[1:-1]} {format_arguments(call.input)}"
    # A copy: what a gate changes doesn't run.
    arguments = copy.deepcopy({**call.input} if isinstance(call.input, dict) else call.input)
    return GateRequest(tool=call.name, arguments=arguments, title=title)


def format_arguments(arguments: JsonValue) -> str:
    """Write arguments in one line of ASCII, in which every character is visible."""
    return json.dumps(arguments, default=repr)


async def ask_gate(gate: Gate, request: GateRequest) -> str | None:
    """Ask a gate; return None if the call may run, and otherwise why not, which may be empty."""
    try:
        if iscoroutinefunction(gate) or iscoroutinefunction(getattr(gate, "__call__", None)):  # noqa: B004 — the method itself
            answer = gate(request)
        else:
            answer = await to_thread.run_sync(gate, request, abandon_on_cancel=True)
        if isawaitable(answer):
            answer = await cast("Awaitable[GateAnswer]", answer)
    except Exception as exc:  # noqa: BLE001 — boundary: the gate is code of the embedding program
        return f"asking failed: {type(exc).__name__}: {exc}"
    if answer is True:
        return None
    return answer if isinstance(answer, str) else ""


async def check_call(gate: Gate, call: ToolCall) -> ToolResult | None:
    """Return the result of a call that the gate denied, or None if it may run."""
    refusal = await ask_gate(gate, build_gate_request(call))
    if refusal is None:
        return None
    suffix = f": {refusal}" if refusal else ""
    return ToolResult.error(f"{call.name} was not run: the user said no{suffix}", code="denied")
