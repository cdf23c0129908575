"""What every `ToolBox` and its `ToolRunner` promise, tried on each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.tools import box_of, context, returning, tool

from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import ToolBox, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.tool import DefinedTool
    from indusagi.core.json import JsonObject, JsonValue

    MakeBox = Callable[[Path, Sequence[DefinedTool]], ToolBox]

pytestmark = pytest.mark.anyio


def registry_box(tmp_path: Path, tools: Sequence[DefinedTool]) -> ToolBox:
    return box_of(context(tmp_path), *tools)


async def wait_for_ever(arguments: JsonObject, ctx: ToolContext) -> None:
    await anyio.sleep_forever()


async def fail(arguments: JsonObject, ctx: ToolContext) -> None:
    raise RuntimeError("broken")


@pytest.fixture(params=[registry_box])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> ToolBox:
    make: MakeBox = request.param
    tools = [
        returning("zebra", name="zebra"),
        returning({"a": 1}, name="apple"),
        tool(wait_for_ever, name="waits"),
        tool(fail, name="fails"),
    ]
    return make(tmp_path, tools)


def test_tools_are_listed_in_a_stable_order(box: ToolBox) -> None:
    names = [descriptor.name for descriptor in box.descriptors()]
    assert names == ["zebra", "apple", "waits", "fails"]
    assert list(box.descriptors()) == list(box.descriptors())


async def test_outcome_has_the_id_of_its_call(box: ToolBox) -> None:
    outcome = await box.runner.run(ToolCall("call-7", "apple", {}), CancelToken())
    assert (outcome.id, outcome.output, outcome.is_error) == ("call-7", {"a": 1}, False)


@pytest.mark.parametrize(("name", "arguments"), [("fails", {}), ("missing", {}), ("zebra", "no object"), ("zebra", [])])
async def test_failures_are_error_outcomes(box: ToolBox, name: str, arguments: JsonValue) -> None:
    outcome = await box.runner.run(ToolCall("1", name, arguments))
    assert outcome.is_error
    assert isinstance(outcome.output, str)


async def test_cancelled_token_ends_the_call_with_an_error_outcome(box: ToolBox) -> None:
    token = CancelToken()
    token.cancel("enough")
    with anyio.fail_after(60):
        outcome = await box.runner.run(ToolCall("1", "waits", {}), token)
    assert outcome.is_error
    assert "enough" in str(outcome.output)


async def test_the_cancellation_of_the_task_passes_through(box: ToolBox) -> None:
    with anyio.move_on_after(0.01) as scope:
        await box.runner.run(ToolCall("1", "waits", {}))
    assert scope.cancelled_caught


async def test_cancelled_call_does_not_affect_the_next(box: ToolBox) -> None:
    token = CancelToken()
    token.cancel()
    await box.runner.run(ToolCall("1", "waits", {}), token)
    assert (await box.runner.run(ToolCall("2", "zebra", {}))).output == "zebra"
