"""Rewrites one schema level into forms that more providers accept, and summarizes object schemas.

The result allows everything the argument allows. Functions don't follow references, look below their level or modify
their arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.records import record
from indusagi.interop.protocol_bridge.schema.normalize import KNOWN_TYPES, is_dict, is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.interop.protocol_bridge.schema.normalize import AnyObject

ANNOTATIONS = frozenset({"title", "description", "default"})
"""Descriptive keywords, without effect on validation:
https://json-schema.org/draft/2020-12/json-schema-validation#section-9."""

_OF_STRINGS = frozenset({"format", "maxLength", "minLength", "pattern"})
_OF_NUMBERS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "minimum", "multipleOf"})
_OF_ARRAYS = frozenset(
    {"contains", "items", "maxContains", "maxItems", "minContains", "minItems", "prefixItems", "uniqueItems"}
)
_OF_OBJECTS = frozenset(
    {
        "additionalProperties",
        "dependentRequired",
        "dependentSchemas",
        "maxProperties",
        "minProperties",
        "patternProperties",
        "properties",
        "propertyNames",
        "required",
    }
)
_OWN: dict[str, frozenset[str]] = {
    "string": _OF_STRINGS,
    "number": _OF_NUMBERS,
    "integer": _OF_NUMBERS,
    "array": _OF_ARRAYS,
    "object": _OF_OBJECTS,
}
"""Keywords that apply to values of one type."""
_TYPE_OF: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_OWNED = _OF_STRINGS | _OF_NUMBERS | _OF_ARRAYS | _OF_OBJECTS


def find_types(level: AnyObject) -> tuple[str, ...]:
    """Return the declared types that JSON Schema defines."""
    declared = level.get("type")
    names = declared if is_list(declared) else [declared]
    return tuple(dict.fromkeys(n for n in names if isinstance(n, str) and n in KNOWN_TYPES))


def with_one_type(level: AnyObject) -> AnyObject:
    """Give a level one type, a union of single-type levels, or no type if it allows all.

    The type is the declared one, or the type of all constants. `properties` and `items` don't imply a type: they allow
    values of other types. A list of types becomes `anyOf`, because one large provider rejects lists; each branch gets
    the keywords of its type, because an array must have its `items` next to it.
    """
    tuple_items = level.get("items")
    if is_list(tuple_items):
        # Write a list of `items` as `prefixItems`:
        # https://json-schema.org/draft/2020-12/json-schema-core#section-10.3.1.
        rest = {k: v for k, v in level.items() if k not in {"items", "additionalItems"}}
        if tuple_items and "prefixItems" not in rest:
            rest["prefixItems"] = tuple_items
        if "additionalItems" in level and "prefixItems" not in level:
            rest["items"] = level["additionalItems"]
        level = rest
    types = find_types(level)
    if len(types) != 1:
        constants = [level["const"]] if "const" in level else level.get("enum")
        implied = {_TYPE_OF.get(type(constant)) for constant in constants} if is_list(constants) else {None}
        if implied == {"integer", "number"}:
            types = ("number",)
        elif len(implied) == 1 and (name := implied.pop()) is not None:
            types = (name,)
    if len(types) == 1:
        return {**level, "type": types[0]} if "type" in level else {"type": types[0], **level}
    if not types or KNOWN_TYPES - {"integer"} <= set(types):
        return {key: value for key, value in level.items() if key != "type"}
    branches = [{"type": name, **{k: v for k, v in level.items() if k in _OWN.get(name, ())}} for name in types]
    return with_union({k: v for k, v in level.items() if k not in _OWNED}, "type", branches)


def with_union(level: AnyObject, keyword: str, branches: Sequence[object]) -> AnyObject:
    """Replace a keyword by `anyOf`, or by another part of `allOf` if the level already has an `anyOf`."""
    if "anyOf" not in level:
        return {
            "anyOf" if key == keyword else key: branches if key == keyword else value for key, value in level.items()
        }
    rest = {key: value for key, value in level.items() if key != keyword}
    return with_part(rest, {"anyOf": branches})


