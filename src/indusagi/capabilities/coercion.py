"""Arguments as models write them, turned into the ones that were asked for.

Names that other tools have for the same thing, and values that are right but quoted, mean what they
say; null for what may be left out means that it is left out. Only such arguments change: whatever
could be meant in two ways is left to the check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import cast

from indusagi.core.json import JsonValue, is_json_object
from indusagi.runtime.contract import JsonSchema

_NUMBER = re.compile(r"-?[0-9]{1,15}(\.0)?")
_SEVERAL = re.compile(r"[,;\n\[\]{}\"]")
_LONGEST_LIST = 1_000_000
"""Characters of a quoted list or object that is still read."""


def coerce_to(schema: JsonSchema, aliases: Mapping[str, str]) -> Callable[[JsonValue], JsonValue]:
    """Make the function that puts arguments right for a schema; `aliases` maps to its names."""
    found = schema.get("properties")
    properties: Mapping[str, JsonValue] = found if is_json_object(found) else {}
    listed = schema.get("required")
    required = listed if isinstance(listed, list) else []

    def may_be_left_out(name: str) -> bool:
        return name in properties and name not in required and not _takes_null(properties[name])

    def prepare(arguments: JsonValue) -> JsonValue:
        if not is_json_object(arguments):
            return arguments
        named: dict[str, JsonValue] = {}
        for name, value in arguments.items():
            meant = aliases.get(name, name)
            # An alias beside the name itself is not understood: the check says so.
            known = name if name in properties or meant in arguments else meant
            if value is not None or not may_be_left_out(known):
                named[known] = value
        return {name: _unquoted(value, properties.get(name)) for name, value in named.items()}

    return prepare


def _takes_null(schema: JsonValue) -> bool:
    kind = schema.get("type") if is_json_object(schema) else None
    return not isinstance(kind, str) or kind == "null"


def _unquoted(value: JsonValue, schema: JsonValue) -> JsonValue:
    """Read a number, a truth value, a list or an object that was written as text."""
    kind = schema.get("type") if is_json_object(schema) else None
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str) or kind == "string":
        return value
    if kind in {"integer", "number"} and _NUMBER.fullmatch(value.strip()):
        return int(float(value))
    if kind == "boolean" and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    if kind == "array" and is_json_object(schema) and _is_one(value, schema.get("items")):
        return [value]
    if kind in {"array", "object"} and len(value) <= _LONGEST_LIST:
        return _from_json(value, list if kind == "array" else dict)
    return value


def _is_one(text: str, items: JsonValue) -> bool:
    """Tell whether a text can only be the one item of a list of texts."""
    kind = items.get("type") if is_json_object(items) else None
    is_nothing = text.strip().lower() in {"", "null", "none"}
    return kind == "string" and not is_nothing and not _SEVERAL.search(text)


def _from_json(text: str, wanted: type) -> JsonValue:
    try:
        value = cast("JsonValue", json.loads(text))
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, wanted) else text
