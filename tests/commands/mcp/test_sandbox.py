"""`indus mcp`: servers in sandboxes, as rows, in questions, and compared by doctor."""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from tests.commands.helpers import HONEST, configured, one_line, project_file, row, servers_of, told, user_file
from tests.support.sandboxes import skip_without
from tests.support.scripts import run

from indusagi.capabilities.sandbox.profile import ServerProfile
from induscode.commands import program
from induscode.servers.config import read_rows
from induscode.servers.config.dialects import DIALECTS
from induscode.servers.config.rows import Origin, parse_row
from induscode.servers.config.trust import consent_facts

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.process
STRICT = "strict: reads system programs, its own package and the workspace; writes to a home of its own; no network"


def test_a_profile_is_added_shown_and_asked_about(tmp_path: Path) -> None:
    words = ("--no-check", "clock", "--", "clock-server", "--utc")
    assert run("mcp", "add", "--sandbox", "strict", *words, cwd=tmp_path).returncode == 0
    assert servers_of(user_file())["clock"]["sandbox"] == "strict"
    assert "\nsandbox: strict\n" in run("mcp", "get", "clock", cwd=tmp_path).stdout
    assert told("mcp", "get", "clock", "--json", cwd=tmp_path)["sandbox"] == "strict"
    assert told("mcp", "list", "--no-check", "--json", cwd=tmp_path)["servers"][0]["sandbox"] == "strict"
    assert "clock  stdio, strict sandbox  -" in run("mcp", "list", "--no-check", cwd=tmp_path).stdout
    one_line(run("mcp", "add", "--sandbox", "tight", *words, cwd=tmp_path), "'tight' is not one of")
    wider = {"profile": "strict", "hosts": ["api.example"], "write": ["~/out"]}
    configured(project_file(tmp_path), {"a": row(sandbox="strict"), "b": row(sandbox=wider)})
    asked = run("mcp", "trust", "--yes", "a", "b", cwd=tmp_path)
    assert f"sandbox: {STRICT}\n" in asked.stdout + asked.stderr
    assert "also writes ~/out; reaches api.example:443\n" in asked.stdout + asked.stderr


def test_a_sandbox_that_is_not_understood_keeps_the_server_from_starting(tmp_path: Path) -> None:
    configured(user_file(), {"a": row(sandbox={"hosts": "api.example"}), "b": row(sandbox="off")})
    listed = run("mcp", "list", "--json", cwd=tmp_path)
    assert {one["name"] for one in json.loads(listed.stdout)["servers"] if one["phase"] == "ready"} == {"b"}
    assert "the hosts of its sandbox must be a list of strings" in listed.stderr


def test_a_required_sandbox_keeps_servers_without_one_from_starting(tmp_path: Path) -> None:
    configured(user_file(), {"bare": row(), "held": row(sandbox="strict"), "far": {"url": "http://127.0.0.1:9/mcp"}})
    settings = tmp_path / ".indusvx" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"sandbox": "required"}')
    listed = told("mcp", "list", "--no-check", "--json", cwd=tmp_path)["servers"]
    assert {one["name"]: one["phase"] for one in listed} == {
        "bare": "unsandboxed", "held": "unchecked", "far": "unchecked",
    }  # fmt: skip
    why = f"server 'bare' of {user_file()}: not started: it has no sandbox, and"
    remedy = (
        'requires one (put "sandbox": "standard" into its row, or what this finds: indus mcp doctor bare --sandbox)'
    )
    called = run("call", "bare__echo", "text=x", cwd=tmp_path)
    assert f"{why} the setting of project {settings} {remedy}" in called.stderr
    settings.unlink()
    served = run("serve", "--transparent", "bare", "--sandbox", "required", cwd=tmp_path)
    assert served.stderr == f"indus: {why} --sandbox required {remedy}\n"
    assert served.returncode != 0
    settings.write_text('{"sandbox": "required"}')
    examined = run("mcp", "doctor", "bare", cwd=tmp_path)
    assert (examined.returncode, 'Fix: put "sandbox": "standard" into its row' in examined.stdout) == (1, True)


