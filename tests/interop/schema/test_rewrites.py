"""Rewrites of one level: types, unions and shapes, with every keyword of each type."""

from __future__ import annotations

import json
from typing import Any

import pytest

from indusagi.interop.protocol_bridge.schema.document import (
    ANNOTATIONS,
    ObjectShape,
    find_types,
    intersect_shapes,
    shape_of_level,
    unite_shapes,
    with_one_type,
    with_part,
    with_union,
)

OWN = {
    "string": ("format", "maxLength", "minLength", "pattern"),
    "number": ("exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "minimum", "multipleOf"),
    "array": (
        *("contains", "items", "maxContains", "maxItems", "minContains", "minItems", "prefixItems", "uniqueItems"),
    ),
    "object": (
        *("additionalProperties", "dependentRequired", "dependentSchemas", "maxProperties", "minProperties"),
        *("patternProperties", "properties", "propertyNames", "required"),
    ),
}


@pytest.mark.parametrize(
    ("kind", "keyword"), [(kind, keyword) for kind, keywords in OWN.items() for keyword in keywords]
)
def test_a_keyword_goes_to_the_branch_of_its_type_alone(kind: str, keyword: str) -> None:
    level: Any = {"type": [kind, "boolean"], keyword: {"x": 1}, "title": "t"}
    assert with_one_type(level) == {"anyOf": [{"type": kind, keyword: {"x": 1}}, {"type": "boolean"}], "title": "t"}


def test_numbers_and_integers_share_their_keywords() -> None:
    found: Any = with_one_type({"type": ["integer", "string"], "minimum": 1, "format": "f"})
    assert found == {"anyOf": [{"type": "integer", "minimum": 1, "format": "f"}, {"type": "string", "format": "f"}]}


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ({"type": "string"}, {"type": "string"}),
        ({"type": ["string"]}, {"type": "string"}),
        ({"type": ["string", "string", "odd"]}, {"type": "string"}),
        ({"type": "odd"}, {}),
        ({"type": []}, {}),
        ({"const": "a"}, {"type": "string", "const": "a"}),
        ({"const": None}, {"type": "null", "const": None}),
        ({"enum": [1, 2]}, {"type": "integer", "enum": [1, 2]}),
        ({"enum": [1, 2.5]}, {"type": "number", "enum": [1, 2.5]}),
        ({"enum": [1.5]}, {"type": "number", "enum": [1.5]}),
        ({"enum": [True, False]}, {"type": "boolean", "enum": [True, False]}),
        ({"enum": ["a", 1]}, {"enum": ["a", 1]}),
        ({"enum": [[1]]}, {"enum": [[1]]}),
        ({"enum": []}, {"enum": []}),
        ({"enum": "x"}, {"enum": "x"}),
        ({"type": ["string", "null"], "enum": ["a"]}, {"type": "string", "enum": ["a"]}),
        ({"properties": {}}, {"properties": {}}),
        ({"type": ["string", "number", "boolean", "array", "object", "null"], "a": 1}, {"a": 1}),
        ({"items": [1, 2]}, {"prefixItems": [1, 2]}),
        ({"items": [], "a": 1}, {"a": 1}),
        ({"items": [1], "additionalItems": 2}, {"prefixItems": [1], "items": 2}),
        ({"items": [1], "prefixItems": [3], "additionalItems": 2}, {"prefixItems": [3]}),
        ({"items": {"a": 1}, "additionalItems": 2}, {"items": {"a": 1}, "additionalItems": 2}),
        (
            {"type": ["string", "null"], "anyOf": [1], "allOf": [2]},
            {"anyOf": [1], "allOf": [2, {"anyOf": [{"type": "string"}, {"type": "null"}]}]},
        ),
    ],
)
def test_a_level_gets_one_type(level: Any, expected: Any) -> None:
    before = json.dumps(level)
    found = with_one_type(level)
    assert found == expected
    assert json.dumps(level) == before
    assert len(find_types(found)) <= 1


