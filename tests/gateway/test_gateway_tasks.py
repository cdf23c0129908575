"""Tasks that clients hold at a gateway, in memory: how their calls end, who is told of changes, what is forgotten."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.support.waiting import until

from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.client.handlers import current_server
from indusagi.interop.protocol_bridge.client.tasks import TaskExchange
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity, current_identity
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.runtime.calls import current_conversation
from induscode.gateway.content import GatewayContent
from induscode.gateway.tasks import LONGEST_MS, UNLIMITED_MS, GatewayTasks, TaskMap

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from indusagi.core.faults import Note
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
    from indusagi.runtime.contract import ToolOutcome

pytestmark = pytest.mark.anyio

BEGIN, END = "2026-11-17T04:00:00Z", "2026-11-17T04:00:07Z"
DONE: JsonObject = {"content": [{"type": "text", "text": "it is done"}]}
GONE = "there is no such task"


class Server(GatewayContent):
    """A server with one task, as a gateway reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.task: JsonObject = {"taskId": "own", "status": "working", "createdAt": BEGIN, "lastUpdatedAt": END}
        self.answers: dict[str, JsonObject | Exception] = {}
        self.asked: list[tuple[str, JsonObject]] = []

    async def wake(self, server: str) -> ServerEndpointImpl:
        told = SimpleNamespace(request=self._answer, watch_task=self._follow, unwatch_task=self._leave)
        return cast("Any", told)

    async def _answer(self, method: str, params: JsonObject, **_: object) -> JsonObject:
        self.asked.append((method, params))
        answer = self.answers.get(method, self.task if method == "tasks/get" else {})
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _follow(self, task: str) -> None:
        await self._answer("watch", {"taskId": task})

    def _leave(self, task: str) -> None:
        self.asked.append(("unwatch", {"taskId": task}))

    def report(self, server: str = "s", **changes: Any) -> None:
        """Send a notification about the task."""
        self.task = {**self.task, **changes}
        token = current_server.set(server)
        self.on_task_status(self.task)
        current_server.reset(token)


class Stage:
    """A gateway with one task of Ada's."""

    def __init__(self, *, task_map: TaskMap | None = None) -> None:
        self.server = Server()
        self.notes: list[Note] = []
        self.ended: list[tuple[str, str, float | None]] = []
        """Code and text of calls that have ended, and how long they took."""
        self.told: list[JsonObject] = []
        self.tasks = GatewayTasks(self.server, task_map, self.notes.append)

    async def add(self, owner: bytes = b"ada", listener: Callable[[JsonObject], None] | None = None) -> str:
        exchange = TaskExchange()
        exchange.created, exchange.server = self.server.task, "s"
        exchange.completion.listen(self._end)
        return str((await self.tasks.add(exchange, owner, listener))["taskId"])

    def _end(self, outcome: ToolOutcome, seconds: float | None) -> None:
        code = str(outcome.result.details.get("code", "")) if outcome.is_error else "ok"
        self.ended.append((code, str(outcome.output), seconds))

    async def request(self, method: str, task: str, owner: bytes = b"ada", **params: Any) -> JsonObject:
        return await self.tasks.request(method, {"taskId": task, **params}, owner)


async def test_the_record_of_a_call_has_the_result_that_its_client_fetches() -> None:
    stage = Stage()
    task = await stage.add()
    stage.server.answers["tasks/result"] = DONE
    assert await stage.request("tasks/result", task) == DONE
    assert [(code, text) for code, text, _ in stage.ended] == [("ok", "it is done")]
    await stage.request("tasks/result", task)
    await stage.tasks.aclose()
    assert len(stage.ended) == 1


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        ({"status": "working"}, []),
        ({"status": "completed", "result": DONE}, [("ok", "it is done", 7.0)]),
        ({"status": "completed"}, [("ok", "[]", 7.0)]),
        ({"status": "completed", "lastUpdatedAt": "soon"}, [("ok", "[]", None)]),
        ({"status": "completed", "lastUpdatedAt": "2026-11-17T03:00:00Z"}, [("ok", "[]", None)]),
        ({"status": "failed", "error": {"message": "no disk"}}, [("tool_error", "no disk", 7.0)]),
        ({"status": "failed", "statusMessage": "no luck"}, [("tool_error", "no luck", 7.0)]),
        ({"status": "cancelled", "statusMessage": "by you"}, [("cancelled", "by you", 7.0)]),
    ],
)
@pytest.mark.parametrize("is_notified", [True, False])
async def test_a_task_that_is_seen_to_end_ends_its_call(state: Any, ended: list[Any], is_notified: bool) -> None:
    stage = Stage()
    task = await stage.add()
    if is_notified:
        stage.server.report(**state)
    else:
        stage.server.task = {**stage.server.task, **state}
        shown = await stage.request("tasks/get", task)
        assert (shown["taskId"], shown["status"]) == (task, state["status"])
    assert stage.ended == ended


