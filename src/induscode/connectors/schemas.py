"""Schemas of OpenAPI documents as self-contained JSON Schema 2020-12.

OpenAPI 3.0 keywords that differ (`nullable`, boolean `exclusiveMinimum`) are rewritten, read-only properties are
dropped from requests, and references become `$defs`. The result is never stricter than the document: `oneOf` becomes
`anyOf`, and `pattern` is left to the service, since a hostile pattern takes exponential time
(https://owasp.org/www-community/attacks/Regular_expression_Denial_of_Service_-_ReDoS).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from indusagi.core.json import compact_json, is_json_object
from indusagi.core.text import cut_text
from induscode.connectors.openapi import DocumentFault, find_pointer, resolve_object

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

_MAX_DEPTH: Final = 60
_MAX_DEFINITIONS: Final = 400
_KEPT: Final = frozenset(
    {
        *("type", "enum", "const", "default", "format", "title", "description", "deprecated"),
        *("minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems"),
        *("minProperties", "maxProperties", "contentEncoding", "contentMediaType", "dependentRequired"),
    }
)
_ONE: Final = frozenset({"items", "additionalProperties", "not", "contains", "if", "then", "else", "propertyNames"})
_LIMITS: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_BRIEF: Final = frozenset({"type", "enum", "required", "default", "const"})
_SHOWN_BRANCHES: Final = 6
_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})


class SchemaBuilder:
    """Converts schemas of one document, and collects the definitions they reference."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._names: dict[str, str] = {}
        self._pending: list[tuple[str, str]] = []
        self.definitions: dict[str, JsonValue] = {}

    def convert(self, schema: JsonValue) -> JsonValue:
        """Convert a schema, and add everything it references to `definitions`.

        Raises:
            DocumentFault: A reference leads out of the document or to nothing, or the nesting is too deep.
        """
        converted = self._convert(schema, 0)
        while self._pending:
            name, reference = self._pending.pop()
            self.definitions[name] = self._convert(find_pointer(self._root, reference), 0)
        return converted

    def _convert(self, schema: JsonValue, depth: int) -> JsonValue:
        if depth > _MAX_DEPTH:
            raise DocumentFault("a schema of the document is nested too deeply")
        if not is_json_object(schema):
            return schema if isinstance(schema, bool) else {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            converted: dict[str, JsonValue] = {"$ref": f"#/$defs/{self._define(reference)}"}
            if isinstance(schema.get("description"), str):
                converted["description"] = schema["description"]
            return converted
        converted = {name: value for name, value in schema.items() if name in _KEPT}
        kind = converted.get("type", "object")
        kinds = kind if isinstance(kind, list) else [kind]
        if not kinds or not all(isinstance(name, str) and name in _TYPES for name in kinds):
            del converted["type"]
        self._add_schemas(converted, schema, depth)
        for name in _LIMITS.keys() & schema.keys():
            self._add_limit(converted, name, schema)
        self._add_properties(converted, schema, depth)
        return self._add_null(converted) if schema.get("nullable") is True else converted

    def _define(self, reference: str) -> str:
        """Name a reference's definition, and queue its conversion."""
        if reference not in self._names:
            find_pointer(self._root, reference)
            if len(self._names) >= _MAX_DEFINITIONS:
                self.definitions.setdefault("anything", {})
                return "anything"
            base = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2]) or "schema"
            taken = set(self._names.values())
            name = next(n for n in (base, *(f"{base}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)
            self._names[reference] = name
            self._pending.append((name, reference))
        return self._names[reference]

    def _add_schemas(self, converted: dict[str, JsonValue], schema: JsonObject, depth: int) -> None:
        """Add the keywords that hold schemas, except `properties`."""
        for name in sorted(_ONE & schema.keys()):
            if name != "additionalProperties" or "patternProperties" not in schema:
                converted[name] = self._convert(schema[name], depth + 1)
        every: list[JsonValue] = []
        for name in ("allOf", "anyOf", "oneOf", "prefixItems"):
            value = schema.get(name)
            if not isinstance(value, list) or not value:
                continue
            branches: list[JsonValue] = [self._convert(branch, depth + 1) for branch in value]
            if name == "oneOf":
                every.append({"anyOf": branches})
            elif name == "allOf":
                every += branches
            else:
                converted[name] = branches
        if every:
            converted["allOf"] = every

    def _add_properties(self, converted: dict[str, JsonValue], schema: JsonObject, depth: int) -> None:
        properties = schema.get("properties")
        read_only: set[str] = set()
        if is_json_object(properties):
            kept: dict[str, JsonValue] = {}
            for name, value in properties.items():
                if is_json_object(value) and resolve_object(self._root, value).get("readOnly") is True:
                    read_only.add(name)
                else:
                    kept[name] = self._convert(value, depth + 1)
            converted["properties"] = kept
        required = schema.get("required")
        if isinstance(required, list):
            names: list[JsonValue] = [name for name in required if isinstance(name, str) and name not in read_only]
            if names:
                converted["required"] = names

    @staticmethod
    def _add_limit(converted: dict[str, JsonValue], name: str, schema: JsonObject) -> None:
        value = schema[name]
        if value is True:  # OpenAPI 3.0: a flag on the limit
            limit = schema.get(_LIMITS[name])
            if isinstance(limit, int | float):
                converted[name] = limit
        elif isinstance(value, int | float) and not isinstance(value, bool):
            converted[name] = value

    @staticmethod
    def _add_null(converted: dict[str, JsonValue]) -> JsonValue:
        kind = converted.get("type")
        if isinstance(kind, str):
            converted["type"] = [kind, "null"]
            values = converted.get("enum")
            if isinstance(values, list) and None not in values:
                converted["enum"] = [*values, None]
            return converted
        branches: list[JsonValue] = [converted, {"type": "null"}]
        return {"anyOf": branches} if converted else converted


# -- abbreviations for models -----------------------------------------------------------------


def abbreviate_schema(schema: JsonObject, limit: int) -> tuple[JsonObject, bool]:
    """Shorten a schema to about `limit` characters. Returns it, and whether anything is missing.

    Descriptions go first, then nested schemas, until only the arguments' names and types remain.
    """
    if len(compact_json(schema)) <= limit:
        return schema, False
    definitions = schema.get("$defs")
    known = definitions if is_json_object(definitions) else {}
    for depth, characters in ((6, 100), (4, 60), (3, 30), (2, 0)):
        short = _shorten(schema, known, depth, characters)
        assert is_json_object(short)
        if len(compact_json(short)) <= limit:
            return short, True
    return _shorten_object(schema), True


def _shorten(schema: JsonValue, definitions: JsonObject, depth: int, characters: int) -> JsonValue:
    if not is_json_object(schema):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = definitions.get(reference.rpartition("/")[2])
        return _shorten(target, definitions, depth, characters) if depth else {}
    short: dict[str, JsonValue] = {name: value for name, value in schema.items() if name in _BRIEF}
    description, properties = schema.get("description"), schema.get("properties")
    if isinstance(description, str) and characters:
        short["description"] = cut_text(description, characters)
    if not depth:
        return short
    if is_json_object(properties):
        inner = {key: _shorten(item, definitions, depth - 1, characters) for key, item in properties.items()}
        short["properties"] = inner
    for name in ("items", "additionalProperties"):
        if name in schema:
            short[name] = _shorten(schema[name], definitions, depth - 1, characters)
    for name in ("anyOf", "allOf"):
        branches = schema.get(name)
        if isinstance(branches, list):
            short[name] = [_shorten(item, definitions, depth - 1, characters) for item in branches[:_SHOWN_BRANCHES]]
    return short


def _shorten_object(schema: JsonObject) -> JsonObject:
    """Keep the arguments' names and types, and the names in the body."""
    properties = schema.get("properties")
    shown: dict[str, JsonValue] = {}
    for name, value in (properties if is_json_object(properties) else {}).items():
        kind = value.get("type") if is_json_object(value) else None
        shown[name] = {} if kind is None else {"type": kind}
    return {"type": "object", "properties": shown, "required": schema.get("required", [])}
