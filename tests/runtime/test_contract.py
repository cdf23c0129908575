from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from tests.support.strategies import json_values

from indusagi.runtime.contract import JsonContentBlock, Keep, TextContentBlock, ToolDescriptor, ToolOutcome, ToolResult

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolContentBlock


def test_result_is_independent_of_the_caller_list() -> None:
    content: list[ToolContentBlock] = [TextContentBlock("a")]
    result = ToolResult(content)
    content.append(TextContentBlock("b"))
    assert result.content == (TextContentBlock("a"),)


def test_result_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        ToolResult(()).is_error = True  # type: ignore[misc]


def test_outcome_exposes_blocks_and_details_of_its_result() -> None:
    result = ToolResult((TextContentBlock("a"), JsonContentBlock(1)), structured={"n": 1}, details={"k": "v"})
    outcome = ToolOutcome("call-1", result)
    assert outcome.content == result.content
    assert (outcome.is_error, outcome.structured, dict(outcome.details)) == (False, {"n": 1}, {"k": "v"})
    assert outcome.output == [{"type": "text", "text": "a"}, {"type": "json", "value": 1}]


@given(json_values)
def test_outcome_of_a_plain_value_returns_that_value(value: JsonValue) -> None:
    assert ToolOutcome.from_output("c", value, is_error=True).output == value


def test_results_have_short_constructors() -> None:
    assert ToolResult.text("a", lines=1).details == {"lines": 1}
    assert ToolResult.json({"a": 1}).content == (JsonContentBlock({"a": 1}),)
    error = ToolResult.error("no such file", code="not_found", path="x")
    assert (error.is_error, error.details) == (True, {"code": "not_found", "path": "x"})


def test_part_to_keep_may_be_named_by_a_text() -> None:
    tail: Any = "tail"
    assert ToolResult((), keep=tail).keep is Keep.TAIL
    middle: Any = "middle"
    with pytest.raises(ValueError, match="middle"):
        ToolResult((), keep=middle)


def test_descriptor_needs_name_description_and_parameters() -> None:
    descriptor = ToolDescriptor("echo", "Say it again.", {"type": "object"})
    assert (descriptor.title, descriptor.annotations, descriptor.output_schema) == (None, None, None)
