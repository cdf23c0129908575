from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import json_values

from indusagi.core.json import compact_json, is_json_object
from indusagi.core.notes import Note
from indusagi.interop.protocol_bridge.content import (
    BLOCK_TYPES,
    from_block,
    parse_call_result,
    to_block,
    to_blocks,
    to_tool_result,
)
from indusagi.interop.protocol_bridge.contract import RemoteCallResult
from indusagi.runtime.content import JsonContentBlock, TextContentBlock

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

OWNER = "server 'a', tool 'b'"

objects: st.SearchStrategy[JsonObject] = st.dictionaries(
    st.sampled_from(["type", "text", "data", "_meta", "annotations", "x"]) | st.text(max_size=4),
    json_values,
    max_size=5,
)


def _typed(kind: str, rest: JsonObject) -> JsonObject:
    return {**rest, "type": kind}


def _with_text(text: str, rest: JsonObject) -> JsonObject:
    return {**rest, "type": "text", "text": text}


mcp_blocks = st.builds(_typed, st.sampled_from(sorted(BLOCK_TYPES)), objects) | st.builds(
    _with_text, st.text(), objects
)


@given(st.lists(mcp_blocks, max_size=6))
def test_blocks_round_trip_unchanged(blocks: list[JsonValue]) -> None:
    before = copy.deepcopy(blocks)
    assert to_blocks([from_block(block) for block in blocks]) == before
    assert blocks == before


@given(json_values | objects)
def test_any_block_round_trips_without_loss(block: JsonValue) -> None:
    made = from_block(block)
    if isinstance(made, TextContentBlock):
        assert block == {"type": "text", "text": made.text, **(made.extra or {})}
    else:
        assert made.value is block


@given(json_values | objects)
def test_unknown_json_block_becomes_text(block: JsonValue) -> None:
    known = is_json_object(block) and block.get("type") in sorted(BLOCK_TYPES)
    sent = to_block(from_block(block))
    if known:
        assert sent == block
    else:
        assert sent == {"type": "text", "text": compact_json(block)}
        assert json.loads(str(sent["text"])) == block


@pytest.mark.parametrize("kind", [[], {}, None, 5, "hologram"])
def test_block_with_an_invalid_type_becomes_text(kind: JsonValue) -> None:
    block: JsonValue = {"type": kind, "n": 1}
    assert to_block(JsonContentBlock(block))["type"] == "text"


def test_text_block_keeps_its_other_keys() -> None:
    rich: JsonValue = {"type": "text", "text": "a", "_meta": {"x": None}, "annotations": {}}
    assert from_block(rich) == TextContentBlock("a", {"_meta": {"x": None}, "annotations": {}})
    assert from_block({"type": "text", "text": "a"}) == TextContentBlock("a", None)
    assert to_block(TextContentBlock("a")) == {"type": "text", "text": "a"}


@pytest.mark.parametrize("text", [None, 5, ["a"]])
def test_text_block_without_text_is_kept_as_json(text: JsonValue) -> None:
    block: JsonValue = {"type": "text", "text": text}
    assert from_block(block) == JsonContentBlock(block)
    assert to_block(from_block(block)) == block


def test_call_result_is_parsed_with_all_fields() -> None:
    answer: JsonObject = {
        "content": [{"type": "text", "text": "a"}, {"type": "hologram"}],
        "isError": True,
        "structuredContent": {"n": [None]},
        "_meta": {"k": "v"},
        "resultType": "complete",
    }
    result = parse_call_result(answer, OWNER)
    assert result.content == ({"type": "text", "text": "a"}, {"type": "hologram"})
    assert (result.is_error, result.structured, result.meta) == (True, {"n": [None]}, {"k": "v"})
    assert result.notes == ()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({}, "no content"),
        ({"content": None}, "no content"),
        ({"content": "bare"}, "content of type str"),
        ({"content": {"type": "text", "text": "alone"}}, "content of type dict"),
    ],
)
def test_call_result_without_content_list_is_noted(answer: JsonObject, found: str) -> None:
    result = parse_call_result({**answer, "structuredContent": 5}, OWNER)
    assert result.content == ()
    assert result.structured == 5
    assert result.notes == (Note(OWNER, f"the answer has {found} instead of a list of blocks"),)


@pytest.mark.parametrize("flag", ["yes", 1, None, {}])
def test_only_true_marks_an_error(flag: JsonValue) -> None:
    assert not parse_call_result({"content": [], "isError": flag, "_meta": flag}, OWNER).is_error


def test_invalid_meta_is_dropped() -> None:
    assert parse_call_result({"content": [], "_meta": 5}, OWNER).meta is None


@given(objects)
def test_any_call_result_can_be_parsed(answer: JsonObject) -> None:
    result = parse_call_result({"content": [], **answer}, OWNER)
    assert to_tool_result(result).content == ()


def test_tool_result_has_blocks_structured_content_and_details() -> None:
    remote = RemoteCallResult(
        ({"type": "text", "text": "a"}, {"type": "image", "data": ""}),
        is_error=True,
        structured={"n": 1},
        meta={"k": "v"},
        notes=(Note(OWNER, "odd"),),
    )
    result = to_tool_result(remote)
    image: JsonValue = {"type": "image", "data": ""}
    assert result.content == (TextContentBlock("a"), JsonContentBlock(image))
    assert (result.is_error, result.structured) == (True, {"n": 1})
    assert result.details == {"_meta": {"k": "v"}, "notes": [f"{OWNER}: odd"]}


def test_plain_result_has_no_details() -> None:
    assert to_tool_result(RemoteCallResult(())).details == {}
