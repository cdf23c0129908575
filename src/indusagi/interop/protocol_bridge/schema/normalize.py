"""Normalizes the schema of a remote tool to the small subset that every provider accepts.

A server's schema may have any draft, shape and depth, and keywords may hold anything. `normalize_schema` accepts every
value, in linear time and without recursion. It only reads the declared `type`, so the result may allow less than the
original, or something else. Models receive the result of `model_schema` in `model_view` instead.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeAlias, TypeGuard, cast

from indusagi.core.json import JsonObject, JsonValue, NotJson

KNOWN_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})

STRIPPED = frozenset(
    {
        *("$schema", "$id", "$ref", "$defs", "definitions"),  # references, which providers don't follow
        *("$comment", "deprecated", "readOnly", "writeOnly"),  # annotations without effect on validation
        *("default", "examples", "contentEncoding", "contentMediaType"),  # samples, and encodings of strings
    }
)
"""Keywords to remove at every level; properties with these names stay."""

NOT_SHOWN = STRIPPED - {"default"}
"""Keywords to remove from a model view."""

_MAX_INT_BITS = 14_000
"""Slightly less than the 4,300 digits that Python can convert to a string:
https://docs.python.org/3/library/stdtypes.html#integer-string-conversion-length-limitation."""

AnyObject: TypeAlias = dict[object, object]
"""A dict with unchecked keys and values."""


def is_dict(value: object) -> TypeGuard[AnyObject]:
    """Return whether `value` is a dict, with any keys and values."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Return whether `value` is a list, with any elements."""
    return isinstance(value, list)


def new_object_schema() -> JsonObject:
    """Return the schema that replaces an unreadable level."""
    return {"type": "object", "properties": {}}


def find_type(level: object) -> str | None:
    """Return the declared type of a level if it's a single known type."""
    kind = level.get("type") if is_dict(level) else None
    return kind if isinstance(kind, str) and kind in KNOWN_TYPES else None


def normalize_schema(raw: object) -> JsonObject:
    """Convert any value into a schema with one known type at each level.

    Levels are the values of `properties`, `items` and `additionalProperties`. A level without a known `type`, or inside
    itself, becomes an object without properties. Next to a known type every keyword is copied, except `STRIPPED` ones
    and values that aren't JSON. The result shares nothing with the argument. A value that occurs twice is copied once,
    as with `copy.deepcopy`; otherwise 40 lines could expand to a trillion levels.
    """
    frame: JsonObject = {}
    pending: list[_Task] = [(raw, frame, "")]
    copies: dict[int, JsonObject] = {}
    above: set[int] = set()
    while pending:
        source, target, key = pending.pop()
        if target is None:  # everything below `source` is done
            above.discard(id(source))
            continue
        kind = find_type(source)
        if kind is None or id(source) in above:
            target[key] = new_object_schema()
            continue
        if id(source) not in copies:
            above.add(id(source))
            pending.append((source, None, ""))
            copies[id(source)] = _convert_level(cast("AnyObject", source), kind, pending)
        target[key] = copies[id(source)]
    return cast("JsonObject", frame[""])


_Task: TypeAlias = tuple[object, JsonObject | None, str]
"""A level to convert, and the holder and key of its result; without a holder, all levels below it are done."""


def _convert_level(source: AnyObject, kind: str, pending: list[_Task]) -> JsonObject:
    """Convert one level and add the levels directly below it to `pending`."""
    out: JsonObject = {}
    for key in [key for key in source if isinstance(key, str) and key not in STRIPPED]:
        value = source[key]
        if (kind, key) == ("object", "properties"):
            declared = value if is_dict(value) else {}
            children: JsonObject = {name: None for name in declared if isinstance(name, str)}
            out[key] = children
            pending.extend((declared[name], children, name) for name in children)
        elif (kind, key) == ("object", "required"):
            declared, names = source.get("properties"), value if is_list(value) else []
            known = declared if is_dict(declared) else {}
            required: list[JsonValue] = [name for name in names if isinstance(name, str) and name in known]
            if required:
                out[key] = required
        elif (kind, key) in {("object", "additionalProperties"), ("array", "items")}:
            # An empty tuple says nothing about any element, like an array without `items`.
            child = next(iter(value), None) if key == "items" and is_list(value) else value
            if isinstance(child, bool):
                out[key] = child
            elif is_dict(child):
                out[key] = None
                pending.append((child, out, key))
        else:
            try:
                out[key] = copy_json(value)
            except NotJson:
                continue
    if kind == "object":
        out.setdefault("properties", {})
    return out


def copy_json(root: object) -> JsonValue:
    """Copy a JSON value of any depth, without recursion; raise `NotJson` if it contains itself or isn't JSON."""
    if not isinstance(root, (list, dict)):
        return _scalar(root)
    frame: dict[object, JsonValue] = {}
    pending: list[tuple[object, dict[object, JsonValue] | None, object]] = [(root, frame, 0)]
    copies: dict[int, dict[object, JsonValue]] = {}
    above: set[int] = set()
    while pending:
        source, target, key = pending.pop()
        if target is None:
            above.discard(id(source))
            continue
        if id(source) in above:
            raise NotJson("not JSON: a container that holds itself")
        if id(source) not in copies and (opened := _open_container(source)):
            above.add(id(source))
            copy, steps = opened
            copies[id(source)] = copy
            pending.append((source, None, 0))
            for step, child in steps:
                if isinstance(child, (list, dict)):
                    pending.append((cast("object", child), copy, step))
                else:
                    copy[step] = _scalar(child)
        value = copies[id(source)] if id(source) in copies else _scalar(source)
        target[key] = cast("JsonValue", value)
    return frame[0]


