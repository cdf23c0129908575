from __future__ import annotations

import copy
import math
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import example, given, settings
from jsonschema import Draft202012Validator
from jsonschema.exceptions import UnknownType
from referencing import Registry
from referencing.exceptions import Unresolvable
from tests.support.schemas import anything, levels, likely_object, neighbour, randoms, rich_schema, subset_schema
from tests.support.strategies import json_values

from indusagi.core.json import compact_json
from indusagi.interop.protocol_bridge.schema.document import REFERENCES, SchemaDocument
from indusagi.interop.protocol_bridge.schema.model_view import MAX_BYTES, MAX_DEPTH, model_schema, model_view
from indusagi.interop.protocol_bridge.schema.normalize import normalize_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indusagi.core.json import JsonObject, JsonValue

CLOSED: JsonObject = {"type": "object", "properties": {}}
NOT_AT_TOP = {"allOf", "anyOf", "oneOf", "not", "enum"}


def fits(schema: JsonObject, value: JsonValue) -> bool:
    """Ask the outside judge; what it cannot answer, because a reference leads nowhere, is a no."""
    judge = Draft202012Validator(schema, registry=Registry())
    try:
        return judge.is_valid(value)  # pyright: ignore[reportUnknownMemberType] — half typed
    except (Unresolvable, UnknownType, RecursionError):
        return False
    except BaseException as exc:
        if type(exc).__name__ == "PanicException":  # the stack ended inside Rust code, which knows no RecursionError
            return False
        raise


def level_of(raw: JsonObject, name: str = "p") -> JsonValue:
    """Give the view of one property of a tool."""
    properties = model_schema(raw)["properties"]
    assert isinstance(properties, dict)
    return properties[name]


def tool(level: JsonValue, **more: JsonValue) -> JsonObject:
    """Make the schema of a tool with one parameter `p`."""
    return {"type": "object", "properties": {"p": level}, **more}


def shown(level: JsonValue, **more: JsonValue) -> JsonValue:
    return level_of(tool(level, **more))


def depth(schema: JsonValue) -> int:
    layer, deepest = [schema], 0
    while layer:
        deepest += 1
        layer = [
            child
            for value in layer
            if isinstance(value, (dict, list))
            for child in (value.values() if isinstance(value, dict) else value)
        ]
    return deepest


# The law


def test_arguments_that_fit_the_schema_fit_the_view() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=250)  # in every profile: the shares below are counted
    @given(randoms)
    def check(rng: Random) -> None:
        raw = rich_schema(rng)
        view = model_view(raw)
        arguments = [likely_object(rng, raw, raw) for _ in range(5)]
        fitting = [argument for argument in arguments if fits(raw, argument)]
        near = [neighbour(rng, argument) for argument in fitting for _ in range(3)]
        fitting += [argument for argument in near if fits(raw, argument)]
        seen["schemas"] += 1
        seen["widened"] += bool(view.widened)
        seen["with an argument that fits"] += bool(fitting)
        seen["faithful, with an argument that fits"] += bool(fitting) and not view.widened
        for argument in fitting:
            assert fits(view.schema, argument), (argument, raw, view)

    check()
    assert seen["with an argument that fits"] > seen["schemas"] * 0.5
    assert seen["faithful, with an argument that fits"] > seen["schemas"] * 0.2
    assert seen["widened"] > seen["schemas"] * 0.3


@given(randoms)
def test_a_view_is_a_schema_that_providers_take(rng: Random) -> None:
    view = model_schema(rich_schema(rng))
    Draft202012Validator.check_schema(view)
    assert view["type"] == "object"
    assert isinstance(view["properties"], dict)
    assert not NOT_AT_TOP & view.keys()
    for level in levels(view):
        assert REFERENCES.isdisjoint(level)


@example(Random(7856))
@given(randoms)
def test_a_view_is_its_own_view(rng: Random) -> None:
    view = model_schema(rich_schema(rng))
    assert model_schema(view) == view


@given(randoms)
def test_with_one_known_type_per_level_the_view_is_the_normalized_schema(rng: Random) -> None:
    raw = subset_schema(rng)
    view = model_view(raw)
    assert compact_json(normalize_schema(view.schema)) == compact_json(normalize_schema(raw))
    bare = without_defaults(raw)
    assert compact_json(model_schema(bare)) == compact_json(normalize_schema(bare))
    assert view.widened == ()


def without_defaults(raw: Any) -> Any:
    """Take out what the view keeps and `normalize_schema` does not."""
    bare = copy.deepcopy(raw)
    for level in subset_levels(bare):
        level.pop("default", None)
    return bare


