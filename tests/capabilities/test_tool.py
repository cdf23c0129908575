from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.tools import NOTHING, context, returning, tool

from indusagi.capabilities.tool import InvalidTool, ToolSpec, define_tool
from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import JsonContentBlock, Keep, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue

pytestmark = pytest.mark.anyio


async def nothing(arguments: JsonObject, ctx: ToolContext) -> None:
    """Do nothing."""


@pytest.mark.parametrize("name", [None, 7, "", "a b", "a.b", "é", "x" * 65, "a\n"])
def test_invalid_tool_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidTool, match="cannot be the name of a tool: use 1 to 64"):
        tool(nothing, name=name)


@pytest.mark.parametrize("name", ["a", "bg-process", "github__create_issue", "x" * 64])
def test_valid_tool_names_are_accepted(name: str) -> None:
    assert tool(nothing, name=name).name == name


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string"}, "the parameters of 'probe' must have the type 'object'"),
        ({}, "must have the type 'object'"),
        (None, "the parameters of 'probe' must be an object"),
        (["object"], "the parameters of 'probe' must be an object"),
        ({"type": "object", "x": {1}}, r"the parameters of 'probe': not JSON: \$.x is of type set"),
    ],
)
def test_parameters_must_describe_an_object(schema: Any, message: str) -> None:
    with pytest.raises(InvalidTool, match=message):
        tool(nothing, parameters=schema)


def test_output_schema_must_be_an_object() -> None:
    spec = ToolSpec("probe", "", NOTHING, nothing, output_schema="text")  # type: ignore[arg-type]
    with pytest.raises(InvalidTool, match="the output schema of 'probe'"):
        define_tool(spec)


def test_descriptor_describes_the_tool_completely() -> None:
    spec = ToolSpec(
        "probe",
        "Looks.",
        NOTHING,
        nothing,
        title="Probe",
        read_only=True,
        annotations={"openWorldHint": False, "readOnlyHint": False},
        output_schema={"type": "object"},
    )
    made = define_tool(spec)
    descriptor = made.descriptor
    assert (made.label, made.description, made.parameters, made.read_only) == ("Probe", "Looks.", NOTHING, True)
    assert (descriptor.title, descriptor.output_schema) == ("Probe", {"type": "object"})
    assert descriptor.annotations == {"openWorldHint": False, "readOnlyHint": True}


def test_tool_without_a_title_is_labelled_by_its_name() -> None:
    assert repr(tool(nothing)) == "DefinedTool('probe')"
    assert tool(nothing).label == "probe"


@pytest.mark.parametrize(
    ("answer", "output"), [("text", "text"), ({"a": [1]}, {"a": [1]}), (3, 3), (None, []), (ToolResult.json(1), 1)]
)
async def test_tool_may_return_a_result_or_a_plain_value(tmp_path: Path, answer: Any, output: JsonValue) -> None:
    outcome = await returning(answer).invoke(ToolCall("7", "probe", {}), context(tmp_path))
    assert (outcome.id, outcome.output, outcome.is_error) == ("7", output, False)


async def test_run_and_execute_return_the_result(tmp_path: Path) -> None:
    made = returning({"a": 1})
    assert (await made.run({}, context(tmp_path))).content == (JsonContentBlock({"a": 1}),)
    assert await made.execute({}, context(tmp_path)) == await made.run({}, context(tmp_path))


async def test_tool_does_not_run_with_invalid_arguments(tmp_path: Path) -> None:
    ran: list[JsonObject] = []

    async def run(arguments: JsonObject, ctx: ToolContext) -> None:
        ran.append(arguments)

    schema: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}}
    result = await tool(run, parameters=schema).run({"n": "x"}, context(tmp_path))
    assert ran == []
    assert result.details == {"code": "invalid_arguments"}
    assert result == ToolResult.error(
        "probe was not run, the arguments do not fit:\n- 'n' must be integer, got \"x\"", code="invalid_arguments"
    )


async def test_null_arguments_are_an_empty_object(tmp_path: Path) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
        return arguments

    assert (await tool(run).run(None, context(tmp_path))).content == (JsonContentBlock({}),)


async def test_tool_cannot_change_the_arguments_of_its_caller(tmp_path: Path) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> None:
        inner = arguments["a"]
        assert isinstance(inner, dict)
        inner.clear()
        arguments.clear()

    given: JsonObject = {"a": {"b": [1]}}
    await tool(run).run(given, context(tmp_path))
    assert given == {"a": {"b": [1]}}


class Odd(Exception):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Own(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("bad"), "probe failed: ValueError: bad"),
        (FileNotFoundError(2, "No such file", "x"), "probe failed: [Errno 2] No such file: 'x'"),
        (SystemExit(3), "probe failed: SystemExit: 3"),
        (Odd(), "probe failed: Odd"),
        (RecursionError("deep"), "probe failed: RecursionError: deep"),
        (Mute(), "probe failed: Mute"),
        (Own("odd"), "probe failed: Own: odd"),
        (BaseExceptionGroup("one", [SystemExit(1)]), "probe failed: SystemExit: 1"),
        (ExceptionGroup("two", [ValueError("a"), OSError("b")]), "probe failed: ValueError: a; b"),
    ],
)
async def test_exception_of_a_tool_is_an_error_result(tmp_path: Path, error: BaseException, message: str) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> None:
        raise error

    result = await tool(run).run({}, context(tmp_path))
    assert result == ToolResult.error(message, code="failed")


