"""`indus mcp import`: eight ways to write a configuration, one way to have it, and no surprise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.commands.helpers import configured, one_line, servers_of, told, typed, user_file
from tests.support.scripts import run
from tests.support.terminal import LineTerminal

pytestmark = pytest.mark.process

SECRET = "sk-abcdefghijklmnop1234"


def home(*parts: str) -> Path:
    return Path(os.environ["HOME"]).joinpath(*parts)


def written(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return path


def stdio(command: str = "sh", **more: Any) -> dict[str, Any]:
    return {"command": command, **more}


CODEX = """
[mcp_servers.codex]
command = "sh"
args = ["a"]
startup_timeout_sec = 5
[mcp_servers.codex-web]
url = "https://h/"
bearer_token_env_var = "CODEX_TOKEN"
"""


def everything(cwd: Path) -> None:
    """Write a file of every program."""
    written(
        home(".config", "Claude", "claude_desktop_config.json"),
        {"mcpServers": {"desktop": stdio(env={"API_KEY": SECRET, "LANG": "C"})}},
    )
    written(
        home(".claude.json"),
        {
            "mcpServers": {"claude": {"type": "http", "url": "https://h/${TOKEN:-x}"}},
            "projects": {str(cwd): {"mcpServers": {"claude-local": stdio()}}},
        },
    )
    written(
        home(".config", "Code", "User", "mcp.json"),
        {"servers": {"vscode": stdio("${env:TOOL}", args=["${userHome}/x"])}},
    )
    written(home(".cursor", "mcp.json"), {"mcpServers": {"cursor": stdio(args=["${env:A}"])}})
    written(home(".codex", "config.toml"), CODEX)
    written(
        home(".gemini", "settings.json"),
        {"mcpServers": {"gemini": {"httpUrl": "https://h/", "headers": {"A": "$B ${C}"}}}},
    )
    written(
        home(".config", "opencode", "opencode.jsonc"),
        '{"mcp": {"oc": {"type": "local", "command": ["sh", "{env:D}"]}}} // mine',
    )


def test_every_program_is_found_and_shown_before_anything_is_written(tmp_path: Path) -> None:
    everything(tmp_path)
    done = run("mcp", "import", "--dry-run", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)["servers"]
    shown = {one["name"]: (one["source"], one["transport"], one["secrets"]) for one in found}
    assert shown == {
        "desktop": ("claude-desktop", "stdio", 1),
        "claude": ("claude-code", "http", 0),
        "claude-local": ("claude-code", "stdio", 0),
        "vscode": ("vscode", "stdio", 0),
        "cursor": ("cursor", "stdio", 0),
        "codex": ("codex", "stdio", 0),
        "codex-web": ("codex", "http", 0),
        "gemini": ("gemini", "http", 0),
        "oc": ("opencode", "stdio", 0),
    }
    assert not user_file().exists()
    assert SECRET not in done.stdout


def test_variables_are_put_into_our_words(tmp_path: Path) -> None:
    everything(tmp_path)
    done = run("mcp", "import", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"Added server 'desktop' to {user_file()}" in done.stdout
    rows = servers_of(user_file())
    assert rows["desktop"]["env"] == {"API_KEY": SECRET, "LANG": "C"}
    assert rows["claude"]["url"] == "https://h/${TOKEN:-x}"
    assert rows["vscode"] == {"command": "${TOOL}", "args": ["${HOME}/x"]}
    assert rows["cursor"]["args"] == ["${A}"]
    assert rows["codex"] == {"command": "sh", "args": ["a"], "startup_timeout_sec": 5}
    assert rows["codex-web"]["http_headers"] == {"Authorization": "Bearer ${CODEX_TOKEN}"}
    assert rows["gemini"]["headers"] == {"A": "${B} ${C}"}
    assert (rows["oc"]["command"], rows["oc"]["args"]) == ("sh", ["${D}"])
    again = run("mcp", "import", cwd=tmp_path)
    assert again.stdout.count("there already") == len(rows)
    assert "Added" not in again.stdout


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (".vscode/mcp.json", {"servers": {"s": stdio(args=["${input:key}"])}, "inputs": []},
         "it needs the input 'key', which an editor asks for"),
        (".vscode/mcp.json", {"servers": {"s": stdio("${command:x}")}, "inputs": []},
         "it needs ${command}"),
        ("opencode.json", {"mcp": {"s": {"command": ["sh", "{file:~/key}"]}}},
         "it needs the content of the file '~/key'"),
        ("claude_desktop_config.json", {"mcpServers": {"s": stdio(args=["${X}"])}},
         "which would be taken for a variable"),
        (".cursor/mcp.json", {"mcpServers": {"s": 5}}, "it is not an object"),
        (".cursor/mcp.json", {"mcpServers": {"s": {}}}, "neither a command nor a url"),
        (".cursor/mcp.json", {"mcpServers": {"s": stdio(disabled=True)}}, "switched off"),
        ("x.json", {"nothing": 1}, "it names no servers"),
        ("x.json", "{", "invalid JSON"),
        ("x.toml", "=", "invalid TOML"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_in_our_words_is_left_out_and_told(
    tmp_path: Path, name: str, content: object, said: str
) -> None:
    file = written(tmp_path / name, content)
    done = run("mcp", "import", "--from", str(file), cwd=tmp_path)
    assert done.returncode == 0
    assert said in done.stderr
    assert "No servers were found." in done.stdout
    assert not user_file().exists()


def test_words_of_an_editor_have_their_values(tmp_path: Path) -> None:
    args = ["${workspaceFolder}/a", "${workspaceFolderBasename}", "a${pathSeparator}b", 5]
    file = written(tmp_path / "w" / ".cursor" / "mcp.json", {"mcpServers": {"s": stdio(args=args)}})
    run("mcp", "import", "--from", str(file), cwd=tmp_path)
    assert servers_of(user_file())["s"]["args"] == [f"{tmp_path}/w/a", "w", f"a{os.sep}b", 5]


@pytest.mark.parametrize("name", ["claude_desktop_config.json", ".cursor/mcp.json", ".gemini/settings.json"])
def test_references_to_secrets_are_copied_unless_they_would_change(name: str, tmp_path: Path) -> None:
    kept = "Bearer ${keyring:a} ${cmd:op read $X} ${file:~/t}"
    servers = {"s": stdio(env={"A": kept}), "left": stdio(env={"A": "${file:token}"})}
    source = written(tmp_path / name, {"mcpServers": servers})
    done = run("mcp", "import", "--from", str(source), "--yes", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert servers_of(user_file())["s"]["env"] == {"A": kept}
    assert "it needs the file 'token', relative to its own: write the full path" in done.stderr


def test_a_newer_opencode_is_read_too(tmp_path: Path) -> None:
    content = {"mcp": {"servers": {"s": {"type": "remote", "url": "https://h/{env:K}"}}}}
    written(home(".config", "opencode", "opencode.json"), content)
    run("mcp", "import", "--from", "opencode", cwd=tmp_path)
    assert servers_of(user_file())["s"]["url"] == "https://h/${K}"


def test_a_server_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    configured(user_file(), {"s": stdio("mine")})
    first = written(tmp_path / "a.json", {"mcpServers": {"s": stdio("x"), "t": stdio("y")}})
    second = written(tmp_path / "b.json", {"mcpServers": {"t": stdio("z")}})
    words = ("mcp", "import", "--from", str(first), "--from", str(second))
    done = run(*words, cwd=tmp_path)
    assert done.stdout.count("another of this name is there") == 2
    assert servers_of(user_file()) == {"s": stdio("mine"), "t": stdio("y")}


def test_c30_what_came_with_the_project_is_not_copied_unasked(tmp_path: Path) -> None:
    file = written(tmp_path / ".cursor" / "mcp.json", {"mcpServers": {"evil": stdio("evil")}})
    done = run("mcp", "import", cwd=tmp_path)
    assert done.returncode == 0
    assert "it comes with the project, and there is no terminal for a question" in done.stderr
    assert not user_file().exists()
    refused = typed("n\n", "mcp", "import", cwd=tmp_path)
    assert "command: evil" in refused.stdout
    assert not user_file().exists()
    typed("y\n", "mcp", "import", cwd=tmp_path)
    assert servers_of(user_file()) == {"evil": stdio("evil")}
    user_file().unlink()
    assert run("mcp", "import", "--yes", "--from", "cursor", cwd=tmp_path).returncode == 0
    assert servers_of(user_file()) == {"evil": stdio("evil")}
    assert json.loads(file.read_text(encoding="utf-8")) == {"mcpServers": {"evil": stdio("evil")}}


@pytest.mark.parametrize(("keys", "copied"), [("\r", ["mine"]), ("a\r", ["mine", "evil"]), ("\x1b", []), ("\x04", [])])
def test_one_question_on_a_terminal_has_check_marks_for_all_servers(
    keys: str, copied: list[str], tmp_path: Path
) -> None:
    written(home(".cursor", "mcp.json"), {"mcpServers": {"mine": stdio()}})
    written(tmp_path / ".cursor" / "mcp.json", {"mcpServers": {"evil": stdio("evil")}})
    with LineTerminal("mcp", "import", "-C", str(tmp_path), environ={**os.environ, "TERM": "xterm"}) as terminal:
        shown = terminal.read_until("esc not now")
        for key in keys:
            terminal.type(key)
        code, _ = terminal.wait()
    assert "command: evil" in shown
    assert "CONFLICT" not in shown
    assert code == 0
    assert [*servers_of(user_file())] == copied if copied else not user_file().exists()


def test_into_the_project_is_consent_to_what_was_copied(tmp_path: Path) -> None:
    written(home(".cursor", "mcp.json"), {"mcpServers": {"s": stdio()}})
    done = run("mcp", "import", "-s", "project", cwd=tmp_path)
    assert "You have consented to 's'" in done.stdout
    listed = told("mcp", "list", "--no-check", "--json", cwd=tmp_path)["servers"]
    assert [one["phase"] for one in listed] == ["unchecked"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--from", "emacs"], ["--from 'emacs' is neither a file nor one of claude-desktop"]),
        (["--from"], ["Option '--from' requires an argument"]),
        (["-s", "team"], ["'team' is not one of"]),
        (["extra"], ["unexpected extra argument (extra)"]),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, words: list[str], parts: list[str]) -> None:
    one_line(run("mcp", "import", *words, cwd=tmp_path), *parts)


def test_a_name_that_no_server_of_ours_may_have_keeps_nobody_else_out(tmp_path: Path) -> None:
    file = written(tmp_path / "a.json", {"mcpServers": {"fine": stdio(), "not fine": stdio()}})
    done = run("mcp", "import", "--from", str(file), cwd=tmp_path)
    assert done.returncode == 0
    assert "its name cannot be used here" in done.stdout
    assert servers_of(user_file()) == {"fine": stdio()}