def subset_levels(schema: JsonValue) -> Iterator[JsonObject]:
    """Give every level of a schema that `normalize_schema` looks at."""
    pending = [schema]
    while pending:
        level = pending.pop()
        if isinstance(level, dict):
            yield level
            pending += [level.get("items"), level.get("additionalProperties")]
            properties = level.get("properties")
            pending += properties.values() if isinstance(properties, dict) else ()


@given(randoms)
def test_finding_c2_every_default_of_a_simple_schema_is_in_the_view(rng: Random) -> None:
    raw = subset_schema(rng)
    wanted = [level["default"] for level in subset_levels(raw) if "default" in level]
    kept = [level["default"] for level in subset_levels(model_schema(raw)) if "default" in level]
    assert sorted(map(compact_json, kept)) == sorted(map(compact_json, wanted))


@pytest.mark.parametrize(
    "level",
    [
        {"type": "integer", "default": 5},
        {"type": ["string", "null"], "default": None},
        {"$ref": "#/$defs/x", "default": "ab"},
        {"allOf": [{"$ref": "#/$defs/x"}], "default": "ab"},
        {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": []},
        {"enum": ["a", "b"], "default": "a"},
        {"type": "object", "properties": {"default": {"type": "string"}}, "default": {"a": 1}},
        {"oneOf": [{"type": "string"}, {"$ref": "#/$defs/x"}], "default": False},
        {"default": 0},
    ],
)
def test_finding_c2_a_default_outlives_every_rewriting(level: dict[str, Any]) -> None:
    raw = {
        "type": "object",
        "properties": {"p": level},
        "anyOf": [{"required": ["p"]}, {"properties": {"q": {"type": "string", "default": "z"}}}],
        "$defs": {"x": {"type": "string", "minLength": 2}},
    }
    properties: Any = model_schema(raw)["properties"]
    assert compact_json(properties["p"]["default"]) == compact_json(level["default"])
    assert properties["q"]["default"] == "z"


@given(anything)
def test_every_value_has_a_view(value: Any) -> None:
    view = model_schema(value)
    assert view["type"] == "object"
    assert len(compact_json(view).encode()) <= MAX_BYTES


@given(json_values | randoms.map(rich_schema))
def test_the_argument_stays_as_it_was_and_the_same_view_comes_again(value: JsonValue) -> None:
    before = compact_json(value)
    first = model_view(value)
    assert compact_json(value) == before
    assert compact_json(model_schema(value)) == compact_json(first.schema)
    assert model_view(value) == first


# One case for each construct: what is shown, and arguments that must fit before and after.

X: JsonObject = {"x": {"type": "string", "minLength": 2}}
NODE: JsonObject = {
    "node": {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["value"],
    }
}

CASES: dict[str, tuple[JsonValue, JsonValue, list[JsonValue]]] = {
    "a string or null": (
        {"anyOf": [{"type": "string", "default": ""}, {"type": "null"}], "default": None},
        {"anyOf": [{"type": "string", "default": ""}, {"type": "null"}], "default": None},
        ["a", None],
    ),
    "a list of types": (
        {"type": ["string", "null"], "minLength": 1, "description": "d"},
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}], "description": "d"},
        ["a", None],
    ),
    "a list of types beside a union": (
        {"type": ["string", "integer"], "anyOf": [{"minLength": 2}, {"minimum": 3}]},
        {"anyOf": [{"minLength": 2}, {"minimum": 3}], "allOf": [{"anyOf": [{"type": "string"}, {"type": "integer"}]}]},
        ["ab", 1, 3],
    ),
    "a list of types with keywords of each": (
        {
            "type": ["object", "array", "number"],
            "properties": {"q": {"type": "string"}},
            "additionalProperties": False,
            "items": {"type": "integer"},
            "maximum": 4,
        },
        {
            "anyOf": [
                {"type": "object", "properties": {"q": {"type": "string"}}, "additionalProperties": False},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "number", "maximum": 4},
            ]
        },
        [{"q": ""}, {}, [1, 2], 4],
    ),
    "a list of one type": ({"type": ["string"]}, {"type": "string"}, ["a"]),
    "all types": (
        {"type": ["object", "array", "string", "number", "boolean", "null"], "title": "T"},
        {"title": "T"},
        [1, None, {}],
    ),
    "a list with unknown types": ({"type": ["string", "date"]}, {"type": "string"}, ["a"]),
    "constants of one type": ({"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}, ["a"]),
    "constants that are numbers": ({"enum": [1, 2.5]}, {"type": "number", "enum": [1, 2.5]}, [1.0]),
    "constants of several types": ({"enum": ["a", None]}, {"enum": ["a", None]}, [None]),
    "constants that are arrays": ({"enum": [[1], [2]]}, {"enum": [[1], [2]]}, [[1]]),
    "constants beside a list of types": (
        {"type": ["string", "null"], "enum": ["a", "b"]},
        {"type": "string", "enum": ["a", "b"]},
        ["a"],
    ),
    "one constant": ({"const": True}, {"type": "boolean", "const": True}, [True]),
    "null as the constant": ({"const": None}, {"type": "null", "const": None}, [None]),
    "properties without a type": (
        {"properties": {"q": {"type": "integer", "default": 1}}, "required": ["q", "r"]},
        {"properties": {"q": {"type": "integer", "default": 1}}, "required": ["q", "r"]},
        [{"q": 1, "r": 2}, "no object at all", 5],
    ),
    "items without a type": (
        {"items": {"type": "integer", "default": 1}},
        {"items": {"type": "integer", "default": 1}},
        [[1], "no array at all"],
    ),
    "nothing said": ({}, {}, [1, None, {}]),
    "true": (True, {}, [1, None, {}]),
    "an array of anything": ({"type": "array"}, {"type": "array", "items": {}}, [[1, "a"]]),
    "a tuple": (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        [["a", 1], ["a"], []],
    ),
    "a tuple of references": (
        {"type": "array", "prefixItems": [{"$ref": "#/$defs/x"}, True]},
        {"type": "array", "prefixItems": [{"type": "string", "minLength": 2}, {}], "items": {}},
        [["ab", 1, 2]],
    ),
    "a tuple of old": (
        {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": {"type": "null"}},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {"type": "null"}},
        [[]],
    ),
    "an empty tuple of old": ({"type": "array", "items": []}, {"type": "array", "items": {}}, [[]]),
    "both kinds of tuples": (
        {"type": "array", "items": [{"type": "null"}], "prefixItems": [{"type": "string"}]},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {}},
        [[], ["a"]],
    ),
    "a reference": ({"$ref": "#/$defs/x"}, {"type": "string", "minLength": 2}, ["ab"]),
    "a reference with remarks": (
        {"$ref": "#/$defs/x", "description": "d", "default": "ab"},
        {"type": "string", "minLength": 2, "description": "d", "default": "ab"},
        ["ab"],
    ),
    "a reference with constraints": (
        {"$ref": "#/$defs/x", "maxLength": 3, "allOf": [{"pattern": "^a"}]},
        {"maxLength": 3, "allOf": [{"pattern": "^a"}, {"type": "string", "minLength": 2}]},
        ["abc"],
    ),
    "a reference in the only part of allOf": (
        {"allOf": [{"$ref": "#/$defs/x"}], "title": "T"},
        {"type": "string", "minLength": 2, "title": "T"},
        ["ab"],
    ),
    "a reference in items": (
        {"type": "array", "items": {"$ref": "#/$defs/x"}},
        {"type": "array", "items": {"type": "string", "minLength": 2}},
        [["ab"]],
    ),
    "references in a union": (
        {"oneOf": [{"$ref": "#/$defs/x"}, {"type": "null"}], "discriminator": {"mapping": {"x": "#/$defs/x"}}},
        {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]},
        ["ab", None],
    ),
    "a union beside a type": (
        {"type": "string", "oneOf": [{"minLength": 3, "default": "z"}, {"maxLength": 1}]},
        {"type": "string", "oneOf": [{"minLength": 3, "default": "z"}, {"maxLength": 1}]},
        ["abc", "a"],
    ),
    "an odd union beside a type": (
        {"type": "array", "items": {}, "oneOf": [{"type": "array"}, {"type": ["null", "string"]}]},
        {
            "type": "array",
            "items": {},
            "anyOf": [{"type": "array", "items": {}}, {"anyOf": [{"type": "null"}, {"type": "string"}]}],
        },
        [[1]],
    ),
    "two unions": (
        {"anyOf": [{"type": "string"}], "oneOf": [{"minLength": 2}, {"$ref": "#/$defs/x"}]},
        {"anyOf": [{"type": "string"}], "allOf": [{"anyOf": [{"minLength": 2}, {"type": "string", "minLength": 2}]}]},
        [],
    ),
    "booleans in a union": (
        {"anyOf": [False, {"type": "string"}], "allOf": [True, {"minLength": 1}]},
        {"anyOf": [{"type": "string"}], "allOf": [{"minLength": 1}]},
        ["a"],
    ),
    "anything in a union": ({"anyOf": [True, {"type": "string"}]}, {"anyOf": [{}, {"type": "string"}]}, [5]),
    "a union of nothing": ({"anyOf": [False]}, {}, []),
    "parts that must all hold, each closed": (
        {
            "allOf": [
                {"type": "object", "properties": {"q": {"$ref": "#/$defs/x"}}, "additionalProperties": False},
                {"required": ["q"]},
            ]
        },
        {
            "allOf": [
                {
                    "type": "object",
                    "properties": {"q": {"type": "string", "minLength": 2}},
                    "additionalProperties": False,
                },
                {"required": ["q"]},
            ]
        },
        [{"q": "ab"}],
    ),
    "not": ({"not": {"type": "string"}, "default": 1}, {"not": {"type": "string"}, "default": 1}, [1]),
    "not, with a reference": ({"not": {"$ref": "#/$defs/x"}}, {}, ["a", 1]),
    "if, then, else": (
        {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "null"}},
        {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "null"}},
        ["ab", None],
    ),
    "if, with a reference": (
        {"if": {"$ref": "#/$defs/x"}, "then": {"maxLength": 3}, "else": {"type": "null"}},
        {},
        ["ab", None],
    ),
    "then, with a reference": (
        {"if": {"type": "string"}, "then": {"$ref": "#/$defs/x"}, "else": {"type": "null"}},
        {"if": {"type": "string"}, "else": {"type": "null"}},
        ["ab", None],
    ),
    "names by pattern": (
        {"type": "object", "patternProperties": {"^q": {"$ref": "#/$defs/x"}}, "additionalProperties": False},
        {
            "type": "object",
            "patternProperties": {"^q": {"type": "string", "minLength": 2}},
            "additionalProperties": False,
            "properties": {},
        },
        [{"q1": "ab"}, {}],
    ),
    "names by pattern beside a type": (
        {"type": "object", "patternProperties": {"^q": {"default": 1}}},
        {"type": "object", "patternProperties": {"^q": {"default": 1}}, "properties": {}},
        [{"q1": "ab"}],
    ),
    "more properties by reference": (
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/x"}},
        {"type": "object", "additionalProperties": {"type": "string", "minLength": 2}, "properties": {}},
        [{"any": "ab"}],
    ),
    "schemas that depend on a name": (
        {"type": "object", "dependentSchemas": {"q": {"required": ["r"]}}},
        {"type": "object", "dependentSchemas": {"q": {"required": ["r"]}}, "properties": {}},
        [{}, {"q": 1, "r": 1}],
    ),
    "schemas that depend on a name, with a reference": (
        {"type": "object", "dependentSchemas": {"q": {"$ref": "#"}}},
        CLOSED,
        [{}, {"r": 1}],
    ),
    "unevaluated properties": (
        {"type": "object", "anyOf": [{"properties": {"q": {}}}], "unevaluatedProperties": False},
        {"type": "object", "anyOf": [{"properties": {"q": {}}}], "unevaluatedProperties": False, "properties": {}},
        [{"q": 1}, {}],
    ),
    "unevaluated properties beside a reference": (
        {"type": "object", "$ref": "#/$defs/node", "unevaluatedProperties": False},
        {
            "type": "object",
            "allOf": [
                {
                    "type": "object",
                    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [CLOSED, {"type": "null"}]}},
                    "required": ["value"],
                }
            ],
            "properties": {},
        },
        [{"value": 1, "next": {"value": 2}}],
    ),
    "unevaluated properties beside a reference that is not followed": (
        {"$ref": "https://json-schema.org/draft/2020-12/schema", "unevaluatedProperties": False, "minProperties": 1},
        {"minProperties": 1},
        [{"maxLength": 2}],
    ),
    "unevaluated items": (
        {"type": "array", "prefixItems": [{"type": "string"}], "unevaluatedItems": False},
        {"type": "array", "prefixItems": [{"type": "string"}], "unevaluatedItems": False},
        [["a"], []],
    ),
    "contains": (
        {"type": "array", "items": {}, "contains": {"type": "string"}, "minContains": 0},
        {"type": "array", "items": {}, "contains": {"type": "string"}, "minContains": 0},
        [[1], ["a"]],
    ),
    "names of properties": ({"type": "object", "propertyNames": {"$ref": "#/$defs/x"}}, CLOSED, [{"ab": 1}]),
    "a property that must not occur": (
        {
            "type": "object",
            "properties": {"q": False, "r": True},
            "required": ["r", "q"],
            "additionalProperties": False,
        },
        {"type": "object", "properties": {"r": {}}, "required": ["r"], "additionalProperties": False},
        [],
    ),
    "recursion": (
        {"$ref": "#/$defs/node"},
        {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "next": {"anyOf": [CLOSED, {"type": "null"}]}},
            "required": ["value"],
        },
        [{"value": 1, "next": {"value": 2, "next": None}}],
    ),
    "the whole as a part of itself": ({"$ref": "#"}, CLOSED, [{"p": {}}, {}]),
    "itself and nothing else": ({"$ref": "#/properties/p"}, {}, []),
    "a remote reference": ({"$ref": "https://example.invalid/x", "title": "T"}, {"title": "T"}, []),
    "a reference to nowhere": ({"$ref": "#/$defs/missing/0", "maxLength": 3}, {"maxLength": 3}, []),
    "a reference to no schema": ({"$ref": "#/$defs/x/type"}, {}, []),
    "a reference that is no text": ({"$ref": 5}, {}, []),
    "a very long reference": ({"$ref": "#/" + "a/" * 1_000}, {}, []),
    "a dynamic reference": ({"$dynamicRef": "#/$defs/x", "title": "T"}, {"title": "T"}, ["ab"]),
    "a reference to false": ({"$ref": "#/$defs/never"}, {}, []),
    "a reference to true": ({"$ref": "#/$defs/always", "title": "T"}, {"title": "T"}, [1]),
    "a reference by name": ({"$ref": "#named"}, {"type": "boolean"}, [True]),
    "a reference by a name given twice": ({"$ref": "#twice"}, {}, []),
    "a reference with escapes": ({"$ref": "#/$defs/a~1b%20~0/anyOf/0"}, {"type": "null"}, [None]),
    "a reference past the end": ({"$ref": "#/$defs/a~1b%20~0/anyOf/7"}, {}, []),
    "an unknown type": ({"type": "date", "maxLength": 3}, {"maxLength": 3}, []),
    "no schema": (5, {}, []),
    "another dialect inside": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "title": "T",
            "prefixItems": [{"type": "string"}],
        },
        {"type": "array", "items": {}, "title": "T"},
        [[1]],
    ),
    "the same dialect inside": (
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "null"},
        {"type": "null"},
        [None],
    ),
}
DEFINITIONS: JsonObject = {
    **X,
    **NODE,
    "never": False,
    "always": True,
    "a/b ~": {"anyOf": [{"type": "null"}]},
    "named": {"type": "boolean", "$anchor": "named"},
    "first": {"$anchor": "twice"},
    "second": {"$dynamicAnchor": "twice"},
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_parameter_allows_as_much_as_before_or_more(case: str) -> None:
    level, expected, values = CASES[case]
    raw = tool(level, **{"$defs": DEFINITIONS})
    view = model_schema(raw)
    assert compact_json(view) == compact_json(tool(expected))
    for value in values:
        assert fits(raw, {"p": value}), value
        assert fits(view, {"p": value}), value


def test_references_into_any_part_of_the_schema_are_found() -> None:
    raw: JsonObject = {
        "type": "object",
        "definitions": {"old": {"type": "string"}},
        "properties": {
            "p": {"$ref": "#/definitions/old"},
            "q": {"$ref": "#/properties/p"},
            "r": {"type": "array", "items": {"$ref": "#/x-shared/0"}},
        },
        "x-shared": [{"type": "integer"}],
    }
    assert level_of(raw, "p") == {"type": "string"}
    assert level_of(raw, "q") == {"type": "string"}
    assert level_of(raw, "r") == {"type": "array", "items": {"type": "integer"}}


def test_references_below_another_id_are_not_followed() -> None:
    inner: JsonObject = {
        "$id": "https://example.invalid/inner",
        "$ref": "#/$defs/x",
        "$defs": {"x": {"type": "integer"}},
    }
    raw = tool(inner, **{"$defs": X, "$id": "https://example.invalid/outer"})
    assert fits(raw, {"p": 1})
    assert level_of(raw) == {}
    assert fits(model_schema(raw), {"p": 1})
    named_so: JsonObject = {"type": "object", "properties": {"$id": {"$ref": "#/$defs/x"}}}
    assert model_schema({**named_so, "$defs": X})["properties"] == {"$id": X["x"]}


# The top level


BRANCHES: list[JsonValue] = [
    {
        "type": "object",
        "properties": {"kind": {"const": "file", "title": "K"}, "path": {"type": "string"}},
        "required": ["kind", "path"],
        "additionalProperties": False,
    },
    {
        "properties": {"kind": {"enum": ["url", "file"]}, "url": {"$ref": "#/$defs/x"}},
        "required": ["url", "kind"],
        "additionalProperties": False,
    },
    {"type": "null"},
    False,
]


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_union_at_the_root_becomes_one_list_of_properties(keyword: str) -> None:
    raw: JsonObject = {"description": "d", keyword: BRANCHES, "$defs": X}
    view = model_view(raw)
    assert view.schema == {
        "type": "object",
        "description": "d",
        "additionalProperties": False,
        "properties": {
            "kind": {"type": "string", "enum": ["file", "url"]},
            "path": {"type": "string"},
            "url": {"type": "string", "minLength": 2},
        },
        "required": ["kind"],
    }
    assert view.widened == (f"$: without {keyword} at the top",)
    assert fits(raw, {"kind": "file", "path": ""})
    assert fits(view.schema, {"kind": "file", "path": ""})


def test_a_property_that_a_branch_does_not_mention_can_hold_anything() -> None:
    raw: JsonObject = {
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "anyOf": [
            {"properties": {"q": {"type": "string", "description": "d"}, "s": {"minLength": 1}}},
            {"properties": {"q": {"type": "null"}, "r": {"type": "string"}}, "required": ["r"]},
            True,
        ],
    }
    view = model_schema(raw)
    properties: JsonObject = {"id": {"type": "integer"}, "q": {"description": "d"}, "s": {}, "r": {}}
    assert view == {"type": "object", "properties": properties}
    assert fits(raw, {"q": 5, "r": 5, "s": 5})
    assert fits(view, {"q": 5, "r": 5, "s": 5})


def test_a_union_at_the_top_is_open_if_a_branch_is() -> None:
    closed: JsonObject = {"properties": {"a": {}}, "additionalProperties": False}
    by_pattern: JsonObject = {**closed, "patternProperties": {"^x": {}}}
    for other in (by_pattern, cast("JsonObject", {"required": ["xb"]})):
        raw: JsonObject = {"type": "object", "anyOf": [closed, other]}
        assert fits(raw, {"xb": 1})
        assert fits(model_schema(raw), {"xb": 1})


def test_a_branch_that_is_not_looked_at_allows_anything() -> None:
    first: JsonObject = {"properties": {"a": {"const": 1}}, "required": ["a"]}
    branches: list[JsonValue] = [first for _ in range(1_000)]
    raw: JsonObject = {"type": "object", "anyOf": [*branches, {"required": ["b"]}]}
    assert fits(raw, {"b": 1, "a": 2})
    assert fits(model_schema(raw), {"b": 1, "a": 2})


def test_a_union_of_required_names_at_the_top_leaves_the_properties() -> None:
    raw: JsonObject = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert model_schema(raw) == {"type": "object", "properties": raw["properties"]}


def test_parts_at_the_root_become_one_list_of_properties() -> None:
    raw: JsonObject = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "z": {"type": "null"}},
        "required": ["a"],
        "allOf": [{"$ref": "#/$defs/more"}, {"if": {"required": ["a"]}, "then": {"required": ["b"]}}],
        "unevaluatedProperties": False,
        "$defs": {
            "more": {
                "properties": {"a": {"minLength": 2}, "b": {"type": "integer"}},
                "required": ["b"],
                "additionalProperties": False,
            }
        },
    }
    view = model_schema(raw)
    assert view == {
        "type": "object",
        "properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 2}]}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert fits(raw, {"a": "ab", "b": 1})
    assert fits(view, {"a": "ab", "b": 1})


def test_closed_parts_at_the_root_allow_their_common_properties() -> None:
    part: JsonObject = {"properties": {"a": {}, "b": {}}, "additionalProperties": False}
    other: JsonObject = {"properties": {"b": {}, "c": {}}, "additionalProperties": False}
    view = model_schema({"type": "object", "allOf": [part, other]})
    assert view == {"type": "object", "additionalProperties": False, "properties": {"b": {"allOf": [{}, {}]}}}


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "object", "allOf": [{"type": "string"}]},
        {"type": "object", "anyOf": [False, {"type": "null"}]},
        {"type": "object", "not": {}},
        {"type": "object", "enum": [1]},
        {"type": "string", "minLength": 2},
        {"type": ["array", "null"]},
    ],
)
def test_a_schema_that_no_object_fits_becomes_any_object(raw: JsonObject) -> None:
    view = model_view(raw)
    assert view.schema == CLOSED
    assert view.widened


