"""A gateway never has itself among its servers, however it is written down."""

from __future__ import annotations

import json
import os
import shlex
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import configured, one_line, row, user_file
from tests.commands.serving import greeted, serving, wait_for
from tests.support.scripts import command, run
from tests.support.servers import diary

from indusagi.core.process.tree import MARK
from indusagi.interop.protocol_bridge.client.session import ServerFacts
from induscode.commands.serve import recursion as serve_kin
from induscode.commands.serve.recursion import (
    ANCESTRY,
    GatewayInfo,
    Listening,
    Process,
    ancestry,
    is_a_gateway,
    starts_a_gateway,
    stripped_loop,
)
from induscode.launch.invocation import Invocation

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.process
NONE = ["--profile", "none"]
INDUS = shlex.quote(command())


@pytest.mark.parametrize(
    "line",
    [
        "indus serve",
        "/opt/bin/indusr serve --http",
        "indusagir --cwd /x serve",
        "python -m induscode serve",
        "/usr/bin/python3.12 -I -m induscode --no-mcp serve",
        "uvx indus serve",
        "uvx --from indus-deck indus@0.1 serve",
        "uv run indus serve --stdio",
        "pipx run --spec indus-deck indus serve",
        "env A=b indus serve",
        "python /lib/induscode/__main__.py serve",
        "C:\\\\bin\\\\indus.exe serve",
    ],
)
def test_command_lines_that_start_a_gateway_are_known(line: str) -> None:
    assert starts_a_gateway(shlex.split(line))
    assert starts_a_gateway(["sh", "-c", f"exec {line}"])


@pytest.mark.parametrize(
    "argv",
    [
        ["indus", "mcp"],
        ["indus"],
        ["python", "server.py", "serve"],
        ["server", "--root", "/home/me/indus", "serve"],
        ["npx", "serve"],
        ["sh", "-c", "it's serve"],
        ["python", "-m", "other", "serve"],
    ],
    ids=" ".join,
)
def test_other_command_lines_are_left_alone(argv: list[str]) -> None:
    assert not starts_a_gateway(argv)


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("http://127.0.0.1:7332/mcp", True),
        ("http://localhost:7332/other", True),
        ("http://[::1]:7332/mcp", True),
        ("http://127.0.0.1:7333/mcp", False),
        ("http://example.org:7332/mcp", False),
        ("http://127.0.0.1/mcp", False),
        ("http://127.0.0.1:nonsense/mcp", False),
    ],
)
def test_addresses_that_lead_here_are_known(url: str, ours: bool) -> None:
    assert Listening("127.0.0.1", 7332).is_meant_by(url) is ours


def test_the_ports_that_a_scheme_means_are_known() -> None:
    assert Listening("localhost", 80).is_meant_by("http://127.0.0.1/mcp")
    assert Listening("gate.example.org", 443).is_meant_by("https://Gate.Example.org/mcp")


def test_a_gateway_knows_itself_and_no_other() -> None:
    one, other = GatewayInfo("indus", "1"), GatewayInfo("indus", "1")
    legacy = ServerFacts("legacy", "2025-06-18", {"serverInfo": one.as_json()})
    stamp: JsonObject = {"io.modelcontextprotocol/serverInfo": one.as_json()}
    modern = ServerFacts("modern", "2026-07-28", {"_meta": stamp})
    assert one.is_behind(legacy)
    assert one.is_behind(modern)
    assert not other.is_behind(legacy)
    assert not other.is_behind(modern)
    assert not one.is_behind(None)
    assert not one.is_behind(ServerFacts("legacy", "2025-06-18", {"serverInfo": "indus"}))


# -- as a process -----------------------------------------------------------------------------


def test_its_own_entry_pasted_back_is_left_out(tmp_path: Path) -> None:
    entry = run("serve", "--print-config", "claude", cwd=tmp_path)
    (tmp_path / ".mcp.json").write_text(entry.stdout, encoding="utf-8")
    configured(user_file(), {"again": json.loads(entry.stdout)["mcpServers"]["indus"], "a": row()})
    assert run("mcp", "trust", "--yes", "indus", cwd=tmp_path).returncode == 0
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert {name.partition("__")[0] for name in gateway.tools()} == {"a"}
        said = gateway.said()
        assert said.count("left out: it is this gateway, which would start itself") == 2


