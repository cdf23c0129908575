"""References to secrets outside of rows: connectors, models, announcements, brokers and keys of a cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest
from anyio import to_thread

from indusagi.core.secrets import SecretText, hide_secrets
from indusagi.interop.auth.secrets import SecretFault, SecretFiles
from induscode.cluster.contract import CREDENTIALS_VARIABLE, hide_password, read_credentials
from induscode.cluster.key import ClusterKey, read_any_key
from induscode.cluster.opening import find_key_file, read_brokers
from induscode.commands.secrets import find_uses
from induscode.connectors.auth import OAuthReference, check_values, find_unset, parse_auth, parse_stored_auth
from induscode.connectors.openapi import ConnectorFault
from induscode.conversations.models import NoModelError, choose_model
from induscode.gateway.approvals.announce import announce
from induscode.gateway.approvals.store import Approval
from induscode.gateway.view_box import read_view_tokens
from induscode.launch.invocation import Invocation
from induscode.launch.settings import APPROVALS_NOTIFY, CLUSTER_KEY_FILE, SERVE_VIEWS, load_settings, user_settings_path

VALUE = "a-value-of-the-store"
REFERENCE = "${keyring:stored}"


@pytest.fixture(autouse=True)
def _stored() -> None:
    SecretFiles().set("stored", VALUE)


def write_settings(**values: object) -> None:
    path = Path(user_settings_path(os.environ))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(values), "utf-8")


# -- connectors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"bearer:{REFERENCE}",
        f"header:X-Key:{REFERENCE}",
        f"basic:USER:{REFERENCE}",
        "query:k:${cmd:op read op://a/b}",
        "basic:${cmd:a:b}:${file:/x:y}",
    ],
)
def test_a_connector_is_stored_with_its_references(text: str) -> None:
    auth = parse_auth(text)
    assert str(auth) == text
    assert parse_stored_auth(str(auth)) == auth
    assert find_unset(auth.variables, {}) == [name for name in auth.variables if name == "USER"]


@pytest.mark.anyio
async def test_a_connector_sends_the_value_of_a_reference_and_hides_it() -> None:
    credentials = await parse_auth(f"basic:USER:{REFERENCE}").find_credentials({"USER": "ada"})
    assert credentials.hide_text(f"<{VALUE}>") == f"<[{REFERENCE}]>"
    assert VALUE not in repr(credentials)
    with pytest.raises(ConnectorFault, match="no secret 'gone' is stored"):
        await parse_auth("bearer:${keyring:gone}").find_credentials({})


def test_a_connector_refers_to_files_by_their_full_path() -> None:
    assert parse_auth("bearer:${file:~/token}").variables == ("${file:~/token}",)
    with pytest.raises(ConnectorFault, match="full path"):
        parse_auth("bearer:${file:token}")


def test_the_secret_of_a_connectors_client_stays_a_reference_until_a_request() -> None:
    reference = OAuthReference(scheme="s", client_id="c", secret_variable=REFERENCE)
    check_values(reference.variables, {})
    secret = reference.build_settings({}).client_secret
    assert isinstance(secret, SecretText)
    assert secret == REFERENCE


# -- models -----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_key_of_a_model_is_a_stored_secret_or_a_reference() -> None:
    asked = Invocation(cwd=".", model="anthropic:m")
    with pytest.raises(NoModelError, match="needs a key"):
        await choose_model(asked, {})
    assert (await choose_model(asked, {"ANTHROPIC_API_KEY": REFERENCE})).api_key == VALUE
    await to_thread.run_sync(SecretFiles().set, "ANTHROPIC_API_KEY", "the-key-of-the-store")
    assert (await choose_model(asked, {})).api_key == "the-key-of-the-store"
    assert (await choose_model(asked, {"ANTHROPIC_API_KEY": "mine"})).api_key == "mine"
    with pytest.raises(NoModelError, match="no secret 'gone' is stored"):
        await choose_model(asked, {"ANTHROPIC_API_KEY": "${keyring:gone}"})


# -- announcements ----------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.anyio
async def test_a_command_that_announces_gets_the_value(tmp_path: Path) -> None:
    out = tmp_path / "out"
    await to_thread.run_sync(
        lambda: write_settings(**{"approvals.notify": ["sh", "-c", f'echo "$0" >{out}', REFERENCE]})
    )
    settings = await to_thread.run_sync(load_settings, str(tmp_path), os.environ)
    target = settings.get(APPROVALS_NOTIFY)
    assert REFERENCE in repr(target)
    approval = Approval(id="01A", digest="d", tool="t", title="t", lines=(), asked_ms=1, expires_ms=2)
    assert await announce(approval, target) is None
    assert out.read_text("utf-8") == f"{VALUE}\n"
    await to_thread.run_sync(SecretFiles().remove, "stored")
    note = await announce(approval, target)
    assert note is not None
    assert "no secret 'stored' is stored" in note.message


# -- gateways ---------------------------------------------------------------------------------


def test_the_token_of_a_view_may_be_a_reference_and_every_use_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = {"phone": {"token_env": REFERENCE}, "desk": {"token_env": "DESK"}}
    write_settings(**{"serve.views": views, "cluster.brokers": [f"nats://u:{REFERENCE}@b.example"]})
    monkeypatch.setenv(CREDENTIALS_VARIABLE, REFERENCE)
    settings = load_settings(str(tmp_path), os.environ)
    tokens = read_view_tokens(settings.get(SERVE_VIEWS), {"DESK": "a-token"})
    assert tokens == {VALUE: "phone", "a-token": "desk"}
    uses = find_uses(Invocation(cwd=str(tmp_path), settings=settings))
    assert sorted(use.place for use in uses if use.reference.name == "stored") == [
        "setting cluster.brokers",
        "setting serve.views",
        f"variable {CREDENTIALS_VARIABLE}",
    ]


# -- clusters ---------------------------------------------------------------------------------


def test_brokers_and_credentials_may_be_references(monkeypatch: pytest.MonkeyPatch) -> None:
    (address,) = read_brokers([f"nats://indus:{REFERENCE}@broker.example:4222"])
    assert address == f"nats://indus:{VALUE}@broker.example:4222"
    assert hide_password(address) == "nats://broker.example:4222"
    assert VALUE not in hide_secrets(f"cannot reach {VALUE}")
    assert read_credentials(REFERENCE) == VALUE
    monkeypatch.setenv(CREDENTIALS_VARIABLE, REFERENCE)
    assert read_credentials(None) == VALUE
    for ask in (lambda: read_brokers(["nats://u:${keyring:gone}@b"]), lambda: read_credentials("${keyring:gone}")):
        with pytest.raises(SecretFault, match="no secret 'gone' is stored"):
            ask()


def test_the_key_of_a_cluster_may_be_a_reference_where_it_is_only_read(tmp_path: Path) -> None:
    key = ClusterKey(b"k" * 32)
    SecretFiles().set("cluster", key.encode().decode())
    write_settings(**{"cluster.key_file": "${keyring:cluster}"})
    settings = load_settings(str(tmp_path), os.environ)
    assert settings.get(CLUSTER_KEY_FILE) == "${keyring:cluster}"
    found = read_any_key(find_key_file(settings))
    assert isinstance(found, ClusterKey)
    assert found.encode() == key.encode()
    with pytest.raises(click.UsageError, match="the key has to be written"):
        find_key_file(settings, is_written=True)
    with pytest.raises(SecretFault, match="no secret 'gone' is stored"):
        read_any_key(find_key_file(settings, "${keyring:gone}"))
