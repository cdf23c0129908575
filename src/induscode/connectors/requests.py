"""HTTP requests of operations: checked arguments as path, query, headers and body.

Path values are completely percent-encoded, so they can't add a segment. A request never leaves the base URL: steps like
`..` are rejected, however they're encoded. Styles: https://spec.openapis.org/oas/v3.0.4.html#style-values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Final
from urllib.parse import quote, urlencode

from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from induscode.connectors.openapi import ConnectorFault, find_path_problem
from induscode.connectors.operations import BODY, OperationSpec, Parameter, RequestBody

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