def _open_container(source: object) -> tuple[dict[object, JsonValue], Iterable[tuple[object, object]]] | None:
    """Return a copy with a placeholder for each child (to keep the order), and the children; `None` for a scalar.

    Lists are typed as dicts, because both support item assignment.
    """
    if is_list(source):
        return cast("dict[object, JsonValue]", [None] * len(source)), enumerate(source)
    if not is_dict(source):
        return None
    if not all(isinstance(key, str) for key in source):
        raise NotJson("not JSON: a key that is no string")
    return dict.fromkeys(source), source.items()


def _scalar(value: object) -> JsonValue:
    """Return a JSON scalar; raise for any other value."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and value.bit_length() <= _MAX_INT_BITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise NotJson(f"not JSON: a value of type {type(value).__name__}")


# -- keywords ---------------------------------------------------------------------------------
#
# Servers write `required: true` on a property, draft 4's `exclusiveMinimum: true`, or `description: null`. Providers
# refuse the whole request for one such keyword, so a model view drops it. Validating against the metaschema finds the
# same faults, but takes ten times as long as building the view: https://json-schema.org/draft/2020-12/schema.


_ANCHOR = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_MAX_PATTERN_CHARS = 4_096
"""Longer patterns aren't compiled and therefore not shown: compiling takes time, and models can't use them."""
_NOT_ECMASCRIPT = re.compile(r"\(\?(?:P|#|[aiLmsux]+\))")
"""Groups that Python supports but ECMA-262, the pattern language of JSON Schema, doesn't."""


def find_fault(keyword: str, value: object) -> str | None:
    """Return what a keyword expects if `value` isn't that. Doesn't check the schemas below it."""
    rule = _RULES.get(keyword)
    return None if rule is None or rule[0](value) else rule[1]


def has_faults(schema: AnyObject) -> bool:
    """Return whether any keyword of a schema holds an invalid value."""
    return any(find_fault(cast("str", key), value) is not None for key, value in schema.items())


@lru_cache(maxsize=1_024)
def is_pattern(text: str) -> bool:
    """Return whether a text is a regular expression. Cached, because tools share patterns."""
    if len(text) > _MAX_PATTERN_CHARS or _NOT_ECMASCRIPT.search(text):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):  # Python warns about syntax whose meaning may change
            re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _is_schema(value: object) -> bool:
    return isinstance(value, (dict, bool))


def _is_schema_list(value: object) -> bool:
    return is_list(value) and bool(value) and all(isinstance(one, (dict, bool)) for one in value)


def _is_schema_map(value: object) -> bool:
    return is_dict(value) and all(isinstance(one, (dict, bool)) for one in value.values())


def has_patterns(value: object) -> bool:
    """Return whether all keys of an object are regular expressions."""
    return is_dict(value) and all(is_pattern(key) for key in value if isinstance(key, str))


def _is_pattern_map(value: object) -> bool:
    return _is_schema_map(value) and has_patterns(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _is_names(value: object) -> bool:
    return is_list(value) and all(isinstance(one, str) for one in value) and len({*value}) == len(value)


def _is_type(value: object) -> bool:
    names = value if is_list(value) and _is_names(value) else [value]
    return bool(names) and all(isinstance(name, str) and name in KNOWN_TYPES for name in names)


_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "type": (_is_type, "a type, or a list of types"),
    "enum": (lambda value: is_list(value) and bool(value), "a list of values"),
    "multipleOf": (
        lambda value: isinstance(value, (int, float)) and _is_number(value) and value > 0,
        "a number above 0",
    ),
    "pattern": (lambda value: isinstance(value, str) and is_pattern(value), "a regular expression"),
    "patternProperties": (_is_pattern_map, "schemas by regular expression"),
    "dependentRequired": (
        lambda value: is_dict(value) and all(_is_names(one) for one in value.values()),
        "lists of names",
    ),
    "dependencies": (
        lambda value: is_dict(value) and all(_is_schema(one) or _is_names(one) for one in value.values()),
        "schemas or lists of names",
    ),
    "$vocabulary": (
        lambda value: is_dict(value) and all(isinstance(one, bool) for one in value.values()),
        "booleans by URI",
    ),
    "$id": (lambda value: isinstance(value, str) and "#" not in value.removesuffix("#"), "a URI without fragment"),
    "required": (_is_names, "a list of different names"),
    "examples": (is_list, "a list of values"),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), (_is_number, "a number")),
    **dict.fromkeys(
        (
            *("maxLength", "minLength", "maxItems", "minItems"),
            *("maxContains", "minContains", "maxProperties", "minProperties"),
        ),
        (_is_count, "an integer from 0"),
    ),
    **dict.fromkeys(
        ("uniqueItems", "deprecated", "readOnly", "writeOnly"), (lambda value: isinstance(value, bool), "a boolean")
    ),
    **dict.fromkeys(
        (
            *("title", "description", "format", "contentEncoding", "contentMediaType", "$comment", "$schema"),
            *("$ref", "$dynamicRef", "$recursiveRef"),
        ),
        (_is_text, "a string"),
    ),
    **dict.fromkeys(
        ("$anchor", "$dynamicAnchor", "$recursiveAnchor"),
        (lambda value: isinstance(value, str) and _ANCHOR.fullmatch(value) is not None, "an anchor"),
    ),
    **dict.fromkeys(
        (
            *("items", "contains", "additionalProperties", "propertyNames", "if", "then", "else", "not"),
            *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
        ),
        (_is_schema, "a schema"),
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), (_is_schema_list, "a list of schemas")),
    **dict.fromkeys(("properties", "dependentSchemas", "$defs", "definitions"), (_is_schema_map, "schemas by name")),
}
