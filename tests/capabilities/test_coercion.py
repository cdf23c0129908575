"""Arguments that are right but written otherwise are understood; everything else is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from tests.support.strategies import json_values
from tests.support.tools import box_of, call, context

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
