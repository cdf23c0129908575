"""Reshape the schema of a remote tool into the small subset that every provider takes.

A server writes its schemas to its own taste, in any draft, and nothing about them is certain: not
the shape, not the depth, not that a keyword holds what it should. `normalize_schema` has an answer
to every value, in time linear in its size and without recursion. It reads the declared `type` and
nothing else, so it says less than the original where there is none, and sometimes something else.
What a model is shown is therefore made by `model_schema`, next door.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeGuard, cast

from indusagi.core.json import JsonObject, JsonValue, NotJson

KNOWN_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})

STRIPPED = frozenset(
    {
        # How a draft refers to itself and to others: no provider follows it.
        "$schema",
        "$id",
        "$ref",
        "$defs",
        "definitions",
        # Remarks that forbid nothing.
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        # Samples.
        "default",
        "examples",
        # How the text of a string is to be read.
        "contentEncoding",
        "contentMediaType",
    }
)
"""Keywords that are left out at every level. A property of such a name is no keyword and stays."""

NOT_SHOWN = STRIPPED - {"default"}
"""Keywords that a model is not shown; see `model_schema`."""

_WRITABLE_BITS = 14_000
"""Python writes no integer of more than 4,300 digits, which is a little more than this."""

AnyObject: TypeAlias = dict[object, object]
"""A dict of which nothing is known yet."""


def is_dict(value: object) -> TypeGuard[AnyObject]:
    """Tell whether `value` is a dict, whatever it holds."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Tell whether `value` is a list, whatever it holds."""
    return isinstance(value, list)


def closed_object() -> JsonObject:
    """Make the schema that stands wherever a level cannot be read."""
    return {"type": "object", "properties": {}}


def known_type(level: object) -> str | None:
    """Give the one type that a level declares, if it is one that JSON Schema has."""
    kind = level.get("type") if is_dict(level) else None
    return kind if isinstance(kind, str) and kind in KNOWN_TYPES else None


def normalize_schema(raw: object) -> JsonObject:
    """Reshape any value into a schema of one known type at each level.

    A level is what `properties`, `items` and `additionalProperties` lead to. One without a known
    `type`, and one that lies inside itself, becomes an object without properties. Beside a known
    type every keyword passes as it is, but for `STRIPPED` and what JSON cannot carry. The argument
    is not touched, and the result shares nothing with it. What the argument holds in two places is
    copied once and stands in two places, as with `copy.deepcopy`: otherwise a value of 40 lines
    could be a trillion levels.
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
        kind = known_type(source)
        if kind is None or id(source) in above:
            target[key] = closed_object()
            continue
        if id(source) not in copies:
            above.add(id(source))
            pending.append((source, None, ""))
            copies[id(source)] = _level(cast("AnyObject", source), kind, pending)
        target[key] = copies[id(source)]
    return cast("JsonObject", frame[""])


_Task: TypeAlias = tuple[object, JsonObject | None, str]
"""A level still to be read, and where the result of it belongs; None: nothing is left below it."""


def _level(source: AnyObject, kind: str, pending: list[_Task]) -> JsonObject:
    """Reshape one level, and put down those right below it for later."""
    out: JsonObject = {}
    for key, value in source.items():
        if not isinstance(key, str) or key in STRIPPED:
            continue
        if reshape := _RESHAPED.get((kind, key)):
            reshape(source, out, pending)
        else:
            try:
                out[key] = copy_json(value)
            except NotJson:
                continue
    if kind == "object":
        out.setdefault("properties", {})
    return out


def _properties(source: AnyObject, out: JsonObject, pending: list[_Task]) -> None:
    children: JsonObject = {}
    declared = source["properties"]
    for name, child in declared.items() if is_dict(declared) else ():
        if isinstance(name, str):
            children[name] = None
            pending.append((child, children, name))
    out["properties"] = children


def _required(source: AnyObject, out: JsonObject, _pending: list[_Task]) -> None:
    names, declared = source["required"], source.get("properties")
    if is_list(names) and is_dict(declared):
        kept: list[JsonValue] = [n for n in names if isinstance(n, str) and n in declared]
        if kept:
            out["required"] = kept


def _additional(source: AnyObject, out: JsonObject, pending: list[_Task]) -> None:
    _one_level("additionalProperties", source["additionalProperties"], out, pending)


def _items(source: AnyObject, out: JsonObject, pending: list[_Task]) -> None:
    items = source["items"]
    if is_list(items):
        # A tuple of no schemas says nothing about any element, and so does an array without items.
        items = items[0] if items else None
    _one_level("items", items, out, pending)


def _one_level(key: str, value: object, out: JsonObject, pending: list[_Task]) -> None:
    """Keep a boolean, reshape a schema, and leave out what is neither."""
    if isinstance(value, bool):
        out[key] = value
    elif is_dict(value):
        out[key] = None
        pending.append((value, out, key))


_RESHAPED: dict[tuple[str, str], Callable[[AnyObject, JsonObject, list[_Task]], None]] = {
    ("object", "properties"): _properties,
    ("object", "required"): _required,
    ("object", "additionalProperties"): _additional,
    ("array", "items"): _items,
}


def copy_json(root: object) -> JsonValue:
    """Copy a value of any depth.

    Raises:
        NotJson: It holds something that JSON cannot carry, or itself.
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
        if id(source) not in copies and (opened := _opened(source)):
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


def _opened(source: object) -> tuple[dict[object, JsonValue], Iterable[tuple[object, object]]] | None:
    """Make a place for each child, so that the order is kept; None: not a container.

    A list is passed off as a dict here: both take a value at a step.
    """
    if is_list(source):
        return cast("dict[object, JsonValue]", [None] * len(source)), enumerate(source)
    if not is_dict(source):
        return None
    if not all(isinstance(key, str) for key in source):
        raise NotJson("not JSON: a key that is no string")
    return dict.fromkeys(source), source.items()


def _scalar(value: object) -> JsonValue:
    """Pass on what is a JSON scalar, and refuse anything else."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and value.bit_length() <= _WRITABLE_BITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise NotJson(f"not JSON: a value of type {type(value).__name__}")
