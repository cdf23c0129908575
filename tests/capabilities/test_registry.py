from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.tools import box_of, call, context, returning, tool

from indusagi.capabilities import tools
from indusagi.capabilities.registry import ToolRegistry
from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import JsonContentBlock, ToolCall, ToolProgress, ToolResult

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue

pytestmark = pytest.mark.anyio


async def test_last_registration_of_a_name_wins_with_a_note(tmp_path: Path) -> None:
    registry = ToolRegistry()
    registry.register_all([returning("old", name="a"), returning("b", name="b")])
    registry.register(returning("new", name="a"))
    assert registry.names() == ("a", "b")
    assert [str(note) for note in registry.notes] == [
        "tool 'a': registered more than once; the last registration is used (give one another name)"
    ]
    assert (await call(registry.to_tool_box(context(tmp_path)), "a")).output == "new"


def test_registering_the_same_tool_twice_leaves_no_note() -> None:
    registry, same = ToolRegistry(), returning("x")
    registry.register_all([same, same])
    assert registry.notes == ()


def test_factories_of_the_web_have_a_second_name() -> None:
    assert (tools.web_fetch_tool, tools.web_search_tool) == (tools.webfetch_tool, tools.websearch_tool)


def test_tool_is_found_by_its_name() -> None:
    registry, known = ToolRegistry(), returning("x", name="known")
    registry.register(known)
    assert registry.get("known") is known
    assert registry.get("unknown") is None
    assert (registry.has("known"), registry.has("unknown")) == (True, False)


def test_toolbox_is_not_changed_by_later_registrations(tmp_path: Path) -> None:
    registry = ToolRegistry()
    registry.register(returning("x", name="early"))
    box = registry.to_tool_box(context(tmp_path))
    registry.register(returning("x", name="late"))
    assert [descriptor.name for descriptor in box.descriptors()] == ["early"]
    assert list(box.descriptors()) == list(box.descriptors())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raed", "There is no tool named 'raed'. Did you mean 'read'?"),
        ("READ", "There is no tool named 'READ'. Did you mean 'read'?"),
        ("xyz", "There is no tool named 'xyz'."),
        ("", "There is no tool named ''."),
    ],
)
async def test_unknown_tool_is_an_error_outcome(tmp_path: Path, name: str, message: str) -> None:
    outcome = await call(box_of(context(tmp_path), returning("x", name="read")), name)
    assert (outcome.id, outcome.result) == ("call-1", ToolResult.error(message, code="unknown_tool"))


async def test_block_that_is_not_json_is_an_error_outcome(tmp_path: Path) -> None:
    broken = ToolResult([JsonContentBlock({"raw": b"x"})])  # type: ignore[dict-item]
    outcome = await call(box_of(context(tmp_path), returning(broken)), "probe")
    assert outcome.result == ToolResult.error(
        "probe answered with what is not JSON: $.raw is of type bytes, which JSON does not have", code="bad_result"
    )


async def test_result_that_looks_like_a_schema_is_passed_on(tmp_path: Path) -> None:
    schema: JsonValue = {"type": ["string", "null"], "resource": "x"}
    outcome = await call(box_of(context(tmp_path), returning(schema)), "probe")
    assert (outcome.is_error, outcome.output) == (False, schema)


@pytest.mark.parametrize("where", ["structured", "details"])
async def test_details_that_are_not_json_are_an_error_outcome(tmp_path: Path, where: str) -> None:
    facts: Any = {"structured": math.nan} if where == "structured" else {"details": {"x": {1}}}
    outcome = await call(box_of(context(tmp_path), returning(ToolResult((), **facts))), "probe")
    assert outcome.details["code"] == "bad_result"


async def test_session_token_ends_a_call_with_its_own_token(tmp_path: Path) -> None:
    async def wait(arguments: JsonObject, ctx: ToolContext) -> None:
        ctx_of_box.cancel.cancel("the session is over")
        await anyio.sleep_forever()

    ctx_of_box = context(tmp_path)
    box = box_of(ctx_of_box, tool(wait))
    outcome = await box.runner.run(ToolCall("1", "probe", {}), CancelToken())
    assert outcome.output == "probe was stopped: the session is over"


async def test_progress_sink_of_the_context_is_the_default(tmp_path: Path) -> None:
    async def report(arguments: JsonObject, ctx: ToolContext) -> str:
        ctx.report(ToolProgress(1))
        return "done"

    heard: list[ToolProgress] = []
    box = box_of(replace(context(tmp_path), on_progress=heard.append), tool(report))
    await call(box, "probe")
    assert heard == [ToolProgress(1)]


async def test_failing_progress_sink_does_not_fail_the_tool(tmp_path: Path) -> None:
    async def report(arguments: JsonObject, ctx: ToolContext) -> str:
        ctx.report(ToolProgress(1))
        return "done"

    def broken(progress: ToolProgress) -> None:
        raise ValueError("listener")

    box = box_of(context(tmp_path), tool(report))
    outcome = await box.runner.run(ToolCall("1", "probe", {}), on_progress=broken)
    assert outcome.output == "done"
