"""`--mcp` with a file that was named and cannot be used, in every command that takes it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import one_line, row
from tests.support.scripts import run

from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from induscode.boot.plans import build_fault_note
from induscode.cluster.contract import ClusterFault
from induscode.commands import program

if TYPE_CHECKING:
    from pathlib import Path

_BROKEN: dict[str, tuple[str | bytes, str]] = {
    "syntax.json": ('{\n  "mcpServers": {,}\n}', ":2:18: invalid JSON"),
    "empty.json": ("", ":1:1: invalid JSON"),
    "cut.json": ('{"mcpServers": {"a": {"command": "x"', ":1:37: invalid JSON"),
    "binary.json": (b'{"mcpServers":\n \xff{}}', ":2:2: it is not UTF-8"),
    "syntax.toml": ("[mcp_servers.a]\ncommand = \n", ":2:11: invalid TOML"),
    "cut.toml": ("[mcp_servers.a", "invalid TOML"),
    "list.json": ("[]", ":1:1: it is not an object"),
    "text.json": ('"mcpServers"', ":1:1: it is not an object"),
    "null.json": ("null", ":1:1: it is not an object"),
    "other.json": ('{"a": 1}', "it names no servers; it needs {"),
    "other.toml": ("a = 1\n", "it names no servers; it needs {"),
    "number.json": ('{"servers": 3}', "'servers' is not an object"),
    "listed.json": ('{"mcpServers": []}', "'mcpServers' is not an object"),
    "rowless.json": ('{"mcpServers": {"a": {}}}', "it has neither a command nor a url"),
}
_COMMANDS = (
    ("tools",),
    ("tools", "show", "read"),
    ("tools", "search", "read"),
    ("call", "ls"),
    ("mcp", "list"),
    ("mcp", "list", "--no-check"),
    ("mcp", "get", "a"),
    ("mcp", "doctor"),
    ("mcp", "logs", "a"),
    ("mcp", "diff"),
    ("mcp", "approve", "a"),
    ("mcp", "lock"),
    ("serve",),
    ("serve", "--transparent", "a"),
)


@pytest.mark.parametrize("name", _BROKEN)
def test_finding_b8_a_named_file_that_is_broken_is_an_error_with_its_place(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, said = _BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert program.run(["mcp", "list", "--mcp", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert f"{path}" in shown.err
    assert said in shown.err


@pytest.mark.process
@pytest.mark.parametrize("words", _COMMANDS, ids=" ".join)
def test_finding_b8_every_command_refuses_a_named_file_that_is_broken(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"mcpServers": {,}}', encoding="utf-8")
    done = run(*words, "--mcp", "broken.json", cwd=tmp_path)
    one_line(done, "--mcp ", "broken.json:1:17: invalid JSON", "correct it")


@pytest.mark.process
def test_finding_b8_a_prompt_refuses_a_named_file_that_is_broken(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("[]", encoding="utf-8")
    done = run("--mcp", "broken.json", "-p", "hi", "--base-url", "http://127.0.0.1:9", cwd=tmp_path)
    one_line(done, "broken.json:1:1: it is not an object")


@pytest.mark.parametrize("kind", ["pipe", "dangling", "folder"])
def test_finding_b8_what_is_no_file_is_an_error(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling":
        path.symlink_to("gone")
    else:
        path.mkdir()
    assert program.run(["mcp", "list", "--mcp", str(path)]) == 2
    said = capsys.readouterr().err
    expected = {"pipe": "not a regular file", "dangling": "No such file", "folder": "no servers are configured there"}
    assert expected[kind] in said
    assert str(path) in said


def test_finding_b8_one_broken_file_among_good_ones_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"servers": {"a": row()}}), encoding="utf-8")
    bad.write_text("{", encoding="utf-8")
    assert program.run(["mcp", "list", "--no-check", "--mcp", f"{good},{bad}"]) == 2
    assert f"{bad}:1:2: invalid JSON" in capsys.readouterr().err


def test_a_file_that_was_found_and_not_named_stays_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".mcp.json").write_text("{", encoding="utf-8")
    for words in (["-C", str(tmp_path), "mcp", "list"], ["mcp", "list", "--mcp", str(tmp_path)]):
        assert program.run(words) == 0
        assert "skipped: invalid JSON" in capsys.readouterr().err


@pytest.mark.parametrize("document", [{"mcpServers": {}}, {"servers": []}])
@pytest.mark.process
@pytest.mark.parametrize(
    "line", ["mcp list", "tools", "call read path=x", "mcp doctor", "serve --dry-run", "serve --install cursor"]
)
def test_finding_sf_a_named_file_without_servers_is_an_error(tmp_path: Path, line: str, document: object) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    done = run(*line.split(), "--mcp", str(path), cwd=tmp_path)
    assert (done.returncode, f"--mcp {path}: it has no servers" in done.stderr) == (2, True), done


def test_a_named_file_whose_servers_are_switched_off_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    rows = {"a": {**row(), "enabled": False}, "b": {}}
    path.write_text(json.dumps({"servers": rows}), encoding="utf-8")
    assert program.run(["mcp", "list", "--mcp", str(path)]) == 0


@pytest.mark.process
def test_the_remedy_for_a_server_of_a_named_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "my servers.json").write_text(
        json.dumps({"servers": {"bad": {"command": "no-such-command"}}}), encoding="utf-8"
    )
    for words in (("tools",), ("prompts",), ("resources",)):
        done = run(*words, "--mcp", "my servers.json", cwd=tmp_path)
        assert "(indus mcp doctor --mcp 'my servers.json' bad)" in done.stderr, words
    elsewhere = run("--cwd", "..", "tools", "--mcp", f"{tmp_path.name}/my servers.json", cwd=tmp_path)
    assert f"--mcp '{tmp_path.name}/my servers.json' --cwd {tmp_path.parent} bad)" in elsewhere.stderr
    examined = run("mcp", "doctor", "--mcp", "my servers.json", "bad", cwd=tmp_path)
    assert "indus mcp get --mcp 'my servers.json' bad" in examined.stdout


@pytest.mark.parametrize(
    "fault",
    [
        ProtocolFault("transport", "server 's': its node has left", detail=FaultDetail(reason="node_changed")),
        ProtocolFault("spawn_failed", "server 's': it is moved", detail=FaultDetail(reason="moved")),
        ProtocolFault(
            "transport", "server 's': no node has a lease now", ClusterFault("away", "no node has a lease now")
        ),
    ],
)
def test_the_remedy_for_a_fault_between_nodes_is_a_look_at_the_cluster(fault: ProtocolFault) -> None:
    assert build_fault_note("s", fault).remedy == "indus cluster status"
    ended = ProtocolFault("transport", "server 's': the connection was lost: it ended by itself")
    assert build_fault_note("s", ended).remedy == "indus mcp doctor s"