def test_a_command_typed_for_one_call_gets_a_sandbox_where_one_is_required(tmp_path: Path) -> None:
    skip_without("bubblewrap")
    settings = tmp_path / ".indusvx" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"sandbox": "required"}')
    called = run("call", "--stdio", shlex.join(HONEST), "echo", "text=x", cwd=tmp_path)
    assert (called.returncode, called.stdout) == (0, "x\n"), called.stderr
    assert [*(Path(os.environ["HOME"]) / ".local/state/indus/servers").iterdir()]


def test_doctor_compares_the_profiles(tmp_path: Path) -> None:
    skip_without("bubblewrap")
    configured(user_file(), {"a": row(), "gone": {"command": "no-such-command"}})
    found = run("mcp", "doctor", "a", "--sandbox", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == ["off", "standard", "strict"]
    assert lines[0].partition(": ")[2] == lines[1].partition(": ")[2] == lines[2].partition(": ")[2]
    assert lines[3].startswith('Put "sandbox": "strict" into its row.')
    assert (
        "\n  sandbox: off. What fits: indus mcp doctor a --sandbox\n" in run("mcp", "doctor", "a", cwd=tmp_path).stdout
    )
    failed = run("mcp", "doctor", "gone", "--sandbox", "--json", cwd=tmp_path)
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["fits"] == "off"
    one_line(run("mcp", "doctor", "--sandbox", cwd=tmp_path), "--sandbox requires the NAME")


def test_doctor_proposes_what_a_server_lacks_and_starts_nothing_bare_where_a_sandbox_is_required(
    tmp_path: Path,
) -> None:
    skip_without("bubblewrap")
    notes = Path(os.environ["HOME"]) / "notes"
    notes.write_text("mine")
    needy = {
        "command": "sh",
        "args": ["-c", 'cat ~/notes >&2 || exit 1; exec "$0" "$@"', *HONEST],
        "sandbox": "standard",
    }
    configured(user_file(), {"a": needy, "bare": row()})
    examined = run("mcp", "doctor", "a", cwd=tmp_path)
    assert (
        'Fix: in its sandbox, ~/notes is hidden from it: add "~/notes" to "read" of the "sandbox" of \'a\''
        in examined.stdout
    )
    assert (
        "note: it runs in the sandbox standard; whether that's the cause: indus mcp doctor a --sandbox"
        in examined.stdout
    )
    found = told("mcp", "doctor", "a", "--sandbox", "--json", cwd=tmp_path)
    assert found["fits"] == {"profile": "strict", "read": ["~/notes"], "hosts": []}
    assert [one["tools"] is None for one in found["profiles"].values()] == [False, True, True, False]
    settings = tmp_path / ".indusvx" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"sandbox": "required"}')
    assert told("mcp", "doctor", "bare", "--sandbox", "--json", cwd=tmp_path)["profiles"].keys() == {
        "standard",
        "strict",
    }


def test_servers_of_two_files_have_two_homes_and_the_home_of_a_removed_one_is_named(tmp_path: Path) -> None:
    skip_without("bubblewrap")
    script = 'echo mine >>~/kept; exec "$0" "$@"'
    again = {"command": "sh", "args": ["-c", script, *HONEST], "sandbox": "standard"}
    configured(user_file(), {"a": again})
    configured(project_file(tmp_path), {"b": again})
    run("mcp", "trust", "--yes", "b", cwd=tmp_path)
    listed = told("mcp", "list", "--json", cwd=tmp_path)["servers"]
    assert [one["phase"] for one in listed] == ["ready", "ready"], listed
    homes = sorted((Path(os.environ["HOME"]) / ".local/state/indus/servers").iterdir())
    assert [home.name.partition("-")[0] for home in homes] == ["a", "b"]
    assert {(home / "kept").read_text() for home in homes} == {"mine\n"}
    removed = run("mcp", "remove", "-s", "user", "a", cwd=tmp_path)
    assert f"The home of its sandbox is kept: {homes[0]}" in removed.stdout
    configured(project_file(tmp_path), {"a": again})
    run("mcp", "trust", "--yes", "a", cwd=tmp_path)
    run("mcp", "list", cwd=tmp_path)
    assert len([*homes[0].parent.glob("a-*")]) == 2
    assert (homes[0] / "kept").read_text() == "mine\n"


