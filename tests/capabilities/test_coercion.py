"""Arguments that are right but written otherwise are understood; everything else is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from tests.support.strategies import json_values
from tests.support.tools import box_of, call, context

from indusagi.capabilities import arguments as arguments_module
from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.tool import ToolSpec, define_tool

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import JsonSchema

pytestmark = pytest.mark.anyio

SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": "integer"},
        "share": {"type": "number"},
        "all": {"type": "boolean"},
        "edits": {"type": "array"},
        "options": {"type": "object"},
        "globs": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["path"],
    "additionalProperties": False,
}
PREPARE = coerce_to(SCHEMA, {"file_path": "path", "max": "limit", "all": "path"})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"file_path": "a"}, {"path": "a"}),
        ({"limit": "12"}, {"limit": 12}),
        ({"max": " 12 "}, {"limit": 12}),
        ({"limit": 12.0}, {"limit": 12}),
        ({"limit": "-3"}, {"limit": -3}),
        ({"share": "2"}, {"share": 2}),
        ({"all": "True"}, {"all": True}),
        ({"all": "false"}, {"all": False}),
        ({"edits": '[{"a": 1}]'}, {"edits": [{"a": 1}]}),
        ({"options": '{"a": 1}'}, {"options": {"a": 1}}),
        ({"globs": "*.md"}, {"globs": ["*.md"]}),
        ({"globs": '["a", "b"]'}, {"globs": ["a", "b"]}),
        ({"file_path": "a", "limit": None, "edits": None}, {"path": "a"}),
        ({"max": None, "all": None}, {}),
    ],
)
def test_unambiguous_arguments_are_corrected(given: JsonValue, meant: JsonValue) -> None:
    assert PREPARE(given) == meant


@pytest.mark.parametrize(
    "given",
    [
        {"path": "12"},
        {"path": "a", "file_path": "b"},
        {"limit": "twelve"},
        {"limit": "1e3"},
        {"limit": "1" * 40},
        {"limit": 1.5},
        {"all": "yes"},
        {"edits": '{"a": 1}'},
        {"edits": "[1,"},
        {"edits": "[" * 100_000},
        {"options": "[]"},
        {"globs": "a,b"},
        {"globs": " "},
        {"globs": "null"},
        {"options": "x" * 1_000_001},
        {"unknown": "1"},
        {"path": None, "unknown": None},
        "path",
        None,
        [1],
    ],
)
def test_ambiguous_arguments_are_left_to_the_check(given: JsonValue) -> None:
    assert PREPARE(given) == given


def test_parameter_name_is_never_taken_for_an_alias() -> None:
    assert PREPARE({"all": True}) == {"all": True}


def test_schema_without_properties_changes_nothing() -> None:
    assert coerce_to({"type": "object"}, {})({"a": "1"}) == {"a": "1"}


@given(json_values)
def test_coercion_copies_and_is_idempotent(arguments: JsonValue) -> None:
    before = repr(arguments)
    once = PREPARE(arguments)
    assert repr(arguments) == before
    assert PREPARE(once) == once


async def test_tool_runs_with_corrected_arguments(tmp_path: Path) -> None:
    async def echo(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
        return arguments

    tool = define_tool(ToolSpec("echo", "Echo.", SCHEMA, echo, prepare=PREPARE))
    box = box_of(context(tmp_path), tool)
    outcome = await call(box, "echo", {"file_path": "a", "limit": "3"})
    assert outcome.output == {"path": "a", "limit": 3}
    refused = await call(box, "echo", {"path": "a", "limt": 3})
    assert "limit" in str(refused.output)


KINDS: JsonSchema = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "b": {"type": "boolean"},
        "s": {"type": "string"},
        "l": {"type": "array", "items": {"type": "string"}},
        "m": {"type": "array", "items": {"type": "integer"}},
        "o": {"type": "object"},
        "z": {"type": "null"},
        "any": {},
    },
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"n": "3"}, {"n": 3}),
        ({"n": " -3.0 "}, {"n": -3}),
        ({"n": 3.0}, {"n": 3}),
        ({"n": 3.5}, {"n": 3.5}),
        ({"n": "3.5"}, {"n": "3.5"}),
        ({"n": "1" * 16}, {"n": "1" * 16}),
        ({"n": None}, {"n": None}),
        ({"n": True}, {"n": True}),
        ({"x": "3"}, {"x": 3}),
        ({"x": 3.0}, {"x": 3.0}),
        ({"x": "3.5"}, {"x": "3.5"}),
        ({"b": " TRUE "}, {"b": True}),
        ({"b": "false"}, {"b": False}),
        ({"b": "yes"}, {"b": "yes"}),
        ({"b": 1}, {"b": 1}),
        ({"s": "3"}, {"s": "3"}),
        ({"s": "true"}, {"s": "true"}),
        ({"s": None, "l": None, "o": None}, {}),
        ({"z": None, "any": None, "other": None}, {"z": None, "any": None, "other": None}),
        ({"l": "a"}, {"l": ["a"]}),
        ({"l": "a,b"}, {"l": "a,b"}),
        ({"l": '["a"]'}, {"l": ["a"]}),
        ({"l": '"a"'}, {"l": '"a"'}),
        ({"l": ""}, {"l": ""}),
        ({"l": " None "}, {"l": " None "}),
        ({"l": "null"}, {"l": "null"}),
        ({"m": "a"}, {"m": "a"}),
        ({"m": "[1]"}, {"m": [1]}),
        ({"m": '{"a":1}'}, {"m": '{"a":1}'}),
        ({"m": "[" * 100_000}, {"m": "[" * 100_000}),
        ({"o": '{"a":1}'}, {"o": {"a": 1}}),
        ({"o": "[1]"}, {"o": "[1]"}),
        ({"o": "{"}, {"o": "{"}),
        ({"any": "3"}, {"any": "3"}),
        ({"other": "3"}, {"other": "3"}),
        ({"number": "3"}, {"n": 3}),
        ({"number": "3", "n": 4}, {"number": "3", "n": 4}),
        ("text", "text"),
    ],
)
def test_each_kind_of_value_is_corrected_in_its_own_way(sent: Any, expected: Any) -> None:
    assert coerce_to(KINDS, {"number": "n"})(sent) == expected


def test_a_quoted_list_of_the_longest_size_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments_module, "_LONGEST_LIST", 5)
    assert coerce_to(KINDS, {})({"m": "[1,2]", "o": '{"a":1}'}) == {"m": [1, 2], "o": '{"a":1}'}


def test_items_of_a_list_are_corrected() -> None:
    inner = coerce_to({"type": "object", "properties": {"n": {"type": "integer"}}}, {})
    prepare = coerce_to(KINDS, {}, {"m": inner, "l": inner})
    assert prepare({"m": [{"n": "1"}, 2], "l": "a,b"}) == {"m": [{"n": 1}, 2], "l": "a,b"}
