"""Sealed handles of tasks: every node of a cluster opens them, for their owner and the task they were made for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.client.tasks import TaskExchange
from indusagi.interop.protocol_bridge.contract import StdioServerConfig, StreamableHttpServerConfig
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.runtime.contract import ToolOutcome
from induscode.cluster.contract import NodeInfo
from induscode.cluster.key import ClusterKey
from induscode.cluster.placement import ServerTarget, find_target
from induscode.cluster.sessions import TaskHandles
from induscode.gateway.content import GatewayContent
from induscode.gateway.tasks import LONGEST_MS, GatewayTasks

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl

KEY, OTHER_KEY = ClusterKey(bytes(range(32))), ClusterKey(bytes(32))
ROW = StdioServerConfig("s", "serve")
FIRST, LATER = "2026-11-17T04:00:00.000Z", "2026-11-17T05:00:00.000Z"
GONE = "there is no such task: it has expired, or belongs to another client"


class Server:
    """A server with one task."""

    def __init__(self) -> None:
        self.task: JsonObject = {"taskId": "task-1", "status": "working", "ttlMs": 60_000, "createdAt": FIRST}
        self.asked: list[str] = []

    async def request(self, method: str, params: JsonObject, **_: object) -> JsonObject:
        self.asked.append(method)
        return self.task if method == "tasks/get" else {}


class Content(GatewayContent):
    """The content of a gateway whose only server has a row of its own."""

    def __init__(self, server: Server, config: ServerConfig) -> None:
        super().__init__()
        self.endpoint = SimpleNamespace(config=config, request=server.request)

    async def wake(self, server: str) -> ServerEndpointImpl:
        return cast("Any", self.endpoint)


def new_handles(instance: str = "i1", key: ClusterKey = KEY) -> TaskHandles:
    info = NodeInfo(node="n", instance=instance)
    broker = SimpleNamespace(settings=SimpleNamespace(prefix="indus"))

    def find(config: StdioServerConfig) -> ServerTarget:
        return find_target(config, info)

    node = SimpleNamespace(info=info, broker=broker, find_target=find)
    return TaskHandles(cast("Any", node), key)


def new_tasks(server: Server, instance: str, key: ClusterKey = KEY, config: ServerConfig = ROW) -> GatewayTasks:
    return GatewayTasks(Content(server, config), handles=new_handles(instance, key))


async def create(tasks: GatewayTasks, server: Server, owner: bytes = b"ada") -> str:
    exchange = TaskExchange()
    exchange.created, exchange.server = server.task, "s"
    return str((await tasks.add(exchange, owner, None))["taskId"])


async def refuse(tasks: GatewayTasks, method: str, task_id: str, owner: bytes = b"ada") -> str:
    with pytest.raises(RpcError) as caught:
        await tasks.request(method, {"taskId": task_id}, owner)
    return caught.value.message


async def test_another_node_opens_a_handle_for_its_owner_alone() -> None:
    server = Server()
    handle = await create(new_tasks(server, "i1"), server)
    other = new_tasks(server, "i2")
    assert other.find_server(handle) == "s"
    shown = await other.request("tasks/get", {"taskId": handle}, b"ada")
    assert (shown["taskId"], shown["status"]) == (handle, "working")
    assert await refuse(other, "tasks/cancel", handle, b"eve") == GONE
    assert server.asked == ["tasks/get"]


async def test_changed_handles_and_handles_of_other_clusters_are_unknown() -> None:
    server = Server()
    tasks = new_tasks(server, "i1")
    handle = await create(tasks, server)
    changed = handle[:40] + ("A" if handle[40] != "A" else "B") + handle[41:]
    for wrong in (changed, handle[:-3], handle + "A", "t1.", "t1.%", "t1.é", "task-1", "t1." + "A" * 10_000):
        assert await refuse(new_tasks(server, "i2"), "tasks/get", wrong) == GONE
    assert await refuse(new_tasks(server, "i2", OTHER_KEY), "tasks/get", handle) == GONE
    assert server.asked == []


async def test_a_handle_has_one_spelling() -> None:
    server = Server()
    tasks = new_tasks(server, "i1")
    handles = [await create(tasks, server) for _ in range(20)]
    respelt = [handle.replace("-", "+").replace("_", "/") for handle in handles]
    padded = [handle + "=" * (-len(handle.removeprefix("t1.")) % 4) for handle in handles]
    unused = [handle[:-1] + chr(ord(handle[-1]) + 1) for handle in handles if handle[-1] in "AEIQUYcgkosw048"]
    changed = {*respelt, *padded, *unused} - {*handles}
    assert len(changed) > 5
    other = new_tasks(server, "i2")
    assert [one for one in changed if other.find_server(one) is not None] == []


async def test_a_handle_ends_when_no_task_can_last_any_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    handle = await create(new_tasks(server, "i1"), server)
    other, later = new_tasks(server, "i2"), now_ms() + LONGEST_MS + 1
    monkeypatch.setattr("induscode.gateway.tasks.now_ms", lambda: later)
    assert await refuse(other, "tasks/get", handle) == GONE


async def test_a_server_of_the_same_name_with_another_row_is_not_asked() -> None:
    server, other = Server(), Server()
    handle = await create(new_tasks(server, "i1"), server)
    for config in (StdioServerConfig("s", "serve", ("--other",)), StreamableHttpServerConfig("s", "https://s.example")):
        assert await refuse(new_tasks(other, "i2", config=config), "tasks/get", handle) == GONE
    assert other.asked == []


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel", "tasks/result"])
async def test_a_task_that_got_the_id_of_an_older_one_is_left_alone(method: str) -> None:
    server = Server()
    maker, other = new_tasks(server, "i1"), new_tasks(server, "i2")
    handle = await create(maker, server)
    server.task = {**server.task, "createdAt": LATER}
    for tasks in (maker, other):
        assert await refuse(tasks, method, handle) == GONE
    assert set(server.asked) == {"tasks/get"}


async def test_the_node_that_made_a_task_is_told_of_its_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server, told = Server(), list[tuple[str, str]]()

    async def report(self: TaskHandles, handle: str, instance: str) -> None:
        told.append((handle, instance))

    monkeypatch.setattr(TaskHandles, "report_end", report)
    maker, other = new_tasks(server, "i1"), new_tasks(server, "i2")
    handle = await create(maker, server)
    await other.request("tasks/get", {"taskId": handle}, b"ada")
    server.task = {**server.task, "status": "completed", "createdAt": FIRST.replace(".000", "")}
    for tasks in (other, other, maker):
        await tasks.request("tasks/get", {"taskId": handle}, b"ada")
    assert told == [(handle, "i1")]


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_calls_whose_tasks_were_not_seen_to_end_are_unfinished(*, is_replaced: bool) -> None:
    server, ended = Server(), list[ToolOutcome]()
    tasks, exchange = new_tasks(server, "i1"), TaskExchange()
    exchange.created, exchange.server = server.task, "s"
    exchange.completion.listen(lambda outcome, _: ended.append(outcome))
    handle = str((await tasks.add(exchange, b"ada", None))["taskId"])
    if is_replaced:
        server.task = {**server.task, "createdAt": LATER}
        assert await refuse(tasks, "tasks/get", handle) == GONE
    else:
        await tasks.aclose()
    assert [one.is_error for one in ended] == [True]
