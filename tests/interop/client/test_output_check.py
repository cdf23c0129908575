from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import json_values

from indusagi.interop.protocol_bridge.client.tools import CHECKED_COST, find_output_mismatch

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import JsonSchema

pytestmark = pytest.mark.anyio

SUM: JsonSchema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
CATASTROPHIC = "^(a+)+$"
VICTIM = "a" * 60 + "!"


async def test_matching_result_has_no_mismatch() -> None:
    assert await find_output_mismatch(SUM, {"sum": 5}) is None
    assert await find_output_mismatch(SUM, {"sum": 5, "more": [None]}) is None
    assert await find_output_mismatch({}, 5) is None


@pytest.mark.parametrize(
    ("value", "said"), [({"sum": "five"}, "'five' is not of type 'integer'"), ({}, "'sum' is a required property")]
)
async def test_mismatch_reports_the_first_problem(value: JsonValue, said: str) -> None:
    assert await find_output_mismatch(SUM, value) == f"its structured content does not fit its output schema: {said}"


async def test_missing_structured_content_is_reported() -> None:
    said = "it declares an output schema and gave no structured content"
    assert await find_output_mismatch(SUM, None) == said


async def test_mismatch_message_is_clean_and_short() -> None:
    said = await find_output_mismatch(SUM, {"sum": "\u202e" + "x" * 1_000})
    assert said is not None
    assert "\u202e" not in said
    assert said.endswith("more characters]")
    assert len(said) < 300


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": CATASTROPHIC},
        {"anyOf": [{"pattern": CATASTROPHIC}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"pattern": CATASTROPHIC}}},
    ],
)
async def test_pattern_is_never_evaluated(schema: JsonSchema) -> None:
    assert await find_output_mismatch(schema, VICTIM) is None


async def test_pattern_properties_are_never_evaluated() -> None:
    schema: JsonSchema = {"patternProperties": {CATASTROPHIC: {"type": "null"}}}
    assert await find_output_mismatch(schema, {VICTIM: 1}) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"type": "nothing-known"},
        {"properties": []},
        {"required": 5},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#"},
        {"allOf": {"a": 1}},
    ],
)
async def test_broken_schema_reports_no_mismatch(schema: JsonSchema) -> None:
    assert await find_output_mismatch(schema, {"sum": 5}) is None


async def test_unusable_schema_is_reported() -> None:
    schema: JsonSchema = {"properties": {"sum": {"type": "integer", "minimum": "five"}}}
    assert await find_output_mismatch(schema, {"sum": 5}) == "its output schema cannot be used: TypeError"


@pytest.mark.parametrize("value", [[], False, "x", 5])
async def test_non_object_result_is_reported_for_an_object_schema(value: JsonValue) -> None:
    assert await find_output_mismatch(SUM, value) == "its structured content is not an object, as it promised"
    assert await find_output_mismatch({"type": ["array", "object"]}, value) is None


@pytest.mark.parametrize("step", ["allOf", "anyOf"])
async def test_deep_schema_is_checked_quickly(step: str) -> None:
    deep: JsonValue = {}
    for _ in range(5_000):
        deep = {step: [deep]}
    assert isinstance(deep, dict)
    assert await find_output_mismatch(deep, {}) is None


async def test_exponential_references_are_checked_quickly() -> None:
    levels = 60
    defs: JsonObject = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    schema: JsonObject = {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {}}}
    assert await find_output_mismatch(schema, {"a": 1}) is None


async def test_unique_items_are_not_compared() -> None:
    schema: JsonObject = {"type": "object", "properties": {"rows": {"type": "array", "uniqueItems": True}}}
    rows: list[JsonValue] = [{"n": n} for n in range(3_000)]
    assert await find_output_mismatch(schema, {"rows": rows}) is None


async def test_large_result_is_not_checked() -> None:
    small: JsonValue = {"sum": "x" * 100}
    large: JsonValue = {"sum": "x" * CHECKED_COST}
    assert await find_output_mismatch(SUM, small) is not None
    assert await find_output_mismatch(SUM, large) is None


@given(
    st.dictionaries(
        st.sampled_from(["type", "properties", "required", "items", "anyOf", "pattern", "enum"]),
        json_values,
        max_size=3,
    ),
    json_values,
)
async def test_any_schema_and_result_can_be_checked(schema: JsonSchema, value: JsonValue) -> None:
    said = await find_output_mismatch(schema, value)
    assert said is None or said.startswith("it")


async def test_infinite_number_is_not_checked() -> None:
    assert await find_output_mismatch(SUM, json.loads('{"sum": 1e999}')) is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"pattern": {}}, "additionalProperties": False}, {"pattern": "x"}),
        ({"properties": {"format": {}}, "additionalProperties": False}, {"format": "x"}),
        ({"patternProperties": {"^x": {}}, "additionalProperties": False}, {"x1": 1}),
        ({"not": {"pattern": "^a"}}, "b"),
        ({"not": {"format": "date"}}, "b"),
        ({"oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "b"),
        ({"enum": [{"pattern": "x"}]}, {"pattern": "x"}),
        ({"const": {"format": "x"}}, {"format": "x"}),
    ],
)
async def test_matching_result_is_never_reported(schema: JsonSchema, value: JsonValue) -> None:
    assert await find_output_mismatch(schema, value) is None
