"""Tasks of servers through `indus serve`: handles, their owners, a restart, clients without tasks, records."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import PYTHON, configured, user_file
from tests.commands.serving import Json, greeted
from tests.support.scripts import run
from tests.support.servers import SERVERS

from indusagi.core.app_dirs import state_dir
from indusagi.interop.protocol_bridge.rpc.mcp_headers import MODERN_VERSIONS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.commands.serving import Gateway

pytestmark = pytest.mark.process

STAMP = "io.modelcontextprotocol/"
TASKS = f"{STAMP}tasks"


def server(era: str, *flags: object) -> Json:
    return {"command": PYTHON[0], "args": [*PYTHON[1:], str(SERVERS / "tasks.py"), "--era", era, *map(str, flags)]}


def modern(**capabilities: Any) -> Json:
    return {"_meta": {f"{STAMP}protocolVersion": MODERN_VERSIONS[-1], f"{STAMP}clientCapabilities": capabilities}}


KNOWS = modern(extensions={TASKS: {}}, elicitation={})


def poll(gateway: Gateway, task_id: str, wanted: str) -> Json:
    task: Json = {}
    for _ in range(400):
        task = gateway.ask("tasks/get", taskId=task_id, **KNOWS)["result"]
        if task["status"] == wanted:
            return task
    raise AssertionError(task)


def test_a_client_with_tasks_holds_handles_of_two_servers_with_equal_ids(tmp_path: Path) -> None:
    configured(user_file(), {"one": server("modern"), "two": server("modern")})
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        said = gateway.ask("server/discover", **modern())["result"]["capabilities"]
        assert said["extensions"] == {TASKS: {}}
        made: dict[str, Json] = {}
        for name in ("one", "two"):
            call = {"name": f"{name}__slow_compute", "arguments": {"seconds": 0, "label": name}}
            made[name] = gateway.ask("tools/call", **call, **KNOWS)["result"]
            assert made[name]["resultType"] == "task"
        assert made["one"]["taskId"] != made["two"]["taskId"]
        assert "task-1" not in json.dumps(made)
        for name, task in made.items():
            done = poll(gateway, task["taskId"], "completed")
            assert done["result"]["content"][0]["text"] == f"computed {name}"
            assert (done["resultType"], done["taskId"]) == ("complete", task["taskId"])
        # A question, its answer, and a cancellation.
        asked = gateway.ask("tools/call", name="one__confirm_delete", arguments={"filename": "f"}, **KNOWS)["result"]
        assert list(poll(gateway, asked["taskId"], "input_required")["inputRequests"]) == ["confirm"]
        answers = {"confirm": {"action": "accept", "content": {"confirm": "yes"}}}
        ack = gateway.ask("tasks/update", taskId=asked["taskId"], inputResponses=answers, **KNOWS)["result"]
        assert "taskId" not in ack
        assert '"yes"' in poll(gateway, asked["taskId"], "completed")["result"]["content"][0]["text"]
        slow = {"name": "two__slow_compute", "arguments": {"seconds": 50}}
        given_up = gateway.ask("tools/call", **slow, **KNOWS)["result"]["taskId"]
        assert "status" not in gateway.ask("tasks/cancel", taskId=given_up, **KNOWS)["result"]
        poll(gateway, given_up, "cancelled")
        # Errors: without the extension, without an id, of an unknown task.
        codes = [
            gateway.ask("tasks/get", taskId=given_up, **modern())["error"]["code"],
            gateway.ask("tasks/get", **KNOWS)["error"]["code"],
            gateway.ask("tasks/get", taskId="task-1", **KNOWS)["error"]["code"],
            gateway.ask("tasks/list", **KNOWS)["error"]["code"],
        ]
        assert codes == [-32021, -32602, -32602, -32601]
    rows = [json.loads(line) for line in run("calls", "--export", "jsonl", cwd=tmp_path).stdout.splitlines()]
    ends = {(row["server"], row["tool"], row["outcome"]) for row in rows}
    assert ends == {
        ("one", "slow_compute", "ok"),
        ("two", "slow_compute", "ok"),
        ("one", "confirm_delete", "ok"),
        ("two", "slow_compute", "cancelled"),
    }


def test_a_handle_survives_a_restart_of_the_gateway_and_is_stored_privately(tmp_path: Path) -> None:
    configured(user_file(), {"one": server("modern", "--ttl", "1000")})
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        call = {"name": "one__slow_compute", "arguments": {"seconds": 0}}
        task_id = gateway.ask("tools/call", **call, **KNOWS)["result"]["taskId"]
        poll(gateway, task_id, "completed")
    path = os.path.join(state_dir(), "tasks.db")
    assert os.stat(path).st_mode & 0o777 == 0o600
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        # The stdio server has lost it, and says so itself: the id still leads to it.
        gone = gateway.ask("tasks/get", taskId=task_id, **KNOWS)["error"]
        assert (gone["code"], "there is no such task" in gone["message"]) == (-32602, True)
        assert "belongs to another client" not in gone["message"]
        # It counts from one again: the new task has the own id of the old one, and replaces it.
        again = gateway.ask("tools/call", **call, **KNOWS)["result"]["taskId"]
        poll(gateway, again, "completed")
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT server, own FROM tasks").fetchall() == [("one", "task-1")]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_clients_without_tasks_get_results_of_both_kinds_of_servers(era: str, tmp_path: Path) -> None:
    configured(user_file(), {"one": server(era)})
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        call: Json = {"name": "one__failing_job", "arguments": {}}
        for more in ({"_meta": {"progressToken": 7}}, modern()):
            result = gateway.ask("tools/call", **call, **more)["result"]
            assert (result["content"][0]["text"], result["isError"]) == ("it did not work", True)
        reported = [frame["params"] for frame in gateway.heard if frame["method"] == "notifications/progress"]
        assert [one["progressToken"] for one in reported][:1] == ([7] if era == "modern" else [])


def test_a_refusal_is_passed_on_where_the_user_wants_it(tmp_path: Path) -> None:
    configured(user_file(), {"one": server("modern")})
    with greeted("--profile", "none", "--tasks", "refuse", cwd=tmp_path) as gateway:
        refused = gateway.ask("tools/call", name="one__failing_job", arguments={}, **modern())["error"]
        assert (refused["code"], refused["data"]) == (-32021, {"requiredCapabilities": {"extensions": {TASKS: {}}}})


def test_tasks_of_the_older_revision_pass_with_their_own_names(tmp_path: Path) -> None:
    configured(user_file(), {"one": server("legacy")})
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        call = {"name": "one__slow_compute", "arguments": {"seconds": 0, "label": "x"}, "task": {"ttl": 60_000}}
        task = gateway.ask("tools/call", **call)["result"]["task"]
        assert (set(task) >= {"ttl", "pollInterval"}, task["taskId"] != "task-1") == (True, True)
        result = gateway.ask("tasks/result", taskId=task["taskId"])["result"]
        assert result["content"][0]["text"] == "computed x"
        assert result["_meta"] == {f"{STAMP}related-task": {"taskId": task["taskId"]}}
        assert gateway.ask("tasks/get", taskId=task["taskId"])["result"]["status"] == "completed"
        told = [frame["params"] for frame in gateway.heard if frame["method"] == "notifications/tasks/status"]
        assert {one["taskId"] for one in told} <= {task["taskId"]}
        assert gateway.ask("tasks/cancel", taskId=task["taskId"])["error"]["code"] == -32602
