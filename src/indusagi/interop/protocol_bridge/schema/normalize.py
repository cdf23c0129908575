"""Normalize the schema of a remote tool to the small subset that every provider accepts.

A server's schema may be of any draft, shape and depth, and a keyword may hold anything. `normalize_schema` accepts
every value, in linear time and without recursion. It reads the declared `type` only, so the result may allow less or
something else than the original; what a model receives is built by `model_schema` in `model_view`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias, TypeGuard, cast

from indusagi.core.json import JsonObject, JsonValue, NotJson

KNOWN_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})

STRIPPED = frozenset(
    {
        # References and identifiers, which no provider follows.
        "$schema",
        "$id",
        "$ref",
        "$defs",
        "definitions",
        # Annotations without effect on validation.
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        # Samples.
        "default",
        "examples",
        # The encoding of strings.
        "contentEncoding",
        "contentMediaType",
    }
)
"""Keywords that are removed at every level; a property of such a name stays."""

NOT_SHOWN = STRIPPED - {"default"}
"""Keywords that are removed from a model view."""

_WRITABLE_BITS = 14_000
"""Python encodes no integer of more than 4,300 digits, which is slightly more:
https://docs.python.org/3/library/stdtypes.html#integer-string-conversion-length-limitation."""

AnyObject: TypeAlias = dict[object, object]
"""A dict with unchecked keys and values."""


def is_dict(value: object) -> TypeGuard[AnyObject]:
    """Tell whether `value` is a dict, with any keys and values."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Tell whether `value` is a list, with any elements."""
    return isinstance(value, list)


def new_object_schema() -> JsonObject:
    """Return the schema that replaces an unreadable level."""
    return {"type": "object", "properties": {}}


def find_type(level: object) -> str | None:
    """Return the declared type of a level if it is one known type."""
    kind = level.get("type") if is_dict(level) else None
    return kind if isinstance(kind, str) and kind in KNOWN_TYPES else None


def normalize_schema(raw: object) -> JsonObject:
    """Convert any value into a schema with one known type at each level.

    Levels are the values of `properties`, `items` and `additionalProperties`. A level without a known `type`, and one
    inside itself, becomes an object without properties. Beside a known type every keyword is copied, except
    `STRIPPED` and what is not JSON. The result shares nothing with the argument. A value in two places is copied
    once, as with `copy.deepcopy`: otherwise a value of 40 lines could have a trillion levels.
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
"""A level to convert, and the holder and key of its result; without a holder: all levels below it are done."""


def _convert_level(source: AnyObject, kind: str, pending: list[_Task]) -> JsonObject:
    """Convert one level, and add the levels directly below it to `pending`."""
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
            # A tuple of no schemas says nothing about any element, and so does an array without items.
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
    """Copy a JSON value of any depth, without recursion.

    Raises:
        NotJson: It contains itself, or a value that is not JSON.
    """
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
    """Return a copy with a place for each child, which keeps the order, and the children; None for a scalar.

    A list is typed as a dict here: both take a value at a key.
    """
    if is_list(source):
        return cast("dict[object, JsonValue]", [None] * len(source)), enumerate(source)
    if not is_dict(source):
        return None
    if not all(isinstance(key, str) for key in source):
        raise NotJson("not JSON: a key that is no string")
    return dict.fromkeys(source), source.items()


def _scalar(value: object) -> JsonValue:
    """Return a JSON scalar, and raise for any other value."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and value.bit_length() <= _WRITABLE_BITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise NotJson(f"not JSON: a value of type {type(value).__name__}")
