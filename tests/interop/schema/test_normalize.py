from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from tests.support.schemas import anything, randoms, rich_schema, subset_schema
from tests.support.strategies import json_values

from indusagi.core.json import NotJson, compact_json
from indusagi.interop.protocol_bridge.schema.normalize import KNOWN_TYPES, STRIPPED, copy_json, normalize_schema

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

DEEP = 10_000
CLOSED: JsonObject = {"type": "object", "properties": {}}

NO_ITEMS: JsonValue = []


def in_object(level: JsonValue) -> JsonObject:
    return {"type": "object", "properties": {"p": level}}


def normalized(level: JsonValue) -> JsonValue:
    """Normalise a level that is not the top one."""
    properties = normalize_schema(in_object(level))["properties"]
    assert isinstance(properties, dict)
    return properties["p"]


def test_the_documented_example_comes_out_as_documented() -> None:
    clean = normalize_schema(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "path": {"type": "string", "default": "/tmp"},
                "tags": {"type": "array", "items": [{"type": "string"}, {"type": "number"}]},
            },
            "required": ["path", "missing"],
        }
    )
    assert compact_json(clean) == (
        '{"type":"object","properties":{"path":{"type":"string"},'
        '"tags":{"type":"array","items":{"type":"string"}}},"required":["path"]}'
    )


@pytest.mark.parametrize("kind", sorted(KNOWN_TYPES))
def test_a_known_type_keeps_its_level(kind: str) -> None:
    level: JsonObject = {"type": kind, "description": "d", "enum": [1, "a"], "x-vendor": {"k": []}}
    expected = {**level, "properties": {}} if kind == "object" else level
    assert normalize_schema(level) == expected
    assert normalized(level) == expected


@pytest.mark.parametrize(
    "level",
    [
        {},
        {"description": "no type"},
        {"type": ["string", "null"]},
        {"type": "any"},
        {"type": None},
        {"type": 3},
        {"type": {"type": "string"}},
        {"anyOf": [{"type": "string"}]},
        {"$ref": "#/$defs/x"},
        True,
        None,
        "string",
        ["object"],
        5,
    ],
)
def test_a_level_without_a_known_type_becomes_a_closed_object(level: JsonValue) -> None:
    assert normalize_schema(level) == CLOSED
    assert normalized(level) == CLOSED
    if isinstance(level, dict):
        assert normalize_schema({"type": "array", "items": level})["items"] == CLOSED
        wrapped = normalize_schema({"type": "object", "additionalProperties": level})
        assert wrapped["additionalProperties"] == CLOSED


@pytest.mark.parametrize("keyword", sorted(STRIPPED))
def test_a_stripped_keyword_is_removed_at_every_level(keyword: str) -> None:
    level: JsonObject = {"type": "string", keyword: {"type": "string"}}
    raw: JsonObject = {
        "type": "object",
        keyword: "x",
        "properties": {"p": level},
        "additionalProperties": {"type": "array", keyword: [1], "items": level},
    }
    assert normalize_schema(raw) == {
        "type": "object",
        "properties": {"p": {"type": "string"}},
        "additionalProperties": {"type": "array", "items": {"type": "string"}},
    }


@pytest.mark.parametrize("name", [*sorted(STRIPPED), "type", "properties", "items", "required"])
def test_a_property_with_the_name_of_a_keyword_stays(name: str) -> None:
    raw: JsonObject = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    assert normalize_schema(raw) == raw


def test_the_stripped_keywords_are_the_documented_list() -> None:
    listed = """
        $schema $id $ref $defs definitions $comment deprecated readOnly writeOnly default examples
        contentEncoding contentMediaType
    """
    assert set(listed.split()) == STRIPPED


def test_keywords_without_references_are_copied() -> None:
    level: JsonObject = {
        "type": "string",
        "anyOf": [{"default": 1, "$ref": "#/x"}],
        "not": {"type": ["null"]},
        "properties": {"q": {"default": 1}},
        "required": ["nothing"],
        "items": [{"examples": []}],
        "additionalProperties": {"$id": "x"},
    }
    assert normalized(level) == level


def test_keys_keep_the_order_they_were_put_in() -> None:
    raw: JsonObject = {
        "required": ["b"],
        "z": 1,
        "properties": {"b": {"maxLength": 2, "type": "string"}, "a": {"type": "null"}},
        "additionalProperties": False,
        "type": "object",
        "a": 2,
    }
    assert compact_json(normalize_schema(raw)) == compact_json(raw)


@pytest.mark.parametrize("properties", [None, [], ["a"], "a", 1, True])
def test_properties_are_always_a_record(properties: JsonValue) -> None:
    raw: JsonObject = {"type": "object", "properties": properties, "required": ["a"]}
    assert normalize_schema(raw) == CLOSED
    assert normalize_schema({"type": "object"}) == CLOSED


@pytest.mark.parametrize(
    ("required", "kept"),
    [
        (["p", "missing"], ["p"]),
        (["q", "p", "p"], ["q", "p", "p"]),
        (["missing"], None),
        ([1], None),
        (["p", 1, None, ["p"], {"p": 1}], ["p"]),
        ("p", None),
        (True, None),
        (None, None),
        ({"p": 1}, None),
    ],
)
def test_required_names_declared_properties_or_is_dropped(required: JsonValue, kept: list[str] | None) -> None:
    raw: JsonObject = {"type": "object", "properties": {"p": {"type": "string"}, "q": {}}, "required": required}
    assert normalize_schema(raw).get("required") == kept