def test_a_container_runs_the_command_in_its_image(tmp_path: Path) -> None:
    image = f"example/notes@sha256:{'0' * 64}"
    engine, log = tmp_path / "bin" / "docker", tmp_path / "log"
    engine.parent.mkdir()
    start = 'while test "$1" != --entrypoint; do shift; done; program=$2; shift 3; exec "$program" "$@"'
    engine.write_text(f'#!/bin/sh\necho "$@" >>{log}\ntest "$1" = rm && exit\n{start}\n', "utf-8")
    engine.chmod(0o755)
    path, cwd = f"{engine.parent}{os.pathsep}{os.environ['PATH']}", tmp_path / "work"
    cwd.mkdir()
    added = run("mcp", "add", "--image", image, "notes", "--", *HONEST, cwd=cwd, PATH=path)
    assert "Server 'notes': ready, 12 tools" in added.stdout, added.stderr
    assert servers_of(user_file())["notes"]["sandbox"] == {"container": "docker", "image": image}
    started, removed = log.read_text("utf-8").splitlines()
    name = started.split()[4]
    assert started.endswith(f" --entrypoint {HONEST[0]} {image} {' '.join(HONEST[1:])}")
    assert removed == f"rm --force --volumes {name}"
    assert "notes  stdio, docker sandbox  ready" in run("mcp", "list", cwd=cwd, PATH=path).stdout
    assert f"  command: docker: {engine}\n" in run("mcp", "doctor", "notes", cwd=cwd, PATH=path).stdout
    one_line(run("mcp", "doctor", "notes", "--sandbox", cwd=cwd, PATH=path), "runs in a container")
    tagged = ("mcp", "add", "--no-check", "--image", "notes:1", "tagged", "--", "serve")
    one_line(run(*tagged, cwd=cwd), "has no digest, so another can take its place")
    assert run(*tagged[:2], "--allow-tag", "-s", "project", *tagged[2:], cwd=cwd, PATH=path).returncode == 0
    asked = run("mcp", "trust", "--yes", "tagged", cwd=cwd).stdout
    assert "sandbox: docker: runs in notes:1, whose tag can move to another image; no network" in asked


def test_a_new_command_gets_a_sandbox_and_a_row_that_is_replaced_keeps_its_own(tmp_path: Path) -> None:
    skip_without("landlock")
    added = run("mcp", "add", "clock", "--", *HONEST, cwd=tmp_path)
    assert "\nSandbox: standard: reads the system and the workspace, not your home; " in added.stdout
    assert "(--sandbox off: no sandbox)\n" in added.stdout
    assert "Server 'clock': ready, 12 tools" in added.stdout, added.stderr
    assert servers_of(user_file())["clock"]["sandbox"] == "standard"
    learned = {"profile": "strict", "hosts": ["api.example:443"]}
    configured(user_file(), {"clock": row(sandbox=learned), "old": row(), "odd": row(sandbox={"x": 1})})
    words = ("mcp", "add", "--replace", "--no-check")
    again = run(*words, "clock", "--", *HONEST, cwd=tmp_path)
    assert "Sandbox: strict: " in again.stdout
    assert run(*words, "old", "--", *HONEST, cwd=tmp_path).returncode == 0
    one_line(run(*words, "odd", "--", *HONEST, cwd=tmp_path), "unknown key 'x'", "--sandbox replaces it")
    assert {name: one["sandbox"] for name, one in servers_of(user_file()).items()} == {
        "clock": learned, "old": "standard", "odd": {"x": 1},
    }  # fmt: skip


def _find_nothing(*_: object) -> tuple[tuple[str, ...], str]:
    return (), ""


def test_a_new_row_gets_no_sandbox_that_would_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def added(*words: str) -> str:
        assert program.run(["mcp", "add", "--no-check", "--replace", "s", *words]) == 0
        assert "sandbox" not in servers_of(user_file())["s"]
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    assert "Sandbox" not in added("https://h/mcp")
    assert "\nSandbox: off: docker needs its own socket\n" in added("--", "docker", "run", "-i", "notes")
    assert "\nSandbox: off: it starts nothing here\n" in added("--", "cluster:far/notes")
    monkeypatch.setattr("indusagi.capabilities.sandbox.backend.find_bubblewrap", _find_nothing)
    monkeypatch.setattr("indusagi.capabilities.sandbox.backend._find_landlock", _find_nothing)
    assert "\nSandbox: off: this machine has neither bubblewrap nor Landlock" in added("--", "sh")


