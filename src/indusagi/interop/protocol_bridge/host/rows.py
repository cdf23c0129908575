"""The rows of lists as a strict client accepts them.

A client of the official SDKs checks every row of a list against the schema of the protocol, and refuses the whole list
for one wrong value: behind a host of several servers the list of all of them. Each field of the protocol whose value
has another type is therefore dropped, also inside of annotations, icons, arguments and schemas; fields that the
protocol does not have stay. https://modelcontextprotocol.io/specification/2025-11-25/schema
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeAlias

from indusagi.core.json import JsonObject, JsonValue

Keep: TypeAlias = Callable[[JsonValue], JsonValue]
"""Returns what a client accepts of a value; None if that is nothing."""

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
"""https://www.rfc-editor.org/rfc/rfc3339#section-5.6"""


def keep_fields(row: Mapping[str, JsonValue], fields: Mapping[str, Keep]) -> JsonObject:
    """Return a row without the values that the protocol does not allow for these fields."""
    kept: JsonObject = {}
    for key, value in row.items():
        keep = fields.get(key)
        accepted = value if keep is None else keep(value)
        if accepted is not None or keep is None:
            kept[key] = accepted
    return kept


def _keep_type(expected: type) -> Keep:
    """Keep a value of one type; `true` and `false` are no numbers."""
    return lambda value: (
        value if isinstance(value, expected) and (expected is bool or not isinstance(value, bool)) else None
    )


def _keep_share(value: JsonValue) -> JsonValue:
    """Keep a number from 0 to 1."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1 else None


def _keep_moment(value: JsonValue) -> JsonValue:
    """Keep a time with its offset."""
    if not isinstance(value, str) or _MOMENT.fullmatch(value) is None:
        return None
    try:
        datetime.fromisoformat(value)
    except ValueError:  # such as a 30th of February
        return None
    return value


def _keep_one_of(*values: str) -> Keep:
    return lambda value: value if isinstance(value, str) and value in values else None


def _keep_fields_of(fields: Mapping[str, Keep], needed: str = "") -> Keep:
    """Keep an object with the values that are allowed; None without the field that it needs."""

    def keep(value: JsonValue) -> JsonValue:
        kept = keep_fields(value, fields) if isinstance(value, dict) else None
        return kept if kept is None or not needed or needed in kept else None

    return keep


def _keep_items(keep: Keep) -> Keep:
    """Keep the items of a list that are accepted."""
    return lambda value: (
        [kept for item in value if (kept := keep(item)) is not None] if isinstance(value, list) else None
    )


def _keep_schema(value: JsonValue) -> JsonValue:
    """Keep a JSON Schema whose `properties` are objects; the schemas `true` and `false` get their other form.

    https://json-schema.org/draft/2020-12/json-schema-core#section-4.3.2
    """
    return keep_fields(value, _SCHEMA_FIELDS) if isinstance(value, dict) else None


def _keep_properties(value: JsonValue) -> JsonValue:
    if not isinstance(value, dict):
        return None
    return {
        key: schema if isinstance(schema, dict) else {"not": {}} if schema is False else {}
        for key, schema in value.items()
    }


_TEXT, _FLAG = _keep_type(str), _keep_type(bool)
_SCHEMA_FIELDS: Mapping[str, Keep] = {"properties": _keep_properties, "required": _keep_items(_TEXT)}
_ICON = _keep_fields_of(
    {"src": _TEXT, "mimeType": _TEXT, "sizes": _keep_items(_TEXT), "theme": _keep_one_of("light", "dark")}, needed="src"
)
_SHARED_FIELDS: Mapping[str, Keep] = {
    "title": _TEXT,
    "description": _TEXT,
    "icons": _keep_items(_ICON),
    "_meta": _keep_type(dict),
}
TOOL_FIELDS: Mapping[str, Keep] = {
    **_SHARED_FIELDS,
    "inputSchema": _keep_schema,
    "outputSchema": _keep_schema,
    "annotations": _keep_fields_of(
        {
            "title": _TEXT,
            "readOnlyHint": _FLAG,
            "destructiveHint": _FLAG,
            "idempotentHint": _FLAG,
            "openWorldHint": _FLAG,
        }
    ),
    "execution": _keep_fields_of({"taskSupport": _keep_one_of("forbidden", "optional", "required")}),
}
"""Of a tool: https://modelcontextprotocol.io/specification/2025-11-25/schema#tool."""
CONTENT_FIELDS: Mapping[str, Keep] = {
    **_SHARED_FIELDS,
    "name": _TEXT,
    "mimeType": _TEXT,
    "size": _keep_type(int),
    "annotations": _keep_fields_of(
        {
            "audience": _keep_items(_keep_one_of("user", "assistant")),
            "priority": _keep_share,
            "lastModified": _keep_moment,
        }
    ),
    "arguments": _keep_items(
        _keep_fields_of({"name": _TEXT, "title": _TEXT, "description": _TEXT, "required": _FLAG}, needed="name")
    ),
}
"""Of a resource, a template or a prompt: https://modelcontextprotocol.io/specification/2025-11-25/schema#resource."""
