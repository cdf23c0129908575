"""Definitions without invisible characters, and calls in the server's own spelling."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.servers import honest
from tests.support.strategies import UNSEEN, examples, hidden_json, hidden_text

from indusagi.capabilities.registry import ToolRegistry
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.text import clean_json, clean_text, iter_strings
from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.interop.protocol_bridge.client.tools import (
    AmbiguousDefinitionError,
    ArgumentSpelling,
    clean_definition,
    read_tools,
)
from indusagi.interop.protocol_bridge.contract import parse_call_result, to_tool_result
from indusagi.interop.protocol_bridge.host.catalog import ListingBuilder
from indusagi.runtime.contract import TextContentBlock, ToolCall

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolOutcome, ToolResult

TAG = "\U000e0041"


def is_clean(value: JsonValue) -> bool:
    """Tell whether no string holds what cannot be seen; the ends of lines are seen."""
    return all(clean_text(text.replace("\r\n", "\n"))[1] == 0 for text in iter_strings(value))


rows = st.fixed_dictionaries(
    {"name": hidden_text.map(lambda text: f"t{text}"), "inputSchema": hidden_json},
    optional={
        "title": hidden_text,
        "description": hidden_text,
        "annotations": st.dictionaries(hidden_text, hidden_json, max_size=3),
        "outputSchema": hidden_json,
        "icons": hidden_json,
        "_meta": hidden_json,
        "execution": hidden_json,
    },
)


@given(st.lists(rows, max_size=3))
@examples(2)
def test_finding_d4_no_definition_shows_a_model_or_a_client_what_cannot_be_seen(listed: list[JsonValue]) -> None:
    tools, _ = read_tools(listed, honest())
    descriptors = [tool.descriptor for tool in tools]
    for shown in descriptors:
        seen: list[JsonValue] = [
            shown.name,
            shown.description,
            shown.title,
            cast("JsonObject", shown.parameters),
            cast("JsonObject", shown.annotations),
            cast("JsonObject", shown.output_schema),
        ]
        assert is_clean(seen)
    listing = ListingBuilder({"name": "n"}).build(descriptors)
    for page in (listing.legacy, listing.modern):
        assert is_clean(cast("JsonValue", json.loads(page.encoded)))


block_types = st.sampled_from(["text", "image", "resource", "resource_link", "odd"])
answers = st.fixed_dictionaries(
    {
        "content": st.lists(
            st.tuples(block_types, hidden_text, st.dictionaries(hidden_text, hidden_json)).map(
                lambda parts: {**parts[2], "type": parts[0], "text": parts[1]}
            ),
            max_size=3,
        ),
        "structuredContent": hidden_json,
        "_meta": hidden_json,
    }
)


def run_foreign(answer: JsonObject) -> ToolOutcome:
    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        return to_tool_result(parse_call_result(answer, "server 's'"))

    registry = ToolRegistry()
    registry.register(define_tool(ToolSpec("t", "d", {"type": "object"}, run, foreign=True)))
    box = registry.to_tool_box(make_inert_context())
    return asyncio.run(box.runner.run(ToolCall("1", "t", {})))


@given(answers)
def test_finding_d4_no_answer_shows_a_model_what_cannot_be_seen(answer: JsonObject) -> None:
    outcome = run_foreign(answer)
    assert is_clean(outcome.output)
    assert is_clean(outcome.structured)
    assert is_clean(dict(outcome.details))
    extras = [one.extra for one in outcome.content if isinstance(one, TextContentBlock)]
    assert is_clean(cast("JsonValue", extras))


# An escape takes the letter after it along.
@pytest.mark.parametrize("hide", UNSEEN.replace("\x1b", ""))
def test_finding_d4_a_call_reaches_the_server_in_its_own_spelling(hide: str) -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {
            f"col{hide}our": {"type": "string"},
            "size": {"anyOf": [{"enum": [f"sm{hide}all", "large"]}, {"type": "null"}]},
            "kind": {"const": f"o{hide}il"},
            "deep": {"$ref": "#/$defs/deep"},
            "pair": {"type": "array", "prefixItems": [{"enum": [f"x{hide}y"]}], "items": {}},
            "map": {"additionalProperties": {"enum": [f"m{hide}n"]}},
        },
        "$defs": {"deep": {"type": "array", "items": {"properties": {f"na{hide}me": {"type": "integer"}}}}},
    }
    shown, removed = clean_definition({"name": "t", "inputSchema": schema})
    assert removed == 6
    assert is_clean(shown)
    given: JsonObject = {
        "colour": "small",
        "size": "small",
        "kind": "oil",
        "deep": [{"name": 1, "more": {"name": 2}}],
        "pair": ["xy", "xy"],
        "map": {"a": "mn"},
        "unknown": [["xy"]],
    }
    assert ArgumentSpelling(schema).restore(given) == {
        f"col{hide}our": "small",
        "size": f"sm{hide}all",
        "kind": f"o{hide}il",
        "deep": [{f"na{hide}me": 1, "more": {"name": 2}}],
        "pair": [f"x{hide}y", "xy"],
        "map": {"a": f"m{hide}n"},
        "unknown": [["xy"]],
    }


def test_arguments_in_the_servers_spelling_are_unchanged() -> None:
    schema: JsonObject = {"properties": {f"a{TAG}": {"enum": [f"b{TAG}"]}}}
    given: JsonObject = {f"a{TAG}": f"b{TAG}"}
    assert ArgumentSpelling(schema).restore(given) == given
    clean: JsonObject = {"properties": {"a": {}}}
    assert ArgumentSpelling(clean).restore(given) is given


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"ab": {}, f"a{TAG}b": {}}},
        {"properties": {f"a{TAG}b": {}, "a\u200bb": {}}},
        {"properties": {"p": {"enum": ["ab", f"a{TAG}b"]}}},
        {"properties": {"p": {"enum": [TAG]}}},
        {"properties": {TAG: {}}},
        {"$defs": {"ab": {}, f"a{TAG}b": {}}},
    ],
)
def test_finding_d4_a_tool_whose_names_only_differ_unseen_is_left_out_with_a_note(schema: JsonObject) -> None:
    row: JsonObject = {"name": "t", "inputSchema": schema}
    with pytest.raises(AmbiguousDefinitionError):
        clean_definition(row)
    tools, notes = read_tools([row, {"name": "u"}], honest())
    assert [tool.ref.name for tool in tools] == ["u"]
    (said,) = map(str, notes)
    assert "tool 't': it was left out: " in said
    assert is_clean(said)


def test_patterns_keep_their_meaning() -> None:
    schema: JsonObject = {
        "properties": {"p": {"pattern": "^[^\u200b]$"}, "pattern": {"type": "string"}},
        "patternProperties": {f"^{TAG}": {}},
    }
    shown, _ = clean_definition({"name": "t", "inputSchema": schema})
    assert shown["inputSchema"] == {
        "properties": {"p": {"pattern": "^[^\\u200b]$"}, "pattern": {"type": "string"}},
        "patternProperties": {"^\\u{e0041}": {}},
    }


def test_clean_definition_is_returned_as_it_is() -> None:
    row: JsonObject = {"name": "t", "description": "\u0645\u06cc\u200c\u062e 👨\u200d👩\u200d👧 ❤\ufe0f"}
    assert clean_definition(row) == (row, 0)
    assert clean_definition(row)[0] is row
    assert clean_json(row)[0] is row
