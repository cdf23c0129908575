"""`indus mcp import` of files that the clients' own commands wrote (see client_files/README.md)."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.commands.program import run
from induscode.servers.clients import PROGRAMS, config_places
from induscode.servers.clients.foreign import discover_foreign, read_foreign

if TYPE_CHECKING:
    from induscode.servers.clients.foreign import ForeignServer

_FILES = Path(__file__).with_name("client_files")
_FILES_ARGUMENTS = ("-y", "@example/files", "--root", "/data")
_STDIO = ("npx", _FILES_ARGUMENTS, {"TOKEN": "abc"})
_HTTP = ("streamable_http", "https://example.invalid/mcp", {"Authorization": "Bearer abc"})
_SSE: tuple[Any, Any, Any] = ("sse", "https://example.invalid/sse", {})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project, and a home in which every client was used in it."""
    folder = tmp_path / "project"
    shutil.copytree(_FILES / "project", folder)
    home = Path(os.environ["HOME"])
    shutil.copytree(_FILES / "home", home, dirs_exist_ok=True)
    claude = home / ".claude.json"
    text = claude.read_text(encoding="utf-8")
    claude.write_text(text.replace("PROJECT", str(folder)), encoding="utf-8")
    return folder


def _found(program: str, cwd: Path) -> dict[str, ForeignServer]:
    servers, _ = discover_foreign([program], str(cwd), os.environ)
    return {server.row.id: server for server in servers}


def _facts(server: ForeignServer) -> tuple[Any, Any, Any]:
    config = server.row.config
    if isinstance(config, StdioServerConfig):
        return config.command, tuple(config.args), dict(config.env)
    return config.kind, config.url, dict(config.headers)


_EXPECTED: dict[str, dict[str, tuple[Any, Any, Any]]] = {
    "claude-code": {
        "files": ("npx", _FILES_ARGUMENTS, {"TOKEN": "abc", "LEVEL": "info"}),
        "remote": (*_HTTP[:2], {"Authorization": "Bearer abc", "X-Team": "a"}),
        "old": _SSE,
        "jsonl": ("uvx", ("x",), {"A": "${B:-c}"}),
        "filesu": ("npx", ("-y", "@example/files"), {"TOKEN": "abc"}),
        "remoteu": _HTTP,
        "filesp": ("npx", ("-y", "@example/files", "--root", "."), {}),
        "remotep": (*_HTTP[:2], {}),
    },
    "codex": {"files": _STDIO, "remote": (*_HTTP[:2], {"Authorization": "Bearer ${REMOTE_TOKEN}"})},
    "gemini": {
        "filesu": ("npx", ("-y", "@example/files", "--include-tools", "a,b"), {"TOKEN": "abc"}),
        "filesu2": ("npx", ("y",), {}),
        "remoteu": (*_HTTP[:2], {}),
        "old": _SSE,
        "a": ("npx", ("y",), {}),
    },
    "opencode": {"files": _STDIO, "remote": _HTTP},
    "qwen": {"files": _STDIO, "remote": _HTTP, "filesp": ("npx", ("-y", "@example/files"), {})},
    "amp": {"files": _STDIO, "remote": _HTTP, "filesp": ("npx", ("-y", "@example/files"), {})},
    "copilot": {"files": _STDIO, "remote": _HTTP, "old": _SSE},
    "cline": {"files": ("npx", _FILES_ARGUMENTS, {}), "remote": _HTTP, "old": _SSE},
}


@pytest.mark.parametrize("program", _EXPECTED)
def test_finding_b2_what_a_client_wrote_is_found(program: str, project: Path) -> None:
    found = _found(program, project)
    assert {name: _facts(server) for name, server in found.items()} == _EXPECTED[program]


def test_finding_b2_every_server_has_the_scope_of_its_file(project: Path) -> None:
    scopes = {name: one.origin.scope for name, one in _found("claude-code", project).items()}
    assert {name for name, scope in scopes.items() if scope == "project"} == {"filesp", "remotep"}


def test_finding_b2_the_local_scope_is_found_from_a_folder_inside_the_repository(project: Path) -> None:
    (project / ".git").mkdir()
    (project / "sub" / "deep").mkdir(parents=True)
    assert "files" in _found("claude-code", project / "sub" / "deep")