async def test_a_cancelled_task_is_looked_at_once_and_its_call_has_ended() -> None:
    stage = Stage()
    task = await stage.add()
    assert (await stage.request("tasks/cancel", task))["status"] == "working"
    assert [method for method, _ in stage.server.asked] == ["tasks/cancel", "tasks/get"]
    assert stage.ended == [("cancelled", "The client cancelled the task.", None)]
    stage.server.answers["tasks/cancel"] = {**stage.server.task, "status": "cancelled"}
    assert (await stage.request("tasks/cancel", task))["taskId"] == task
    assert len(stage.server.asked) == 3


async def test_tasks_of_a_client_that_lost_its_access_are_cancelled() -> None:
    stage = Stage()
    current_identity.set(ClientIdentity(owner=b"ada", principal="ada"))
    await stage.add()
    async with anyio.create_task_group() as tasks:
        stage.server.follow(tasks)
        stage.tasks.cancel(lambda identity: identity.principal == "bob")
        stage.tasks.cancel(lambda identity: identity.principal == "ada")
        await until(lambda: stage.ended != [])
        stage.tasks.cancel(lambda identity: True)  # none runs any more
        stage.server.follow(None)
    assert [method for method, _ in stage.server.asked] == ["tasks/cancel", "tasks/get"]
    assert [code for code, _, _ in stage.ended] == ["cancelled"]


