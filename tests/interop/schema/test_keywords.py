"""Whatever a server sends as a schema, a model receives a valid one: the metaschema of 2020-12 is the judge."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from tests.support.schemas import randoms, rich_schema
from tests.support.strategies import examples, json_values

from indusagi.interop.protocol_bridge.schema.model_view import model_view
from indusagi.interop.protocol_bridge.schema.normalize import _RULES, find_fault

if TYPE_CHECKING:
    from random import Random

    from indusagi.core.json import JsonObject, JsonValue

KEYWORDS = [*_RULES, "const", "default", "additionalItems", "discriminator", "x-vendor"]
ODD: list[JsonValue] = [
    *(None, True, False, 0, 1, -1, 1.5, 2.0, 1e300, "", "a", "string", "object", "array", "any", "null", "#", "##"),
    *("[", "(?P<a>x)", "(?i)x", "^a$", "\\p{L}", "a{99999999999}", "((((", "#/$defs/x", "https://x#y"),
    *([], {}, ["a"], ["a", "a"], ["string", "null"], ["string", "string"], [1], [{}], [None], [True], [[]]),
    *({"a": None}, {"a": ["b"]}, {"a": [1]}, {"[": {}}, {"a": {}}, {"a": True}, {"type": "any"}),
]
"""Values that some keyword takes, and another one doesn't."""


def is_valid(schema: Any) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, OverflowError):  # the second is Python's own about a pattern
        return False
    return True


def odd_value(rng: Random, depth: int) -> JsonValue:
    kind = rng.random()
    if kind < 0.35 or depth <= 0:
        return copy.deepcopy(rng.choice(ODD))
    if kind < 0.45:
        return [odd_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind < 0.6:
        return {rng.choice("abc["): odd_value(rng, depth - 1) for _ in range(rng.randrange(3))}
    return odd_schema(rng, depth - 1)


def odd_schema(rng: Random, depth: int = 5) -> JsonObject:
    return {rng.choice(KEYWORDS): odd_value(rng, depth - 1) for _ in range(rng.randrange(7))}


def odd_tool(rng: Random) -> JsonObject:
    tool: JsonObject = {"type": "object", "properties": {name: odd_schema(rng) for name in "pq"}}
    return tool | (odd_schema(rng) if rng.random() < 0.4 else {})


SLIPS: dict[str, JsonObject] = {
    "required on a property": {"type": "string", "required": True},
    "exclusiveMinimum of draft 4": {"type": "number", "minimum": 1, "exclusiveMinimum": True},
    "exclusiveMaximum of draft 4": {"type": "number", "maximum": 1, "exclusiveMaximum": False},
    "description is null": {"type": "string", "description": None},
    "title is a number": {"type": "string", "title": 5},
    "pattern does not compile": {"type": "string", "pattern": "[a-"},
    "pattern of Python alone": {"type": "string", "pattern": "(?P<year>[0-9]+)"},
    "type is unknown": {"type": "any"},
    "type is null": {"type": None},
    "type is a list of unknown types": {"type": ["any", "file"]},
    "enum is empty": {"type": "string", "enum": []},
    "enum is a text": {"type": "string", "enum": "a, b"},
    "items is a list": {"type": "array", "items": [{"type": "string"}]},
    "items is a text": {"type": "array", "items": "string"},
    "properties is null": {"type": "object", "properties": None},
    "properties is a list": {"type": "object", "properties": [{"name": "a", "type": "string"}]},
    "a property is a text": {"type": "object", "properties": {"a": "string"}},
    "a property is null": {"type": "object", "properties": {"a": None, "b": {"type": "string"}}},
    "required names twice": {"type": "object", "properties": {"a": {}}, "required": ["a", "a"]},
    "required is a text": {"type": "object", "properties": {"a": {}}, "required": "a"},
    "required is null": {"type": "object", "properties": {"a": {}}, "required": None},
    "additionalProperties is a text": {"type": "object", "properties": {}, "additionalProperties": "false"},
    "additionalProperties is null": {"type": "object", "properties": {}, "additionalProperties": None},
    "minLength is negative": {"type": "string", "minLength": -1},
    "maximum is a text": {"type": "integer", "maximum": "10"},
    "maxItems is a fraction": {"type": "array", "items": {}, "maxItems": 1.5},
    "multipleOf is 0": {"type": "number", "multipleOf": 0},
    "uniqueItems is a text": {"type": "array", "items": {}, "uniqueItems": "true"},
    "format is null": {"type": "string", "format": None},
    "anyOf is empty": {"anyOf": []},
    "anyOf is an object": {"anyOf": {"type": "string"}},
    "anyOf holds null": {"anyOf": [None, {"type": "string"}]},
    "oneOf holds a slip": {"oneOf": [{"type": "string", "pattern": "["}, {"type": "null"}]},
    "allOf holds a slip": {"type": "object", "allOf": [{"properties": None}, {"required": True}]},
    "not holds a slip": {"type": "string", "not": {"pattern": "["}},
    "if holds a slip": {"type": "string", "if": {"minLength": "1"}, "then": {"maxLength": 3}},
    "contains holds a slip": {"type": "array", "items": {}, "contains": {"type": "any"}, "maxContains": 1},
    "a pattern of properties does not compile": {"type": "object", "patternProperties": {"[": {}}},
    "dependentRequired is a list": {"type": "object", "properties": {}, "dependentRequired": ["a"]},
    "dependentRequired holds a text": {"type": "object", "properties": {}, "dependentRequired": {"a": "b"}},
    "propertyNames is a text": {"type": "object", "properties": {}, "propertyNames": "string"},
    "deep below a union": {"anyOf": [{"type": "array", "items": {"anyOf": [{"type": "string", "minLength": "1"}]}}]},
}


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.parametrize("at_root", [False, True], ids=["property", "root"])
def test_finding_f5_view_of_a_schema_with_a_slip_is_valid(slip: str, at_root: bool) -> None:
    level = SLIPS[slip]
    raw: JsonObject = {"type": "object", "properties": {"p": level, "other": {"type": "string"}}}
    if at_root:
        raw = {"properties": {"other": {"type": "string"}}, **level}
    view = model_view(raw)
    assert is_valid(view.schema), view.schema
    assert view.schema["type"] == "object"
    assert model_view(view.schema).schema == view.schema
    if not at_root:
        assert view.schema["properties"]["other"] == {"type": "string"}  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("level", "shown", "note"),
    [
        ({"type": "string", "required": True}, {"type": "string"}, "without required, which is not a list of"),
        (
            {"type": "number", "minimum": 1, "exclusiveMinimum": True},
            {"type": "number", "minimum": 1},
            "without exclusiveMinimum, which is not a number",
        ),
        ({"type": "string", "pattern": "["}, {"type": "string"}, "without pattern, which is not a regular expression"),
        ({"type": "string", "description": None}, {"type": "string"}, "without description, which is not a string"),
        ({"type": "any", "title": "T"}, {"title": "T"}, "of unknown type 'any'"),
        ({"type": "string", "enum": []}, {"type": "string"}, "without enum, which is not a list of values"),
        (
            {"type": "object", "properties": None, "additionalProperties": False},
            {"type": "object", "properties": {}},
            "without properties, which is not schemas by name",
        ),
        (
            {"type": "object", "patternProperties": {"[": {}}, "additionalProperties": False},
            {"type": "object", "properties": {}},
            "without patternProperties, which is not schemas by regular expression",
        ),
        ({"type": "string", "not": {"pattern": "["}}, {"type": "string"}, "without not"),
        ({"type": "array", "items": None}, {"type": "array", "items": {}}, "without items, which is not a schema"),
    ],
)
def test_finding_f5_what_is_left_out_is_noted_and_nothing_else_is_lost(
    level: JsonObject, shown: JsonObject, note: str
) -> None:
    view = model_view({"type": "object", "properties": {"p": level}})
    assert view.schema["properties"] == {"p": shown}
    assert any(one.startswith(f"$.p: {note}") for one in view.widened), view.widened


