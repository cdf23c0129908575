"""OAuth schemes of OpenAPI documents: which are used, where they lead, and what operations need."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from induscode.connectors.auth import OAuthReference, choose_scheme, is_public, list_alternatives, parse_scopes
from induscode.connectors.openapi import ConnectorFault
from induscode.connectors.operations import list_operations
from induscode.connectors.sources import compare_rows, examine_source
from induscode.connectors.store import ConnectorStore

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.connectors.store import ConnectorRow

BASE = "https://api.example/v1"
CODE: JsonObject = {"authorizationUrl": "https://as.example/authorize", "tokenUrl": "https://as.example/token"}
PERSON = OAuthReference(scheme="", client_id="mine")
MACHINE = OAuthReference(scheme="", client_id="mine", secret_variable="SECRET", grant="client_credentials")


def build_document(**schemes: JsonValue) -> JsonObject:
    return {
        "openapi": "3.0.3",
        "servers": [{"url": BASE}],
        "paths": {"/notes": {"get": {"operationId": "list", "security": [{"login": ["read"]}]}}},
        "components": {"securitySchemes": schemes},
    }


def oauth2(**flows: JsonValue) -> JsonObject:
    return {"type": "oauth2", "flows": flows}


def examine(document: JsonObject, reference: OAuthReference) -> ConnectorRow:
    return examine_source("notes", "notes.json", json.dumps(document).encode(), None, reference).row


def test_endpoints_are_those_of_the_flow_and_relative_ones_belong_to_the_base_url() -> None:
    flow: JsonObject = {"authorizationUrl": "https://as.example/authorize", "tokenUrl": "token", "refreshUrl": "/renew"}
    device: JsonObject = {"deviceAuthorizationUrl": "https://as.example/device", "tokenUrl": "token"}
    scheme = choose_scheme(
        build_document(login=oauth2(authorizationCode=flow, deviceAuthorization=device)), BASE, PERSON
    )
    issuer = scheme.issuers["authorization_code"]
    assert issuer.token_endpoint == "https://api.example/v1/token"
    assert issuer.refresh_endpoint == "https://api.example/renew"
    assert issuer.device_endpoint == "https://as.example/device"
    assert scheme.list_addresses("authorization_code") == (
        "https://as.example/authorize, https://as.example/device, https://api.example/v1/token, https://api.example/renew"
    )


@pytest.mark.parametrize(
    ("schemes", "reference", "problem"),
    [
        ({}, PERSON, "no usable scheme oauth2 or openIdConnect"),
        ({"key": {"type": "apiKey", "name": "k", "in": "header"}}, PERSON, "no usable scheme"),
        ({"login": oauth2(implicit={}, password={})}, PERSON, "its flows are implicit, password"),
        ({"login": oauth2(authorizationCode={**CODE, "tokenUrl": "http://as.example/token"})}, PERSON, "no https"),
        ({"login": oauth2(authorizationCode={**CODE, "authorizationUrl": "javascript:1"})}, PERSON, "no https"),
        ({"login": oauth2(authorizationCode={**CODE, "tokenUrl": "http://["})}, PERSON, "no https"),
        ({"login": oauth2(authorizationCode={"tokenUrl": 7})}, PERSON, "its tokenUrl is no https address"),
        ({"login": {"type": "openIdConnect"}}, PERSON, "its openIdConnectUrl is no https address"),
        ({"login": {"$ref": "#/components/securitySchemes/login"}}, PERSON, "lead in a circle"),
        ({"a": oauth2(authorizationCode=CODE), "b": oauth2(authorizationCode=CODE)}, PERSON, r"oauth:NAME \(a, b\)"),
        ({"login": oauth2(clientCredentials=CODE)}, PERSON, "use --grant client_credentials"),
        ({"login": oauth2(authorizationCode=CODE)}, MACHINE, "no flow clientCredentials: use --grant authorization_c"),
        ({"login": oauth2(authorizationCode=CODE)}, OAuthReference(scheme=""), "give its --client-id"),
        ({"login": oauth2(authorizationCode=CODE)}, OAuthReference(scheme="other"), "no usable OAuth scheme 'other'"),
        (
            {"login": oauth2(clientCredentials=CODE)},
            OAuthReference(scheme="", client_id="mine", grant="client_credentials"),
            "--client-secret VARIABLE",
        ),
    ],
)
def test_a_scheme_that_cannot_be_used_says_why(schemes: JsonObject, reference: OAuthReference, problem: str) -> None:
    with pytest.raises(ConnectorFault, match=problem):
        choose_scheme(build_document(**schemes), BASE, reference)


def test_openid_connect_registers_its_client_by_itself() -> None:
    url = "https://as.example/.well-known/openid-configuration"
    document = build_document(login={"type": "openIdConnect", "openIdConnectUrl": url})
    row = examine(document, OAuthReference(scheme=""))
    assert row.sign_in_at == url
    assert row.oauth is not None
    assert row.oauth.build_settings({}, url).metadata_url == url


def test_a_base_url_without_encryption_gets_no_token() -> None:
    servers: JsonValue = [{"url": "http://api.example"}]
    document: JsonObject = {**build_document(login=oauth2(authorizationCode=CODE)), "servers": servers}
    with pytest.raises(ConnectorFault, match="not encrypted: no token is sent there"):
        examine(document, PERSON)


SECURITIES: list[tuple[JsonValue, tuple[tuple[str, ...], ...], bool]] = [
    (None, (), False),
    ([], (), True),
    ([{}], (), True),
    ([{"login": ["a", "b"]}, {"login": ["c"]}], (("a", "b"), ("c",)), False),
    ([{"login": ["a"]}, {}], (("a",),), True),
    ([{"key": []}], (), False),
    ([{"login": []}], ((),), False),
    ([{"login": ['bad"scope', "a b", "", 7, "ok"]}], (("ok",),), False),
    ("nonsense", (), False),
]


@pytest.mark.parametrize(("security", "alternatives", "public"), SECURITIES)
def test_scopes_of_an_operation(security: JsonValue, alternatives: tuple[tuple[str, ...], ...], public: bool) -> None:
    assert list_alternatives(security, "login") == alternatives
    assert is_public(security) is public


def test_the_security_of_the_document_holds_for_operations_without_their_own() -> None:
    security: JsonValue = [{"login": ["basic"]}]
    paths: JsonValue = {"/notes": {"get": {"security": [{"login": ["read"]}]}, "post": {}}}
    document: JsonObject = {**build_document(), "security": security, "paths": paths}
    operations, _ = list_operations(document, "notes", BASE, "f", scheme="login")
    assert [spec.scopes for spec in operations] == [(("read",),), (("basic",),)]
    plain, _ = list_operations(document, "notes", BASE, "f")
    assert [spec.scopes for spec in plain] == [(), ()]


def test_scopes_of_a_person_are_checked() -> None:
    assert parse_scopes("read, write read") == ("read", "write")
    with pytest.raises(ConnectorFault, match="is no scope"):
        parse_scopes('re"ad')


def test_a_reference_is_stored_and_read_again(tmp_path: Path) -> None:
    document = build_document(login=oauth2(clientCredentials=CODE))
    reference = OAuthReference(
        scheme="login",
        grant="client_credentials",
        client_id="mine",
        secret_variable="SECRET",
        auth_method="client_secret_post",
        scopes=("read",),
    )
    row = examine(document, reference)
    ConnectorStore(str(tmp_path)).add(row, document)
    assert ConnectorStore(str(tmp_path)).read() == ({"notes": row}, False)


@pytest.mark.parametrize(
    ("flow", "security", "change"),
    [
        ({"tokenUrl": "https://evil.example/token"}, None, "its sign-in moves to .*https://evil.example/token"),
        ({}, [{"login": ["admin"]}], r"1 changed \(NOTES_LIST\)"),
    ],
)
def test_another_token_address_or_scope_needs_an_approval(flow: JsonObject, security: JsonValue, change: str) -> None:
    approved = build_document(login=oauth2(authorizationCode=CODE))
    present = build_document(login=oauth2(authorizationCode={**CODE, **flow}))
    if security is not None:
        paths: JsonValue = {"/notes": {"get": {"operationId": "list", "security": security}}}
        present = {**present, "paths": paths}
    difference = compare_rows(examine(approved, PERSON), examine(present, PERSON))
    assert re.search(change, str(difference))
    assert compare_rows(examine(approved, PERSON), examine(approved, PERSON)) is None
