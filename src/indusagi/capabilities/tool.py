"""A tool: a name, a description, a schema, and the coroutine that does the work.

`define_tool` turns a `ToolSpec` into a `DefinedTool` whose doors never raise: whatever goes wrong
comes back as an error result that a model can read. Only the cancellation of the running task
passes through; a cancelled token ends the tool and comes back as a result too.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast

from indusagi.capabilities.arguments import ArgumentChecker
from indusagi.capabilities.context import ToolContext
from indusagi.core.faults import CoreError, describe_error
from indusagi.core.json import JsonLike, JsonObject, JsonValue, NotJson, compact_json, is_json_object
from indusagi.runtime.contract import JsonSchema, ToolCall, ToolDescriptor, ToolOutcome, ToolResult

ToolAnswer: TypeAlias = ToolResult | JsonLike
"""What a tool may return: a result, or a plain value (a string becomes text, the rest JSON)."""

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every model provider accepts as the name of a tool."""


class Tool(Protocol):
    """What a registry, a deck or a bridge needs of a tool; `DefinedTool` is the kernel's own."""

    @property
    def name(self) -> str:
        """The name a model calls it by."""
        ...

    @property
    def description(self) -> str:
        """What a model is told about it."""
        ...

    @property
    def parameters(self) -> JsonSchema:
        """The JSON Schema of its arguments."""
        ...

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Do the work; a failure is an error result."""
        ...


class InvalidTool(CoreError):
    """A tool whose definition cannot work."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """Everything there is to know about a tool."""

    name: str
    description: str
    parameters: JsonSchema
    run: Callable[[JsonObject, ToolContext], Awaitable[ToolAnswer]]
    title: str | None = field(default=None, kw_only=True)
    read_only: bool = field(default=False, kw_only=True)
    """Whether it leaves everything as it was; such tools may run side by side."""
    annotations: Mapping[str, JsonValue] = field(default_factory=dict[str, "JsonValue"], kw_only=True)
    output_schema: JsonSchema | None = field(default=None, kw_only=True)
    check_arguments: bool = field(default=True, kw_only=True)
    """Off for a tool that passes its arguments on to whoever checks them, and leaves them alone."""
    terse: bool = field(default=False, kw_only=True)
    """Whether models are not told the bounds of arguments, which the check explains when broken."""
    foreign: bool = field(default=False, kw_only=True)
    """Whether another party writes its answers: the runner makes invisible characters visible."""
    definition: Mapping[str, JsonValue] | None = field(default=None, kw_only=True)
    """All that the server of a remote tool says of it."""
    prepare: Callable[[JsonValue], JsonValue] | None = field(default=None, kw_only=True)
    """Puts right what models get wrong without harm, before the arguments are checked."""


def define_tool(spec: ToolSpec) -> DefinedTool:
    """Make a tool from its specification.

    Raises:
        InvalidTool: No provider would accept the name, or the parameters describe no object.
    """
    if not isinstance(spec.name, str) or not _NAME.fullmatch(spec.name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTool(f"{spec.name!r} cannot be the name of a tool: use 1 to 64 of letters, digits, _ and -")
    _check_schema(spec.name, "parameters", spec.parameters)
    if spec.output_schema is not None:
        _check_schema(spec.name, "output schema", spec.output_schema)
    if spec.parameters.get("type") != "object":
        raise InvalidTool(f"the parameters of {spec.name!r} must have the type 'object'")
    return DefinedTool(spec)


def _check_schema(name: str, part: str, schema: JsonSchema) -> None:
    try:
        compact_json(schema)
    except NotJson as exc:
        raise InvalidTool(f"the {part} of {name!r}: {exc}") from exc
    if not isinstance(schema, dict):
        raise InvalidTool(f"the {part} of {name!r} must be an object, not {schema!r}")


_BOUNDS = frozenset({"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "additionalProperties"})


def without_bounds(schema: JsonSchema) -> JsonSchema:
    """Leave out what a schema only forbids: bounds of values, and names it does not know.

    A deck is told with every request. What remains allows all that the schema allows.
    """
    return cast("JsonSchema", _without_bounds(cast("JsonObject", schema)))


def _without_bounds(level: JsonValue) -> JsonValue:
    if isinstance(level, list):
        return [_without_bounds(one) for one in level]
    if not isinstance(level, dict):
        return level
    kept: JsonObject = {}
    for key, value in level.items():
        if key == "properties" and isinstance(value, dict):
            kept[key] = {name: _without_bounds(one) for name, one in value.items()}
        elif key == "items":
            kept[key] = _without_bounds(value)
        elif key not in _BOUNDS or (key == "additionalProperties" and value is not False):
            kept[key] = value
    return kept


class DefinedTool:
    """A tool that can be called. Make it with `define_tool`."""

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec
        self.descriptor = ToolDescriptor(
            spec.name,
            spec.description,
            without_bounds(spec.parameters) if spec.terse else spec.parameters,
            title=spec.title,
            annotations={**spec.annotations, "readOnlyHint": spec.read_only},
            output_schema=spec.output_schema,
            definition=spec.definition,
        )
        self._arguments = ArgumentChecker(spec.parameters if spec.check_arguments else None)

    def __repr__(self) -> str:
        return f"DefinedTool({self.name!r})"

    @property
    def name(self) -> str:
        """The name a model calls it by."""
        return self.spec.name

    @property
    def label(self) -> str:
        """The name for people."""
        return self.spec.title or self.spec.name

    @property
    def description(self) -> str:
        """What a model is told about it."""
        return self.spec.description

    @property
    def parameters(self) -> JsonSchema:
        """The schema of its arguments, as a model is told it."""
        return self.descriptor.parameters

    @property
    def read_only(self) -> bool:
        """Whether it leaves everything as it was."""
        return self.spec.read_only

    async def invoke(self, call: ToolCall, ctx: ToolContext) -> ToolOutcome:
        """Run a call and answer it under its id."""
        return ToolOutcome(call.id, await self.run(call.input, ctx))

    async def run(self, arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        """Check the arguments, run the tool, and answer; never raises but for cancellation."""
        given: JsonValue = {} if arguments is None else arguments  # how some call without any
        if self.spec.prepare is not None:
            given = self.spec.prepare(given)
        if self.spec.check_arguments or not is_json_object(given):
            refusal = await self._refusal(given)
            if refusal is not None:
                return refusal
        try:
            with ctx.cancel.guard():
                answer = await self._start(self._own(given), ctx)
                return make_result(self.name, answer)
        except BaseException as exc:  # boundary: the tool's own code, whatever it raises
            if _passes(exc):
                raise
            _log.debug("tool %s failed", self.name, exc_info=exc)
            return ToolResult.error(f"{self.name} failed: {_reason(exc)}", code="failed")
        return ToolResult.error(f"{self.name} was stopped: {ctx.cancel.reason}", code="cancelled")

    execute = run

    def _own(self, arguments: JsonValue) -> JsonObject:
        """Give the tool arguments of its own: what it does to them must not reach the caller's."""
        given = cast("JsonObject", arguments)
        return copy.deepcopy(given) if self.spec.check_arguments else given

    async def _refusal(self, arguments: JsonValue) -> ToolResult | None:
        """Say why the tool cannot be run with these arguments, or give None."""
        try:
            problems = await self._arguments.check(arguments)
        except NotJson as exc:
            problems = [f"the arguments are {exc}"]
        except Exception as exc:  # noqa: BLE001 — boundary: a schema that the validator chokes on
            return ToolResult.error(f"{self.name} cannot check its arguments: {_reason(exc)}", code="bad_schema")
        if not problems:
            return None
        listed = "".join(f"\n- {problem}" for problem in problems)
        return ToolResult.error(f"{self.name} was not run, the arguments do not fit:{listed}", code="invalid_arguments")

    def _start(self, arguments: JsonObject, ctx: ToolContext) -> Awaitable[ToolAnswer]:
        running = self.spec.run(arguments, ctx)
        if not inspect.isawaitable(running):
            raise InvalidTool("its run function is not async")
        return running


