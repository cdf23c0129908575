"""`indus mcp add`, `add-json`, `remove`, `enable` and `disable`: what they write, and what not."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from tests.commands.helpers import (
    HONEST,
    configured,
    in_sandbox,
    one_line,
    piped,
    project_file,
    row,
    servers_of,
    told,
    user_file,
)
from tests.support.scripts import command, run

pytestmark = pytest.mark.process


def test_a_command_is_added_to_the_users_file_which_is_named(tmp_path: Path) -> None:
    done = run("mcp", "add", "--no-check", "fs", "-e", "K=v=w", "--", "sh", "-c", "--flag", "a b", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Added server 'fs' to {user_file()}\nSandbox: ")
    expected = {"command": "sh", "args": ["-c", "--flag", "a b"], "env": {"K": "v=w"}}
    assert servers_of(user_file()) == {"fs": in_sandbox(expected)}
    assert stat.S_IMODE(user_file().stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (["https://h/mcp"], {"type": "http", "url": "https://h/mcp"}),
        (["-t", "sse", "HTTP://h/"], {"type": "sse", "url": "HTTP://h/"}),
        (
            ["https://h/", "-H", "A: b: c", "-H", "X-Y:z"],
            {"type": "http", "url": "https://h/", "headers": {"A": "b: c", "X-Y": "z"}},
        ),
        (["sh"], {"command": "sh"}),
        (["-t", "stdio", "sh", "a"], {"command": "sh", "args": ["a"]}),
        (
            ["--timeout", "5", "--startup-timeout", "2.5", "--required", "--start", "lazy", "sh"],
            {"command": "sh", "tool_timeout_sec": 5, "startup_timeout_sec": 2.5, "required": True, "start": "lazy"},
        ),
        (
            ["--include-tools", "a,b", "--include-tools", "c", "--exclude-tools", "d", "sh"],
            {"command": "sh", "include_tools": ["a", "b", "c"], "exclude_tools": ["d"]},
        ),
    ],
)
def test_every_way_to_say_it(tmp_path: Path, words: list[str], fields: dict[str, object]) -> None:
    done = run("mcp", "add", "--no-check", "s", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert servers_of(user_file()) == {"s": in_sandbox(fields)}
    shown = told("mcp", "get", "s", "--json", cwd=tmp_path)
    assert shown["name"] == "s"


def test_adding_to_the_project_is_consent_to_that_row_alone(tmp_path: Path) -> None:
    configured(project_file(tmp_path), {"theirs": row()})
    done = run("mcp", "add", "--no-check", "mine", "-s", "project", "--", *HONEST, cwd=tmp_path)
    assert f"Added server 'mine' to {project_file(tmp_path)}" in done.stdout
    assert "You have consented to 'mine' as it is" in done.stdout
    listed = told("mcp", "list", "--no-check", "--json", cwd=tmp_path)["servers"]
    phases = {one["name"]: one["phase"] for one in listed}
    assert phases == {"theirs": "untrusted", "mine": "unchecked"}
    assert run("call", "mine__echo", "text=x", cwd=tmp_path).stdout == "x\n"


def test_a_secret_in_the_projects_file_and_a_missing_command_are_warned_about(tmp_path: Path) -> None:
    words = ("-s", "project", "-e", "TOKEN=s3cret", "-e", "B=${B}", "--", "no-such-command")
    done = run("mcp", "add", "--no-check", "s", *words, cwd=tmp_path)
    assert done.returncode == 0
    assert "the value of TOKEN is in a file of the project" in done.stderr
    assert "'no-such-command' is not on PATH" in done.stderr
    assert "s3cret" not in done.stdout + done.stderr


def test_a_server_of_the_user_hides_one_of_the_project(tmp_path: Path) -> None:
    run("mcp", "add", "--no-check", "s", "--", "sh", cwd=tmp_path)
    done = run("mcp", "add", "--no-check", "s", "-s", "project", "--", "cat", cwd=tmp_path)
    assert f"{user_file()} has a server 's' as well, and that one is used" in done.stderr


def test_what_is_there_is_not_written_over_unless_told(tmp_path: Path) -> None:
    run("mcp", "add", "--no-check", "s", "--", "sh", cwd=tmp_path)
    one_line(run("mcp", "add", "--no-check", "s", "--", "cat", cwd=tmp_path), "has a server 's'", "--replace")
    assert servers_of(user_file())["s"]["command"] == "sh"
    assert run("mcp", "add", "--no-check", "s", "--replace", "--", "cat", cwd=tmp_path).returncode == 0
    assert servers_of(user_file())["s"]["command"] == "cat"


def test_servers_added_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    words = [[command(), "mcp", "add", "--no-check", f"s{n}", "--", "sh"] for n in range(6)]
    running = [subprocess.Popen(one, cwd=tmp_path, stdout=subprocess.DEVNULL) for one in words]
    assert [process.wait(60) for process in running] == [0] * 6
    assert sorted(servers_of(user_file())) == [f"s{n}" for n in range(6)]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["add"], ["Missing argument 'NAME'"]),
        (["add", "s"], ["Say where the server is"]),
        (["add", "s", ""], ["Say where the server is"]),
        (["add", "", "--", "sh"], ["'' is not a valid name of a server"]),
        (["add", "a b", "--", "sh"], ["'a b' is not a valid name of a server"]),
        (["add", "a/../b", "--", "sh"], ["is not a valid name of a server"]),
        (["add", "x" * 65, "--", "sh"], ["is not a valid name of a server"]),
        (["add", "a\x1b[2J", "--", "sh"], ["'a\\x1b[2J' is not a valid name"]),
        (["add", "s", "sh", "-x"], ["No such option '-x'", "come after --"]),
        (["add", "s", "--nope", "--", "sh"], ["No such option '--nope'"]),
        (["add", "s", "-e", "KEY", "--", "sh"], ["-e takes NAME=VALUE"]),
        (["add", "s", "-e", "1K=v", "--", "sh"], ["-e takes NAME=VALUE"]),
        (["add", "s", "-e", "K=v", "https://h/"], ["-e is for a command"]),
        (["add", "s", "-H", "A: b", "--", "sh"], ["-H is for a URL"]),
        (["add", "s", "https://h/", "-H", "A b"], ["-H takes 'NAME: VALUE'"]),
        (["add", "s", "https://h/", "-H", "A: b\nC: d"], ["-H takes 'NAME: VALUE' in one line"]),
        (["add", "s", "https://h/", "more"], ["A URL stands alone: what is 'more' for?"]),
        (["add", "s", "ftp://h/x"], ["is not an address of a server", "https://"]),
        (["add", "s", "ws://h/mcp"], ["is not an address of a server"]),
        (["add", "s", "https://"], ["is not a valid address of a server"]),
        (["add", "s", "https://[::1"], ["is not a valid address of a server"]),
        (["add", "s", "https://h/a b"], ["is not a valid address of a server"]),
        (["add", "s", "--sandbox", "off", "https://h/"], ["--sandbox is for a command"]),
        (["add", "s", "-t", "stdio", "https://h/"], ["reached by http or sse"]),
        (["add", "s", "-t", "http", "--", "sh"], ["With -t http the server is a URL"]),
        (["add", "s", "-t", "ws", "https://h/"], ["'ws' is not one of"]),
        (["add", "s", "-s", "team", "--", "sh"], ["'team' is not one of"]),
        (["add", "s", "--timeout", "0", "--", "sh"], ["--timeout takes seconds"]),
        (["add", "s", "--timeout", "nan", "--", "sh"], ["--timeout takes seconds"]),
        (["add", "s", "--startup-timeout", "x", "--", "sh"], ["--startup-timeout takes seconds"]),
        (["add", "s", "--start", "never", "--", "sh"], ["'never' is not one of"]),
        (["add-json", "s"], ["Missing argument"]),
        (["add-json", "s", "{"], ["This is invalid JSON"]),
        (["add-json", "s", "[" * 100_000], ["This is invalid JSON"]),
        (["add-json", "s", "[]"], ["The server must be a JSON object"]),
        (["add-json", "s", "{}"], ["Server 's': it has neither a command nor a url"]),
        (["add-json", "s", "-"], ["This is invalid JSON"]),
        (["add-json", "", '{"command": "sh"}'], ["'' is not a valid name of a server"]),
        (["remove"], ["Missing argument 'NAME'"]),
        (["remove", "kep"], ["There is no server 'kep' (there are: kept)", "mean 'kept'"]),
        (["enable", "nobody"], ["There is no server 'nobody'"]),
        (["disable", "nobody", "-s", "project"], ["There is no server 'nobody', and no other"]),
        (["frobnicate"], ["There is no command 'frobnicate'"]),
        (["ad"], ["There is no command 'ad'. Did you mean 'add'?"]),
    ],
)
def test_bad_input_is_one_clear_line_and_nothing_is_written(tmp_path: Path, words: list[str], parts: list[str]) -> None:
    configured(user_file(), {"kept": {"command": "sh"}})
    before = user_file().read_text(encoding="utf-8")
    one_line(run("mcp", *words, cwd=tmp_path), *parts)
    assert user_file().read_text(encoding="utf-8") == before
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "words",
    [["add", "s", "--", "sh"], ["add-json", "s", '{"command": "sh"}'], ["remove", "a"], ["disable", "a"], ["import"]],
)
def test_a_file_with_comments_is_said_to_have_them_and_left_alone(tmp_path: Path, words: list[str]) -> None:
    text = '{"servers": {"a": {"command": "sh"}}} // mine\n'
    user_file().parent.mkdir(parents=True)
    user_file().write_text(text, encoding="utf-8")
    done = run("mcp", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "has comments or trailing commas, which would be lost: change it by hand" in done.stderr
    assert done.stderr.count("\n") == 1
    assert user_file().read_text(encoding="utf-8") == text


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (Path(os.environ["HOME"]) / ".config").write_text("in the way", encoding="utf-8")
    done = run("mcp", "add", "--no-check", "s", "--", "sh", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "Not a directory" in done.stderr or "File exists" in done.stderr


def test_json_is_added_as_it_is_with_keys_nobody_knows(tmp_path: Path) -> None:
    fields = {"command": "sh", "args": ["a", 5], "x-vendor": {"b": [None]}}
    done = piped(json.dumps(fields), "mcp", "add-json", "--no-check", "s", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert servers_of(user_file()) == {"s": fields}
    assert "1 of its args are not text, left out" in done.stderr


def test_remove_takes_the_row_and_the_consent(tmp_path: Path) -> None:
    run("mcp", "add", "--no-check", "s", "-s", "project", "--", *HONEST, cwd=tmp_path)
    before = project_file(tmp_path).read_text(encoding="utf-8")
    done = run("mcp", "remove", "s", cwd=tmp_path)
    assert done.stdout == f"Removed server 's' from {project_file(tmp_path)}\n"
    assert servers_of(project_file(tmp_path)) == {}
    project_file(tmp_path).write_text(before, encoding="utf-8")
    listed = told("mcp", "list", "--no-check", "--json", cwd=tmp_path)["servers"]
    assert [one["phase"] for one in listed] == ["untrusted"]


def test_a_name_in_both_files_needs_a_scope(tmp_path: Path) -> None:
    configured(user_file(), {"s": {"command": "a"}})
    configured(project_file(tmp_path), {"s": {"command": "b"}})
    one_line(run("mcp", "remove", "s", cwd=tmp_path), "is in both files", "-s user")
    assert run("mcp", "remove", "s", "-s", "user", cwd=tmp_path).returncode == 0
    assert servers_of(user_file()) == {}
    assert "s" in servers_of(project_file(tmp_path))


def test_a_server_of_somebody_elses_file_is_not_changed(tmp_path: Path) -> None:
    theirs = tmp_path / ".mcp.json"
    theirs.write_text('{"mcpServers": {"s": {"command": "x"}}}', encoding="utf-8")
    before = theirs.read_text(encoding="utf-8")
    one_line(run("mcp", "disable", "s", cwd=tmp_path), f"is in {theirs}", "which indus does not write")
    assert theirs.read_text(encoding="utf-8") == before


def test_switched_off_and_on_again_it_is_as_it_was(tmp_path: Path) -> None:
    configured(user_file(), {"s": {"command": "sh", "x": 1}, "t": {"command": "sh", "disabled": True}})
    assert "is switched off" in run("mcp", "disable", "s", cwd=tmp_path).stdout
    assert servers_of(user_file())["s"] == {"command": "sh", "x": 1, "enabled": False}
    assert run("mcp", "disable", "s", cwd=tmp_path).returncode == 0
    listed = told("mcp", "list", "--json", cwd=tmp_path)["servers"]
    assert [(one["name"], one["phase"]) for one in listed] == [("s", "disabled"), ("t", "disabled")]
    assert "phase: off" in run("mcp", "get", "s", cwd=tmp_path).stdout
    run("mcp", "enable", "s", cwd=tmp_path)
    run("mcp", "enable", "t", cwd=tmp_path)
    assert servers_of(user_file()) == {"s": {"command": "sh", "x": 1}, "t": {"command": "sh"}}


def test_c10_a_file_of_the_project_cannot_move_our_own(tmp_path: Path) -> None:
    away = tmp_path / "away"
    lines = [f"{name}={away}" for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME")]
    (tmp_path / ".env").write_text("\n".join(lines), encoding="utf-8")
    run("mcp", "add", "--no-check", "s", "-s", "project", "--", *HONEST, cwd=tmp_path)
    run("mcp", "add", "--no-check", "t", "--", *HONEST, cwd=tmp_path)
    assert servers_of(user_file()).keys() == {"t"}
    assert not away.exists()