@pytest.mark.parametrize(
    "raw",
    [
        {"properties": {"p": {"type": "string"}}},
        {"type": ["null", "object"], "properties": {"p": {"type": "string"}}},
        {"type": "dict", "properties": {"p": {"type": "string"}}},
        {"$ref": "#/$defs/all", "$defs": {"all": tool({"type": "string"})}},
        {"allOf": [{"$ref": "#/$defs/all"}], "$defs": {"all": tool({"type": "string"})}},
    ],
)
def test_the_top_is_an_object_even_if_it_does_not_say_so(raw: JsonObject) -> None:
    assert model_schema(raw) == tool({"type": "string"})


@pytest.mark.parametrize("raw", [None, 5, "object", [], False])
def test_a_value_that_is_not_a_schema_becomes_any_object(raw: object) -> None:
    assert model_schema(raw) == CLOSED
    assert model_view(raw).widened == ("$: no schema",)


def test_any_object_fits_true() -> None:
    assert model_schema(True) == CLOSED
    assert model_view(True).widened == ()


# What is left out, and said to be


def test_widened_levels_are_noted_with_their_paths() -> None:
    raw: JsonObject = {
        "type": "object",
        "$defs": {**X, **NODE, "strange name": {"type": "int"}},
        "properties": {
            "tree": {"$ref": "#/$defs/node"},
            "odd": {"not": {"$ref": "#/$defs/x"}},
            "far": {"type": "array", "items": {"$ref": "https://example.invalid/" + "x" * 100}},
            "map": {"additionalProperties": {"$ref": "#/$defs/strange name"}},
            "wrong name": {"anyOf": [{"type": ["int"]}]},
            "fine": {"type": "string"},
        },
    }
    assert model_view(raw).widened == (
        "$.odd: without not",
        "$.far[]: 'https://example.invalid/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' is not followed",
        "$.map.*: of unknown type 'int'",
        "$['wrong name'].anyOf[0]: of unknown type list",
        "$.tree.next.anyOf[0]: '#/$defs/node' is recursive",
    )


