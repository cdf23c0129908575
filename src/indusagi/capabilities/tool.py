"""Tool: a name, a description, a JSON Schema and an async function.

`define_tool` turns a `ToolSpec` into a `DefinedTool`. Running one never raises: invalid arguments, failures of the
function and a cancelled token all yield error results for the model. Only cancellation of the running task propagates.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import field
from importlib import import_module
from typing import Any, Protocol, TypeAlias, cast

from indusagi.capabilities.arguments import ArgumentChecker
from indusagi.capabilities.context import ToolContext
from indusagi.core.faults import CoreError, describe_error
from indusagi.core.json import JsonLike, JsonObject, JsonValue, NotJson, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.runtime.contract import JsonSchema, ToolCall, ToolDescriptor, ToolOutcome, ToolResult

ToolAnswer: TypeAlias = ToolResult | JsonLike
"""Return value of a tool function: a result or a plain value (a string becomes text, anything else JSON)."""
RunTool: TypeAlias = Callable[[JsonObject, ToolContext], Awaitable[ToolAnswer]]
"""A tool function: takes checked arguments and a context, returns an answer."""


@record
class ChangePreview:
    """A change that a call would make to a file, found without making it."""

    result: ToolResult
    """The result that the call would report; an error if it would fail."""
    before: bytes | None = None
    """The file's content; None for a new file."""
    after: bytes = b""


approved_change: ContextVar[ChangePreview | None] = ContextVar("approved_change", default=None)
"""The change that the user approved: this task's call must make exactly this one."""
PreviewCall: TypeAlias = Callable[[JsonObject, ToolContext], Awaitable[ChangePreview]]
"""A dry run of a tool function."""

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Tool names that every model provider accepts."""


class Tool(Protocol):
    """The interface registries, decks and bridges rely on; `DefinedTool` implements it."""

    @property
    def name(self) -> str:
        """The name a model calls it by."""
        ...

    @property
    def description(self) -> str:
        """The description for the model."""
        ...

    @property
    def parameters(self) -> JsonSchema:
        """The JSON Schema of its arguments."""
        ...

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run the tool; failures become error results."""
        ...


class InvalidTool(CoreError):
    """A tool definition that can't work."""


@record
class ToolSpec:
    """The definition of a tool."""

    name: str
    description: str
    parameters: JsonSchema
    run: RunTool
    title: str | None = field(default=None, kw_only=True)
    read_only: bool = field(default=False, kw_only=True)
    """Whether it has no side effects; such tools may run concurrently."""
    annotations: Mapping[str, JsonValue] = field(default_factory=dict[str, "JsonValue"], kw_only=True)
    output_schema: JsonSchema | None = field(default=None, kw_only=True)
    check_arguments: bool = field(default=True, kw_only=True)
    """False for a tool that forwards its arguments to a server that checks them."""
    terse: bool = field(default=False, kw_only=True)
    """Whether to omit value bounds from the model's schema; the argument check explains violations."""
    foreign: bool = field(default=False, kw_only=True)
    """Whether a third party writes its results, so the runner has to reveal invisible characters."""
    definition: Mapping[str, JsonValue] | None = field(default=None, kw_only=True)
    """The server's complete definition of a remote tool."""
    prepare: Callable[[JsonValue], JsonValue] | None = field(default=None, kw_only=True)
    """Fixes harmless mistakes of models (see `coerce_to`) before the argument check."""
    preview: PreviewCall | None = field(default=None, kw_only=True)
    """Finds the change that a call would make, to show it before it runs."""