def with_part(level: AnyObject, part: AnyObject) -> AnyObject:
    """Add a schema to `allOf`."""
    others = level.get("allOf")
    return {**level, "allOf": [*(others if is_list(others) else ()), part]}


@record
class ObjectShape:
    """A flat summary of a schema and its branches, true for every object that fits."""

    properties: dict[str, object]
    """A schema for the value of each property."""
    required: tuple[str, ...] = ()
    allowed: frozenset[str] | None = None
    """Allowed names, all of them in `properties`; `None` if any name is allowed."""


ANY_SHAPE = ObjectShape({})


def shape_of_level(level: AnyObject) -> ObjectShape:
    """Summarize a level without its branches."""
    declared, required = level.get("properties"), level.get("required")
    properties: dict[str, object] = {}
    if is_dict(declared):
        properties = {name: child for name, child in declared.items() if isinstance(name, str)}
    closed = level.get("additionalProperties") is False and "patternProperties" not in level
    return ObjectShape(
        properties,
        tuple(n for n in required if isinstance(n, str)) if is_list(required) else (),
        frozenset(properties) if closed else None,
    )


def intersect_shapes(first: ObjectShape, other: ObjectShape) -> ObjectShape:
    """Summarize the objects that fit both shapes."""
    allowed = first.allowed
    if allowed is None or other.allowed is None:
        allowed = other.allowed if allowed is None else allowed
    else:
        allowed &= other.allowed
    properties = {**first.properties, **other.properties}
    for name in first.properties.keys() & other.properties.keys():
        properties[name] = {"allOf": [first.properties[name], other.properties[name]]}
    if allowed is not None:
        properties = {name: child for name, child in properties.items() if name in allowed}
    return ObjectShape(properties, tuple(dict.fromkeys([*first.required, *other.required])), allowed)


def unite_shapes(shapes: Sequence[ObjectShape], encode: Callable[[object], str | None]) -> ObjectShape:
    """Summarize the objects that fit at least one shape.

    A property that some shape doesn't declare can hold anything, so it only keeps its annotations.
    """
    if len(shapes) == 1:
        return shapes[0]
    properties: dict[str, object] = {}
    for name in dict.fromkeys(name for shape in shapes for name in shape.properties):
        choices = [shape.properties[name] for shape in shapes if name in shape.properties]
        if any(name not in s.properties and s.allowed is None for s in shapes):
            annotated = [choice for choice in choices if is_dict(choice) and not ANNOTATIONS.isdisjoint(choice)]
            annotations = annotated[0].items() if annotated else ()
            properties[name] = {key: value for key, value in annotations if key in ANNOTATIONS}
        else:
            properties[name] = _union(choices, encode)
    required = tuple(n for n in shapes[0].required if all(n in s.required for s in shapes))
    closed = [shape.allowed for shape in shapes if shape.allowed is not None]
    allowed = frozenset[str]().union(*closed) if len(closed) == len(shapes) else None
    return ObjectShape(properties, required, allowed)


def _union(choices: Sequence[object], encode: Callable[[object], str | None]) -> object:
    distinct = list({encode(choice) or id(choice): choice for choice in choices}.values())
    if len(distinct) == 1:
        return distinct[0]
    constants: list[object] = []
    for choice in distinct:
        # A level that only lists constants, such as the tag of a union.
        if not is_dict(choice) or not choice.keys() <= {"const", "enum", "type", *ANNOTATIONS}:
            return {"anyOf": distinct}
        listed = [choice["const"]] if "const" in choice else choice.get("enum")
        if not is_list(listed) or not listed:
            return {"anyOf": distinct}
        constants += listed
    return {"enum": list({encode(constant) or id(constant): constant for constant in constants}.values())}