async def test_answers_of_a_client_are_spelt_as_the_server_asked() -> None:
    stage = Stage()
    task = await stage.add()
    schema: JsonObject = {"type": "object", "properties": {"a\u200bb": {"type": "string"}}}
    asked: JsonObject = {
        "q": {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": schema}}
    }
    stage.server.task = {**stage.server.task, "status": "input_required", "inputRequests": asked}
    shown = cast("Any", await stage.request("tasks/get", task))
    params = shown["inputRequests"]["q"]["params"]
    assert params["message"] == "Server 's' asks: Who?"
    (name,) = params["requestedSchema"]["properties"]
    answers = {"q": {"action": "accept", "content": {name: "x"}}, "other": {"action": "decline"}, "odd": 1}
    assert await stage.request("tasks/update", task, inputResponses=answers) == {}
    (_, sent) = stage.server.asked[-1]
    wanted = {**answers, "q": {"action": "accept", "content": {"a\u200bb": "x"}}}
    assert sent == {"taskId": "own", "inputResponses": wanted}


@pytest.mark.parametrize(("code", "ended"), [(-32602, ["unfinished"]), (-32000, [])])
async def test_a_task_that_its_server_has_lost_ends_its_call(code: int, ended: list[str]) -> None:
    stage = Stage()
    task = await stage.add()
    stage.server.answers["tasks/get"] = ProtocolFault("protocol", "no", RpcError(code, "no such task"))
    with pytest.raises(RpcError, match="no such task") as caught:
        await stage.request("tasks/get", task)
    assert (caught.value.code, [code for code, _, _ in stage.ended]) == (code, ended)


async def test_a_task_is_unknown_to_others_and_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.server.task["ttlMs"] = 1_000
    task = await stage.add()
    for wrong, owner in ((task, b"eve"), ("x" + task, b"ada")):
        with pytest.raises(RpcError, match=GONE) as caught:
            await stage.request("tasks/get", wrong, owner)
        assert caught.value.code == -32602
    assert (stage.tasks.find_server(task), stage.tasks.find_server("x"), stage.tasks.find_server(1)) == (
        "s",
        None,
        None,
    )
    held = stage.tasks._held[task].row
    monkeypatch.setattr("induscode.gateway.tasks.now_ms", lambda: held.expires_ms)
    with pytest.raises(RpcError, match=GONE):
        await stage.request("tasks/get", task)
    assert stage.server.asked == []


@pytest.mark.parametrize(("owner", "is_same"), [(b"ada", True), (b"eve", False)])
async def test_an_id_that_a_server_gives_again_is_the_new_task(owner: bytes, is_same: bool) -> None:
    stage = Stage()
    first = await stage.add()
    stage.server.task = {**stage.server.task, "createdAt": END}
    second = await stage.add(owner)
    assert (first == second) is is_same
    assert stage.ended == [("unfinished", "The end of the task was not seen.", None)]
    assert [*stage.tasks._held] == [second]
    stage.server.task["taskId"] = "x" * 1_025
    with pytest.raises(RpcError, match="task id of 1,025 characters"):
        await stage.add()


async def test_changes_are_told_once_to_those_who_follow_the_task() -> None:
    stage = Stage()
    task = await stage.add(listener=stage.told.append)
    stage.server.report(status="working", statusMessage="half")
    stage.server.report()
    stage.server.report("another server", statusMessage="three quarters")
    stage.server.report(createdAt="2026-11-17T09:00:00Z", status="completed")
    assert [(one["taskId"], one["statusMessage"]) for one in stage.told] == [(task, "half")]
    assert stage.ended == []


async def test_a_server_is_told_when_nobody_follows_a_task_any_more() -> None:
    stage = Stage()
    task = await stage.add()
    stops = [await stage.tasks.watch(task, b"ada", stage.told.append) for _ in range(2)]
    stops[0]()
    stage.server.report(status="working")
    assert (len(stage.told), [method for method, _ in stage.server.asked]) == (1, ["watch", "watch"])
    stops[1]()
    assert stage.server.asked[-1] == ("unwatch", {"taskId": "own"})
    stage.server.answers["watch"] = ProtocolFault("timeout", "late")
    with pytest.raises(RpcError, match="late"):
        await stage.tasks.watch(task, b"ada", stage.told.append)
    stage.server.report(status="completed")
    assert len(stage.told) == 1
    with pytest.raises(RpcError, match=GONE):
        await stage.tasks.watch(task, b"eve", stage.told.append)


@pytest.mark.parametrize(
    ("task", "life_ms"),
    [
        ({}, UNLIMITED_MS),
        ({"ttlMs": None}, UNLIMITED_MS),
        ({"ttlMs": -1}, UNLIMITED_MS),
        ({"ttlMs": 0}, 0),
        ({"ttlMs": 5_000.5}, 5_000),
        ({"ttlMs": 1e18}, LONGEST_MS),
    ],
)
async def test_a_task_is_remembered_for_its_life_and_a_minute(task: Any, life_ms: int) -> None:
    stage = Stage()
    # The clock of the server is a year ahead: ours counts.
    stage.server.task = {"taskId": "own", "status": "working", "createdAt": "2199-01-01T00:00:00Z", **task}
    before = now_ms()
    held = stage.tasks._held[await stage.add()].row
    assert before <= held.expires_ms - life_ms - 60_000 <= now_ms()


async def test_tasks_past_the_limit_are_forgotten_by_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("induscode.gateway.tasks.MOST_TASKS", 20)
    stage = Stage()
    tasks: list[str] = []
    for number in range(21):
        stage.server.task = {"taskId": f"own-{number}", "status": "working", "ttlMs": (21 - number) * 100_000}
        tasks.append(await stage.add())
    assert [*stage.tasks._held] == tasks[:19]
    assert [code for code, _, _ in stage.ended] == ["unfinished"] * 2


async def test_tasks_of_an_earlier_run_are_known_and_a_changed_life_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "tasks.db")
    first = Stage(task_map=TaskMap(path))
    await first.tasks.open()
    task = await first.add()
    first.server.task["ttlMs"] = LONGEST_MS
    await first.request("tasks/get", task)
    longer = first.tasks._held[task].row.expires_ms
    await first.tasks.aclose()
    assert [code for code, _, _ in first.ended] == ["unfinished"]
    second = Stage(task_map=TaskMap(path))
    await second.tasks.open()
    assert second.tasks._held[task].row.expires_ms == longer
    assert (await second.request("tasks/get", task))["status"] == "working"
    await second.tasks.aclose()


async def test_a_map_that_fails_is_told_once_and_tasks_go_on() -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    broken: Any = SimpleNamespace(path="tasks.db", read_all=fail, write=fail, find=fail)
    stage = Stage(task_map=broken)
    await stage.tasks.open()
    task = await stage.add()
    assert (await stage.request("tasks/get", task))["taskId"] == task
    assert [str(note) for note in stage.notes] == [
        "the tasks 'tasks.db': tasks cannot be remembered across a restart: disk I/O error"
    ]
    with anyio.fail_after(60):
        await stage.tasks.aclose()


def test_handles_are_given_unless_every_result_has_to_pass_through_here() -> None:
    assert GatewayTasks(Server()).gives_handles()
    tasks = GatewayTasks(Server(), holds_back=lambda: True)
    assert not tasks.gives_handles()
    assert not tasks.offers_core()


async def test_a_conversation_that_asks_about_anothers_task_is_noticed() -> None:
    stage, adopted = Stage(), list[str]()
    stage.tasks.on_adopted.add(adopted.append)
    token = current_conversation.set("one")
    task = await stage.add()
    await stage.request("tasks/get", task)
    assert adopted == []
    current_conversation.set("another")
    await stage.request("tasks/get", task)
    current_conversation.reset(token)
    assert adopted == ["s"]