def test_a_gateway_behind_a_script_refuses_to_begin_again(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    hidden = tmp_path / "hidden"
    hidden.write_text(f"#!/bin/sh\necho start $PPID >> {starts}\nexec {INDUS} serve\n")
    hidden.chmod(0o755)
    configured(user_file(), {"hidden": {"command": str(hidden)}, "a": row()})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert {name.partition("__")[0] for name in gateway.tools()} == {"a"}
        gateway.until(lambda: "was itself started as server 'hidden'" in gateway.said())
        # Tried again as any server that fails: each time by this gateway, and none by one below it.
        assert {*diary(starts, "start")} == {str(gateway.pid)}


def test_a_gateway_below_another_serves_what_is_not_above_it(tmp_path: Path) -> None:
    inner = configured(tmp_path / "inner.json", {"a": row()})
    script = tmp_path / "inner"
    script.write_text(f"#!/bin/sh\nexec {INDUS} serve --profile none --mcp {inner}\n")
    script.chmod(0o755)
    configured(user_file(), {"inner": {"command": str(script)}, "a": row()})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        tools = gateway.tools()
        assert "inner__a__echo" in tools
        assert gateway.text("inner__a__echo", text="through two") == "through two"
        seen = gateway.call("inner__a__env")["structuredContent"]
        assert len(ancestry(seen)) == 2


def test_gateways_do_not_stand_below_each_other_without_end(tmp_path: Path) -> None:
    chain = ",".join(str(number) for number in range(8))
    done = run("serve", cwd=tmp_path, **{ANCESTRY: chain})
    one_line(done, "8 gateways stand above this one")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs to see processes")
@pytest.mark.parametrize("named", [False, True], ids=["the user's file", "a named file"])
def test_a_script_that_empties_the_environment_begins_no_loop(tmp_path: Path, named: bool) -> None:
    starts, script = tmp_path / "starts", tmp_path / "inner"
    file = configured(tmp_path / "named.json" if named else user_file(), {"again": {"command": str(script)}})
    words = ["--mcp", "./named.json"] if named else []
    whole = f"--mcp {file}" if named else ""
    script.write_text(
        f'#!/bin/sh\necho start $PPID >> {starts}\nexec env -i HOME="$HOME" PATH="$PATH" {INDUS} serve {whole}\n'
    )
    script.chmod(0o755)
    with greeted(*NONE, *words, cwd=tmp_path) as gateway:
        assert gateway.tools() == []
        gateway.until(lambda: f"gateway {gateway.pid} stands above this one" in gateway.said())
        assert {*diary(starts, "start")} == {str(gateway.pid)}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs to see processes")
def test_with_an_empty_environment_a_gateway_of_other_files_is_let_be(tmp_path: Path) -> None:
    inner = configured(tmp_path / "inner.json", {"a": row()})
    script = tmp_path / "inner"
    script.write_text(f'#!/bin/sh\nexec env -i HOME="$HOME" {INDUS} serve --profile none --mcp {inner}\n')
    script.chmod(0o755)
    configured(user_file(), {"inner": {"command": str(script)}})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert gateway.text("inner__a__echo", text="through two") == "through two"


@pytest.mark.parametrize(
    ("line", "gateway"),
    [
        ("/usr/bin/python3 /opt/bin/indus serve --mcp a", True),
        ("python -I -m induscode --no-mcp serve", True),
        ("uv run indus serve", False),
        ("sh -c 'indus serve'", False),
        ("python -m uv run indus serve", False),
        ("python /opt/bin/indus mcp list", False),
        ("python", False),
        ("", False),
    ],
)
def test_a_gateway_is_told_from_what_starts_one(line: str, gateway: bool) -> None:
    assert is_a_gateway(shlex.split(line)) is gateway


def test_as_processes_too_gateways_do_not_stand_below_each_other_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(pid: int) -> Process | None:
        return Process(pid, pid + 1, ["python", "indus", "serve", "--cwd=x", "-C", "y", "-C"])

    monkeypatch.setattr(serve_kin, "look", looked)
    monkeypatch.setattr(os, "getppid", lambda: 1 << 40)
    (tmp_path / "x/y").mkdir(parents=True)
    here = Invocation(cwd=str(tmp_path))
    why = stripped_loop(here, {MARK: "anything"})
    assert why is not None
    assert why.startswith("64 gateways stand above this one")
    monkeypatch.setattr(serve_kin, "_FARTHEST", 3)
    assert stripped_loop(here, {MARK: "anything"}) is None
    assert stripped_loop(here, {}) is None, "they share no file"
    configured(user_file(), {})
    assert "stands above this one and serves" in str(stripped_loop(here, {}))
    assert stripped_loop(replace(here, no_mcp=True), {}) is None


def test_a_process_that_is_gone_or_not_shown_is_nobody() -> None:
    assert serve_kin.look(0) is None
    found = serve_kin.look(os.getpid())
    assert found is None or found.parent == os.getppid()


def test_a_mark_changes_nothing_about_what_a_server_is(tmp_path: Path) -> None:
    configured(user_file(), {"a": row(start="lazy")})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert ancestry(gateway.call("a__env")["structuredContent"]) != ()
    # What the gateway has pinned is what every other command knows.
    listed = run("tools", "--no-check", cwd=tmp_path)
    assert "a__echo" in listed.stdout
    assert "never started" not in listed.stderr


def test_a_gateway_that_finds_itself_behind_an_address_closes_it(tmp_path: Path) -> None:
    port = _free_port()
    address = {"url": f"http://127.1:{port}/mcp"}
    configured(user_file(), {"me": address, "here": {"url": f"http://localhost:{port}/mcp"}})
    words = ["--http", str(port), "--no-token", "--allowed-host", f"127.1:{port}"]
    with serving(*NONE, *words, cwd=tmp_path) as gateway:
        wait_for(lambda: "server 'me' is this gateway itself, and was closed" in gateway.said())
        assert "server 'here'" in gateway.said()
        assert "it is the address this gateway listens on" in gateway.said()
        configured(user_file(), {"me": address, "a": row()})
        wait_for(lambda: "added a" in gateway.said())
        assert gateway.said().count("was closed") == 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_word_of_the_environment_is_not_taken_for_more_than_it_is() -> None:
    assert ancestry({ANCESTRY: ",,a,"}) == ("a",)
    assert ancestry({}) == ()
    assert ANCESTRY not in os.environ