def test_only_the_first_notes_are_kept() -> None:
    properties: JsonObject = {f"p{n}": {"type": "any"} for n in range(30)}
    widened = model_view({"type": "object", "properties": properties}).widened
    assert len(widened) == 17
    assert widened[-1] == "and 14 more"


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ({"contains": {"type": "string"}, "minContains": math.nan}, {}),
        (
            {"patternProperties": {"q": 1, 5: 5}, "additionalProperties": False},
            {"patternProperties": {"q": {}}, "additionalProperties": False},
        ),
        ({"not": {"const": math.inf}, "minLength": 1}, {"minLength": 1}),
        ({"prefixItems": {1: 2}, "items": False}, {}),
        ({"patternProperties": [math.nan], "additionalProperties": False}, {}),
        ({"enum": [b"x"], "unevaluatedItems": False}, {}),
    ],
)
def test_a_dropped_keyword_takes_those_that_depend_on_it_along(level: Any, expected: Any) -> None:
    assert shown(level) == expected


# Bounds


def nested(times: int) -> JsonObject:
    level: JsonObject = {"type": "string"}
    for _ in range(times):
        level = tool(level)
    return level


def test_the_depth_of_a_view_is_limited() -> None:
    fitting = nested(MAX_DEPTH - 1)
    assert model_view(fitting) == type(model_view(True))(fitting)
    view = model_view(nested(MAX_DEPTH + 1))
    assert compact_json(view.schema).count('"p"') == MAX_DEPTH
    assert view.widened == ("$" + ".p" * MAX_DEPTH + f": deeper than {MAX_DEPTH} levels",)