@pytest.mark.parametrize("answer", [{"when": object()}, math.nan, ("a", "b")])
async def test_return_value_that_is_not_json_is_an_error_result(tmp_path: Path, answer: Any) -> None:
    result = await returning(answer).run({}, context(tmp_path))
    assert result.details["code"] == "bad_result"
    assert "not JSON: $" in str(result.content)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ToolResult(["x"]),  # type: ignore[list-item]
        lambda: ToolResult([{"type": "text"}]),  # type: ignore[list-item]
        lambda: ToolResult.text(None),  # type: ignore[arg-type]
        lambda: ToolResult((), keep="middle"),  # type: ignore[arg-type]
        lambda: ToolResult((), details=None),  # type: ignore[arg-type]
    ],
)
async def test_invalid_result_is_the_failure_of_the_tool(tmp_path: Path, make: Callable[[], ToolResult]) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        return make()

    assert (await tool(run).run({}, context(tmp_path))).details["code"] == "failed"


def test_keep_may_be_a_string() -> None:
    assert ToolResult((), keep="tail").keep is Keep.TAIL  # type: ignore[arg-type]


async def test_cancelled_task_of_the_tool_is_its_failure(tmp_path: Path) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> None:
        own = asyncio.get_running_loop().create_task(anyio.sleep_forever())
        own.cancel()
        await own

    result = await tool(run).run({}, context(tmp_path))
    assert result.details["code"] == "failed"


@pytest.mark.parametrize("arguments", [{"a": math.nan}, {1: 2}, {"a": {1, 2}}])
async def test_arguments_that_are_not_json_are_refused(tmp_path: Path, arguments: Any) -> None:
    result = await tool(nothing).run(arguments, context(tmp_path))
    assert result.details["code"] == "invalid_arguments"
    assert "the arguments are not JSON: $" in str(result.content)


async def test_large_arguments_are_checked_in_a_thread(tmp_path: Path) -> None:
    schema: JsonObject = {"type": "object", "properties": {"rows": {"type": "array", "uniqueItems": True}}}
    rows: list[JsonValue] = [{"n": n} for n in range(300)]
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            ticks.append(1)
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await tool(nothing, parameters=schema).run({"rows": [*rows, "x" * 20_000]}, context(tmp_path))
        tasks.cancel_scope.cancel()
    assert len(ticks) > 2


async def test_unchecked_tool_receives_any_object(tmp_path: Path) -> None:
    spec = ToolSpec("probe", "", {"type": "object", "required": ["a"]}, nothing, check_arguments=False)
    assert not (await define_tool(spec).run({"b": 1}, context(tmp_path))).is_error
    assert (await define_tool(spec).run("x", context(tmp_path))).is_error


async def test_function_that_is_not_async_is_reported(tmp_path: Path) -> None:
    made = tool(lambda arguments, ctx: "x")  # type: ignore[arg-type, return-value]
    result = await made.run({}, context(tmp_path))
    assert result == ToolResult.error("probe failed: its run function is not async", code="failed")


async def test_unusable_schema_is_reported_without_running(tmp_path: Path) -> None:
    made = tool(nothing, parameters={"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}})
    result = await made.run({"a": 1}, context(tmp_path))
    assert result.details == {"code": "bad_schema"}


async def test_cancelled_token_ends_the_tool_with_a_result(tmp_path: Path) -> None:
    cleaned: list[str] = []
    started = anyio.Event()

    async def run(arguments: JsonObject, ctx: ToolContext) -> None:
        try:
            started.set()
            await anyio.sleep_forever()
        finally:
            cleaned.append("up")

    token = CancelToken()
    results: list[ToolResult] = []

    async def use() -> None:
        results.append(await tool(run).run({}, context(tmp_path).with_cancel(token)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
        await started.wait()
        token.cancel("Ctrl-C")
    assert cleaned == ["up"]
    assert results == [ToolResult.error("probe was stopped: Ctrl-C", code="cancelled")]


async def test_token_cancelled_beforehand_stops_the_tool_at_its_first_await(tmp_path: Path) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> None:
        await anyio.sleep_forever()

    token = CancelToken()
    token.cancel("early")
    result = await tool(run).run({}, context(tmp_path).with_cancel(token))
    assert result.details == {"code": "cancelled"}


async def test_tool_that_finishes_despite_cancellation_keeps_its_result(tmp_path: Path) -> None:
    token = CancelToken()

    async def run(arguments: JsonObject, ctx: ToolContext) -> str:
        token.cancel()
        return "done"

    result = await tool(run).run({}, context(tmp_path).with_cancel(token))
    assert result == ToolResult.text("done")


async def test_cancellation_of_the_running_task_passes_through(tmp_path: Path) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> None:
        await anyio.sleep_forever()

    returned: list[ToolResult] = []
    with anyio.move_on_after(0.01) as scope:
        returned.append(await tool(run).run({}, context(tmp_path)))
    assert scope.cancelled_caught
    assert returned == []


async def test_keyboard_interrupt_passes_through(tmp_path: Path) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await tool(run).run({}, context(tmp_path))


async def test_arguments_that_one_tool_has_checked_are_checked_by_another(tmp_path: Path) -> None:
    lax = tool(nothing, parameters={"type": "object"})
    strict = tool(nothing, parameters={"type": "object", "required": ["a"], "additionalProperties": False})
    prepared = await lax.prepare_call({"b": 1})
    assert not isinstance(prepared, ToolResult)
    assert await lax.prepare_call(prepared) is prepared
    assert isinstance(await strict.prepare_call(prepared), ToolResult)
    assert (await strict.run(prepared, context(tmp_path))).details["code"] == "invalid_arguments"
