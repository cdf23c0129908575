"""`indus serve --print-config`: what is pasted into a client starts or reaches this gateway."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
from anyio import to_thread
from tests.commands.helpers import configured, one_line, row
from tests.support.scripts import command, run

from indusagi.interop import StdioServerConfig, StreamableHttpServerConfig, create_server_endpoint
from induscode.servers.clients import CLIENTS as WRITERS
from induscode.servers.clients import Entry
from induscode.servers.config import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.interop import ServerConfig

pytestmark = pytest.mark.process
FILES = {
    "claude": ".mcp.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".vscode/mcp.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "qwen": ".qwen/settings.json",
    "copilot": ".copilot/mcp-config.json",
}
CLIENTS = sorted(FILES)
TOKEN = "0123456789abcdef" * 4


def pasted(tmp_path: Path, client: str, *words: str, name: str = "indus") -> ServerConfig:
    """Print an entry, put it where it belongs, and read it as that client's files are read."""
    done = run("serve", "--print-config", client, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("indus: paste this into ")
    assert FILES[client].rpartition("/")[2] in done.stderr
    file = tmp_path / FILES[client]
    file.parent.mkdir(exist_ok=True)
    file.write_text(done.stdout, encoding="utf-8")
    rows, notes = read_rows(str(file), "user")
    assert notes == []
    (found,) = rows
    assert found.id == name
    return found.resolve({"INDUS_SERVE_TOKEN": TOKEN})


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_gets_the_command_with_its_flags(tmp_path: Path, client: str) -> None:
    configured(tmp_path / "servers.json", {"a": row()})
    odd = 'webfetch(domain:a\'b "c" $ d \\e)'
    config = pasted(
        tmp_path, client, "--mcp", "servers.json", "--profile", "survey", "--name", "my-deck",
        "--allow", "bash(git status *)", "--approval", "auto-edit", "--sandbox", "required",
        "--cwd", ".", "--tools", "read,ls", "--stdio", "--allow", odd, "--code", name="my-deck",
    )  # fmt: skip
    assert isinstance(config, StdioServerConfig)
    assert config.command == command()
    assert list(config.args) == [
        "serve", "--tools", "read", "--tools", "ls", "--mcp", str(tmp_path / "servers.json"), "--code",
        "--allow", "bash(git status *)", "--allow", odd, "--approval", "auto-edit", "--sandbox", "required",
        "--cwd", str(tmp_path), "--name", "my-deck", "--profile", "coding",
    ]  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS)
async def test_what_was_pasted_starts_the_gateway(tmp_path: Path, client: str) -> None:
    configured(tmp_path / "servers.json", {"a": row()})
    words = ("--mcp", "servers.json", "--profile", "none")
    config = await to_thread.run_sync(pasted, tmp_path, client, *words)
    endpoint = create_server_endpoint(config)
    await endpoint.open()
    try:
        assert "a__echo" in [tool.ref.name for tool in await endpoint.list_tools()]
    finally:
        await endpoint.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_over_http_every_client_gets_the_address_and_never_the_token(tmp_path: Path, client: str) -> None:
    if client == "vscode":
        shown = json.loads(run("serve", "--print-config", client, "--http", cwd=tmp_path).stdout)
        assert shown["servers"]["indus"]["url"] == "http://127.0.0.1:7332/mcp"
        assert shown["servers"]["indus"]["headers"] == {"Authorization": "Bearer ${input:indus-token}"}
        (asked,) = shown["inputs"]
        assert (asked["id"], asked["password"]) == ("indus-token", True)
        return
    config = pasted(tmp_path, client, "--http", "127.0.0.1:9000")
    assert isinstance(config, StreamableHttpServerConfig)
    assert config.url == "http://127.0.0.1:9000/mcp"
    assert config.headers == {"Authorization": f"Bearer {TOKEN}"}
    assert TOKEN not in (tmp_path / FILES[client]).read_text(encoding="utf-8")
    assert not (tmp_path / ".local").exists()


def test_the_entry_for_a_view_has_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "indus").mkdir()
    (tmp_path / "indus" / "settings.json").write_text('{"serve.views": {"a phone": {}}}', encoding="utf-8")
    config = pasted(tmp_path, "cursor", "--http", "7332", "--view", "a phone")
    assert isinstance(config, StreamableHttpServerConfig)
    assert config.url == "http://127.0.0.1:7332/mcp/v/a%20phone"