FOREIGN: dict[str, str | JsonObject] = {
    "codex": '[mcp_servers.s]\ncommand = "sh"\nsandbox = "strict"\n',
    "opencode-v2": {"mcp": {"servers": {"s": {"type": "local", "command": ["sh"], "sandbox": "strict"}}}},
    "opencode": {"mcp": {"s": {"type": "local", "command": ["sh"], "sandbox": "strict"}}},
    "zed": {"context_servers": {"s": {"command": {"path": "sh", "args": []}, "sandbox": "strict"}}},
    "amp": {"amp.mcpServers": {"s": {"command": "sh", "sandbox": "strict"}}},
    "gemini": {"mcp": {}, "mcpServers": {"s": {"command": "sh", "sandbox": "strict"}}},
    "vscode": {"inputs": [], "servers": {"s": {"command": "sh", "sandbox": "strict"}}},
    "indus": {"servers": {"s": {"command": "sh", "sandbox": "strict"}}},
    **{
        name: {"mcpServers": {"s": {"command": "sh", "sandbox": "strict"}}}
        for name in ("qwen", "windsurf", "copilot", "cline", "claude-code", "claude-desktop", "cursor")
    },
}


def test_every_dialect_keeps_the_sandbox_of_a_row() -> None:
    assert FOREIGN.keys() == DIALECTS.keys()
    for name, content in FOREIGN.items():
        document = tomllib.loads(content) if isinstance(content, str) else content
        [found] = DIALECTS[name].read_rows(document)
        config = parse_row(found.name, cast("JsonObject", found.fields), Origin("f", "user", name)).config
        assert getattr(config, "sandbox", None) == ServerProfile(name="strict"), name


def test_import_keeps_the_sandbox_and_names_the_servers_without_one(tmp_path: Path) -> None:
    rows = {"a": row(), "b": row(sandbox="strict"), "c": {"url": "https://h/mcp"}, "d": row(sandbox={"no": 1})}
    (tmp_path / "theirs.json").write_text(json.dumps({"mcpServers": rows}), "utf-8")
    done = run("mcp", "import", "--from", "theirs.json", cwd=tmp_path)
    assert "\nWithout a sandbox: a. To see which fits: indus mcp doctor NAME --sandbox\n" in done.stdout
    assert {name: one.get("sandbox") for name, one in servers_of(user_file()).items()} == {
        "a": None, "b": "strict", "c": None,
    }  # fmt: skip
    assert "left out: its sandbox has an unknown key 'no'" in done.stderr


def test_a_sandbox_of_vs_code_is_held_here_too(tmp_path: Path) -> None:
    shared: JsonObject = {
        "filesystem": {"allowWrite": [".", "~/out"], "denyRead": ["~/.ssh"]},
        "network": {"deniedDomains": []},
    }
    own = {"network": {"allowedDomains": ["api.example"]}}
    rows = {
        "a": row(sandboxEnabled=True), "b": row(sandboxEnabled=True, sandbox=own), "c": row(sandboxEnabled=False),
        "d": row(sandboxEnabled=True, sandbox={"network": {"deniedDomains": ["x.example"]}}),
    }  # fmt: skip
    path = tmp_path / ".vscode" / "mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"servers": rows, "sandbox": shared}), "utf-8")
    done = run("mcp", "import", "--from", "vscode", "--yes", cwd=tmp_path)
    assert {name: one.get("sandbox") for name, one in servers_of(user_file()).items()} == {
        "a": {"profile": "standard", "write": ["~/out"], "hosts": ["*.npmjs.org"]},
        "b": {"profile": "standard", "write": [], "hosts": ["*.npmjs.org", "api.example"]},
        "c": None,
    }  # fmt: skip
    assert "its sandbox has an unknown key 'deniedDomains'" in done.stderr
    # A wider sandbox of the file changes what was agreed to.
    [before] = [one for one in read_rows(str(path), "project")[0] if one.id == "a"]
    path.write_text(json.dumps({"servers": rows, "sandbox": {}}), "utf-8")
    [after] = [one for one in read_rows(str(path), "project")[0] if one.id == "a"]
    assert consent_facts(before) != consent_facts(after)