def test_a_keyword_becomes_a_union() -> None:
    assert with_union({"a": 1, "type": 2, "b": 3}, "type", [4]) == {"a": 1, "anyOf": [4], "b": 3}
    assert with_union({"anyOf": [1], "type": 2}, "type", [4]) == {"anyOf": [1], "allOf": [{"anyOf": [4]}]}
    assert with_part({"allOf": [1], "a": 2}, {"b": 3}) == {"allOf": [1, {"b": 3}], "a": 2}
    assert with_part({"allOf": 1}, {"b": 3}) == {"allOf": [{"b": 3}]}
    assert frozenset({"title", "description", "default"}) == ANNOTATIONS


@pytest.mark.parametrize(
    ("level", "shape"),
    [
        ({}, ObjectShape({})),
        ({"properties": {"a": 1, "b": 2}, "required": ["a", 3]}, ObjectShape({"a": 1, "b": 2}, ("a",))),
        ({"properties": {"a": 1}, "additionalProperties": False}, ObjectShape({"a": 1}, (), frozenset({"a"}))),
        ({"properties": {"a": 1}, "additionalProperties": True}, ObjectShape({"a": 1})),
        ({"additionalProperties": False, "patternProperties": {}}, ObjectShape({})),
        ({"properties": 1, "required": "a", "additionalProperties": 0}, ObjectShape({})),
    ],
)
def test_a_level_has_a_shape(level: Any, shape: ObjectShape) -> None:
    assert shape_of_level(level) == shape


def closed(*names: str, required: tuple[str, ...] = ()) -> ObjectShape:
    """A shape of these names alone."""
    return ObjectShape(dict.fromkeys(names, 1), required, frozenset(names))


def test_what_fits_both_shapes() -> None:
    first, other = ObjectShape({"a": 1, "b": 2}, ("a",)), ObjectShape({"b": 3, "c": 4}, ("c", "a"))
    both: dict[str, object] = {"a": 1, "b": {"allOf": [2, 3]}, "c": 4}
    assert intersect_shapes(first, other) == ObjectShape(both, ("a", "c"))
    assert intersect_shapes(first, closed("b")) == ObjectShape({"b": {"allOf": [2, 1]}}, ("a",), frozenset("b"))
    assert intersect_shapes(closed("b"), first).allowed == {"b"}
    assert intersect_shapes(closed("a", "b"), closed("b", "c")).allowed == {"b"}


def test_what_fits_one_of_several_shapes() -> None:
    def unite(*shapes: ObjectShape) -> ObjectShape:
        return unite_shapes(shapes, json.dumps)

    one = ObjectShape({"a": {"type": "string", "title": "t"}}, ("a", "b"))
    assert unite(one) is one
    other = ObjectShape({"b": 1}, ("b",))
    assert unite(one, other) == ObjectShape({"a": {"title": "t"}, "b": {}}, ("b",))
    assert unite(closed("a", required=("a",)), closed("a", "b")) == ObjectShape({"a": 1, "b": 1}, (), frozenset("ab"))
    assert unite(closed("a"), other).allowed is None
    bare, described = ObjectShape({"a": {"x": 1}}), ObjectShape({"a": {"description": "d", "x": 2}})
    assert unite(bare, described, other).properties["a"] == {"description": "d"}


CHOICES: list[Any] = [
    ([{"type": "string"}, {"type": "string"}], {"type": "string"}),
    ([{"const": "a"}, {"const": "b"}], {"enum": ["a", "b"]}),
    ([{"const": "a", "title": "x"}, {"enum": ["b", "a"], "type": "string"}], {"enum": ["a", "b"]}),
    ([{"const": "a"}, {"type": "string"}], {"anyOf": [{"const": "a"}, {"type": "string"}]}),
    ([{"const": "a"}, {"enum": []}], {"anyOf": [{"const": "a"}, {"enum": []}]}),
    ([{"const": "a"}, {"enum": "b"}], {"anyOf": [{"const": "a"}, {"enum": "b"}]}),
    ([{"const": "a", "minLength": 1}, {"const": "b"}], {"anyOf": [{"const": "a", "minLength": 1}, {"const": "b"}]}),
    ([True, {"const": "b"}], {"anyOf": [True, {"const": "b"}]}),
]


@pytest.mark.parametrize(("choices", "expected"), CHOICES)
def test_choices_of_a_property_become_one_schema(choices: list[Any], expected: Any) -> None:
    shapes = [ObjectShape({"p": choice}, (), frozenset({"p"})) for choice in choices]
    assert unite_shapes(shapes, json.dumps).properties == {"p": expected}