@examples(3)
@given(randoms)
def test_finding_f5_every_schema_has_a_valid_view_that_is_its_own_view(rng: Random) -> None:
    for raw in (odd_tool(rng), odd_schema(rng), rich_schema(rng)):
        before = json.dumps(raw)
        view = model_view(raw).schema
        assert is_valid(view), json.dumps(raw)
        assert view["type"] == "object"
        assert model_view(view).schema == view, json.dumps(raw)
        assert json.dumps(raw) == before


@given(json_values | st.dictionaries(st.sampled_from(KEYWORDS), json_values, max_size=6))
def test_finding_f5_any_json_has_a_valid_view(raw: JsonValue) -> None:
    view = model_view(raw).schema
    assert is_valid(view)
    assert view["type"] == "object"
    assert model_view(view).schema == view


# -- the table and the metaschema ---------------------------------------------------------------

STRICTER: dict[str, list[Any]] = {"enum": [[]], "pattern": ["(?P<a>x)", "(?i)x"]}
"""What the metaschema takes and providers or other engines don't."""


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_table_agrees_with_the_metaschema(keyword: str) -> None:
    for value in ODD:
        if value in STRICTER.get(keyword, ()):
            assert find_fault(keyword, value) is not None
            continue
        has_inner_fault = isinstance(value, dict) and not is_valid(value)
        has_inner_fault = has_inner_fault or (isinstance(value, list) and not all(is_valid(one) for one in value))
        if is_valid({keyword: value}):
            assert find_fault(keyword, value) is None, value
        elif not has_inner_fault:
            assert find_fault(keyword, value) is not None, value


def test_table_has_every_keyword_of_the_metaschema() -> None:
    known: set[str] = set()
    pending: list[Any] = [Draft202012Validator.META_SCHEMA]
    # The registry of the library is in a private attribute.
    resolver: Any = Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})._resolver
    while pending:
        schema = pending.pop()
        known |= schema.get("properties", {}).keys()
        names = [part["$ref"] for part in schema.get("allOf", ())]
        pending += [resolver.lookup(f"https://json-schema.org/draft/2020-12/{name}").contents for name in names]
    assert known - _RULES.keys() == {"const", "default"}, "these take any value"
    assert _RULES.keys() <= known
