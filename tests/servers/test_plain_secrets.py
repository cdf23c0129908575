"""Secrets in plain text: which values are, in every client's file, and what moves them into the store."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import configured, servers_of, told, typed, user_file
from tests.support.scripts import run

from indusagi.core.secrets import is_plain_secret
from indusagi.interop.auth.secrets import SecretFiles
from induscode.servers.clients import PROGRAMS
from induscode.servers.plain_secrets import find_plain_rows, find_plain_secrets, plan_move

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

TOKEN = "tok-0123456789"
ROW: JsonObject = {
    "command": "npx",
    "args": ["-y", "x", f"--api-key={TOKEN}", "--header", f"Authorization: Bearer {TOKEN}", "--port", "80"],
    "env": {"API_TOKEN": TOKEN, "LOG": "debug", "MAX_TOKENS": "4096", "DB": "postgres://app:hunter2@db/x"},
}
WEB: JsonObject = {
    "url": f"https://ada:hunter2@h.example/mcp?api_key={TOKEN}&page=2",
    "headers": {"Authorization": f"Bearer {TOKEN}", "X-Team": "blue"},
    "auth": {"client_id": "me", "clientSecret": "words of mine"},
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("API_KEY", TOKEN), ("PASSWORD", "hunter2"), ("X-Token", "Zm9vYmFy1234"), ("DB", "mysql://a:b4dpass@h/x")],
        ("NOTE", "ghp_0123456789abcdefghij0123"),
    ],
)
def test_a_value_is_a_secret_by_its_name_or_shape(name: str, value: str) -> None:
    assert is_plain_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("MAX_TOKENS", "4096"), ("API_KEY", "<your key>"), ("API_KEY", "YOUR_API_KEY"), ("TOKEN", "xxxx")],
        *[("KEY_FILE", "/home/ada/key.pem"), ("AUTH_URL", "https://issuer.example"), ("AUTH", "oauth2")],
        *[("API_KEY", ""), ("SORT_KEY", "created_at"), ("HOME", "ada-0123456789"), ("PASSWORD", "changeme")],
    ],
)
def test_numbers_paths_addresses_words_and_placeholders_are_no_secrets(name: str, value: str) -> None:
    assert not is_plain_secret(name, value)


def test_the_secrets_of_a_row_become_references_and_the_rest_stays() -> None:
    move = plan_move("gh", ROW, {"gh.API_TOKEN"})
    assert move is not None
    assert [*move.describe()] == [
        "gh: env.API_TOKEN: … becomes ${keyring:gh.API_TOKEN-2}",
        "gh: env.DB: … becomes ${keyring:gh.DB}",
        "gh: args[2]: … becomes ${keyring:gh.api-key}",
        "gh: args[4]: … becomes ${keyring:gh.argument-5}",
    ]
    row = move.build_row()
    assert row["args"] == [
        "-y",
        "x",
        "--api-key=${keyring:gh.api-key}",
        "--header",
        "${keyring:gh.argument-5}",
        "--port",
        "80",
    ]
    assert row["env"] == {
        "API_TOKEN": "${keyring:gh.API_TOKEN-2}",
        "LOG": "debug",
        "MAX_TOKENS": "4096",
        "DB": "${keyring:gh.DB}",
    }
    again = plan_move("gh", ROW, {"gh.API_TOKEN"}, {"env": {"API_TOKEN": "${keyring:gh.API_TOKEN}"}})
    assert again is not None
    assert again.names[0] == "gh.API_TOKEN"
    assert plan_move("gh", row, ()) is None
    web = plan_move("web", WEB, ())
    assert web is not None
    assert web.build_row() == {
        "url": "https://ada:${keyring:web.password}@h.example/mcp?api_key=${keyring:web.api_key}&page=2",
        "headers": {"Authorization": "Bearer ${keyring:web.Authorization}", "X-Team": "blue"},
        "auth": {"client_id": "me", "clientSecret": "${keyring:web.clientSecret}"},
    }
    assert TOKEN not in repr(web)
    assert find_plain_secrets({"headers": {"Authorization": "Bearer ${env:X}abc12345"}}, "editor") == []


def test_plain_secrets_are_found_in_every_clients_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = Path(os.environ["HOME"])
    files: dict[str, tuple[str, Any]] = {
        "claude-desktop": (".config/Claude/claude_desktop_config.json", {"mcpServers": {"s": ROW}}),
        "claude-code": (".claude.json", {"projects": {"/p": {"mcpServers": {"s": WEB}}}}),
        "vscode": (".config/Code/User/mcp.json", {"servers": {"s": ROW}}),
        "cursor": (".cursor/mcp.json", {"mcpServers": {"s": WEB}}),
        "codex": (".codex/config.toml", f'[mcp_servers.s]\ncommand = "npx"\nenv = {{ API_TOKEN = "{TOKEN}" }}\n'),
        "gemini": (".gemini/settings.json", {"mcpServers": {"s": {"httpUrl": WEB["url"]}}}),
        "opencode": (".config/opencode/opencode.json", {"mcp": {"s": {"command": ["x", f"--token={TOKEN}"]}}}),
        "windsurf": (".codeium/windsurf/mcp_config.json", {"mcpServers": {"s": {"serverUrl": WEB["url"]}}}),
        "zed": (".config/zed/settings.json", {"context_servers": {"s": ROW}}),
        "qwen": (".qwen/settings.json", {"mcpServers": {"s": ROW}}),
        "amp": (".config/amp/settings.json", {"amp.mcpServers": {"s": ROW}}),
        "copilot": (".copilot/mcp-config.json", {"mcpServers": {"s": ROW}}),
        "cline": (".cline/data/settings/cline_mcp_settings.json", {"mcpServers": {"s": ROW}}),
    }
    for name, content in files.values():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    configured(user_file(), {"s": ROW})
    found = {row.program: row for row in find_plain_rows(str(tmp_path), os.environ)}
    assert sorted(found) == sorted({*PROGRAMS, "indus"})
    assert found["indus"].remedy == "indus secrets move s"
    assert found["windsurf"].places == ("url (password)", "url (api_key)")
    assert found["zed"].remedy.startswith("indus mcp import --from zed --store-secrets")
    assert TOKEN not in repr(found)


@pytest.mark.process
def test_doctor_names_the_file_server_and_place_and_never_the_value(tmp_path: Path) -> None:
    path = Path(os.environ["HOME"]) / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"mcpServers": {"a\u202eb": ROW}}), "utf-8")
    done = run("mcp", "doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert (
        f"{path}: server 'a\\u202eb' has secrets in plain text: env.API_TOKEN, env.DB, args[2], args[4]" in done.stdout
    )
    assert "Fix: indus mcp import --from cursor --store-secrets" in done.stdout
    (plain,) = told("mcp", "doctor", "--json", cwd=tmp_path)["plainSecrets"]
    assert (plain["program"], plain["places"][0]) == ("cursor", "env.API_TOKEN")
    assert TOKEN not in done.stdout + done.stderr + json.dumps(plain)


@pytest.mark.process
def test_add_offers_to_store_a_secret_and_says_so_where_nobody_can_answer(tmp_path: Path) -> None:
    words = ("--no-check", "-e", f"API_TOKEN={TOKEN}", "--", "sh")
    piped = run("mcp", "add", "piped", *words, cwd=tmp_path)
    assert "looks like a secret: env.API_TOKEN. To keep it apart: indus secrets move piped" in piped.stderr
    assert run("mcp", "add", "plain", "--keep-plain", *words, cwd=tmp_path).stderr == ""
    assert "Stored: flag.API_TOKEN" in run("mcp", "add", "flag", "--store-secrets", *words, cwd=tmp_path).stdout
    shown = typed("y\n", "mcp", "add", "yes", *words, cwd=tmp_path).stdout
    assert "yes: env.API_TOKEN: … becomes ${keyring:yes.API_TOKEN}" in shown
    assert "Store them apart" in typed("n\n", "mcp", "add", "no", *words, cwd=tmp_path).stdout
    again = run("mcp", "add", "flag", "--store-secrets", *words, cwd=tmp_path)
    assert "give another name" in again.stderr
    rows = servers_of(user_file())
    assert {name: row["env"]["API_TOKEN"] for name, row in rows.items()} == {
        **dict.fromkeys(("piped", "plain", "no"), TOKEN),
        **{name: f"${{keyring:{name}.API_TOKEN}}" for name in ("flag", "yes")},
    }
    assert {name: SecretFiles().read(name) for name in SecretFiles().list_rows()} == {
        "flag.API_TOKEN": TOKEN,
        "yes.API_TOKEN": TOKEN,
    }


@pytest.mark.process
def test_import_stores_secrets_and_leaves_the_other_file_alone(tmp_path: Path) -> None:
    path = Path(os.environ["HOME"]) / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"mcpServers": {"s": ROW}}), "utf-8")
    before = path.read_bytes()
    done = run("mcp", "import", "--from", "cursor", "--store-secrets", cwd=tmp_path)
    assert f"the secrets are still in plain text in {path}" in done.stderr
    assert path.read_bytes() == before
    assert servers_of(user_file())["s"]["env"]["API_TOKEN"] == "${keyring:s.API_TOKEN}"
    assert SecretFiles().read("s.DB") == "postgres://app:hunter2@db/x"
    assert TOKEN not in done.stdout + done.stderr + user_file().read_text("utf-8")


@pytest.mark.process
def test_secrets_of_a_row_are_moved_after_a_question(tmp_path: Path) -> None:
    configured(user_file(), {"s": ROW, "bare": {"command": "sh"}})
    assert "There is no terminal for a question" in run("secrets", "move", "s", cwd=tmp_path).stderr
    assert typed("n\n", "secrets", "move", "s", cwd=tmp_path).returncode == 1
    assert servers_of(user_file())["s"] == ROW
    done = run("secrets", "move", "s", "--yes", cwd=tmp_path)
    assert (done.returncode, TOKEN in done.stdout + done.stderr) == (0, False)
    assert TOKEN not in user_file().read_text("utf-8")
    assert SecretFiles().read("s.api-key") == TOKEN
    assert "has no secrets in plain text" in run("secrets", "move", "s", cwd=tmp_path).stdout
    assert "There is no server 'gone'" in run("secrets", "move", "gone", cwd=tmp_path).stderr
