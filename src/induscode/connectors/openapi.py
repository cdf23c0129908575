"""OpenAPI 3.0 and 3.1 documents: parsed from JSON or YAML, with references inside the document.

A document comes from another party. Its size, depth and number of values are limited, and a reference to another file
or address is an error, never a request. Formats: https://spec.openapis.org/oas/v3.0.4.html and
https://spec.openapis.org/oas/v3.1.1.html.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final, cast
from urllib.parse import unquote, urljoin, urlsplit

from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.text import cut_text

LARGEST_BYTES: Final = 32 * 1024 * 1024
_MAX_YAML_BYTES: Final = 8 * 1024 * 1024
"""The YAML parser is a hundred times slower than the JSON one."""
_MAX_VALUES: Final = 3_000_000
_MAX_DEPTH: Final = 200
_MAX_CHAIN: Final = 32
_VERSIONS: Final = ("3.0.", "3.1.")
_MAX_DECODINGS: Final = 5
_HOST_VALUE = re.compile(r"[A-Za-z0-9]+(?:[.-][A-Za-z0-9]+)*")
_PATH_VALUE = re.compile(r"(?:[A-Za-z0-9_~][\w.~-]*(?:/[A-Za-z0-9_~][\w.~-]*)*)?", re.ASCII)
YAML_EXTRA: Final = "indus-deck[connectors]"


def parse_document(data: bytes) -> JsonObject:
    """Parse an OpenAPI document.

    Raises `DocumentFault` if it's neither JSON nor YAML, too large or too deep, or not OpenAPI 3.0 or 3.1.
    """
    if len(data) > LARGEST_BYTES:
        raise DocumentFault(f"the document has {len(data):,} bytes; {LARGEST_BYTES:,} are the most")
    try:
        document: object = json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise DocumentFault("the document is nested too deeply") from None
    except ValueError as exc:
        if data.lstrip()[:1] in {b"{", b"["}:
            raise DocumentFault(f"the document is no JSON: {exc}") from exc
        document = _parse_yaml(data)
    _check_size(document)
    if not is_json_object(document):
        raise DocumentFault("the document is no object; an OpenAPI document begins with its version")
    version = document.get("openapi")
    if not isinstance(version, str) or not version.startswith(_VERSIONS):
        found = "Swagger 2.0" if "swagger" in document else f"openapi: {version!r}"
        message = f"the document is no OpenAPI document of version 3.0 or 3.1 (found: {found[:60]})"
        raise DocumentFault(message)
    if not is_json_object(document.get("paths", {})):
        raise DocumentFault("the paths of the document are no object")
    return document


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _parse_yaml(data: bytes) -> object:
    try:
        import yaml  # noqa: PLC0415 — an extra, for documents in YAML
    except ImportError:
        message = f"the document is no JSON, and YAML needs a parser: pip install '{YAML_EXTRA}', or convert it to JSON"
        raise DocumentFault(message) from None
    if len(data) > _MAX_YAML_BYTES:
        message = f"the document has {len(data):,} bytes of YAML; {_MAX_YAML_BYTES:,} are the most: convert it to JSON"
        raise DocumentFault(message)

    # The C parser is an option of the library's build.
    base = cast("Any", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    # Keep values as in JSON: a date stays text (https://yaml.org/type/timestamp.html).
    resolvers = {
        first: [(tag, pattern) for tag, pattern in rows if tag != "tag:yaml.org,2002:timestamp"]
        for first, rows in base.yaml_implicit_resolvers.items()
    }
    loader: Any = type("JsonLoader", (base,), {"yaml_implicit_resolvers": resolvers})
    try:
        depth = 0
        # The C parser builds values recursively and crashes on deep documents, so count the nesting first.
        for event in cast("Any", yaml).parse(data, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise DocumentFault("the document is nested too deeply")
        return _to_json(yaml.load(data, loader))
    except (yaml.YAMLError, ValueError, UnicodeError) as exc:
        place = getattr(exc, "problem_mark", None)
        where = f" (line {place.line + 1})" if place is not None else ""
        reason = str(getattr(exc, "problem", None) or exc)[:200]
        raise DocumentFault(f"the document is neither JSON nor YAML: {reason}{where}") from exc
    except RecursionError:
        raise DocumentFault("the document is nested too deeply") from None


def _to_json(root: object) -> object:
    """Convert YAML's extensions to JSON: keys that are numbers. Aliases count at every use."""
    left = _MAX_VALUES

    def convert(value: object, depth: int) -> object:
        nonlocal left
        left -= 1
        if left < 0 or depth > _MAX_DEPTH:
            raise DocumentFault("the document has too many values, or is nested too deeply")
        if isinstance(value, dict):
            items = cast("dict[object, object]", value).items()
            # YAML allows keys of other types; write `true` as in JSON.
            names = ((str(key).lower() if isinstance(key, bool) else str(key), inner) for key, inner in items)
            return {name: convert(inner, depth + 1) for name, inner in names}
        if isinstance(value, list):
            return [convert(inner, depth + 1) for inner in cast("list[object]", value)]
        return value if isinstance(value, str | int | float | None) else str(value)

    return convert(root, 0)