@pytest.mark.parametrize(
    ("additional", "expected"),
    [
        (True, True),
        (False, False),
        ({"type": "string", "default": ""}, {"type": "string"}),
        ({"type": "weird"}, CLOSED),
        (None, "dropped"),
        ("no", "dropped"),
        (0, "dropped"),
        ([False], "dropped"),
    ],
)
def test_additional_properties_are_a_schema_or_a_boolean(additional: JsonValue, expected: JsonValue) -> None:
    out = normalize_schema({"type": "object", "additionalProperties": additional})
    assert out.get("additionalProperties", "dropped") == expected


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ({"type": "string", "examples": ["x"]}, {"type": "string"}),
        ([{"type": "integer", "default": 1}, {"type": "string"}], {"type": "integer"}),
        ([{"title": "no type"}, {"type": "string"}], CLOSED),
        ([True, {"type": "string"}], True),
        (False, False),
        (NO_ITEMS, "dropped"),
        ([[{"type": "string"}]], "dropped"),
        ("string", "dropped"),
        (None, "dropped"),
    ],
)
def test_items_become_one_schema(items: JsonValue, expected: JsonValue) -> None:
    assert normalize_schema({"type": "array", "items": items}).get("items", "dropped") == expected


@given(anything)
def test_every_value_has_an_answer_and_it_is_json(value: Any) -> None:
    out = normalize_schema(value)
    assert out["type"] in KNOWN_TYPES
    compact_json(out)
    assert normalize_schema(out) == out


@given(json_values | randoms.map(rich_schema) | randoms.map(subset_schema))
def test_normalising_again_changes_nothing_and_the_argument_stays_as_it_was(value: JsonValue) -> None:
    before = compact_json(value)
    out = normalize_schema(value)
    assert compact_json(value) == before
    assert compact_json(normalize_schema(out)) == compact_json(out)


def test_changing_the_result_does_not_reach_the_argument() -> None:
    raw: JsonObject = {
        "type": "object",
        "properties": {"p": {"type": "string", "enum": ["a"], "x": {"y": [1]}}},
        "required": ["p"],
    }
    before = copy.deepcopy(raw)
    out: Any = normalize_schema(raw)
    out["properties"]["p"]["enum"].append("b")
    out["properties"]["p"]["x"]["y"].clear()
    out["required"].clear()
    out["properties"].clear()
    assert raw == before


def deep(depth: int, step: str) -> JsonObject:
    """Nest objects or arrays."""
    level: JsonObject = {"type": "string", "default": 1}
    for _ in range(depth):
        if step == "properties":
            level = {"type": "object", "properties": {"p": level}}
        else:
            kind = "array" if step == "items" else "object"
            level = {"type": kind, step: level}
    return level


@pytest.mark.parametrize("step", ["properties", "items", "additionalProperties"])
def test_any_depth_can_be_normalised(step: str) -> None:
    text = compact_json(normalize_schema(deep(DEEP, step)))
    assert text.count('"type"') == DEEP + 1
    assert "default" not in text


def test_a_keyword_of_any_depth_is_copied() -> None:
    value: JsonValue = []
    for _ in range(DEEP):
        value = [value]
    assert compact_json(normalize_schema({"type": "string", "const": value})["const"]) == (
        "[" * (DEEP + 1) + "]" * (DEEP + 1)
    )


def test_a_level_inside_itself_is_cut_where_it_begins_again() -> None:
    loop: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    loop["properties"]["self"] = loop
    loop["additionalProperties"] = {"type": "array", "items": loop}
    assert normalize_schema(loop) == {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "self": CLOSED},
        "additionalProperties": {"type": "array", "items": CLOSED},
    }


def test_a_level_in_two_places_is_not_recursion() -> None:
    shared: dict[str, Any] = {"type": "string"}
    raw = {"type": "object", "properties": {"a": shared, "b": shared}}
    assert normalize_schema(raw) == raw


def test_sharing_upon_sharing_does_not_multiply() -> None:
    level: dict[str, Any] = {"type": "string", "const": []}
    constant: list[Any] = []
    for _ in range(60):
        constant = [constant, constant]
        level = {"type": "object", "properties": {"a": level, "b": level}, "x": constant}
    assert normalize_schema(level)["type"] == "object"


def looping() -> Any:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


@pytest.mark.parametrize(
    "value",
    [math.nan, -math.inf, {1}, b"x", (1,), object(), 10**5_000, [{1: 2}], {None: 1}, looping()],
    ids=lambda value: type(value).__name__,
)
def test_a_keyword_that_is_not_json_is_dropped(value: Any) -> None:
    raw = {"type": "string", "not": {"enum": [value]}, "minLength": 1, 7: "seven"}
    assert normalize_schema(raw) == {"type": "string", "minLength": 1}
    with pytest.raises(NotJson):
        copy_json(value)


def test_a_property_whose_name_is_not_a_string_is_dropped() -> None:
    raw = {"type": "object", "properties": {1: {"type": "string"}, "p": {"type": "string"}}}
    assert normalize_schema(raw) == in_object({"type": "string"})


@given(json_values)
def test_a_copy_is_equal_and_another_value(value: JsonValue) -> None:
    copied = copy_json(value)
    assert compact_json(copied) == compact_json(value)
    if isinstance(value, (list, dict)):
        assert copied is not value
