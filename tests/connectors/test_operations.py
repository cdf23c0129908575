"""Operations of documents: slugs, parameters, schemas of arguments, and the requests that are built from them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities.arguments import ArgumentChecker
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from induscode.connectors.openapi import ConnectorFault, DocumentFault, abbreviate_schema
from induscode.connectors.operations import build_arguments_schema, build_request, build_slug, list_operations
from induscode.connectors.sources import examine_source

if TYPE_CHECKING:
    from induscode.connectors.operations import OperationSpec

BASE = "https://api.example/v1"


def _document(path: str = "/things", method: str = "get", **operation: JsonValue) -> JsonObject:
    return {"openapi": "3.0.3", "paths": {path: {method: {"operationId": "op", **operation}}}}


def _only(root: JsonObject) -> OperationSpec:
    (operation,), notes = list_operations(root, "api", BASE, "/f")
    assert not notes
    return operation


def _parameter(name: str, place: str = "query", **more: JsonValue) -> JsonObject:
    return {"name": name, "in": place, "schema": {}, **more}


_OBJECT: JsonObject = {"type": "object", "properties": {"a": {}, "b": {}}}


@pytest.mark.parametrize(
    ("connector", "identity", "slug"),
    [
        ("github", "issues/create", "GITHUB_ISSUES_CREATE"),
        ("github", "GITHUB_CREATE_ISSUE", "GITHUB_CREATE_ISSUE"),
        ("my-shop", "listHTTPCarts", "MY_SHOP_LIST_HTTP_CARTS"),
        ("shop", "get /a/{id}", "SHOP_GET_A_ID"),
        ("shop", "shop_list", "SHOP_LIST"),
        ("shop", "日本", "SHOP_X"),
    ],
)
def test_slugs(connector: str, identity: str, slug: str) -> None:
    assert build_slug(connector, identity) == slug


def test_two_operations_never_share_a_slug() -> None:
    same: JsonObject = {"operationId": "op"}
    root: JsonObject = {"paths": {"/a": {"get": same, "post": same}, "/b": {"post": same}}}
    operations, _ = list_operations(root, "api", BASE, "/f")
    assert [operation.slug for operation in operations] == ["API_OP", "API_OP_POST", "API_OP_2"]


@pytest.mark.parametrize(
    ("root", "message"),
    [
        (_document("/a/{id}"), "which no parameter fills"),
        (_document(parameters=[_parameter("c", "cookie", required=True)]), "sent as cookie"),
        (_document(parameters=[_parameter("a", style="matrix")]), "the style 'matrix'"),
        (_document(parameters=[{"$ref": "other.json"}]), "out of the document"),
        (_document(servers=[{"url": "https://uploads.example"}]), "a server of its own"),
        (
            _document(method="post", requestBody={"required": True, "content": {"multipart/form-data": {}}}),
            "multipart/form-data, which is unsupported",
        ),
    ],
)
def test_an_operation_that_cannot_be_called_is_left_out_with_a_note(root: JsonObject, message: str) -> None:
    operations, (note,) = list_operations(root, "api", BASE, "/f")
    assert not operations
    assert message in str(note)


def test_credentials_and_headers_of_the_connection_are_no_arguments() -> None:
    names = [
        "Authorization",
        "Accept",
        "Host",
        "X-Original-URL",
        "X-HTTP-Method-Override",
        "Cookie",
        "Content-Length",
        "X-Key",
        "X-Trace",
        "bad header",
    ]
    parameters: list[JsonValue] = [_parameter(name, "header") for name in names]
    hidden = frozenset({("header", "x-key")})
    (operation,), _ = list_operations(_document(parameters=parameters), "api", BASE, "/f", hidden)
    assert [parameter.name for parameter in operation.parameters] == ["X-Trace"]


def test_parameters_of_one_name_have_two_arguments() -> None:
    parameters: list[JsonValue] = [_parameter("id", "path"), _parameter("id"), _parameter("body")]
    operation = _only(_document("/a/{id}", parameters=parameters))
    assert [parameter.argument for parameter in operation.parameters] == ["id", "id_query", "body_query"]


@pytest.mark.parametrize(
    ("parameter", "value", "url"),
    [
        (_parameter("q"), "a&b=c d", "?q=a%26b%3Dc%20d"),
        (_parameter("q"), True, "?q=true"),
        (_parameter("q"), ["a", "b"], "?q=a&q=b"),
        (_parameter("q", explode=False), ["a", "b"], "?q=a%2Cb"),
        (_parameter("q", style="pipeDelimited"), ["a", "b"], "?q=a%7Cb"),
        (_parameter("q", style="deepObject"), {"a": {"b": 1}, "c": [2]}, "?q%5Ba%5D%5Bb%5D=1&q%5Bc%5D%5B0%5D=2"),
        (_parameter("q", schema=_OBJECT), {"a": 1, "b": 2}, "?a=1&b=2"),
        (_parameter("q", explode=False), {"a": 1}, "?q=a%2C1"),
        ({"name": "q", "in": "query", "content": {"application/json": {}}}, {"a": [1]}, "?q=%7B%22a%22%3A%5B1%5D%7D"),
        (_parameter("q"), None, ""),
    ],
)
def test_query_parameters_have_their_style(parameter: JsonObject, value: JsonValue, url: str) -> None:
    operation = _only(_document(parameters=[parameter]))
    assert build_request(operation, BASE, {"q": value}).url == f"{BASE}/things{url}"


@pytest.mark.parametrize(
    ("value", "path"),
    [("a/b", "a%2Fb"), ("{id}", "%7Bid%7D"), (["a,b", "c"], "a%2Cb,c"), ({"a": 1}, "a%2C1"), (5, "5")],
)
def test_a_value_of_the_path_stays_one_segment(value: JsonValue, path: str) -> None:
    operation = _only(_document("/a/{id}/b", parameters=[_parameter("id", "path")]))
    assert build_request(operation, BASE, {"id": value}).url == f"{BASE}/a/{path}/b"


@pytest.mark.parametrize("value", ["", ".", "..", "a\nb", "\0", "../x", "a/../b", "%2e%2e", "..\\x", "..;a", "\u2025"])
def test_a_value_that_would_change_the_path_is_refused(value: str) -> None:
    operation = _only(_document("/a/{id}/b", parameters=[_parameter("id", "path")]))
    with pytest.raises(ConnectorFault, match="part of the path"):
        build_request(operation, BASE, {"id": value})


# -- leaving the base URL ---------------------------------------------------------------------

OUTSIDE = [
    "/../../admin", "/a/../../admin", "/..", "/.", "/./a", "/a/..;/admin", "/a/%2e%2e/admin", "/%2E%2E/admin",
    "/.%2e/a", "../a", "/%252e%252e/a", "/%25252e%25252e/a", "/..%2fadmin", "/a%2f..%2fadmin", "/..%5cadmin",
    "/..\\admin", "\\admin", "\\..\\a",
    "/\\evil.example/a", "//evil.example/a", "///evil.example", "https://evil.example/a", "HTTP://evil.example",
    "/\uff0e\uff0e/admin", "/\u2025/admin", "/a\u2028b", "/a\n", "/../{id}", "/{id}/../../admin",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_finding_r13_a_path_that_leaves_the_base_url_is_refused(path: str) -> None:
    good: JsonObject = {"get": {"operationId": "good"}}
    item: JsonObject = {"get": {"operationId": "bad", "parameters": [_parameter("id", "path")]}}
    root: JsonObject = {"openapi": "3.0.0", "servers": [{"url": BASE}], "paths": {"/good": good, path: item}}
    with pytest.raises(ConnectorFault, match=r"could lead out of|begins with|no operation"):
        examine_source("api", "/f", json.dumps(root).encode(), None, None)
    if path.startswith("/"):  # a document that was approved before
        spec = replace(_only(_document("/a/{id}", parameters=[_parameter("id", "path")])), path=path)
        with pytest.raises(ConnectorFault, match="could lead out of"):
            build_request(spec, BASE, {"id": "1"})


@pytest.mark.parametrize(("path", "values"), [("/{a}{b}", (".", ".")), ("/.{a}", (".",)), ("/{a}%2e", (".",))])
def test_finding_r13_values_never_make_a_step_upwards_together(path: str, values: tuple[str, ...]) -> None:
    names = "ab"[: len(values)]
    operation = _only(_document(path, parameters=[_parameter(name, "path") for name in names]))
    with pytest.raises(ConnectorFault):
        build_request(operation, BASE, dict(zip(names, values, strict=True)))


@pytest.mark.parametrize("path", ["/a..b/c", "/...", "/a.", "/.well-known/x", "/a//b", "/v1.0/{id}", "/x?y=../z"])
def test_an_ordinary_path_is_listed(path: str) -> None:
    root = _document(path, parameters=[_parameter("id", "path")] if "{" in path else [])
    assert build_request(_only(root), BASE, {"id": "1"}).url == f"{BASE}{path.replace('{id}', '1')}"


@pytest.mark.parametrize(
    ("url", "variables"),
    [
        ("https://{host}.example", {"host": "evil.example/"}),
        ("https://{host}.example", {"host": "evil.example/x"}),
        ("https://{host}.example", {"host": "evil.example#"}),
        ("https://{host}.example", {"host": "evil.example?x="}),
        ("https://{host}.example", {"host": "me@evil"}),
        ("https://{host}.example", {"host": "evil.example:443/"}),
        ("https://api.example{rest}", {"rest": ".evil.example"}),
        ("https://api.example{rest}", {"rest": "@evil.example"}),
        ("https://api.example/{path}", {"path": "../admin"}),
        ("https://api.example/{path}", {"path": "..%2fadmin"}),
        ("https://api.example/{path}", {"path": "a/../../admin"}),
        ("https://api.example/{path}", {"path": "v1?x="}),
        ("{all}", {"all": "https://evil.example"}),
        ("https://{a}", {"a": "{b}", "b": "evil/"}),
        ("https://api.example/v1/../admin", {}),
        ("https://api.example/%2e%2e/admin", {}),
        ("https://api.example/v1\\..\\admin", {}),
    ],
)
def test_finding_r13_a_server_url_whose_variables_move_it_is_refused(url: str, variables: dict[str, str]) -> None:
    given: JsonObject = {name: {"default": value} for name, value in variables.items()}
    root: JsonObject = {
        "openapi": "3.0.0",
        "servers": [{"url": url, "variables": given}],
        "paths": {"/a": {"get": {"operationId": "a"}}},
    }
    with pytest.raises(ConnectorFault):
        examine_source("api", "/f", json.dumps(root).encode(), None, None)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": ["object", "null"]},
        {"type": "object", "additionalProperties": True},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {}},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {".*": {}}},
        {"allOf": [{"type": "object"}]},
        {"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": True}]},
        {"$ref": "#/components/schemas/Free"},
        {"type": "object", "properties": {"key": {}}},
        {"type": "object", "properties": {"KEY": {}}},
        {"type": "object", "properties": {"other": {}}},
    ],
)
def test_finding_r13_an_object_that_adds_any_query_key_is_refused(schema: JsonObject) -> None:
    parameters: list[JsonValue] = [_parameter("q", schema=schema), _parameter("other")]
    root: JsonObject = {**_document(parameters=parameters), "components": {"schemas": {"Free": {"type": "object"}}}}
    operations, (note,) = list_operations(root, "api", BASE, "/f", frozenset({("query", "key")}))
    assert not operations
    assert "query parameters of any name" in str(note) or "which is another parameter" in str(note)


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, _OBJECT, {"$ref": "#/components/schemas/Fixed"}])
def test_finding_r13_only_declared_keys_become_query_parameters(schema: JsonObject) -> None:
    root: JsonObject = {
        **_document(parameters=[_parameter("q", schema=schema)]),
        "components": {"schemas": {"Fixed": {"allOf": [_OBJECT]}}},
    }
    with pytest.raises(ConnectorFault, match="has no 'admin'"):
        build_request(_only(root), BASE, {"q": {"admin": True}})


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "ü"])
def test_a_header_cannot_hold_line_ends(value: str) -> None:
    operation = _only(_document(parameters=[_parameter("X-Trace", "header")]))
    with pytest.raises(ConnectorFault, match="sent as a header"):
        build_request(operation, BASE, {"X-Trace": value})
    assert build_request(operation, BASE, {"X-Trace": ["a", "b"]}).headers == {"X-Trace": "a,b"}


@pytest.mark.parametrize(
    ("content", "value", "kind", "body"),
    [
        ({"text/plain": {}, "application/json": {}}, {"a": 1}, "application/json", b'{"a":1}'),
        ({"application/merge-patch+json": {}}, [1], "application/merge-patch+json", b"[1]"),
        ({"text/plain": {}}, "hé", "text/plain", "hé".encode()),
        (
            {"application/x-www-form-urlencoded": {"encoding": {"b": {"style": "form"}, "c": {"style": "deepObject"}}}},
            {"a": "x y", "b": [1, 2], "c": {"d": 3}},
            "application/x-www-form-urlencoded",
            b"a=x+y&b=1&b=2&c%5Bd%5D=3",
        ),
        ({"*/*": {}}, 1, "application/json", b"1"),
    ],
)
def test_bodies_have_the_best_type_of_the_document(
    content: JsonObject, value: JsonValue, kind: str, body: bytes
) -> None:
    operation = _only(_document(method="post", requestBody={"content": content}))
    request = build_request(operation, BASE, {"body": value})
    assert (request.headers["Content-Type"], request.body) == (kind, body)


def test_a_form_must_be_an_object() -> None:
    content: JsonObject = {"application/x-www-form-urlencoded": {}}
    operation = _only(_document(method="post", requestBody={"content": content}))
    with pytest.raises(ConnectorFault, match="must be an object"):
        build_request(operation, BASE, {"body": [1]})


# -- schemas ----------------------------------------------------------------------------------


def _check(schema: JsonValue, value: JsonValue, **components: JsonValue) -> list[str]:
    body: JsonObject = {"required": True, "content": {"application/json": {"schema": schema}}}
    root: JsonObject = {**_document(method="post", requestBody=body), "components": {"schemas": components}}
    return ArgumentChecker(build_arguments_schema(root, _only(root))).problems({"body": value})


SCHEMAS: list[tuple[JsonValue, JsonValue, object]] = [
    ({"type": "string", "nullable": True, "enum": ["a"]}, None, "b"),
    ({"allOf": [{"type": "string"}], "nullable": True}, None, 1),
    ({"type": ["integer", "null"]}, None, "b"),
    ({"type": "number", "minimum": 3, "exclusiveMinimum": True}, 4, 3),
    ({"type": "number", "exclusiveMaximum": 3}, 2, 3),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 3, "x"),
    ({"oneOf": [{"type": "integer"}], "anyOf": [{"minimum": 2}]}, 3, 1),
    ({"type": "array", "items": {"type": "integer"}}, [1], ["x"]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": "x"}),
    ({"$ref": "#/components/schemas/Tree"}, {"kids": [{"kids": []}]}, {"kids": [{"kids": 1}]}),
    ({"type": "object", "properties": {"id": {"readOnly": True}}, "required": ["id", "a"]}, {"a": 1}, {}),
    ({"type": "wrong"}, "anything", ...),
    ({"type": "string", "pattern": "(a+)+$"}, "a" * 40 + "!", 1),
    (True, 1, ...),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), SCHEMAS)
def test_schemas_accept_and_refuse_what_the_document_says(schema: JsonValue, right: JsonValue, wrong: object) -> None:
    tree: JsonObject = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}}},
    }
    assert _check(schema, right, Tree=tree) == []
    if wrong is not ...:
        assert _check(schema, wrong, Tree=tree) != []  # pyright: ignore[reportArgumentType] — JSON, from the table


def test_two_definitions_of_one_name_stay_apart() -> None:
    root: JsonObject = {
        **_document(parameters=[
            {"name": "a", "in": "query", "schema": {"$ref": "#/components/schemas/X"}},
            {"name": "b", "in": "query", "schema": {"$ref": "#/other/X"}},
        ]),
        "components": {"schemas": {"X": {"type": "string"}}},
        "other": {"X": {"type": "integer"}},
    }  # fmt: skip
    schema = build_arguments_schema(root, _only(root))
    assert schema["$defs"] == {"X": {"type": "string"}, "X-2": {"type": "integer"}}


def test_a_schema_that_leads_out_of_the_document_is_an_error() -> None:
    with pytest.raises(DocumentFault, match="out of the document"):
        _check({"$ref": "https://evil.example/schema.json"}, 1)


def test_a_long_schema_is_abbreviated_to_what_a_call_needs() -> None:
    fields: JsonObject = {f"field{n}": {"type": "string", "description": "x" * 500} for n in range(40)}
    schema: JsonObject = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "body": {"$ref": "#/$defs/Body"}},
        "required": ["id"],
        "$defs": {"Body": {"type": "object", "properties": fields, "required": ["field7"]}},
    }
    assert abbreviate_schema(schema, 100_000) == (schema, False)
    short, is_short = abbreviate_schema(schema, 4_000)
    body = short["properties"]
    assert is_short
    assert is_json_object(body)
    assert is_json_object(body["body"])
    assert body["body"]["required"] == ["field7"]
    tiny, _ = abbreviate_schema(schema, 120)
    assert tiny == {"type": "object", "properties": {"id": {"type": "string"}, "body": {}}, "required": ["id"]}
