"""`indus try`: a server that isn't configured, in a sandbox, and what's left of it afterwards."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import HONEST, PYTHON, one_line, servers_of, user_file
from tests.support.sandboxes import skip_without
from tests.support.scripts import run
from tests.support.servers import SERVERS
from tests.support.terminal import CTRL_C, LineTerminal

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process
OFF = ("--sandbox", "off")
WRITES_FIRST = (
    "import os, runpy, sys; open(os.path.expanduser('~/mark'), 'w').close(); open('here', 'w').close(); "
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)
FAULT = [*PYTHON, str(SERVERS / "fault.py")]


def left(tmp_path: Path) -> list[str]:
    """List the files in the home and in the temporary directory of the trials."""
    places = (Path(os.environ["HOME"]), tmp_path / "tmp")
    return [str(file) for place in places for file in place.rglob("*") if file.is_file()]


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[..., Any]:
    """Run `indus try` with a temporary directory of its own."""
    (tmp_path / "tmp").mkdir()

    def start(*words: str, **variables: str) -> Any:
        return run("try", *words, cwd=tmp_path, TMPDIR=str(tmp_path / "tmp"), **variables)

    return start


def test_a_server_is_listed_reviewed_and_called_and_leaves_nothing(attempt: Callable[..., Any], tmp_path: Path) -> None:
    skip_without("bubblewrap")
    calls = ("--call", "echo text='two words'", "--call", 'add {"a": 1, "b": 2}')
    # The interpreter is the command: a sandbox shows it wherever this clone lies.
    done = attempt(*calls, "--", *PYTHON, "-c", WRITES_FIRST, HONEST[-1])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("honest-py: honest 1.0, protocol ")
    assert lines[2].startswith("  sandbox: standard: reads the system")
    assert "12 tools, " in done.stdout
    assert lines[-3:] == ["review: found nothing", "two words", "3"]
    assert left(tmp_path) == []


def test_its_facts_are_json_and_findings_and_errors_are_the_exit_code(attempt: Callable[..., Any]) -> None:
    done = attempt(*OFF, "--json", "-e", "TOKEN=hunter2", "--call", "fault", "--", *FAULT, "dirty")
    facts = json.loads(done.stdout)
    assert done.returncode == 1
    assert facts["findings"][0] | {"message": ""} == {
        "check": "hidden-text", "severity": "serious", "kind": "tool", "name": "fault", "place": "description",
        "message": "",
    }  # fmt: skip
    assert facts["items"][-1]["kind"] == "instructions"
    assert (facts["calls"][0]["tool"], facts["kept"], facts["fault"]) == ("fault", None, None)
    assert "hunter2" not in done.stdout
    failed = attempt(*OFF, "--call", "fail", "--", *HONEST)
    assert (failed.returncode, failed.stderr) == (1, "indus: fail answered with an error\n")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((*OFF, "--startup-timeout", "0.5", "--", *FAULT, "mute"), 3, "no answer within 0.5 s"),
        ((*OFF, "--call", "fault", "--", *FAULT, "dies"), 3, "the call of 'fault' failed"),
        (("--", "no-such-program"), 3, "the command 'no-such-program' was not found"),
        ((*OFF, "--call", "ecko", "--", *HONEST), 2, "It has no tool 'ecko'. Did you mean 'echo'?"),
        (("npm:notes@1.x",), 2, "doesn't name an exact version"),
        (("--compare", "--", *HONEST), 2, "--compare needs a package"),
    ],
)
def test_a_failure_says_what_is_wrong_and_leaves_nothing(
    attempt: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    done = attempt(*words)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert left(tmp_path) == []


def test_a_kept_server_has_its_profile_and_exactly_the_listed_definitions(
    attempt: Callable[..., Any], tmp_path: Path
) -> None:
    asked = attempt(*OFF, "--keep", "clock", "--", *HONEST)
    assert (asked.returncode, asked.stderr.partition(": look")[0]) == (2, "indus: There is no terminal to ask on")
    shown = json.loads(attempt(*OFF, "--json", "--keep", "clock", "--", *HONEST).stdout)
    assert (shown["kept"], user_file().exists()) == (None, False)
    other = attempt(*OFF, "--keep", "clock", "--yes", "--digest", shown["digest"], "--", *HONEST, "--tools", "1")
    assert (other.stderr.splitlines()[-1], user_file().exists()) == ("indus: nothing was added", False)
    kept = attempt(*OFF, "--json", "--keep", "clock", "--yes", "--digest", shown["digest"], "--", *HONEST)
    assert json.loads(kept.stdout)["kept"] == "clock"
    assert servers_of(user_file())["clock"] == {"command": HONEST[0], "args": HONEST[1:], "sandbox": "off"}
    assert run("mcp", "diff", "clock", cwd=tmp_path).stdout == "No changed tools.\n"
    again = attempt(*OFF, "--keep", "clock", "--yes", "--", *HONEST)
    one_line(again, "has a server 'clock': keep it under another name")
    document = json.loads(user_file().read_text("utf-8"))
    document["servers"]["clock"]["args"] += ["--tools", "1"]
    user_file().write_text(json.dumps(document), "utf-8")
    changed = run("mcp", "diff", "clock", cwd=tmp_path)
    assert (changed.returncode, changed.stdout.partition("\n")[0]) == (1, "clock/tool_0: added")


def write_client(folder: Path, name: str, script: str) -> None:
    """Write a stand-in for a package client."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    (folder / name).chmod(0o755)


