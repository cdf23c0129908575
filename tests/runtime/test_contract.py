from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from tests.support.strategies import json_values

from indusagi.runtime.content import JsonContentBlock, TextContentBlock
from indusagi.runtime.contract import ToolDescriptor, ToolOutcome, ToolResult

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from indusagi.runtime.content import ToolContentBlock


def test_a_result_does_not_change_with_the_list_it_was_made_from() -> None:
    content: list[ToolContentBlock] = [TextContentBlock("a")]
    result = ToolResult(content)
    content.append(TextContentBlock("b"))
    assert result.content == (TextContentBlock("a"),)


def test_a_result_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ToolResult(()).is_error = True  # type: ignore[misc]


def test_an_outcome_shows_the_blocks_and_the_facts_of_its_result() -> None:
    result = ToolResult((TextContentBlock("a"), JsonContentBlock(1)), structured={"n": 1}, details={"k": "v"})
    outcome = ToolOutcome("call-1", result)
    assert outcome.content == result.content
    assert (outcome.is_error, outcome.structured, dict(outcome.details)) == (False, {"n": 1}, {"k": "v"})
    assert outcome.output == [{"type": "text", "text": "a"}, {"type": "json", "value": 1}]


@given(json_values)
def test_an_outcome_made_from_a_value_gives_that_value_back(value: JsonValue) -> None:
    assert ToolOutcome.from_output("c", value, is_error=True).output == value


def test_text_and_json_and_errors_have_short_forms() -> None:
    assert ToolResult.text("a", lines=1).details == {"lines": 1}
    assert ToolResult.json({"a": 1}).content == (JsonContentBlock({"a": 1}),)
    error = ToolResult.error("no such file", code="not_found", path="x")
    assert (error.is_error, error.details) == (True, {"code": "not_found", "path": "x"})


def test_a_descriptor_needs_only_what_a_model_needs() -> None:
    descriptor = ToolDescriptor("echo", "Say it again.", {"type": "object"})
    assert (descriptor.title, descriptor.annotations, descriptor.output_schema) == (None, None, None)
