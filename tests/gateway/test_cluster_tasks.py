"""Tasks of servers in a cluster: nodes as processes, each with a state directory of its own."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import PYTHON, configured, user_file
from tests.commands.serving import wait_for
from tests.gateway.test_cluster import LONG_LEASE_S, META, Json, node, post
from tests.support.broker import broker_process
from tests.support.servers import SERVERS

from indusagi.core.app_dirs import state_dir
from induscode.commands.program import run

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.commands.serving import Gateway

pytestmark = pytest.mark.process
ANSWERS = {"confirm": {"action": "accept", "content": {"confirm": "yes"}}}


def ask(url: str, method: str, status: int = 200, **params: Any) -> Json:
    """Send a request as a client that knows tasks."""
    meta: Json = {
        "protocolVersion": "2026-07-28",
        "clientCapabilities": {"extensions": {f"{META}tasks": {}}, "elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    }
    params["_meta"] = {META + key: value for key, value in meta.items()}
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    headers["mcp-name"] = params.get("name") or params["taskId"]
    return post(url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headers, status)


def create(url: str, tool: str, **arguments: Any) -> str:
    made = ask(url, "tools/call", name=f"one__{tool}", arguments=arguments)["result"]
    assert made["resultType"] == "task"
    return made["taskId"]


def poll(url: str, task_id: str, status: str) -> Json:
    found: list[Json] = []

    def look() -> bool:
        found[:] = [ask(url, "tasks/get", taskId=task_id)["result"]]
        return found[0]["status"] == status

    wait_for(look)
    return found[0]


@contextmanager
def own_node(broker: str, name: str, cwd: Path) -> Generator[tuple[Gateway, str]]:
    """Run a node as another machine would: with nothing but the key in common."""
    key = f"{state_dir()}/cluster.key"
    with node(broker, name, cwd, "--cluster-key", key, XDG_STATE_HOME=str(cwd / name)) as opened:
        yield opened


def test_task_is_used_at_any_node_and_outlives_the_node_that_made_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One pair of nodes for all of it: a start takes longer than the rest."""
    command = [*PYTHON, str(SERVERS / "tasks.py"), "--era", "modern"]
    configured(user_file(), {"one": {"command": command[0], "args": command[1:]}})
    with broker_process(tmp_path / "broker") as broker:
        assert run(["cluster", "init", "--cluster", broker.url, "--lease", LONG_LEASE_S]) == 0
        with own_node(broker.url, "a", tmp_path) as (_, owner), own_node(broker.url, "b", tmp_path) as (maker, url):
            # The first node owns the server: it was alone when it started it.
            asked = create(url, "confirm_delete", filename="f")
            assert list(poll(owner, asked, "input_required")["inputRequests"]) == ["confirm"]
            ask(owner, "tasks/update", taskId=asked, inputResponses=ANSWERS)
            assert '"yes"' in poll(owner, asked, "completed")["result"]["content"][0]["text"]
            slow = create(owner, "slow_compute", seconds=50)
            assert "error" not in ask(url, "tasks/cancel", taskId=slow)
            poll(owner, slow, "cancelled")
            ended = {("b", "confirm_delete", "ok"), ("a", "slow_compute", "cancelled")}
            wait_for(lambda: read_outcomes(broker.url, capsys) == ended)
            kept = create(url, "slow_compute", seconds=0, label="kept")
            maker.process.kill()
            maker.process.wait()
            assert poll(owner, kept, "completed")["result"]["content"][0]["text"] == "computed kept"
            with own_node(broker.url, "b", tmp_path) as (_, again):
                assert poll(again, kept, "completed")["taskId"] == kept
                assert run(["cluster", "drain", "a", "--cluster", broker.url]) == 0
                gone = ask(owner, "tasks/get", 400, taskId=kept)["error"]
                assert (gone["code"], gone["message"]) == (-32602, "there is no such task")


def read_outcomes(broker: str, capsys: pytest.CaptureFixture[str]) -> set[tuple[str, str, str]]:
    """Read the records of all nodes; each is written by the node that made the task."""
    capsys.readouterr()
    assert run(["calls", "--cluster", broker, "--json"]) == 0
    return {(row["node"], row["tool"], row["outcome"]) for row in json.loads(capsys.readouterr().out)["calls"]}
