"""Operations of an OpenAPI document: slug, method, path, parameters, body, and the schema of their arguments.

Arguments are flat: one property per parameter, plus `body`. Operations that can't be called as documented (a reference
out of the document, a separate server, only a multipart body) are skipped with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import quote, urlencode

from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, compact_json, exact_hash, is_json_object
from indusagi.core.records import record
from induscode.connectors.auth import is_public, list_alternatives
from induscode.connectors.openapi import (
    ConnectorFault,
    DocumentFault,
    SchemaBuilder,
    expand_server,
    find_path_problem,
    resolve_object,
)
from induscode.search.index import ToolIndex
from induscode.search.items import HUMP, SearchItem, build_item

Place: TypeAlias = Literal["path", "query", "header"]
"""Where a parameter is sent."""
BODY: Final = "body"
METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch")
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Safe methods (RFC 9110 §9.2.1)."""
_MAX_OPERATIONS: Final = 20_000
_MAX_BRANCHES: Final = 100
_SLUG = re.compile(r"[A-Z][A-Z0-9_]*")
_FIELD = re.compile(r"\{([^{}/]+)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS: Final = frozenset(
    {
        # The specification says to ignore these: https://spec.openapis.org/oas/v3.0.4.html#parameter-object.
        *("accept", "content-type", "authorization"),
        # These belong to the connection and the credentials.
        *("host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "expect"),
        *("cookie", "proxy-authorization", "proxy-connection", "keep-alive", "user-agent", "accept-encoding"),
        # Some servers read another path, method or host from these.
        *("x-original-url", "x-rewrite-url", "x-http-method-override", "x-http-method", "x-method-override"),
        *("x-forwarded-host", "x-forwarded-prefix", "x-host", "forwarded"),
    }
)
_STYLES: Final[Mapping[Place, tuple[str, ...]]] = {
    "path": ("simple",),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
}


@record(kw_only=True)
class Parameter:
    """One parameter of an operation."""

    name: str
    """Name on the wire."""
    argument: str
    """Name of the argument: `name`, plus the place if two parameters share a name."""
    place: Place
    style: str
    explode: bool
    required: bool
    as_json: bool
    """Whether to send the value as JSON text."""
    schema: JsonValue
    description: str
    keys: frozenset[str] = frozenset()
    """Allowed keys of an object sent as several query parameters."""


@record(kw_only=True)
class RequestBody:
    """The body of an operation."""

    media_type: str
    required: bool
    schema: JsonValue
    encoding: JsonObject
    """Encoding of form properties."""


@record(kw_only=True)
class OperationSpec:
    """One operation."""

    slug: str
    connector: str
    id: str
    """The `operationId`, or method and path."""
    method: str
    path: str
    summary: str
    description: str
    tags: tuple[str, ...]
    deprecated: bool
    parameters: tuple[Parameter, ...]
    body: RequestBody | None
    scopes: tuple[tuple[str, ...], ...] = ()
    """Alternative sets of scopes that allow the call, if the connector signs in."""
    is_public: bool = False
    """Whether it works without a sign-in, if the connector signs in."""

    @property
    def is_reading(self) -> bool:
        """Whether the method is safe."""
        return self.method in READING


def list_operations(
    root: JsonObject,
    connector: str,
    base_url: str,
    source: str,
    hidden: frozenset[tuple[str, str]] = frozenset(),
    scheme: str = "",
) -> tuple[Sequence[OperationSpec], Sequence[Note]]:
    """List a document's operations in order, with notes about skipped ones.

    The connector's name is the prefix of every slug. `hidden` parameters are sent by the connector itself, as (place,
    lower-case name). Raises `DocumentFault` if a path could lead out of the base URL.
    """
    operations: list[OperationSpec] = []
    notes: list[Note] = []
    taken: set[str] = set()
    for path, method, item, operation in _iter_raw(root):
        owner = f"{method.upper()} {path}"
        problem = "it's a URL" if "://" in path and not path.startswith("/") else find_path_problem(path)
        if problem is not None:
            raise DocumentFault(f"the path {path[:200]!r} could lead out of {base_url}: {problem}")
        if len(operations) >= _MAX_OPERATIONS:
            notes.append(Note(owner, f"left out with all that follow it: {_MAX_OPERATIONS:,} operations are the most"))
            break
        try:
            if not path.startswith("/") or "#" in path:
                raise DocumentFault("its path doesn't begin with '/', or has a fragment")
            _check_servers(operation.get("servers", item.get("servers")), base_url, source)
            parameters = _list_parameters(root, item, operation, hidden)
            fields = {parameter.name for parameter in parameters if parameter.place == "path"}
            missing = set(_FIELD.findall(path)) - fields
            if missing:
                raise DocumentFault(f"its path has the fields {', '.join(sorted(missing))}, which no parameter fills")
            body = _parse_body(root, operation)
        except DocumentFault as exc:
            notes.append(Note(owner, f"left out: {exc}"))
            continue
        identity = operation.get("operationId")
        identity = identity if isinstance(identity, str) and identity else f"{method} {path}"
        slug = build_slug(connector, identity)
        if slug in taken:
            choices = (f"{slug}_{method.upper()}", *(f"{slug}_{number}" for number in range(2, len(taken) + 3)))
            slug = next(choice for choice in choices if choice not in taken)
        taken.add(slug)
        tags, security = operation.get("tags"), operation.get("security", root.get("security"))
        operations.append(
            OperationSpec(
                slug=slug,
                connector=connector,
                id=identity,
                method=method.upper(),
                path=path,
                summary=_get_text(operation, "summary") or _get_text(item, "summary"),
                description=_get_text(operation, "description") or _get_text(item, "description"),
                tags=tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
                deprecated=operation.get("deprecated") is True,
                parameters=parameters,
                body=body,
                scopes=list_alternatives(security, scheme) if scheme else (),
                is_public=bool(scheme) and is_public(security),
            )
        )
    return operations, notes


def build_slug(connector: str, identity: str) -> str:
    """Build an operation's slug. An id that's already one of the connector's slugs stays unchanged."""
    prefix = f"{_to_words(connector)}_"
    if _SLUG.fullmatch(identity) and identity.startswith(prefix):
        return identity
    words = _to_words(identity)
    return words if words.startswith(prefix) else f"{prefix}{words}"


def _to_words(text: str) -> str:
    words = re.split(r"[^A-Za-z0-9]+", HUMP.sub(" ", text))
    return "_".join(word.upper() for word in words if word) or "X"


def _iter_raw(root: JsonObject) -> Iterator[tuple[str, str, JsonObject, JsonObject]]:
    paths = root.get("paths")
    for path, raw in (paths if is_json_object(paths) else {}).items():
        try:
            item = resolve_object(root, raw)
        except DocumentFault:
            continue
        for method in METHODS:
            operation = item.get(method)
            if not path.startswith("x-") and is_json_object(operation):
                yield path, method, item, operation


def _check_servers(servers: JsonValue, base_url: str, source: str) -> None:
    """Reject an operation with a separate server, since credentials belong to the base URL."""
    if isinstance(servers, list) and servers and is_json_object(servers[0]):
        url = expand_server(servers[0], source)
        if url != base_url:
            raise DocumentFault(f"it has a server of its own ({url}); add that as a connector with --base-url")


def _list_parameters(
    root: JsonObject, item: JsonObject, operation: JsonObject, hidden: frozenset[tuple[str, str]]
) -> tuple[Parameter, ...]:
    """List an operation's parameters. They override path-level ones with the same name and place."""
    raw: dict[tuple[str, str], JsonObject] = {}
    for owner in (item, operation):
        rows = owner.get("parameters")
        for row in rows if isinstance(rows, list) else ():
            parameter = resolve_object(root, row)
            raw[_get_text(parameter, "in"), _get_text(parameter, "name")] = parameter
    parameters: list[Parameter] = []
    taken = {BODY}
    for (place, name), parameter in raw.items():
        required = parameter.get("required") is True
        if (place, name.lower()) in hidden or (place == "header" and name.lower() in _OWN_HEADERS):
            continue
        if place not in _STYLES or not name or (place == "header" and not _HEADER_NAME.fullmatch(name)):
            if required:
                raise DocumentFault(f"its parameter {name!r} is sent as {place or 'nothing'}, which is unsupported")
            continue
        style = _get_text(parameter, "style") or _STYLES[place][0]
        if style not in _STYLES[place]:
            raise DocumentFault(f"its parameter {name!r} has the style {style!r}, which is unsupported")
        argument = name if name not in taken else f"{name}_{place}"
        taken.add(argument)
        content = parameter.get("content")
        keys = frozenset[str]()
        media = next(iter(content.values()), None) if is_json_object(content) else None
        explode = parameter.get("explode")
        explode = explode if isinstance(explode, bool) else style in {"form", "deepObject"}
        if place == "query" and style == "form" and explode and media is None:
            keys = _list_query_names(root, name, parameter.get("schema", {}))
            taken_by_us = [key for key in keys if ("query", key.lower()) in hidden or ("query", key) in raw]
            if taken_by_us:
                raise DocumentFault(f"its parameter {name!r} also sends {taken_by_us[0]!r}, which is another parameter")
        parameters.append(
            Parameter(
                name=name,
                argument=argument,
                place=place,
                style=style,
                explode=explode,
                required=required or place == "path",
                as_json=media is not None,
                schema=media.get("schema", {}) if is_json_object(media) else parameter.get("schema", {}),
                description=_get_text(parameter, "description"),
                keys=keys,
            )
        )
    return tuple(parameters)


def _list_query_names(root: JsonObject, name: str, schema: JsonValue) -> frozenset[str]:
    """List the query parameters an exploded object can become, or nothing if the parameter isn't an object.

    Raises `DocumentFault` if it could become parameters with any name.
    """
    names: set[str] = set()
    pending, is_object = [schema], False
    for _ in range(_MAX_BRANCHES):
        if not pending:
            break
        part = pending.pop()
        if not is_json_object(part):
            continue
        part = resolve_object(root, part)
        kind, properties = part.get("type"), part.get("properties")
        is_object |= kind == "object" or (isinstance(kind, list) and "object" in kind) or is_json_object(properties)
        names |= (properties if is_json_object(properties) else {}).keys()
        if part.get("additionalProperties", False) is not False or "patternProperties" in part:
            raise DocumentFault(f"its parameter {name!r} is an object whose keys become query parameters of any name")
        for key in ("allOf", "anyOf", "oneOf"):
            branches = part.get(key)
            pending += branches if isinstance(branches, list) else []
    if pending or (is_object and not names):
        raise DocumentFault(f"its parameter {name!r} is an object whose keys become query parameters of any name")
    return frozenset(names)


def _parse_body(root: JsonObject, operation: JsonObject) -> RequestBody | None:
    if not is_json_object(operation.get("requestBody")):
        return None
    body = resolve_object(root, operation["requestBody"])
    content = body.get("content")
    types = [kind for kind in (content if is_json_object(content) else {}) if is_json_object(content)]
    ranked = sorted((rank, kind) for kind in types if (rank := _rank_media_type(kind)) is not None)
    if not ranked:
        if body.get("required") is True:
            raise DocumentFault(f"its body is {', '.join(types) or 'of no type'}, which is unsupported")
        return None
    kind = ranked[0][1]
    media = cast("JsonObject", content)[kind]
    media = media if is_json_object(media) else {}
    encoding = media.get("encoding")
    return RequestBody(
        media_type="application/json" if kind == "*/*" else kind,
        required=body.get("required") is True,
        schema=media.get("schema", {}),
        encoding=encoding if is_json_object(encoding) else {},
    )


def _rank_media_type(kind: str) -> int | None:
    """Rank a body's media type, best lowest, or return None if we can't send it."""
    name = kind.partition(";")[0].strip().lower()
    if not name.isprintable() or "\n" in name:
        return None
    if name in {"application/json", "*/*"} or name.endswith("+json"):
        return 0 if name == "application/json" else 1
    ranks = {"application/x-www-form-urlencoded": 2, "text/plain": 3}
    return ranks.get(name, 4 if name.startswith("text/") and "*" not in name else None)


def _get_text(row: JsonObject, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


# -- schemas and digests ----------------------------------------------------------------------


def build_arguments_schema(root: JsonObject, operation: OperationSpec) -> JsonObject:
    """Build the schema of an operation's arguments.

    Raises `DocumentFault` if a reference leads out of the document or to nothing, or a schema is nested too deeply.
    """
    builder = SchemaBuilder(root)
    properties: dict[str, JsonValue] = {}
    required: list[JsonValue] = []
    for parameter in operation.parameters:
        value = builder.convert(parameter.schema)
        if parameter.description and is_json_object(value):
            value = {**value, "description": parameter.description}
        properties[parameter.argument] = value
        if parameter.required:
            required.append(parameter.argument)
    if operation.body is not None:
        properties[BODY] = builder.convert(operation.body.schema)
        if operation.body.required:
            required.append(BODY)
    schema: dict[str, JsonValue] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    if builder.definitions:
        schema["$defs"] = builder.definitions
    return schema


def digest_definitions(root: JsonObject, operations: Sequence[OperationSpec], base_url: str) -> dict[str, str]:
    """Digest by slug everything a model or a request depends on, ignoring responses and examples.

    Raises `NotJson` if the document contains a value that JSON can't represent.
    """
    digests = {"": exact_hash(base_url)}
    for operation in operations:
        parts = list_definition(root, operation)
        texts: JsonValue = [parts.pop(key) for key in ("method", "path", "summary", "description")]
        digests[operation.slug] = exact_hash([texts, *parts.values()], sort_keys=True)
    return digests


def list_definition(root: JsonObject, operation: OperationSpec) -> JsonObject:
    """List everything a model or a request depends on, by name."""
    try:
        schema: JsonValue = build_arguments_schema(root, operation)
    except DocumentFault as exc:
        schema = str(exc)
    parts: JsonObject = {
        "method": operation.method,
        "path": operation.path,
        "summary": operation.summary,
        "description": operation.description,
        "parameters": [
            [row.name, row.place, row.style, row.explode, *(["json"] if row.as_json else [])]
            for row in operation.parameters
        ],
        "body": None if operation.body is None else [operation.body.media_type, operation.body.encoding],
        "arguments": schema,
    }
    return {**parts, "scopes": [[*scopes] for scopes in operation.scopes]} if operation.scopes else parts


# -- requests ---------------------------------------------------------------------------------
#
# Path values are completely percent-encoded, so they can't add a segment. A request never leaves the base URL: steps
# like `..` are rejected, however they're encoded. Styles: https://spec.openapis.org/oas/v3.0.4.html#style-values.


_FORM: Final = "application/x-www-form-urlencoded"
_SEPARATORS: Final = {"spaceDelimited": " ", "pipeDelimited": "|"}
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


@record(kw_only=True)
class ApiRequest:
    """A request without credentials."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None


def build_request(operation: OperationSpec, base_url: str, arguments: JsonObject) -> ApiRequest:
    """Build an operation's request from arguments that fit its schema.

    Raises `ConnectorFault` if a value can't be sent where its parameter belongs.
    """
    path, query, headers = operation.path, list[tuple[str, str]](), dict[str, str]()
    for parameter in operation.parameters:
        value = arguments.get(parameter.argument)
        if value is None and not parameter.required:
            continue
        if parameter.place == "path":
            path = path.replace(f"{{{parameter.name}}}", _format_segment(parameter, value))
        elif parameter.place == "header":
            text = _format_simple(parameter, value)
            if not text.isascii() or not text.isprintable():
                problem = "is sent as a header: it can only have visible ASCII characters"
                raise ConnectorFault(f"{parameter.argument!r} {problem}")
            headers[parameter.name] = text.strip()
        else:
            query += _iter_query(parameter, value)
    problem = find_path_problem(path)
    if problem is not None:
        raise ConnectorFault(f"the path {path[:200]!r} could lead out of {base_url}: {problem}")
    url = f"{base_url.rstrip('/')}{path}"
    if query:
        url += f"{'&' if '?' in url else '?'}{urlencode(query, quote_via=quote)}"
    body = None
    if operation.body is not None and BODY in arguments:
        headers["Content-Type"] = operation.body.media_type
        body = _encode_body(operation.body, arguments[BODY])
    elif operation.method in _WITH_BODY:
        body = b""  # a length of zero instead of none (RFC 9110 §8.6)
    return ApiRequest(method=operation.method, url=url, headers=headers, body=body)


def _format_value(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else compact_json(value)


def _format_simple(parameter: Parameter, value: JsonValue) -> str:
    """Format a value in the style `simple`: comma-separated items and pairs."""
    if parameter.as_json:
        return compact_json(value)
    if isinstance(value, list):
        return ",".join(map(_format_value, value))
    if is_json_object(value):
        joint = "=" if parameter.explode else ","
        return ",".join(f"{key}{joint}{_format_value(item)}" for key, item in value.items())
    return _format_value(value)


def _format_segment(parameter: Parameter, value: JsonValue) -> str:
    text = _format_simple(parameter, value)
    if find_path_problem(text) is not None or not text:
        raise ConnectorFault(f"{parameter.argument!r} is part of the path: it cannot be {text!r}")
    # A comma separates items; inside one it's encoded like everything else.
    if isinstance(value, list) and not parameter.as_json:
        return ",".join(quote(_format_value(item), safe="") for item in value)
    return quote(text, safe="")


def _iter_query(parameter: Parameter, value: JsonValue) -> Iterator[tuple[str, str]]:
    name = parameter.name
    if parameter.as_json:
        yield name, compact_json(value)
    elif parameter.style == "deepObject":
        yield from _iter_brackets(name, value)
    elif isinstance(value, list):
        if parameter.explode and parameter.style == "form":
            yield from ((name, _format_value(item)) for item in value)
        else:
            yield name, _SEPARATORS.get(parameter.style, ",").join(map(_format_value, value))
    elif is_json_object(value):
        if parameter.explode:
            unknown = next((key for key in value if key not in parameter.keys), None)
            if unknown is not None:
                raise ConnectorFault(f"{parameter.argument!r} has no {unknown!r}: its keys become query parameters")
            yield from ((key, _format_value(item)) for key, item in value.items())
        else:
            yield name, ",".join(part for key, item in value.items() for part in (key, _format_value(item)))
    else:
        yield name, _format_value(value)


def _iter_brackets(name: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield a nested value's pairs: `filter[state]=open`."""
    if is_json_object(value):
        for key, item in value.items():
            yield from _iter_brackets(f"{name}[{key}]", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iter_brackets(f"{name}[{index}]", item)
    else:
        yield name, _format_value(value)


def _encode_body(body: RequestBody, value: JsonValue) -> bytes:
    kind = body.media_type.partition(";")[0].strip().lower()
    if kind == _FORM:
        if not is_json_object(value):
            raise ConnectorFault(f"{BODY!r} is sent as a form: it must be an object")
        pairs = [pair for name, item in value.items() for pair in _iter_form(body, name, item)]
        return urlencode(pairs).encode("ascii")
    if kind.startswith("text/") and isinstance(value, str):
        return value.encode("utf-8", "replace")
    return compact_json(value).encode("utf-8")


def _iter_form(body: RequestBody, name: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    encoding = body.encoding.get(name)
    if is_json_object(encoding) and encoding.get("style") == "deepObject":
        yield from _iter_brackets(name, value)
    elif isinstance(value, list):
        yield from ((name, _format_value(item)) for item in value)
    else:
        yield name, _format_value(value)


# -- search -----------------------------------------------------------------------------------
_VERBS: Final = {
    "GET": "get list show read find fetch view look download check",
    "HEAD": "check exists",
    "POST": "create add new make open send start post",
    "PUT": "set put replace update change",
    "PATCH": "update change edit modify patch",
    "DELETE": "delete remove drop cancel",
}
"""Verbs users say for a method, indexed as keywords."""
_MAX_DESCRIPTION_CHARS: Final = 600


class OperationIndex:
    """An immutable index of operations."""

    def __init__(self, operations: Iterable[OperationSpec]) -> None:
        self._operations = {(operation.connector, operation.slug): operation for operation in operations}
        self._index = ToolIndex(map(build_operation_item, self._operations.values()))

    def search(self, query: str, limit: int, connectors: Sequence[str] = ()) -> list[OperationSpec]:
        """Return the best matches, best first."""
        hits = self._index.search([query], limit=len(self._operations)).hits
        found = (hit.item for hit in hits if not connectors or hit.item.server in connectors)
        return [self._operations[item.server, item.qualified_name] for item in found][:limit]


def build_operation_item(operation: OperationSpec) -> SearchItem:
    """Build an operation's search item."""
    keywords = " ".join((*operation.tags, operation.path, _VERBS.get(operation.method, "")))
    return build_item(
        "action",
        operation.connector,
        operation.id,
        operation.slug,
        title=operation.summary,
        description=operation.description[:_MAX_DESCRIPTION_CHARS],
        keywords=keywords,
    )
