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
        kind = _type_of(properties[name]) if name in properties and name not in required else None
        return isinstance(kind, str) and kind != "null"

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


def _unquote(value: JsonValue, schema: JsonValue) -> JsonValue:
    """Parse a number, a boolean, a list or an object that was sent as a string."""
    kind = _type_of(schema)
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str) or kind == "string":
        return value
    if kind in {"integer", "number"} and _NUMBER.fullmatch(value.strip()):
        return int(float(value))
    if kind == "boolean" and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    items = schema.get("items") if is_json_object(schema) else None
    is_empty = value.strip().lower() in {"", "null", "none"}
    if kind == "array" and _type_of(items) == "string" and not is_empty and not _SEVERAL.search(value):
        return [value]  # can only be the single item of a list of strings
    if kind in {"array", "object"} and len(value) <= _LONGEST_LIST:
        try:
            parsed = cast("JsonValue", json.loads(value))
        except (ValueError, RecursionError):
            return value
        return parsed if isinstance(parsed, list if kind == "array" else dict) else value
    return value


def _type_of(schema: JsonValue) -> JsonValue:
    return schema.get("type") if is_json_object(schema) else None
