"""A JSON Schema as the server sent it: references, parts that can be copied unchanged, and rewrites of its levels.

Results are cached by part, so each part is examined once, however many references lead to it. The total work is
bounded, because the schema comes from an untrusted server.

A rewritten level has a form that more providers accept, and allows everything the original allows. Rewrites don't
follow references, look below their level or modify their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from indusagi.core.json import JsonLike, NotJson, compact_json
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.schema.normalize import KNOWN_TYPES, find_type, has_faults, is_dict, is_list

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.schema.normalize import AnyObject


_HOLD_SCHEMAS = frozenset(
    {
        *("additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema", "else", "if"),
        *("items", "not", "oneOf", "prefixItems", "propertyNames", "then", "unevaluatedItems"),
        "unevaluatedProperties",
    }
)
_HOLD_MAPS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
SCHEMA_KEYWORDS = _HOLD_SCHEMAS | _HOLD_MAPS
"""Keywords whose value is a schema, or a list or map of schemas: the applicators of
https://json-schema.org/draft/2020-12/json-schema-core#section-10 and earlier drafts."""
REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

_MAX_REFERENCE_CHARS = 1_000
_MAX_PART_DEPTH = 64
"""Maximum nesting of a part that is copied unchanged."""
_WORK_FACTOR = 16
"""How many times the size limit of a part may be spent on parts that turn out to be unfit."""


class Fitness(IntEnum):
    """How well a part can be copied unchanged, from best to worst."""

    PLAIN = 0
    """Every provider accepts it."""
    UNUSUAL = 1
    """Some provider refuses this form."""
    HAS_REFERENCES = 2
    """Contains references, which are meaningless in another document."""
    FAULTY = 3
    """A keyword holds an invalid value."""
    UNFIT = 4
    """Too large, too deep, or not JSON."""


class SchemaDocument:
    """The schema of one tool; `root` is the schema verbatim."""

    def __init__(self, root: AnyObject, *, part_bytes: int) -> None:
        self.root = root
        self._part_bytes = part_bytes
        # By id of the part. Holds a reference to the part, so that its id can't be reused.
        self._encoded: dict[int, tuple[object, str | None]] = {}
        self._fitness: dict[tuple[str, int], tuple[object, Fitness]] = {}
        self._work_left = _WORK_FACTOR * part_bytes

    def encode(self, part: object) -> str | None:
        """Encode a part as JSON; `None` if it's not JSON, too large or too deep."""
        if id(part) not in self._encoded:
            text = None
            if self._fits(part):
                try:
                    text = compact_json(cast("JsonLike", part))
                except NotJson:
                    pass
            self._encoded[id(part)] = part, text
        return self._encoded[id(part)][1]

    def can_copy(self, part: object) -> bool:
        """Return whether a part can be copied unchanged; strings need no encoding."""
        if isinstance(part, str):
            return len(part) <= self._part_bytes
        return self.encode(part) is not None

    def _fits(self, part: object) -> bool:
        """Walk a part level by level, stopping at the first exceeded limit."""
        level, bytes_left, depth = [part], self._part_bytes, 0
        while level:
            depth += 1
            self._work_left -= len(level)
            bytes_left -= sum(len(value) if isinstance(value, str) else 1 for value in level)
            if bytes_left < 0 or self._work_left < 0 or depth > _MAX_PART_DEPTH:
                return False
            level = list(islice((child for value in level for child in _children(value)), bytes_left + 1))
        return True

    def assess(self, keyword: str, value: object) -> Fitness:
        """Assess all schemas inside a keyword's value, at any depth."""
        if self.encode(value) is None:
            return Fitness.UNFIT
        key = keyword, id(value)
        if key not in self._fitness:
            fitness = Fitness.PLAIN
            for schema in _iterate_objects(_subschemas({keyword: value}), _subschemas):
                kind = find_type(schema)
                if has_faults(schema) or not REFERENCES.isdisjoint(schema):
                    fitness = Fitness.FAULTY if has_faults(schema) else Fitness.HAS_REFERENCES
                    break
                if (
                    (kind is None and "type" in schema)
                    or (kind == "array" and "items" not in schema)
                    or is_list(schema.get("items"))
                ):
                    fitness = Fitness.UNUSUAL
            self._fitness[key] = value, fitness
        return self._fitness[key][1]

    def resolve(self, reference: object) -> AnyObject | bool | None:
        """Resolve a reference within this document (a JSON pointer, RFC 6901, or an anchor).

        `None` if it leads elsewhere or is ambiguous: an inner `$id` changes the base of references, and an anchor may
        be defined twice. https://json-schema.org/draft/2020-12/json-schema-core#section-8.2
        """
        if not isinstance(reference, str) or len(reference) > _MAX_REFERENCE_CHARS:
            return None
        if not reference.startswith("#") or self._anchors is None:
            return None
        target: object = self.root
        if reference.startswith("#/"):
            for step in unquote(reference[2:]).split("/"):
                if is_dict(target):
                    target = target.get(step.replace("~1", "/").replace("~0", "~"))  # RFC 6901 §4
                elif is_list(target) and step.isdecimal() and step.isascii() and len(step) < 9:
                    target = target[int(step)] if int(step) < len(target) else None
                else:
                    return None
        elif reference != "#":
            target = self._anchors.get(reference[1:])
        return target if isinstance(target, bool) or is_dict(target) else None

    @cached_property
    def _anchors(self) -> dict[str, AnyObject | None] | None:
        """Schemas by anchor, `None` for ambiguous anchors; `None` altogether if there's an inner `$id`."""
        for inner in _iterate_objects(_children(self.root), _children):
            if isinstance(inner.get("$id"), str):
                return None
        anchors: dict[str, AnyObject | None] = {}
        for schema in _iterate_objects([self.root], _subschemas):
            for name in (schema.get("$anchor"), schema.get("$dynamicAnchor")):
                if isinstance(name, str):
                    anchors[name] = None if name in anchors else schema
        return anchors


def _iterate_objects(
    values: Iterable[object], find_children: Callable[[object], Iterable[object]]
) -> Iterator[AnyObject]:
    """Yield every reachable dict once."""
    pending, visited = list(values), set[int]()
    while pending:
        value = pending.pop()
        if id(value) not in visited:
            visited.add(id(value))
            pending.extend(find_children(value))
            if is_dict(value):
                yield value


def _children(value: object) -> Iterable[object]:
    if is_dict(value):
        return value.values()
    return value if is_list(value) else ()


def _subschemas(schema: object) -> Iterator[object]:
    """Yield the values directly below a schema at positions for schemas."""
    for key, value in schema.items() if is_dict(schema) else ():
        if key in _HOLD_SCHEMAS:
            yield from value if is_list(value) else [value]
        elif key in _HOLD_MAPS:
            yield from _children(value)


# -- rewrites of one level --------------------------------------------------------------------

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
        *("additionalProperties", "dependentRequired", "dependentSchemas", "maxProperties", "minProperties"),
        *("patternProperties", "properties", "propertyNames", "required"),
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
