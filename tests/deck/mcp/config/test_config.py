"""Configuration: found where people put it, read however they wrote it, and nothing lost unsaid."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import json_values

from indusagi.core.config_file import parse_json, read_config_file
from indusagi.interop import SseServerConfig, StdioServerConfig, StreamableHttpServerConfig
from induscode.servers.config import discover_mcp_config, list_config_paths, load_mcp_config, read_rows, resolve_rows
from induscode.servers.config.dialects import (
    DIALECTS,
    ExpansionContext,
    UnresolvedVariableError,
    detect_dialect,
    expand,
    gemini,
)
from induscode.servers.config.rows import InvalidRowError, Origin, parse_row

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.servers.config.dialects import Expansion


def put(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def said(target: Path) -> str:
    return "\n".join(str(note) for note in discover_mcp_config(target).notes)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    monkeypatch.setenv("HOME", str(place))
    return place


# -- our own format ---------------------------------------------------------------------------


def test_the_worked_example_of_the_documentation_is_read(tmp_path: Path) -> None:
    file = put(
        tmp_path / "mcp.json",
        {
            "servers": [
                {
                    "name": "github",
                    "command": "npx",
                    "args": ["-y", "@modelcontextprotocol/server-github"],
                    "env": {"GITHUB_TOKEN": "your-github-token"},
                    "enabled": True,
                },
                {
                    "name": "remote",
                    "url": "http://localhost:8080/mcp",
                    "headers": {"Authorization": "Bearer your-token"},
                    "enabled": False,
                },
            ]
        },
    )
    assert load_mcp_config(file) == [
        StdioServerConfig(
            "github", "npx", ("-y", "@modelcontextprotocol/server-github"), {"GITHUB_TOKEN": "your-github-token"}
        )
    ]
    assert "server 'remote'" in said(file)
    assert "switched off" in said(file)


def test_an_object_of_servers_means_the_same_as_a_list(tmp_path: Path) -> None:
    listed = put(tmp_path / "list.json", {"servers": [{"name": "fs", "command": "node", "args": ["server.js"]}]})
    keyed = put(tmp_path / "object.json", {"servers": {"fs": {"command": "node", "args": ["server.js"]}}})
    assert load_mcp_config(listed) == load_mcp_config(keyed) != []


def test_the_row_chooses_the_transport(tmp_path: Path) -> None:
    file = put(
        tmp_path / "mcp.json",
        {
            "servers": {
                "plain": {"url": "https://a/mcp"},
                "http": {"url": "https://a/mcp", "type": "streamable-http"},
                "old": {"url": "https://a/sse", "type": "sse"},
                "both": {"url": "https://a/mcp", "command": "x"},
                "local": {"url": "https://a/mcp", "command": "x", "type": "stdio"},
            }
        },
    )
    kinds = {config.id: type(config) for config in load_mcp_config(file)}
    assert kinds == {
        "plain": StreamableHttpServerConfig,
        "http": StreamableHttpServerConfig,
        "old": SseServerConfig,
        "both": StreamableHttpServerConfig,
        "local": StdioServerConfig,
    }


def test_a_bad_row_is_left_out_with_its_reason_and_the_others_stay(tmp_path: Path) -> None:
    file = put(
        tmp_path / "mcp.json",
        {
            "servers": [
                {"command": "nameless"},
                {"name": "neither"},
                {"name": "number", "command": 5},
                {"name": "listed", "url": ["https://h/mcp"]},
                7,
                {"name": "good", "command": "x", "args": ["a", 1, None], "env": {"N": 5, "B": True, "L": [0]}},
            ]
        },
    )
    (config,) = load_mcp_config(file)
    assert isinstance(config, StdioServerConfig)
    assert (config.args, dict(config.env)) == (("a",), {"N": "5", "B": "true"})
    notes = said(file)
    for part in (
        "row 1 of",
        "it has no name",
        "'neither'",
        f"server 'neither' of {file}: skipped: it has neither a command nor a url",
        f"server 'number' of {file}: skipped: its command is not text",
        f"server 'listed' of {file}: skipped: its url is not text",
        "row 5 of",
        "not an object",
        "2 of its args are not text",
        "L of its env is not text",
    ):
        assert part in notes


def test_keys_of_ours_set_limits_filters_and_the_start(tmp_path: Path) -> None:
    row = {
        "command": "x",
        "cwd": "/srv",
        "timeout": 5000,
        "startupTimeoutSec": 3,
        "includeTools": ["a"],
        "exclude_tools": ["b"],
        "required": True,
        "start": "lazy",
    }
    file = put(
        tmp_path / "mcp.json",
        {"servers": {"x": row, "y": {"command": "y", "tool_timeout_sec": 9, "lazy": True, "start": None}}},
    )
    x, y = discover_mcp_config(file).rows
    assert isinstance(x.config, StdioServerConfig)
    assert (x.config.cwd, x.config.limits.call_idle_s, x.config.limits.connect_s) == ("/srv", 5.0, 3.0)
    assert (x.config.include_tools, x.config.exclude_tools) == (("a",), ("b",))
    assert (x.required, x.start, y.start) == (True, "lazy", "lazy")
    assert y.config.limits.call_idle_s == 9.0


def test_values_that_make_no_sense_are_remarked_on(tmp_path: Path) -> None:
    row = {
        "command": "x",
        "cwd": 5,
        "args": "a b",
        "env": ["A=1"],
        "timeout": -1,
        "type": "carrier-pigeon",
        "start": "whenever",
        "include_tools": [1],
    }
    file = put(tmp_path / "mcp.json", {"servers": {"x": row}})
    notes = said(file)
    for part in (
        "cwd",
        "args are not a list",
        "env are not an object",
        "timeout",
        "carrier-pigeon",
        "eager nor lazy",
        "1 of its include_tools",
    ):
        assert part in notes


# -- places -----------------------------------------------------------------------------------


def test_every_place_is_read_in_order_and_put_together(tmp_path: Path, home: Path) -> None:
    project = tmp_path / "project"
    put(project / ".indusvx/mcp.json", {"servers": {"a": {"command": "a"}}})
    put(home / ".config/indusvx/mcp.json", {"servers": {"b": {"command": "b"}}})
    put(home / ".indusvx/agent/mcp.json", {"servers": {"c": {"command": "c"}}})
    put(home / ".indusvx/agent/mcp-servers.json", {"servers": {"d": {"command": "d"}}})
    put(project / ".mcp.json", {"mcpServers": {"e": {"command": "e"}}})
    assert [config.id for config in load_mcp_config(project)] == ["a", "b", "c", "d"]
    found = discover_mcp_config(project)
    assert [(row.id, row.origin.scope) for row in found.rows] == [
        ("a", "project"),
        ("b", "user"),
        ("c", "user"),
        ("d", "user"),
        ("e", "project"),
    ]
    assert len(found.files) == 5
    assert found.notes == ()


def test_the_place_of_the_user_follows_xdg(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
    put(tmp_path / "elsewhere/indusvx/mcp.json", {"servers": {"x": {"command": "x"}}})
    put(home / ".config/indusvx/mcp.json", {"servers": {"y": {"command": "y"}}})
    assert [config.id for config in load_mcp_config(tmp_path)] == ["x"]


def test_a_server_of_the_user_is_never_replaced_by_a_projects(tmp_path: Path, home: Path) -> None:
    put(tmp_path / ".indusvx/mcp.json", {"servers": {"fmt": {"command": "evil"}}})
    put(home / ".config/indusvx/mcp.json", {"servers": {"fmt": {"command": "good"}}})
    put(home / ".indusvx/agent/mcp.json", {"servers": {"fmt": {"command": "older"}}})
    found = discover_mcp_config(tmp_path)
    (row,) = found.rows
    assert isinstance(row.config, StdioServerConfig)
    assert (row.config.command, row.origin.scope) == ("good", "user")
    assert [note.message for note in found.notes] == [f"left out: {row.origin.file} has a server of this name"] * 2


def test_equal_rows_of_two_files_are_merged_without_a_note(tmp_path: Path, home: Path) -> None:
    same = {"servers": {"x": {"command": "x"}}}
    put(tmp_path / ".indusvx/mcp.json", same)
    put(home / ".config/indusvx/mcp.json", same)
    found = discover_mcp_config(tmp_path)
    assert [(row.id, row.origin.scope) for row in found.rows] == [("x", "user")]
    assert found.notes == ()


def test_the_last_row_of_a_name_in_a_file_applies(tmp_path: Path) -> None:
    file = put(tmp_path / "mcp.json", {"servers": [{"name": "x", "command": "one"}, {"name": "x", "command": "two"}]})
    (row,) = discover_mcp_config(file).rows
    assert isinstance(row.config, StdioServerConfig)
    assert row.config.command == "two"
    assert "twice" in said(file)


def test_an_absent_path_has_no_servers(tmp_path: Path, home: Path) -> None:
    assert load_mcp_config(tmp_path / "typo") == []
    assert discover_mcp_config(tmp_path / "typo").rows == ()


# -- files that are no configuration ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("malformed", "{", "invalid JSON"),
        ("empty", "", "invalid JSON"),
        ("list", "[]", "names no servers"),
        ("other", '{"a": 1}', "names no servers"),
        ("text", '"x"', "names no servers"),
        ("deep", "[" * 100_000, "invalid JSON"),
        ("latin", b"{\xe9}", "not UTF-8"),
        ("nothing", b"\x00\x01", "invalid JSON"),
    ],
)
def test_r35_a_file_that_cannot_be_used_is_skipped_with_its_reason(
    tmp_path: Path, name: str, content: str | bytes, reason: str
) -> None:
    file = tmp_path / f"{name}.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert load_mcp_config(file) == []
    assert reason in said(file)
    assert str(file) in said(file)


def test_r35_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(b"\xef\xbb\xbf" + b'{"servers": {"x": {"command": "x"}}}')
    assert [config.id for config in load_mcp_config(file)] == ["x"]


def test_r35_repeated_keys_are_reported(tmp_path: Path) -> None:
    file = put(tmp_path / "mcp.json", '{"servers": {"x": {"command": "a"}, "x": {"command": "b"}}}')
    (config,) = load_mcp_config(file)
    assert isinstance(config, StdioServerConfig)
    assert config.command == "b"
    assert "'x' occurs twice" in said(file)


def test_the_file_of_an_older_version_is_read_after_the_new_one_with_a_note(tmp_path: Path, home: Path) -> None:
    old = put(home / ".config/indusvx/mcp.json", {"servers": {"a": {"command": "old"}, "b": {"command": "b"}}})
    assert discover_mcp_config(tmp_path).notes == ()
    new = put(home / ".config/indus/mcp.json", {"servers": {"a": {"command": "new"}}})
    found = discover_mcp_config(tmp_path)
    assert [(row.id, row.origin.file) for row in found.rows] == [("a", str(new)), ("b", str(old))]
    assert f"file {old}: your servers are in two files, and this is the old one (move them to {new})" in map(
        str, found.notes
    )


def test_r35_only_regular_files_are_opened(tmp_path: Path, home: Path) -> None:
    place = tmp_path / ".indusvx"
    place.mkdir()
    os.mkfifo(place / "mcp.json")
    (tmp_path / ".mcp.json").mkdir()
    config = home / ".config/indusvx"
    config.mkdir(parents=True)
    (config / "mcp.json").symlink_to(config / "mcp.json")
    legacy = home / ".indusvx/agent"
    legacy.mkdir(parents=True)
    (legacy / "mcp.json").symlink_to("/dev/zero")
    (legacy / "mcp-servers.json").symlink_to(legacy / "nowhere")
    found = discover_mcp_config(tmp_path)
    assert found.rows == ()
    assert len(found.notes) == 5
    assert load_mcp_config(tmp_path) == []


def test_r35_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    with file.open("wb") as handle:
        handle.truncate(50 * 1024 * 1024)
    assert load_mcp_config(file) == []
    assert "52,428,800 bytes" in said(file)


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    file = put(tmp_path / "mcp.json", {"servers": {}})
    found = read_config_file(str(tmp_path / "mcp.json" / "x"))
    assert found.trouble == "Not a directory"
    assert read_config_file(str(file)).trouble is None


@given(json_values)
def test_reading_any_file_content_raises_nothing(tmp_path_factory: pytest.TempPathFactory, value: JsonValue) -> None:
    folder = tmp_path_factory.mktemp("any")
    for document in (
        value,
        {"servers": value},
        {"mcpServers": value},
        {"mcp": value},
        {"mcp_servers": value},
        {"servers": {"x": value}},
        {"mcpServers": {"x": value}, "mcp": {}},
    ):
        rows, notes = read_rows(str(put(folder / "mcp.json", document)), "given")
        assert all(row.id for row in rows)
        assert all(str(note) for note in notes)


@given(st.text(alphabet='{}[]",/*\\\n :a1', max_size=40))
def test_the_reader_of_json_with_comments_reads_plain_json_unchanged(text: str) -> None:
    found = parse_json(text)
    try:
        wanted = json.loads(text)
    except ValueError:
        return
    assert found.document == wanted


def test_comments_and_trailing_commas_are_read_over() -> None:
    text = """{ // a comment
      "servers": { /* another
      one */ "x": {"command": "a//b", "args": ["/* no comment */", "\\\\", "\\"",],},
      },
    }"""
    assert parse_json(text).document == {"servers": {"x": {"command": "a//b", "args": ["/* no comment */", "\\", '"']}}}


# -- dialects ---------------------------------------------------------------------------------

STDIO = {"command": "x", "args": ["a"], "env": {"K": "v"}}


def read(tmp_path: Path, name: str, content: object) -> dict[str, object]:
    rows, _ = read_rows(str(put(tmp_path / name, content)), "given")
    assert len({row.origin.dialect for row in rows}) == 1
    return {"dialect": rows[0].origin.dialect, **{row.id: row.config for row in rows}}


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        (
            "claude_desktop_config.json",
            {"mcpServers": {"x": STDIO}},
            {"dialect": "claude-desktop", "x": StdioServerConfig("x", "x", ("a",), {"K": "v"})},
        ),
        (
            ".mcp.json",
            {
                "mcpServers": {
                    "x": {"type": "stdio", **STDIO},
                    "r": {"type": "http", "url": "https://r", "headers": {"A": "b"}},
                    "s": {"type": "sse", "url": "https://s"},
                }
            },
            {
                "dialect": "claude-code",
                "x": StdioServerConfig("x", "x", ("a",), {"K": "v"}),
                "r": StreamableHttpServerConfig("r", "https://r", {"A": "b"}),
                "s": SseServerConfig("s", "https://s"),
            },
        ),
        (
            ".claude.json",
            {"projects": {"/p": {"mcpServers": {"local": {"command": "y"}}}}, "mcpServers": {"x": STDIO}},
            {
                "dialect": "claude-code",
                "x": StdioServerConfig("x", "x", ("a",), {"K": "v"}),
                "local": StdioServerConfig("local", "y"),
            },
        ),
        (
            ".vscode/mcp.json",
            """{ // editors write comments
              "inputs": [{"id": "k"}],
              "servers": {
                "x": {"type": "stdio", "command": "x", "cwd": "/w"},
                "r": {"type": "http", "url": "https://r"}
              },
            }""",
            {
                "dialect": "vscode",
                "x": StdioServerConfig("x", "x", cwd="/w"),
                "r": StreamableHttpServerConfig("r", "https://r"),
            },
        ),
        (
            ".cursor/mcp.json",
            {"mcpServers": {"x": STDIO, "r": {"url": "https://r", "headers": {"A": "b"}}}},
            {
                "dialect": "cursor",
                "x": StdioServerConfig("x", "x", ("a",), {"K": "v"}),
                "r": StreamableHttpServerConfig("r", "https://r", {"A": "b"}),
            },
        ),
        (
            ".codex/config.toml",
            """
            [mcp_servers.x]
            command = "x"
            args = ["a"]
            env = {K = "v"}
            env_vars = ["TOKEN"]
            startup_timeout_ms = 2500
            tool_timeout_sec = 30
            enabled_tools = ["t"]
            disabled_tools = ["u"]
            [mcp_servers.r]
            url = "https://r"
            bearer_token_env_var = "T"
            env_http_headers = {"X-Key" = "KEY"}
            http_headers = {A = "b"}
            """,
            {
                "dialect": "codex",
                "x": "limits",
                "r": StreamableHttpServerConfig(
                    "r", "https://r", {"A": "b", "Authorization": "Bearer ${T}", "X-Key": "${KEY}"}
                ),
            },
        ),
        (
            ".gemini/settings.json",
            {
                "mcpServers": {
                    "x": STDIO,
                    "old": {"url": "https://o"},
                    "new": {"httpUrl": "https://n"},
                    "typed": {"url": "https://t", "type": "http"},
                    "off": {"command": "z"},
                },
                "mcp": {"excluded": ["off"]},
            },
            {
                "dialect": "gemini",
                "x": StdioServerConfig("x", "x", ("a",), {"K": "v"}),
                "old": SseServerConfig("old", "https://o"),
                "new": StreamableHttpServerConfig("new", "https://n"),
                "typed": StreamableHttpServerConfig("typed", "https://t"),
            },
        ),
        (
            "opencode.json",
            {
                "mcp": {
                    "x": {"type": "local", "command": ["x", "a"], "environment": {"K": "v"}},
                    "r": {"type": "remote", "url": "https://r"},
                    "off": {"type": "local", "command": ["z"], "enabled": False},
                }
            },
            {
                "dialect": "opencode",
                "x": StdioServerConfig("x", "x", ("a",), {"K": "v"}),
                "r": StreamableHttpServerConfig("r", "https://r"),
            },
        ),
        (
            "opencode.jsonc",
            {
                "mcp": {
                    "servers": {
                        "x": {"type": "local", "command": ["x", "a"], "cwd": "/w"},
                        "off": {"command": ["z"], "disabled": True},
                    }
                }
            },
            {"dialect": "opencode-v2", "x": StdioServerConfig("x", "x", ("a",), cwd="/w")},
        ),
    ],
)
def test_a_foreign_configuration_is_read_as_its_owner_reads_it(
    tmp_path: Path, name: str, content: object, wanted: dict[str, object]
) -> None:
    found = read(tmp_path, name, content)
    if wanted.get("x") == "limits":
        config = found["x"]
        assert isinstance(config, StdioServerConfig)
        assert (config.limits.connect_s, config.limits.call_idle_s) == (2.5, 30.0)
        assert (config.include_tools, config.exclude_tools) == (("t",), ("u",))
        assert dict(config.env) == {"K": "v"}
        wanted = {**wanted, "x": config}
    assert found == wanted


@pytest.mark.parametrize(
    ("document", "dialect"),
    [
        ({"servers": {}}, "indus"),
        ({"servers": {}, "inputs": []}, "vscode"),
        ({"mcpServers": {"x": {"httpUrl": "u"}}}, "gemini"),
        ({"mcpServers": {"x": {"command": "c"}}}, "claude-code"),
        ({"mcp_servers": {}}, "codex"),
        ({"mcp": {"servers": {}}}, "opencode-v2"),
        ({"mcp": {"x": {}}}, "opencode"),
        ({"mcpServers": {}, "mcp": {}}, "gemini"),
    ],
)
def test_the_keys_of_a_file_identify_its_dialect(document: dict[str, JsonValue], dialect: str) -> None:
    found = detect_dialect("/somewhere/config.json", document)
    assert found is DIALECTS[dialect]


def test_servers_that_gemini_does_not_allow_are_off(tmp_path: Path) -> None:
    content = {"mcpServers": {"a": {"command": "a"}, "b": {"command": "b"}, "c": 5}, "mcp": {"allowed": ["b"]}}
    file = put(tmp_path / ".gemini/settings.json", content)
    assert [config.id for config in load_mcp_config(file)] == ["b"]


def test_rows_of_another_type_are_reported_in_every_dialect(tmp_path: Path) -> None:
    for name, content in (
        (".codex/config.toml", "[mcp_servers]\nx = 5\n"),
        ("opencode.json", {"mcp": {"x": 5}}),
        ("opencode.jsonc", {"mcp": {"servers": {"x": 5}}}),
        (".gemini/settings.json", {"mcpServers": {"x": 5}, "mcp": {}}),
    ):
        assert "not an object" in said(put(tmp_path / name, content))
    assert "invalid TOML" in said(put(tmp_path / "x.toml", "="))


# -- variables --------------------------------------------------------------------------------

HERE = ExpansionContext({"A": "1", "EMPTY": "", "HOME": "/h"}, "/work/project")


@pytest.mark.parametrize(
    ("rule", "text", "value"),
    [
        ("none", "${A}", "${A}"),
        ("shell", "x${A}y", "x1y"),
        ("shell", "${B:-two}", "two"),
        ("shell", "${EMPTY:-two}", "two"),
        ("shell", "${EMPTY}", ""),
        ("shell", "$A", "$A"),
        ("shell", "${B:-}", ""),
        ("dollar", "$A/${A}/${B:-b}", "1/1/b"),
        ("editor", "${env:A}", "1"),
        ("editor", "${workspaceFolder}/x", "/work/project/x"),
        ("editor", "${workspaceFolderBasename}${pathSeparator}${userHome}", "project//h"),
        ("braces", "{env:A}${A}", "1${A}"),
    ],
)
def test_a_variable_is_expanded_by_the_rule_of_its_dialect(rule: Expansion, text: str, value: str) -> None:
    assert expand(text, rule, HERE) == value


@pytest.mark.parametrize(
    ("rule", "text", "missing"),
    [
        ("shell", "${B}", "B is not set"),
        ("dollar", "$B", "B is not set"),
        ("editor", "${env:B}", "B is not set"),
        ("editor", "${input:key}", "'key' is asked for"),
        ("editor", "${unknownThing}", "has no value"),
        ("editor", "${env}", "has no value"),
        ("braces", "{env:B}", "B is not set"),
        ("braces", "{file:nowhere}", "nowhere"),
        ("braces", "{file:/dev/zero}", "/dev/zero"),
    ],
)
def test_a_variable_without_a_value_is_an_error_and_never_an_empty_text(
    rule: Expansion, text: str, missing: str
) -> None:
    with pytest.raises(UnresolvedVariableError, match=missing):
        expand(text, rule, HERE)


def test_a_small_file_can_stand_for_a_value(tmp_path: Path) -> None:
    put(tmp_path / "key", "secret\n")
    put(tmp_path / "bad", "x")
    (tmp_path / "bad").write_bytes(b"\xff\xff")
    here = ExpansionContext({}, str(tmp_path))
    assert expand("{file:key}", "braces", here) == "secret"
    with pytest.raises(UnresolvedVariableError, match="cannot be read"):
        expand("{file:bad}", "braces", here)


def test_consent_is_given_to_names_and_values_come_later(tmp_path: Path) -> None:
    file = put(
        tmp_path / ".mcp.json",
        {
            "mcpServers": {
                "x": {"command": "${BIN:-x}", "args": ["${A}"], "env": {"T": "${TOKEN}"}, "cwd": "${DIR:-/d}"},
                "r": {"url": "https://${HOST}/mcp", "headers": {"K": "${TOKEN}"}},
            }
        },
    )
    x, r = discover_mcp_config(file).rows
    assert isinstance(x.config, StdioServerConfig)
    assert x.config.args == ("${A}",)
    resolved, notes = resolve_rows([x, r], {"A": "1", "TOKEN": "t"})
    assert resolved == {"x": StdioServerConfig("x", "x", ("1",), {"T": "t"}, cwd="/d")}
    assert [str(note) for note in notes] == [f"server 'r' of {file}: not started: the variable HOST is not set"]
    resolved, notes = resolve_rows([r], {"HOST": "h", "TOKEN": "t"})
    remote = resolved["r"]
    assert isinstance(remote, StreamableHttpServerConfig)
    assert replace(remote, auth=None) == StreamableHttpServerConfig("r", "https://h/mcp", {"K": "t"})


def test_variables_that_are_handed_on_by_name_get_their_values(tmp_path: Path) -> None:
    file = put(
        tmp_path / ".codex/config.toml", '[mcp_servers.x]\ncommand = "x"\nenv_vars = ["TOKEN", {name = "KEY"}]\n'
    )
    (row,) = discover_mcp_config(file).rows
    config = row.resolve({"TOKEN": "t", "KEY": "k", "OTHER": "o"})
    assert isinstance(config, StdioServerConfig)
    assert dict(config.env) == {"TOKEN": "t", "KEY": "k"}
    with pytest.raises(UnresolvedVariableError, match="KEY"):
        row.resolve({"TOKEN": "t"})


def test_a_file_in_a_folder_of_settings_speaks_about_the_folder_above(tmp_path: Path) -> None:
    row = '{"servers": {"x": {"command": "${workspaceFolder}/x"}}, "inputs": []}'
    file = put(tmp_path / ".vscode/mcp.json", row)
    (found,) = read_rows(str(file), "project")[0]
    config = found.resolve({})
    assert isinstance(config, StdioServerConfig)
    assert config.command == f"{tmp_path}/x"


def test_a_server_needs_a_name() -> None:
    with pytest.raises(InvalidRowError):
        parse_row("", {"command": "x"}, Origin("f", "given", "indus"))


@pytest.mark.parametrize(
    ("fields", "replicas", "remark"),
    [
        ({"stateless": True, "replicas": 3}, 3, ""),
        ({"stateless": True}, 1, ""),
        ({"replicas": 1}, 1, ""),
        ({"replicas": 2}, 1, 'only a server with "stateless": true has several'),
        ({"stateless": "yes", "replicas": 2}, 1, "its stateless is neither true nor false"),
        ({"stateless": True, "replicas": 1_000}, 1, "not a whole number from 1 to 32"),
        ({"stateless": True, "replicas": True}, 1, "not a whole number from 1 to 32"),
    ],
)
def test_only_a_stateless_server_has_replicas(fields: JsonObject, replicas: int, remark: str) -> None:
    row = parse_row("x", {"command": "x", **fields}, Origin("f", "given", "indus"))
    assert isinstance(row.config, StdioServerConfig)
    assert row.config.replicas == replicas
    assert remark in " ".join(row.remarks)
    assert bool(row.remarks) == bool(remark)


def test_files_are_looked_for_at_home_also_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    def expand(path: str) -> str:
        return path.replace("~", "/people/ada")

    monkeypatch.setattr("os.path.expanduser", expand)
    assert list_config_paths("/work") == (
        ("/work/.indusvx/mcp.json", "project"),
        ("/people/ada/.config/indus/mcp.json", "user"),
        ("/people/ada/.config/indusvx/mcp.json", "user"),
        ("/people/ada/.indusvx/agent/mcp.json", "user"),
        ("/people/ada/.indusvx/agent/mcp-servers.json", "user"),
    )


def test_rows_of_gemini_after_one_that_is_no_object_are_read() -> None:
    servers: JsonObject = {"odd": 1, "old": {"url": "https://a"}, "new": {"httpUrl": "https://b"}, "out": {"url": "c"}}
    found = [*gemini({"mcpServers": servers, "mcp": {"excluded": ["out"]}})]
    assert [(row.name, row.fields) for row in found[:3]] == [
        ("odd", 1),
        ("old", {"url": "https://a", "type": "sse"}),
        ("new", {"url": "https://b", "type": "http"}),
    ]
    assert len(found) == 4


@pytest.mark.parametrize("value", [[], {}, [None], {"a": []}])
@pytest.mark.parametrize("field", ["added", "stateless", "auth", "type", "start"])
def test_finding_f1_a_list_or_an_object_in_the_place_of_a_word_is_a_remark(field: str, value: JsonValue) -> None:
    given: JsonValue = {"type": value} if field == "auth" else value
    row: JsonObject = {"command": "run"} if field != "auth" else {"url": "http://a/"}
    try:
        parsed = parse_row("a", {**row, field: given}, Origin("f", "given", "indus"))
    except InvalidRowError:
        return
    assert parsed.id == "a"