def test_finding_b2_the_local_scope_of_another_project_is_left_out_with_a_note(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    servers, notes = discover_foreign(["claude-code"], str(other), os.environ)
    assert {server.row.id for server in servers} == {"filesu", "remoteu"}
    (note,) = notes
    assert "left out: 4 servers are for it" in str(note)
    assert f"indus mcp import -C {project}" in str(note)


def test_a_repository_inside_a_project_is_another_project(project: Path) -> None:
    inner = project / "vendor"
    (inner / ".git").mkdir(parents=True)
    assert "files" not in _found("claude-code", inner)


def test_finding_b2_a_file_that_is_named_is_read_like_one_that_is_found(project: Path) -> None:
    for program in _EXPECTED:
        for path, scope in config_places(program, str(project), os.environ):
            if os.path.isfile(path):
                named, _ = read_foreign(path, "given", str(project))
                found, _ = read_foreign(path, scope, str(project), program)
                assert [_facts(one) for one in named] == [_facts(one) for one in found]
                assert {one.origin.dialect for one in named} == {program}


def _written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


_BY_HAND: dict[str, tuple[str, str, dict[str, tuple[Any, Any, Any]]]] = {
    "windsurf": (
        ".codeium/windsurf/mcp_config.json",
        '{"mcpServers": {"files": {"command": "npx", "args": ["x"], "env": {"A": "${env:B}"}},'
        ' "remote": {"serverUrl": "https://example.invalid/mcp"}, "off": {"command": "x",'
        ' "disabled": true}}}',
        {"files": ("npx", ("x",), {"A": "${B}"}), "remote": (*_HTTP[:2], {})},
    ),
    "zed": (
        ".config/zed/settings.json",
        '// Zed settings\n{"context_servers": {"files": {"source": "custom", "command": "npx",'
        ' "args": ["x"], "env": {}}, "older": {"command": {"path": "npx", "args": ["y"],'
        ' "env": {"A": "b"}}}, "remote": {"url": "https://example.invalid/mcp"},'
        ' "extension": {"source": "extension", "settings": {}}, },}',
        {"files": ("npx", ("x",), {}), "older": ("npx", ("y",), {"A": "b"}), "remote": (*_HTTP[:2], {})},
    ),
    "opencode": (
        ".config/opencode/opencode.json",
        '{"mcp": {"servers": {"type": "local", "command": ["npx", "x"]}}}',
        {"servers": ("npx", ("x",), {})},
    ),
    "cline": (
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        '{"mcpServers": {"files": {"command": "npx", "timeout": 60, "disabled": false}}}',
        {"files": ("npx", (), {})},
    ),
    "copilot": (
        ".copilot/mcp-config.json",
        '{"mcpServers": {"files": {"type": "local", "command": "npx", "tools": ["a"]}}}',
        {"files": ("npx", (), {})},
    ),
    "vscode": (
        ".config/VSCodium/User/mcp.json",
        '{"servers": {"files": {"type": "stdio", "command": "npx"}}}',
        {"files": ("npx", (), {})},
    ),
}


@pytest.mark.parametrize("program", _BY_HAND)
def test_finding_b2_other_forms_of_the_files_are_found(program: str, tmp_path: Path) -> None:
    place, text, expected = _BY_HAND[program]
    _written(Path(os.environ["HOME"]) / place, text)
    assert {name: _facts(one) for name, one in _found(program, tmp_path).items()} == expected


def test_limits_of_other_dialects_are_taken_over(tmp_path: Path) -> None:
    for program in ("cline", "copilot"):
        _written(Path(os.environ["HOME"]) / _BY_HAND[program][0], _BY_HAND[program][1])
    assert _found("cline", tmp_path)["files"].row.config.limits.call_idle_s == 60
    assert _found("copilot", tmp_path)["files"].row.config.include_tools == ("a",)


def test_every_client_has_places_of_its_own(tmp_path: Path) -> None:
    environ = {"HOME": "/h", "OPENCODE_CONFIG": "/h/own.json", "CLAUDE_CONFIG_DIR": "/h/c"}
    places = [path for one in PROGRAMS for path, _ in config_places(one, str(tmp_path), environ)]
    assert len(places) == len(set(places))
    assert {"/h/own.json", "/h/c/.claude.json", f"{tmp_path}/.mcp.json"} <= set(places)


@pytest.mark.usefixtures("project")
def test_clients_of_this_machine_are_listed_connected_and_disconnected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/indus"])

    def list_connected() -> list[str]:
        capsys.readouterr()
        assert run(["connect", "--json"]) == 0
        return [one["name"] for one in json.loads(capsys.readouterr().out)["clients"] if one["entry"] == "indus"]

    assert list_connected() == []
    assert run(["connect", "cursor", "--dry-run"]) == 0
    assert list_connected() == []
    assert run(["connect", "cursor", "--profile", "coding"]) == 0
    assert '"coding"' in (Path(os.environ["HOME"]) / ".cursor" / "mcp.json").read_text("utf-8")
    assert list_connected() == ["cursor"]
    assert run(["connect", "cursor", "--remove"]) == 0
    assert list_connected() == []
    assert (run(["connect"]), "indus connect claude" in capsys.readouterr().out) == (0, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["emacs"], "There is no client 'emacs' (there are: claude, "),
        (["cursr"], "Did you mean 'cursor'?"),
        (["--remove"], "Name the client: claude, "),
        (["cursor", "--json"], "--json lists clients: leave out CLIENT"),
        (["cursor", "--nonsense"], "No such option '--nonsense'"),
    ],
)
def test_connect_names_what_it_takes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", *words]) == 2
    assert message in capsys.readouterr().err