def define_tool(spec: ToolSpec) -> DefinedTool:
    """Create a tool.

    Raises `InvalidTool` if model providers would reject the name, or the parameters don't describe an object.
    """
    if not isinstance(spec.name, str) or not _NAME.fullmatch(spec.name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTool(f"{spec.name!r} cannot be the name of a tool: use 1 to 64 of letters, digits, _ and -")
    _check_schema(spec.name, "parameters", spec.parameters)
    if spec.output_schema is not None:
        _check_schema(spec.name, "output schema", spec.output_schema)
    if spec.parameters.get("type") != "object":
        raise InvalidTool(f"the parameters of {spec.name!r} must have the type 'object'")
    return DefinedTool(spec)


def define_native_tool(
    name: str,
    title: str,
    description: str,
    parameters: JsonSchema,
    run: RunTool,
    prepare: Callable[[JsonValue], JsonValue],
    *,
    read_only: bool = False,
    annotations: Mapping[str, JsonValue] | None = None,
    preview: PreviewCall | None = None,
) -> DefinedTool:
    """Create one of our own tools, with a schema for the model without bounds."""
    return define_tool(
        ToolSpec(
            name,
            description,
            parameters,
            run,
            title=title,
            read_only=read_only,
            annotations=annotations or {},
            prepare=prepare,
            terse=True,
            preview=preview,
        )
    )


def run_lazily(module: str, function: str = "run") -> Callable[[JsonObject, ToolContext], Awaitable[Any]]:
    """Return a tool function that imports a heavy implementation on the first call, in a thread.

    A listing needs the definitions of all tools but runs none of them.
    """
    loaded: list[Callable[[JsonObject, ToolContext], Awaitable[Any]]] = []

    async def run(arguments: JsonObject, ctx: ToolContext) -> Any:
        if not loaded:
            from anyio import to_thread  # noqa: PLC0415 — by the first call

            loaded.append(getattr(await to_thread.run_sync(import_module, module), function))
        return await loaded[0](arguments, ctx)

    return run


def _check_schema(name: str, part: str, schema: JsonSchema) -> None:
    try:
        compact_json(schema)
    except NotJson as exc:
        raise InvalidTool(f"the {part} of {name!r}: {exc}") from exc
    if not isinstance(schema, dict):
        raise InvalidTool(f"the {part} of {name!r} must be an object, not {schema!r}")


_BOUNDS = frozenset({"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "additionalProperties"})


def without_bounds(level: JsonValue) -> JsonValue:
    """Strip value bounds and `additionalProperties: false` from a schema.

    Every model request includes the schemas. The result accepts everything the original accepts.
    """
    if isinstance(level, list):
        return [without_bounds(item) for item in level]
    if not isinstance(level, dict):
        return level
    kept: JsonObject = {}
    for key, value in level.items():
        if key == "properties" and isinstance(value, dict):
            kept[key] = {name: without_bounds(inner) for name, inner in value.items()}
        elif key == "items":
            kept[key] = without_bounds(value)
        elif key not in _BOUNDS or (key == "additionalProperties" and value is not False):
            kept[key] = value
    return kept


class CheckedArguments(dict[str, JsonValue]):
    """Arguments that `prepare_call` copied, coerced and checked against `schema`."""

    __slots__ = ("schema",)
    schema: JsonSchema | None

    def __deepcopy__(self, memo: dict[int, object]) -> JsonObject:
        """Return a plain copy, which counts as unchecked because its owner may change it."""
        return copy.deepcopy({**self}, memo)


class DefinedTool:
    """A callable tool, made by `define_tool`."""

    def __init__(self, spec: ToolSpec) -> None:
        self.spec, self.preview = spec, spec.preview
        self.name, self.label = spec.name, spec.title or spec.name
        self.description, self.read_only = spec.description, spec.read_only
        self.descriptor = ToolDescriptor(
            spec.name,
            spec.description,
            cast("JsonSchema", without_bounds(cast("JsonObject", spec.parameters))) if spec.terse else spec.parameters,
            title=spec.title,
            annotations={**spec.annotations, "readOnlyHint": spec.read_only},
            output_schema=spec.output_schema,
            definition=spec.definition,
        )
        self.parameters = self.descriptor.parameters
        """The schema of its arguments, as the model receives it."""
        self._arguments = ArgumentChecker(spec.parameters) if spec.check_arguments else None

    def __repr__(self) -> str:
        return f"DefinedTool({self.name!r})"

    async def invoke(self, call: ToolCall, ctx: ToolContext) -> ToolOutcome:
        """Run a call and return the outcome under its id."""
        return ToolOutcome(call.id, await self.run(call.input, ctx))

    async def run(self, arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        """Check the arguments and run the tool; only raises if the task is cancelled."""
        name, prepared = self.spec.name, await self.prepare_call(arguments)
        if ctx.cancel.cancelled:  # the guard stops at the first await, which a quick tool never reaches
            return ToolResult.stopped(name, ctx.cancel)
        if isinstance(prepared, ToolResult):
            return prepared
        try:
            with ctx.cancel.guard():
                running = self.spec.run(prepared, ctx)
                if not inspect.isawaitable(running):
                    raise InvalidTool("its run function is not async")
                answer = await running
                return answer if isinstance(answer, ToolResult) else make_result(name, answer)
        except BaseException as exc:  # boundary: the tool's own code, whatever it raises
            if _passes(exc):
                raise
            _log.debug("tool %s failed", name, exc_info=exc)
            return ToolResult.error(f"{name} failed: {_reason(exc)}", code="failed")
        return ToolResult.stopped(name, ctx.cancel)

    execute = run

    async def prepare_call(self, arguments: JsonValue) -> JsonObject | ToolResult:
        """Copy, coerce and check arguments; return the final arguments or an error result.

        `run` accepts the returned object without checking it again, so a caller that approves a call approves exactly
        the arguments it will run with.
        """
        if isinstance(arguments, CheckedArguments) and arguments.schema is self.spec.parameters:
            return arguments
        if not self.spec.check_arguments and is_json_object(arguments):
            return arguments
        return await prepare_call(self.spec.name, arguments, self._arguments, self.spec.prepare)


async def prepare_call(
    name: str,
    arguments: JsonValue,
    checker: ArgumentChecker | None = None,
    coerce: Callable[[JsonValue], JsonValue] | None = None,
) -> JsonObject | ToolResult:
    """Copy, coerce and check the arguments of the tool `name`; return them or an error result.

    Without a `checker`, accepts any JSON object.
    """
    try:
        # Copy, so that tool and caller can't change each other's arguments. Some models send null for no arguments.
        prepared: JsonValue = {} if arguments is None else copy.deepcopy(arguments)
        if coerce is not None:
            prepared = coerce(prepared)
        if checker is None and is_json_object(prepared):
            compact_json(prepared)
            return prepared
        problems = ["the arguments must be an object"] if checker is None else await checker.check(prepared)
    except (NotJson, RecursionError) as exc:
        prepared, problems = None, [f"the arguments are {exc}"]
    except Exception as exc:  # noqa: BLE001 — boundary: a schema that the validator fails on
        return ToolResult.error(f"{name} cannot check its arguments: {_reason(exc)}", code="bad_schema")
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        return ToolResult.error(f"{name} was not run, the arguments do not fit:{listed}", code="invalid_arguments")
    checked = CheckedArguments(cast("JsonObject", prepared))
    checked.schema = None if checker is None else checker.schema
    return checked


def make_result(name: str, answer: object) -> ToolResult:
    """Convert the return value of a tool function to a result: a string to text, other plain values to JSON.

    A value that isn't JSON becomes an error result.
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
    """Return whether an exception is an interrupt or the cancellation of the running task.

    A tool that awaits some other cancelled task raises the same exception, but its own task isn't being cancelled
    (https://docs.python.org/3/library/asyncio-task.html#asyncio.Task.cancelling).
    """
    if isinstance(exc, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", exc)
        return any(_passes(inner) for inner in group.exceptions)
    import asyncio  # noqa: PLC0415 — loaded wherever a tool runs, slow elsewhere

    if isinstance(exc, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(exc, (KeyboardInterrupt, GeneratorExit))


def _reason(exc: BaseException) -> str:
    """Describe an exception, including its type unless it's ours or an OSError."""
    if isinstance(exc, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", exc)
        return "; ".join(_reason(inner) for inner in group.exceptions)
    message, name = describe_error(exc), type(exc).__name__
    return message if isinstance(exc, (CoreError, OSError)) or message.startswith(name) else f"{name}: {message}"