def _check_size(root: object) -> None:
    """Count a document's values, without recursion."""
    pending: list[tuple[object, int]] = [(root, 0)]
    count = 0
    while pending:
        value, depth = pending.pop()
        count += 1
        if count > _MAX_VALUES or depth > _MAX_DEPTH:
            raise DocumentFault("the document has too many values, or is nested too deeply")
        if isinstance(value, dict):
            pending.extend((inner, depth + 1) for inner in cast("dict[str, object]", value).values())
        elif isinstance(value, list):
            pending.extend((inner, depth + 1) for inner in cast("list[object]", value))


# -- references -------------------------------------------------------------------------------


def find_pointer(root: JsonObject, reference: str) -> JsonValue:
    """Return the value a reference points to (RFC 6901).

    Raises `DocumentFault` if it leads out of the document, or to nothing.
    """
    if not reference.startswith("#/"):
        raise DocumentFault(f"the reference {reference[:200]!r} leads out of the document")
    value: JsonValue = root
    for part in reference[2:].split("/"):
        step = unquote(part).replace("~1", "/").replace("~0", "~")
        if is_json_object(value) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise DocumentFault(f"the reference {reference[:200]!r} leads to nothing")
    return value


def resolve_object(root: JsonObject, value: JsonValue) -> JsonObject:
    """Return an object of the document, or the object a reference leads to.

    Raises `DocumentFault` if it isn't an object, or its references lead in a circle or to nothing.
    """
    for _ in range(_MAX_CHAIN):
        if not is_json_object(value):
            raise DocumentFault("a part of the document is no object")
        reference = value.get("$ref")
        if not isinstance(reference, str):
            return value
        value = find_pointer(root, reference)
    raise DocumentFault("references of the document lead in a circle")


# -- paths ------------------------------------------------------------------------------------


def find_path_problem(path: str) -> str | None:
    """Say why a path could lead out of the base URL it's added to; None if it can't.

    A server may decode a path more than once, normalize it, or read a backslash as a slash.
    """
    if path.startswith("//") or "\\" in path or not path.isprintable():
        return "it begins with '//', or has a backslash or an invisible character"
    text = path.partition("?")[0]
    for _ in range(_MAX_DECODINGS):
        steps = (step.partition(";")[0] for step in re.split(r"[/\\]", unicodedata.normalize("NFKC", text)))
        if any(step in {".", ".."} for step in steps):
            return "it has a step '.' or '..'"
        decoded = unquote(text)
        if decoded == text:
            return None
        text = decoded
    return "it's percent-encoded too often"


# -- servers ----------------------------------------------------------------------------------


def find_server_url(document: JsonObject, source: str) -> str | None:
    """Find the URL of a document's first server, with defaults for its variables.

    A relative URL is resolved against the document's address. None if that's a file, or there's no server.
    """
    servers = document.get("servers")
    server = servers[0] if isinstance(servers, list) and servers else None
    return None if not is_json_object(server) else expand_server(server, source)


def expand_server(server: JsonObject, source: str) -> str | None:
    """Expand a server's variables, and resolve its URL against the source. None if that's impossible.

    A default must be a plain name: it can't end the template's host, or add a user, a query or a step upwards.
    """
    url = server.get("url")
    if not isinstance(url, str):
        return None
    variables = server.get("variables")
    for name, variable in (variables if is_json_object(variables) else {}).items():
        default = variable.get("default") if is_json_object(variable) else None
        if isinstance(default, str) and f"{{{name}}}" in url:
            scheme, _, rest = url.rpartition("://")
            host = rest.partition("/")[0] if not rest.startswith("/") else ""
            in_host = f"{{{name}}}" in f"{scheme}{host}"
            if (_HOST_VALUE if in_host else _PATH_VALUE).fullmatch(default) is None:
                return None
            url = url.replace(f"{{{name}}}", default)
    if "{" in url:
        return None
    try:
        if urlsplit(url).scheme:
            return url.rstrip("/")
        return urljoin(source, url).rstrip("/") if urlsplit(source).scheme in {"http", "https"} else None
    except ValueError:  # it isn't a URL
        return None


# -- faults -----------------------------------------------------------------------------------


class ConnectorFault(CoreError):
    """A connector can't be added, read or used. The message names the remedy."""


class DocumentFault(ConnectorFault):
    """An OpenAPI document, or a part of one, can't be used."""


# -- schemas ----------------------------------------------------------------------------------
#
# OpenAPI 3.0 keywords that differ (`nullable`, boolean `exclusiveMinimum`) are rewritten, read-only properties are
# dropped from requests, and references become `$defs`. The result is never stricter than the document: `oneOf` becomes
# `anyOf`, and `pattern` is left to the service, since a hostile pattern takes exponential time
# (https://owasp.org/www-community/attacks/Regular_expression_Denial_of_Service_-_ReDoS).


_MAX_SCHEMA_DEPTH: Final = 60
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

        Raises `DocumentFault` if a reference leads out of the document or to nothing, or the nesting is too deep.
        """
        converted = self._convert(schema, 0)
        while self._pending:
            name, reference = self._pending.pop()
            self.definitions[name] = self._convert(find_pointer(self._root, reference), 0)
        return converted

    def _convert(self, schema: JsonValue, depth: int) -> JsonValue:
        if depth > _MAX_SCHEMA_DEPTH:
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
    properties = schema.get("properties")
    shown: dict[str, JsonValue] = {}  # just names and types
    for name, value in (properties if is_json_object(properties) else {}).items():
        kind = value.get("type") if is_json_object(value) else None
        shown[name] = {} if kind is None else {"type": kind}
    return {"type": "object", "properties": shown, "required": schema.get("required", [])}, True


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