def test_a_package_starts_in_its_latest_version_and_is_compared_with_the_release_before(
    attempt: Callable[..., Any], tmp_path: Path
) -> None:
    answer = {"versions": ["1.0.0", "1.1.0-rc.1", "1.1.0", "2.0.0-beta.1"], "dist-tags": {"latest": "1.1.0"}}
    write_client(tmp_path / "bin", "npm", f"echo {shlex.quote(json.dumps(answer))}")
    # The older version has no content besides tools.
    server = shlex.join([*PYTHON, str(SERVERS / "fault.py"), "hang"])
    write_client(
        tmp_path / "bin", "npx",
        f'case "$2" in *@1.0.0) exec {server};; *@1.1.0) exec {shlex.join(HONEST)};; esac; echo "no $2" >&2; exit 1',
    )  # fmt: skip
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = attempt(*OFF, "--json", "npm:@example/notes", "--compare", PATH=path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["target"], facts["former"]) == ("npm:@example/notes@1.1.0", "npm:@example/notes@1.0.0")
    assert facts["row"]["args"] == ["-y", "@example/notes@1.1.0"]
    assert {"kind": "tool", "name": "fault", "grade": "breaking", "fields": ["name", "description", "inputSchema"]} in (
        facts["drifts"]
    )
    shown = attempt(*OFF, "--compare", "1.1.0", "npm:@example/notes@1.1.0", PATH=path)
    assert "npm:@example/notes@1.1.0: the same definitions" in shown.stdout
    write_client(tmp_path / "bin", "npm", "echo 'npm error 404 not found' >&2; exit 1")
    missing = attempt("npm:nothing", PATH=path)
    assert (missing.returncode, missing.stderr) == (3, "indus: npm:nothing: 404 not found\n")
    absent = attempt("npm:nothing", PATH=str(tmp_path / "nowhere"))
    assert (absent.returncode, absent.stderr.rpartition(":")[0]) == (3, "indus: npm:nothing: npm can't be started")


def test_tools_are_called_by_hand_and_the_server_is_kept_after_a_yes(tmp_path: Path) -> None:
    with LineTerminal("try", "-C", str(tmp_path), *OFF, "--", *HONEST, environ=os.environ) as terminal:
        assert "review: found nothing" in terminal.answer("try> ", "help\r")
        assert "call a tool" in terminal.answer("try> ", "echo text=hello\r")
        assert "hello" in terminal.answer("try> ", "echo hello\r")
        assert "echo: 'hello' is not key=value" in terminal.answer("try> ", "quit\r")
        terminal.answer("Keep it as 'honest-py'? [y/N]", "y\r")
        assert terminal.wait()[0] == 0
    assert [*servers_of(user_file())] == ["honest-py"]


def test_ctrl_c_ends_the_server_and_keeps_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    environ = {**os.environ, "TMPDIR": str(folder)}
    with LineTerminal("try", "-C", str(tmp_path), *OFF, "--", *FAULT, "hang", environ=environ) as terminal:
        terminal.answer("try> ", "fault\r")
        terminal.answer("fault", CTRL_C)
        assert terminal.wait()[0] == 130
        assert not terminal.has_processes()
    assert left(tmp_path) == []


def test_a_watched_server_is_kept_with_what_it_used(attempt: Callable[..., Any], tmp_path: Path) -> None:
    skip_without("bubblewrap")
    script = tmp_path / "curious.py"
    script.write_text((SERVERS / "curious.py").read_text("utf-8"))
    server = ("--", PYTHON[0], "-I", "-S", str(script))
    one_line(attempt("--learn", *OFF, *server), "--learn needs a sandbox")
    one_line(attempt("--learn", "https://h/mcp"), "--learn is for a command")
    words = ("--learn", "--call", "fetch", "--call", "save", "--keep", "c")
    told = json.loads(attempt("--json", *words, *server).stdout)
    assert told["behaviour"]["hosts"] == ["api.learned.invalid:443"]
    kept = attempt(*words, "--yes", "--digest", told["digest"], *server)
    assert kept.returncode == 0, kept.stderr
    assert "used hosts: api.learned.invalid:443\n" in kept.stdout
    assert "; reaches any host\n" in kept.stdout
    assert "limited to what it used: a host or path it asks for later waits for you\n" in kept.stdout
    wanted = {"profile": "standard", "write": ["."], "hosts": ["api.learned.invalid:443"]}
    assert servers_of(user_file())["c"]["sandbox"] == wanted
    assert run("call", "c__direct", cwd=tmp_path).returncode == 0
    assert run("mcp", "diff", "c", cwd=tmp_path).returncode == 0
