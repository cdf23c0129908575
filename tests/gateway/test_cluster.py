"""`indus serve --cluster`: two nodes as processes, clients without a home node, and nodes that stop or die."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.commands.helpers import configured, row, user_file
from tests.commands.serving import hello, serving, wait_for
from tests.support.broker import broker_process
from tests.support.waiting import LIMIT_S, is_alive

from induscode.commands.program import run

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.commands.serving import Gateway

pytestmark = pytest.mark.process
META = "io.modelcontextprotocol/"
LEASE_S = "4"
"""For the test that waits for the end of a lease."""
LONG_LEASE_S = "10"
"""For tests that do not: nodes notice within a fraction of it that another one was killed."""
Json = dict[str, Any]


@contextmanager
def node(broker: str, name: str, cwd: Path, *flags: str, **variables: str) -> Generator[tuple[Gateway, str]]:
    """Run a node, and give where it listens."""
    words = ("--http", "127.0.0.1:0", "--no-token", "--profile", "none", "--cluster", broker, "--node", name, *flags)
    with serving(*words, cwd=cwd, **variables) as gateway:
        wait_for(lambda: "native tools" in gateway.said())
        found = re.search(r"serving at (\S+)", gateway.said())
        assert found is not None
        yield gateway, found[1]


def call(url: str, tool: str, arguments: Json | None = None, **params: Any) -> Json:
    """Call a tool as a client of the modern protocol."""
    who = {"name": "test", "version": "1"}
    meta: Json = {
        "protocolVersion": "2026-07-28",
        "clientCapabilities": {"elicitation": {"form": {}}},
        "clientInfo": who,
    }
    given: Json = {
        "name": tool,
        "arguments": arguments or {},
        **params,
        "_meta": {META + key: meta[key] for key in meta},
    }
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
    return post(url, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": given}, headers)


def post(url: str, frame: Json, headers: dict[str, str], status: int = 200) -> Json:
    accept = {"accept": "application/json, text/event-stream", **headers}
    response = httpx2.post(url, json=frame, headers=accept, timeout=LIMIT_S)
    assert response.status_code == status, response.text
    return json.loads(response.text.strip().rpartition("data: ")[2])


def read_process(url: str) -> Json | None:
    """Return the ids of the server's process and of its node, or None while there is none."""
    return call(url, "one__pid")["result"].get("structuredContent")


def wait_for_other_process(url: str, former: Json) -> Json:
    found: list[Json] = []

    def look() -> bool:
        process = read_process(url)
        found[:] = [process] if process is not None and process["pid"] != former["pid"] else []
        return bool(found)

    wait_for(look)
    return found[0]


@pytest.mark.realtime
def test_any_node_serves_any_client_and_a_lost_node_is_replaced(tmp_path: Path) -> None:
    """One pair of nodes for all of it: a start takes longer than the rest."""
    configured(user_file(), {"one": row("--era", "legacy", added="allow")})
    with broker_process(tmp_path / "broker") as broker:
        assert run(["cluster", "init", "--cluster", broker.url, "--lease", LEASE_S]) == 0
        with node(broker.url, "a", tmp_path) as (first, url), node(broker.url, "b", tmp_path) as (second, other):
            process = read_process(url)
            assert process is not None
            assert process == read_process(other)
            _look_at_the_page(first)
            _use_session_at_two_nodes(url, other)
            _answer_question_at_another_node(url, other)
            process = read_process(url)  # another one, if its node was too slow to keep its lease
            assert process is not None
            owner, rest = (first, (second, other)) if process["parent"] == first.pid else (second, (first, url))
            late = other if owner is second else url
            _stop_past_the_lease(owner, rest, late, process)


def _look_at_the_page(gateway: Gateway) -> None:
    """The page of a node shows the nodes, and which of them owns the server."""
    found = re.search(r"page: ((\S+)/ui\?key=\S+)", gateway.said())
    assert found is not None
    with httpx2.Client(timeout=LIMIT_S) as client:
        assert client.get(found[1]).status_code == 200
        text = client.get(f"{found[2]}/ui/cluster").text
    assert "a (this one)" in text
    assert ">b</td>" in text
    assert ">one</td>" in text


def _use_session_at_two_nodes(url: str, other: str) -> None:
    accept = {"accept": "application/json, text/event-stream"}
    opened = httpx2.post(url, json=hello(), headers=accept, timeout=LIMIT_S)
    session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert httpx2.post(other, json=ready, headers={**accept, **session}, timeout=LIMIT_S).status_code == 202
    with httpx2.stream("GET", other, headers={**session, "accept": "text/event-stream"}, timeout=LIMIT_S) as events:
        params = {"name": "one__mutate", "arguments": {"kind": "describe"}}
        frame = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        assert post(other, frame, session)["result"]["content"] == [{"type": "text", "text": "describe"}]
        assert "list_changed" in next(line for line in events.iter_lines() if line.startswith("data:"))
    forged = {**session, "mcp-session-id": session["mcp-session-id"][:-2] + "xx"}
    assert httpx2.post(other, json=frame, headers={**accept, **forged}, timeout=LIMIT_S).status_code == 404
    assert httpx2.request("DELETE", other, headers=session, timeout=LIMIT_S).status_code == 200
    assert httpx2.post(url, json=frame, headers={**accept, **session}, timeout=LIMIT_S).status_code == 404


