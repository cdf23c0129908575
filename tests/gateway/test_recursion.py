"""A gateway never serves itself, directly or through another one."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import configured, one_line, row, user_file
from tests.commands.serving import greeted, serving, wait_for
from tests.support.forked import CONSTANTS
from tests.support.scripts import command, run
from tests.support.servers import diary

from indusagi.interop.protocol_bridge.client.session import ServerFacts
from induscode.gateway.recursion import ANCESTRY, GatewayInfo, ListenAddress, read_ancestry

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.process
NONE = ["--profile", "none"]
INDUS = shlex.quote(command())


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
def test_own_address_is_recognised(url: str, ours: bool) -> None:
    assert ListenAddress("127.0.0.1", 7332).matches(url) is ours


def test_default_port_of_the_scheme_counts() -> None:
    assert ListenAddress("localhost", 80).matches("http://127.0.0.1/mcp")
    assert ListenAddress("gate.example.org", 443).matches("https://Gate.Example.org/mcp")


def test_gateway_recognises_only_its_own_instance_id() -> None:
    one, other = GatewayInfo("indus", "1"), GatewayInfo("indus", "1")
    legacy = ServerFacts("legacy", "2025-06-18", {"serverInfo": one.as_json()})
    stamp: JsonObject = {"io.modelcontextprotocol/serverInfo": one.as_json()}
    modern = ServerFacts("modern", "2026-07-28", {"_meta": stamp})
    assert one.is_reported_by(legacy)
    assert one.is_reported_by(modern)
    assert not other.is_reported_by(legacy)
    assert not other.is_reported_by(modern)
    assert not one.is_reported_by(None)
    assert not one.is_reported_by(ServerFacts("legacy", "2025-06-18", {"serverInfo": "indus"}))


# -- as a process -----------------------------------------------------------------------------


def test_own_entry_pasted_back_is_refused_by_the_second_gateway(tmp_path: Path) -> None:
    entry = run("serve", "--print-config", "claude", cwd=tmp_path)
    configured(user_file(), {"again": json.loads(entry.stdout)["mcpServers"]["indus"], "a": row()})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert {name.partition("__")[0] for name in gateway.tools()} == {"a"}
        gateway.until(lambda: "was itself started as server 'again'" in gateway.said())


def test_gateway_behind_a_script_refuses_to_start_itself(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    hidden = tmp_path / "hidden"
    hidden.write_text(f"#!/bin/sh\necho start $PPID >> {starts}\nexec {INDUS} serve\n")
    hidden.chmod(0o755)
    configured(user_file(), {"hidden": {"command": str(hidden)}, "a": row()})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert {name.partition("__")[0] for name in gateway.tools()} == {"a"}
        gateway.until(lambda: "was itself started as server 'hidden'" in gateway.said())
        # It is retried like any server that fails, each time by this gateway and never by one below it.
        assert {*diary(starts, "start")} == {str(gateway.pid)}


@pytest.mark.parametrize("clear", ["-i", "-u INDUS_SERVED_BY", "-i PATH=/bin:/usr/bin nice"])
def test_finding_r10_a_gateway_below_a_cleared_environment_notices_itself(tmp_path: Path, clear: str) -> None:
    kept = " ".join(f"{name}={shlex.quote(os.environ[name])}" for name in ("HOME", "PATH") if clear.startswith("-i"))
    words = clear.split()
    script = tmp_path / "again"
    script.write_text(f"#!/bin/sh\nexec env {words[0]} {kept} {' '.join(words[1:])} {INDUS} serve --profile none\n")
    script.chmod(0o755)
    configured(user_file(), {"again": {"command": str(script)}})
    outer = subprocess.Popen(
        [command(), "serve", "--profile", "none"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    with outer:
        assert outer.stderr is not None
        said = b""
        while b"has the same command line and directory" not in said:
            line = outer.stderr.readline()
            assert line, said
            said += line
        outer.terminate()
        outer.communicate()


def test_gateway_below_another_serves_other_servers(tmp_path: Path) -> None:
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
        assert len(read_ancestry(seen)) == 2


def test_chain_of_gateways_is_limited(tmp_path: Path) -> None:
    chain = ",".join(str(number) for number in range(8))
    done = run("serve", cwd=tmp_path, **{ANCESTRY: chain})
    one_line(done, "8 gateways stand above this one")


def test_ancestry_does_not_change_the_identity_of_a_server(tmp_path: Path) -> None:
    configured(user_file(), {"a": row(start="lazy")})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert read_ancestry(gateway.call("a__env")["structuredContent"]) != ()
    # The pins of the gateway are those of every other command.
    listed = run("tools", "--no-check", cwd=tmp_path)
    assert "a__echo" in listed.stdout
    assert "never started" not in listed.stderr


def test_gateway_closes_a_connection_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It waits for its own list of tools.
    monkeypatch.setitem(CONSTANTS, "induscode.gateway.gateway:FIRST_S", 0.1)
    port = _free_port()
    with _relaying_to(port) as relay:
        address = {"url": f"http://localhost:{relay}/mcp"}
        configured(user_file(), {"me": address, "here": {"url": f"http://localhost:{port}/mcp"}})
        words = ["--http", str(port), "--no-token", "--allowed-host", f"localhost:{relay}"]
        with serving(*NONE, *words, cwd=tmp_path) as gateway:
            wait_for(lambda: "server 'me' is this gateway itself, and was closed" in gateway.said())
            assert "server 'here'" in gateway.said()
            assert "it is the address this gateway listens on" in gateway.said()
            configured(user_file(), {"me": address, "a": row()})
            wait_for(lambda: "added a" in gateway.said())
            assert gateway.said().count("was closed") == 1


@contextmanager
def _relaying_to(port: int) -> Generator[int]:
    """Pass connections to another port on to this one, as a tunnel would; give that port."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(inner: socket.socket) -> None:
        with inner, suppress(OSError), socket.create_connection(("127.0.0.1", port)) as outer:
            back = threading.Thread(target=pump, args=(outer, inner))
            back.start()
            pump(inner, outer)
            back.join()

    def accept() -> None:
        threads: list[threading.Thread] = []
        with suppress(OSError):  # the listener is closed
            while True:
                thread = threading.Thread(target=serve, args=(listener.accept()[0],))
                thread.start()
                threads.append(thread)
        for thread in threads:
            thread.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_empty_parts_of_the_ancestry_are_ignored() -> None:
    assert read_ancestry({ANCESTRY: ",,a,"}) == ("a",)
    assert read_ancestry({}) == ()
    assert ANCESTRY not in os.environ