def deep_part(times: int) -> JsonObject:
    part: JsonObject = {"type": "string"}
    for _ in range(times):
        part = {"not": part}
    return part


def test_a_part_that_is_copied_has_limited_depth() -> None:
    assert shown(deep_part(30)) == deep_part(30)
    assert shown(deep_part(100)) == {}


@pytest.mark.parametrize("step", ["not", "properties", "anyOf", "items", "allOf", "$defs", "x"])
def test_any_depth_has_a_view(step: str) -> None:
    level: JsonValue = {"type": "string"}
    for _ in range(10_000):
        inner: JsonValue = {"p": level} if step in {"properties", "$defs"} else level
        level = {step: [level] if step in {"anyOf", "allOf"} else inner}
    view = model_schema(tool(level, **{"$defs": cast("JsonValue", {"d": level})}))
    assert depth(view) < 200
    assert fits(view, {}) is True


def test_a_chain_of_references_is_followed_only_so_far() -> None:
    chain: JsonObject = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5_000)}
    chain["d5000"] = chain["d40"] = {"type": "string"}
    assert shown({"$ref": "#/$defs/d1"}, **{"$defs": chain}) == {"type": "string"}
    assert shown({"$ref": "#/$defs/d50"}, **{"$defs": chain}) == {}
    parts: JsonValue = {"type": "string"}
    for _ in range(5_000):
        parts = {"allOf": [parts]}
    assert shown(parts) != {"type": "string"}