@pytest.mark.parametrize("client", CLIENTS)
def test_without_a_token_there_is_no_header(tmp_path: Path, client: str) -> None:
    config = pasted(tmp_path, client, "--http", "[::1]:9000", "--no-token")
    assert isinstance(config, StreamableHttpServerConfig)
    assert (config.url, dict(config.headers)) == ("http://[::1]:9000/mcp", {})


@pytest.mark.parametrize("client", ["claude", "gemini"])
def test_an_address_for_everybody_is_reached_from_here(tmp_path: Path, client: str) -> None:
    config = pasted(tmp_path, client, "--http", "0.0.0.0:9000", "--allowed-host", "gate:9000")
    assert isinstance(config, StreamableHttpServerConfig)
    assert config.url == "http://127.0.0.1:9000/mcp"


def test_how_to_start_the_gateway_behind_an_address_is_told(tmp_path: Path) -> None:
    words = ["--http", "9000", "--allowed-host", "gate:9000", "--allowed-origin", "https://a b"]
    words += ["--sessions", "9", "--max-requests-per-token", "5", "--page", "off"]
    done = run("serve", "--print-config", "codex", *words, "--no-mcp", cwd=tmp_path)
    line = (
        f"{shlex.quote(command())} serve --no-mcp --http 9000 "
        "--allowed-host gate:9000 --allowed-origin 'https://a b' "
        "--max-sessions 9 --max-requests-per-token 5 --page off"
    )
    assert f"the gateway must run: {line}\n" in done.stderr
    assert "set INDUS_SERVE_TOKEN" in done.stderr


def test_the_module_is_printed_as_it_was_started(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "induscode", "-C", "/", "serve", "--print-config", "claude"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=tmp_path,
    )
    entry = json.loads(done.stdout)["mcpServers"]["indus"]
    assert entry["command"] == sys.executable
    assert entry["args"] == ["-m", "induscode", "serve", "--cwd", "/"]


def test_a_program_found_on_the_path_is_printed_whole(tmp_path: Path) -> None:
    path = f"{os.path.dirname(command())}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", "exec indus serve --print-config cursor"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
    )
    assert json.loads(done.stdout)["mcpServers"]["indus"]["command"] == command()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", ["${HOME}.json", "${env:HOME}.json", "a$HOME.json"])
def test_what_a_client_would_replace_is_refused(tmp_path: Path, client: str, name: str) -> None:
    configured(tmp_path / name, {"a": row()})
    done = run("serve", "--mcp", name, "--print-config", client, cwd=tmp_path)
    if client == "codex" or (client not in {"gemini", "qwen"} and name == "a$HOME.json"):
        assert name in done.stdout
    else:
        one_line(done, f"--print-config {client}", "in the place of '$")
    # An address has no path of this machine in it.
    done = run("serve", "--mcp", name, "--http", "9", "--print-config", client, cwd=tmp_path)
    assert done.returncode == 0
    assert name not in done.stdout


@pytest.mark.parametrize("client", CLIENTS)
def test_a_path_that_is_no_text_is_refused(tmp_path: Path, client: str) -> None:
    name = os.fsdecode(b"a\xff.json")
    configured(tmp_path / name, {"a": row()})
    done = run("serve", "--mcp", name, "--print-config", client, cwd=tmp_path)
    one_line(done, f"--print-config {client}", "a\\udcff.json", "is not UTF-8")


@pytest.mark.parametrize("text", ['"', "\\", "\n\t", "\x7f", "é😀\u2028", "a'b", "", "$HOME ${X}", "\x00\x1f"])
def test_whatever_stands_in_a_path_is_written_so_that_it_is_read_back(text: str) -> None:
    entry = Entry(name=f"n{text}", command=("indus", "serve", text))
    read = tomllib.loads(WRITERS["codex"].format(entry))["mcp_servers"]
    assert read[entry.name]["args"] == ["serve", text]
    plain = json.loads(WRITERS["claude"].format(entry))["mcpServers"]
    assert plain[entry.name]["args"] == ["serve", text]
