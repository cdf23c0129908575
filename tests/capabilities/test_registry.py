from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.tools import box_of, call, context, returning

from indusagi.capabilities.registry import ToolRegistry
from indusagi.runtime.content import JsonContentBlock
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_the_last_registration_of_a_name_wins_and_a_note_says_so(tmp_path: Path) -> None:
    registry = ToolRegistry()
    registry.register_all([returning("old", name="a"), returning("b", name="b")])
    registry.register(returning("new", name="a"))
    assert registry.names() == ("a", "b")
    assert [str(note) for note in registry.notes] == [
        "tool 'a': registered more than once; the last registration is used (give one another name)"
    ]
    assert (await call(registry.to_tool_box(context(tmp_path)), "a")).output == "new"


def test_registering_the_same_tool_again_is_no_news() -> None:
    registry, same = ToolRegistry(), returning("x")
    registry.register_all([same, same])
    assert registry.notes == ()


def test_a_tool_is_found_by_its_name_or_not_at_all() -> None:
    registry, known = ToolRegistry(), returning("x", name="known")
    registry.register(known)
    assert registry.get("known") is known
    assert registry.get("unknown") is None
    assert (registry.has("known"), registry.has("unknown")) == (True, False)


def test_a_box_is_not_changed_by_later_registrations(tmp_path: Path) -> None:
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
async def test_an_unknown_tool_is_an_error_outcome(tmp_path: Path, name: str, message: str) -> None:
    outcome = await call(box_of(context(tmp_path), returning("x", name="read")), name)
    assert (outcome.id, outcome.result) == (
        "call-1",
        ToolResult.error(message, code="unknown_tool"),
    )


async def test_a_block_that_is_no_json_is_an_error_outcome(tmp_path: Path) -> None:
    broken = ToolResult([JsonContentBlock({"raw": b"x"})])  # type: ignore[dict-item]
    outcome = await call(box_of(context(tmp_path), returning(broken)), "probe")
    assert outcome.result == ToolResult.error(
        "probe answered with what is not JSON: $.raw is of type bytes, which JSON does not have",
        code="bad_result",
    )