def test_references_that_double_at_each_step_do_not_blow_up() -> None:
    below: JsonObject
    doubling: JsonObject = {"d0": {"type": "string"}}
    for n in range(1, 40):
        below = {"$ref": f"#/$defs/d{n - 1}"}
        doubling[f"d{n}"] = {"type": "object", "properties": {"left": below, "right": below}}
    view = model_view(tool({"$ref": "#/$defs/d39"}, **{"$defs": doubling}))
    assert MAX_BYTES // 2 < len(compact_json(view.schema)) <= MAX_BYTES
    assert "past 64 KiB in all" in view.widened[0]


def test_a_wide_union_of_wide_branches_at_the_top_does_not_blow_up() -> None:
    wide: JsonObject = {"properties": {f"p{n}": {"type": "string"} for n in range(3_000)}}
    many: list[JsonValue] = [{"$ref": "#/$defs/wide"} for _ in range(300)]
    deep: JsonObject = {"anyOf": many}
    deep["oneOf"] = [{"anyOf": [{"oneOf": [deep_branch(40)]}]}]
    view = model_schema({"type": "object", **deep, "$defs": {"wide": wide}})
    assert len(compact_json(view)) <= MAX_BYTES
    huge: JsonObject = {"properties": {f"p{n}": {} for n in range(50_000)}}
    assert model_schema({"anyOf": [huge, huge]}) == CLOSED


