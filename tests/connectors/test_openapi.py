"""OpenAPI documents: what is accepted, what is refused, and where references lead."""

from __future__ import annotations

import json
import sys

import pytest

from induscode.connectors.openapi import DocumentFault, find_pointer, find_server_url, parse_document, resolve_object

YAML = b"""\
openapi: 3.1.0
info: {title: Dates, version: 2020-01-01}
paths:
  /days:
    get:
      responses:
        200: {description: ok}
        default: {description: on}
"""


def test_yaml_gives_what_json_would() -> None:
    document = parse_document(YAML)
    assert document["info"] == {"title": "Dates", "version": "2020-01-01"}
    assert json.dumps(document).count('"200"') == 1


def test_without_a_parser_yaml_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(DocumentFault, match=r"pip install 'indus-deck\[connectors\]'"):
        parse_document(YAML)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"swagger": "2.0"}', "Swagger 2.0"),
        (b'{"openapi": "3.2.0", "paths": {}}', "no OpenAPI document of version 3.0 or 3.1"),
        (b'{"openapi": "3.0.0", "paths": []}', "paths of the document are no object"),
        (b"[1]", "is no object"),
        (b'{"openapi": NaN}', "no JSON"),
        (b'{"openapi": ', "no JSON"),
        (b"openapi: [3.0", "neither JSON nor YAML"),
        (b"!!python/object/apply:os.system [true]", "neither JSON nor YAML"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 300 + b"]" * 300, "nested too deeply"),
        (b"a: &a [*a]", "nested too deeply"),
        (b"a: " + b"[" * 100_000, "nested too deeply"),
        (b"- " * 50_000, "nested too deeply"),
    ],
)
def test_other_documents_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(DocumentFault, match=message):
        parse_document(data)


def test_aliases_of_yaml_cannot_multiply_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("induscode.connectors.openapi._MAX_VALUES", 10_000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(DocumentFault, match="too many values"):
        parse_document("\n".join(lines).encode())


def test_references_stay_in_the_document() -> None:
    root = parse_document(b'{"openapi": "3.0.0", "a/b": [{"x": 1}], "c": {"$ref": "#/c"}, "d": {"$ref": "#/a~1b/0"}}')
    assert find_pointer(root, "#/a~1b/0/x") == 1
    assert resolve_object(root, root["d"]) == {"x": 1}
    for reference, message in (("other.json#/x", "out of the document"), ("#/a~1b/7", "leads to nothing")):
        with pytest.raises(DocumentFault, match=message):
            find_pointer(root, reference)
    with pytest.raises(DocumentFault, match="in a circle"):
        resolve_object(root, root["c"])


@pytest.mark.parametrize(
    ("servers", "source", "expected"),
    [
        ('[{"url": "https://{region}.example/v1/", "variables": {"region": {"default": "eu"}}}]', "/f", "https://eu.example/v1"),
        ('[{"url": "https://{region}.example"}]', "/f", None),
        ('[{"url": "/v2"}]', "https://docs.example/openapi.json", "https://docs.example/v2"),
        ('[{"url": "/v2"}]', "/home/openapi.json", None),
        ("[]", "/f", None),
        ('[{"url": "http://["}]', "/f", None),
        ('[{"url": "//["}]', "https://docs.example/openapi.json", None),
    ],
)  # fmt: skip
def test_the_base_url_is_that_of_the_first_server(servers: str, source: str, expected: str | None) -> None:
    root = parse_document(f'{{"openapi": "3.0.0", "servers": {servers}}}'.encode())
    assert find_server_url(root, source) == expected
