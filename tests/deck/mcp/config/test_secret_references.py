"""References to secrets in rows: every dialect keeps them until a start, and consent names each one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from indusagi.core.json import compact_json
from indusagi.core.secrets import SecretText
from indusagi.interop import StdioServerConfig, StreamableHttpServerConfig
from indusagi.interop.auth import secrets
from induscode.boot.plans import plan_servers
from induscode.launch.invocation import Invocation
from induscode.servers.config import parse_given_rows, server_config_from_row
from induscode.servers.config.dialects import DIALECTS, UnresolvedVariableError
from induscode.servers.config.rows import Origin, ServerRow, parse_row
from induscode.servers.config.trust import TrustStore, describe_row, server_identity
from induscode.servers.plan import build_config_facts, build_reference_facts

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject
    from induscode.servers.config.rows import Scope

KEYRING, FILE, CMD = "${keyring:gh}", "${file:~/token}", "${cmd:op read op://v/i/f --token abcdef}"
URL = "https://mcp.example/mcp"


def row_of(fields: dict[str, Any], dialect: str = "indus", scope: Scope = "project") -> ServerRow:
    return parse_row("s", fields, Origin("/p/.mcp.json", scope, dialect), expansion=DIALECTS[dialect].expansion)


@pytest.fixture(autouse=True)
def _nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> str:
        raise AssertionError("a secret was read")

    monkeypatch.setattr(secrets, "_READERS", dict.fromkeys(("keyring", "file", "cmd"), fail))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("written", [KEYRING, FILE, CMD, f"Bearer {KEYRING}"])
def test_every_dialect_keeps_references_in_every_value(dialect: str, written: str) -> None:
    process = row_of({"command": "x", "args": [written], "env": {"A": written}}, dialect).resolve({})
    assert isinstance(process, StdioServerConfig)
    web = {"url": f"{URL}?k={written}", "headers": {"A": written}, "proxy": f"http://u:{written}@p:1"}
    remote = row_of(web, dialect).resolve({})
    assert isinstance(remote, StreamableHttpServerConfig)
    assert (remote.url, remote.proxy) == (web["url"], web["proxy"])
    for text in (*process.args, process.env["A"], remote.url, remote.headers["A"], remote.proxy):
        assert isinstance(text, SecretText)
        assert written in text


def test_rows_of_an_editor_or_a_program_have_no_references() -> None:
    """An editor may hand on the servers of a project that nobody has agreed to."""
    fields: JsonObject = {"url": URL, "headers": {"A": KEYRING, "B": CMD}}
    (row,), _ = parse_given_rows({"s": fields}, "the editor")
    for config in (row.resolve({}), server_config_from_row({"name": "s", **fields})):
        assert isinstance(config, StreamableHttpServerConfig)
        assert [type(text) for text in config.headers.values()] == [str, str]


def test_a_variable_next_to_a_reference_is_expanded_and_never_becomes_one() -> None:
    fields = {"command": "x", "env": {"A": "${X}", "B": f"${{X}} {KEYRING}"}}
    config = row_of(fields).resolve({"X": "${keyring:other}"})
    assert isinstance(config, StdioServerConfig)
    assert type(config.env["A"]) is str
    assert isinstance(config.env["B"], SecretText)
    assert [reference.name for reference in config.env["B"].references] == ["gh"]


def test_sign_in_settings_keep_references_in_secrets_only() -> None:
    auth = {"client_id": "me", "client_secret": KEYRING, "private_key": FILE, "assertion": CMD}
    config = row_of({"url": URL, "auth": auth}).resolve({})
    assert isinstance(config, StreamableHttpServerConfig)
    assert config.auth is not None
    settings = config.auth.settings
    assert all(isinstance(text, SecretText) for text in (settings.client_secret, settings.private_key))
    for field in ("client_id", "issuer", "header_command", "scopes"):
        value = [KEYRING] if field in {"header_command", "scopes"} else KEYRING
        with pytest.raises(UnresolvedVariableError, match="can't choose"):
            row_of({"url": URL, "auth": {field: value}}).resolve({})


@pytest.mark.parametrize(
    "fields",
    [
        {"command": KEYRING},
        {"command": "x", "cwd": CMD},
        {"url": FILE},
        {"url": f"https://{KEYRING}/mcp"},
        {"url": f"https://mcp.example{KEYRING}"},
        {"url": f"https://mcp.example:{KEYRING}/"},
        {"url": f"{KEYRING}://mcp.example/"},
    ],
)
def test_a_reference_decides_neither_the_program_nor_the_host(fields: dict[str, Any]) -> None:
    with pytest.raises(UnresolvedVariableError, match="can't choose the program or the host"):
        row_of(fields).resolve({})


def test_an_argument_is_no_file_of_the_project() -> None:
    """Consent covers the text of the row, and the project can change the file afterwards."""
    fields = {"command": "sh", "args": ["-c", "${file:script}"]}
    with pytest.raises(UnresolvedVariableError, match=r"a file of the project: \$\{file:script\}"):
        row_of(fields).resolve({})
    assert row_of(fields, scope="user").resolve({})


def test_consent_names_each_secret_and_command_and_shows_all_of_them() -> None:
    process = describe_row(row_of({"command": "npx", "args": [FILE], "env": {"GH": KEYRING, "OP": CMD}}))
    assert process.warnings == (
        'Your file "~/token" is read: the program "npx" gets its value, in argument 1. '
        "Other users see it in the process list.",
        'Your secret "gh" is read: the program "npx" gets its value, in variable "GH".',
        'The command "op read op://v/i/f --token abcdef" runs on this machine with all your rights: '
        'the program "npx" gets its output, in variable "OP".',
    )
    assert f'variable: "OP" "{CMD}"' in process.lines
    web = describe_row(row_of({"url": f"{URL}?key={KEYRING}", "headers": {"Authorization": f"Bearer {CMD}"}}))
    assert f'address: "{URL}?key={KEYRING}"' in web.lines
    assert f'header: "Authorization" "Bearer {CMD}"' in web.lines
    assert len(web.warnings) == 2


def test_what_is_shown_and_digested_holds_references_alone() -> None:
    row = row_of({"command": "npx", "args": [KEYRING], "env": {"OP": CMD}})
    facts = compact_json([build_config_facts(row), build_reference_facts(row)])
    assert KEYRING in facts
    assert CMD in facts
    assert server_identity(row.resolve({})) == server_identity(row.config)


def test_another_secret_after_the_yes_needs_another_yes(tmp_path: Path) -> None:
    path = tmp_path / ".mcp.json"

    def write(**env: str) -> ServerRow:
        path.write_text(json.dumps({"mcpServers": {"s": {"command": "x", "env": env}}}), "utf-8")
        return plan_servers(Invocation(cwd=str(tmp_path))).rows[0]

    row, store = write(A=KEYRING), TrustStore()
    store.approve(row, store.question(row).digest)
    plan = plan_servers(Invocation(cwd=str(tmp_path)))
    assert plan.state_of(row) == "startable"
    for env in ({"A": "${keyring:other}"}, {"A": KEYRING, "B": "${keyring:other}"}, {"A": CMD}, {"B": KEYRING}):
        changed = write(**env)
        plan = plan_servers(Invocation(cwd=str(tmp_path)))
        assert plan.state_of(changed) == "changed"
        assert plan.configs == {}