def deep_branch(times: int) -> JsonObject:
    level: JsonObject = {"required": ["q"]}
    for _ in range(times):
        level = {"type": "object", "anyOf": [level]}
    return level


def test_levels_that_do_not_fit_are_widened_and_the_rest_is_kept() -> None:
    large: JsonObject = {"type": "string", "enum": [f"{n:07}" for n in range(6_000)]}
    raw: JsonObject = {
        "type": "object",
        "description": "d" * (MAX_BYTES + 1),
        "properties": {
            "huge": {"type": "string", "enum": [f"{n:09}" for n in range(6_000)]},
            "large": large,
            "many": {"type": "object", "properties": {f"{n}": {} for n in range(40_000)}},
            "small": {"type": "string", "maxLength": 3},
            "second": {"type": "string", "enum": [f"{n:07}" for n in range(6_000)]},
        },
    }
    view = model_view(raw)
    properties = cast("JsonObject", view.schema["properties"])
    assert properties["huge"] == {"type": "string"}
    assert properties["large"] == large
    assert properties["many"] == CLOSED
    assert properties["small"] == {"type": "string", "maxLength": 3}
    assert properties["second"] == {"type": "string"}
    assert "description" not in view.schema
    assert len(compact_json(view.schema)) <= MAX_BYTES