def make_result(name: str, answer: object) -> ToolResult:
    """Make a result of whatever a tool returned: text of a string, JSON of another plain value.

    A value that JSON cannot carry is an error result that names the tool.
    """
    if isinstance(answer, ToolResult):
        return answer
    if answer is None:
        return ToolResult(())
    if isinstance(answer, str):
        return ToolResult.text(answer)
    try:
        compact_json(cast("JsonLike", answer))
    except NotJson as exc:
        return ToolResult.error(f"{name} answered with what is {exc}", code="bad_result")
    return ToolResult.json(cast("JsonValue", answer))


def _passes(exc: BaseException) -> bool:
    """Tell what is not the tool's failure: an interrupt, or the cancellation of the caller's task.

    A tool that awaits a task of its own which was cancelled ends with the same exception, but then
    nobody has cancelled the task it runs in.
    """
    if isinstance(exc, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", exc)
        return any(_passes(inner) for inner in group.exceptions)
    import asyncio  # noqa: PLC0415 — loaded wherever a tool runs, and dear everywhere else

    if isinstance(exc, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(exc, (KeyboardInterrupt, GeneratorExit))


def _reason(exc: BaseException) -> str:
    """Say what went wrong; our own errors and the system's are sentences already."""
    if isinstance(exc, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", exc)
        return "; ".join(_reason(inner) for inner in group.exceptions)
    said = describe_error(exc)
    name = type(exc).__name__
    plain = isinstance(exc, (CoreError, OSError)) or said.startswith(name)
    return said if plain else f"{name}: {said}"
