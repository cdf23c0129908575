"""Coercion of arguments: harmless mistakes of models are corrected before the check.

Names that other tools use for the same parameter, quoted numbers and lists, and null for an optional parameter are
corrected. Ambiguous arguments stay as they are, and the check reports them.
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
"""Characters of a quoted list or object that is still parsed."""


def coerce_to(schema: JsonSchema, aliases: Mapping[str, str]) -> Callable[[JsonValue], JsonValue]:
    """Return a function that corrects arguments for `schema`; `aliases` maps other names to its own."""
    declared = schema.get("properties")
    properties: Mapping[str, JsonValue] = declared if is_json_object(declared) else {}
    listed = schema.get("required")
    required = listed if isinstance(listed, list) else []

    def is_optional(name: str) -> bool:
        return name in properties and name not in required and not _takes_null(properties[name])

    def prepare(arguments: JsonValue) -> JsonValue:
        if not is_json_object(arguments):
            return arguments
        named: dict[str, JsonValue] = {}
        for name, value in arguments.items():
            meant = aliases.get(name, name)
            # An alias beside the name itself is ambiguous: the check reports it.
            known = name if name in properties or meant in arguments else meant
            if value is not None or not is_optional(known):
                named[known] = value
        return {name: _unquote(value, properties.get(name)) for name, value in named.items()}

    return prepare


def _takes_null(schema: JsonValue) -> bool:
    kind = schema.get("type") if is_json_object(schema) else None
    return not isinstance(kind, str) or kind == "null"


def _unquote(value: JsonValue, schema: JsonValue) -> JsonValue:
    """Parse a number, a boolean, a list or an object that was sent as a string."""
    kind = schema.get("type") if is_json_object(schema) else None
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str) or kind == "string":
        return value
    if kind in {"integer", "number"} and _NUMBER.fullmatch(value.strip()):
        return int(float(value))
    if kind == "boolean" and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    if kind == "array" and is_json_object(schema) and _is_single_item(value, schema.get("items")):
        return [value]
    if kind in {"array", "object"} and len(value) <= _LONGEST_LIST:
        return _from_json(value, list if kind == "array" else dict)
    return value


def _is_single_item(text: str, items: JsonValue) -> bool:
    """Tell whether a string can only be the single item of a list of strings."""
    kind = items.get("type") if is_json_object(items) else None
    is_nothing = text.strip().lower() in {"", "null", "none"}
    return kind == "string" and not is_nothing and not _SEVERAL.search(text)


def _from_json(text: str, wanted: type) -> JsonValue:
    try:
        value = cast("JsonValue", json.loads(text))
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, wanted) else text