def test_after_many_levels_that_do_not_fit_the_rest_is_minimal() -> None:
    large: JsonObject = {"type": "string", "enum": [f"{n:07}" for n in range(6_000)]}
    properties: JsonObject = {f"p{n}": large for n in range(30)}
    properties["last"] = {"type": "string", "maxLength": 3}
    view = model_view({"type": "object", "properties": properties})
    assert cast("JsonObject", view.schema["properties"])["last"] == {"type": "string"}


def test_work_on_parts_that_cannot_be_copied_is_limited() -> None:
    document = SchemaDocument({}, part_bytes=100)
    parts = [[[0] * 60, [0] * 60] for _ in range(40)]
    assert {document.encode(part) for part in parts} == {None}
    assert document.encode([1, 2]) is None
    assert SchemaDocument({}, part_bytes=100).encode([1, 2]) == "[1,2]"


def test_a_level_inside_itself_is_widened_where_it_begins_again() -> None:
    loop: dict[str, Any] = {"type": "object", "properties": {}}
    loop["properties"]["self"] = loop
    part: dict[str, Any] = {}
    part["allOf"] = [part]
    loop["properties"]["part"] = part
    view = model_view(loop)
    assert view.schema["properties"] == {"self": CLOSED, "part": {}}
    assert view.widened == ("$.self: inside itself", "$.part.allOf[0]: inside itself")


def test_a_megabyte_of_schema_has_a_view() -> None:
    level: JsonObject = {"type": ["string", "null"], "description": "d" * 50}
    properties: JsonObject = {f"p{n}": {"anyOf": [level, tool(level), {"$ref": "#/$defs/x"}]} for n in range(4_000)}
    raw: JsonObject = {"type": "object", "properties": tool({}), "$defs": {**X, **properties}}
    raw["properties"] = {"few": {"type": "object", "properties": properties}, "one": {"type": "null"}}
    view = model_schema(raw)
    assert len(compact_json(view)) <= MAX_BYTES
    assert cast("JsonObject", view["properties"])["one"] == {"type": "null"}