def _answer_question_at_another_node(url: str, other: str) -> None:
    asked = call(url, "one__ask", {"method": "elicitation/create"})["result"]
    assert asked["resultType"] == "input_required"
    answers = {key: {"action": "accept", "content": {"name": "Ada"}} for key in asked["inputRequests"]}
    state = asked["requestState"]
    answered = call(other, "one__ask", {"method": "elicitation/create"}, inputResponses=answers, requestState=state)
    assert answered["result"]["structuredContent"] == {"action": "accept", "content": {"name": "Ada"}}


def _stop_past_the_lease(owner: Gateway, rest: tuple[Gateway, str], late: str, process: Json) -> None:
    """An owner that sleeps loses its servers to the other node, and ends its own before it answers."""
    successor, url = rest
    os.kill(owner.pid, signal.SIGSTOP)
    try:
        moved = wait_for_other_process(url, process)
        assert moved["parent"] == successor.pid
    finally:
        os.kill(owner.pid, signal.SIGCONT)
    # Each answer of the node that slept comes from the new process, or says that there is none yet.
    assert wait_for_other_process(late, process) == moved
    wait_for(lambda: not is_alive(process["pid"]))
    successor.process.kill()
    assert wait_for_other_process(late, moved)["parent"] == owner.pid


def _check_status(broker: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def read_nodes() -> Json:
        capsys.readouterr()
        assert run(["cluster", "status", "--json", "--cluster", broker]) == 0
        return {node["node"]: node for node in json.loads(capsys.readouterr().out)["nodes"]}

    wait_for(lambda: read_nodes()["gw"]["url"] == url)
    nodes = read_nodes()
    assert [(name, nodes[name]["role"]) for name in nodes] == [("ada", "offers"), ("gw", "doors")]
    wait_for(lambda: read_nodes()["ada"]["owned"] == 1)


def test_offered_server_is_used_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    laptop = configured(tmp_path / "laptop.json", {"db": row()})
    commands = {"one": "cluster:ada/db", "two": "cluster:ada/no", "three": "cluster:ada"}
    team = configured(tmp_path / "team.json", {name: {"command": command} for name, command in commands.items()})
    with broker_process(tmp_path / "broker") as broker:
        assert run(["cluster", "init", "--cluster", broker.url, "--lease", LONG_LEASE_S]) == 0
        key = str(tmp_path / "ada.key")
        assert run(["cluster", "offer-key", "ada", "--cluster", broker.url, "--out", key]) == 0
        words = (
            "--cluster",
            broker.url,
            "--cluster-key",
            key,
            "--offer-only",
            "--mcp",
            str(laptop),
            "--profile",
            "none",
        )
        with serving(*words, cwd=tmp_path) as ada:
            wait_for(lambda: "tools from" in ada.said())
            assert "native tools" not in ada.said()
            assert "serving no clients" in ada.said()
            with node(broker.url, "gw", tmp_path, "--doors-only", "--mcp", str(team)) as (gateway, url):
                process = read_process(url)
                assert process is not None
                assert process["parent"] == ada.pid
                wait_for(lambda: "server 'two': node 'ada' offers no such server" in gateway.said())
                wait_for(lambda: "server 'three': the command 'cluster:ada' is incomplete" in gateway.said())
                _check_status(broker.url, url, capsys)
                assert run(["cluster", "drain", "gw", "--cluster", broker.url]) == 0
                capsys.readouterr()
                assert run(["cluster", "drain", "ada", "--cluster", broker.url]) == 0
                assert "no other node may run the servers that 'ada' offers: they end" in capsys.readouterr().err
                wait_for(lambda: read_process(url) is None)
                ada.process.terminate()
                ada.process.wait(LIMIT_S)
                wait_for(lambda: "'ada', which offers it, is not in the cluster" in gateway.said())


def test_replicas_are_numbered_and_the_last_node_says_that_its_servers_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"one": {**row(), "stateless": True, "replicas": 2}, "two": {**row(), "replicas": 2}}
    configured(user_file(), rows)

    def read_placements(broker: str) -> str:
        capsys.readouterr()
        assert run(["cluster", "placements", "--cluster", broker]) == 0
        return capsys.readouterr().out

    with broker_process(tmp_path / "broker") as broker:
        assert run(["cluster", "init", "--cluster", broker.url, "--lease", LONG_LEASE_S]) == 0
        with node(broker.url, "a", tmp_path) as (first, url), node(broker.url, "b", tmp_path) as (second, _):
            assert "'two' of" in first.said()
            assert 'its replicas were left out: only a server with "stateless": true has several' in first.said()
            wait_for(lambda: "one (replica 2)" in read_placements(broker.url))
            assert "two (replica" not in read_placements(broker.url)
            nodes = {first.pid, second.pid}
            wait_for(lambda: {(read_process(url) or {}).get("parent") for _ in range(4)} == nodes)
            second.process.kill()
            second.process.wait()
            wait_for(lambda: read_process(url) is not None)
            # Each node has one replica at most: the other one is missing, which can be seen.
            wait_for(lambda: "its node is gone" in read_placements(broker.url))
            wait_for(lambda: call(url, "two__pid")["result"].get("structuredContent") is not None)
            assert run(["cluster", "drain", "a", "--cluster", broker.url]) == 0
            shown = capsys.readouterr()
            assert "no other node may run servers now: the servers of 'a' end" in shown.err
            assert "a: drained of 2 servers" in shown.out
            assert "does not tell when" not in first.said()
