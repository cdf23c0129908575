"""Tasks in memory: how each revision writes them, and how a session follows one."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from indusagi.interop.protocol_bridge.client import tasks as module
from indusagi.interop.protocol_bridge.client.tasks import (
    RELATED_TASK,
    TASKS,
    ServerTasks,
    TaskExchange,
    declare_tasks,
    declares_tasks,
    is_task,
    new_missing_error,
    offers_core_tasks,
    read_created_task,
    read_related_task,
    read_task_result,
    read_task_support,
    requires_tasks,
    to_core_task,
)
from indusagi.interop.protocol_bridge.host.catalog import (
    CORE_TASK_METHODS,
    CORE_TASKS,
    TASK_METHODS,
    TASKS_EXTENSION,
    add_extensions,
    build_handle,
    build_task_result,
    new_exchange,
    read_task_id,
)
from indusagi.interop.protocol_bridge.rpc.connection import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
)

pytestmark = pytest.mark.anyio
DECLARED: Any = {"extensions": {TASKS: {}}}
WORKING: Any = {"taskId": "t", "status": "working", "pollIntervalMs": 1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (WORKING, True),
        ({"taskId": "t"}, False),
        ({"status": "working"}, False),
        ({"taskId": 1, "status": "working"}, False),
        ({"taskId": "t", "status": None}, False),
        ("t", False),
    ],
)
def test_a_task_has_an_id_and_a_status(value: Any, *, expected: bool) -> None:
    assert is_task(value) is expected


@pytest.mark.parametrize(
    ("result", "modern", "core"),
    [
        ({"resultType": "task", **WORKING}, WORKING, None),
        ({"resultType": "complete", **WORKING}, None, None),
        ({"task": {"taskId": "t", "status": "working", "pollInterval": 1}}, None, WORKING),
        ({"resultType": "task", "task": WORKING}, None, WORKING),
        ({"resultType": "task", "taskId": "t"}, None, None),
        ({"content": []}, None, None),
    ],
)
def test_a_handle_is_read_by_the_revision(result: Any, modern: Any, core: Any) -> None:
    assert read_created_task(result, is_modern=True) == modern
    assert read_created_task(result, is_modern=False) == core


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [(DECLARED, True), ({"extensions": {TASKS: True}}, False), ({"extensions": {}}, False), ({}, False), (None, False)],
)
def test_the_extension_is_declared_by_an_object(capabilities: Any, *, expected: bool) -> None:
    assert declares_tasks(capabilities) is expected
    assert declares_tasks(declare_tasks(capabilities))


def test_declaring_keeps_what_was_declared() -> None:
    given: Any = {"roots": {}, "extensions": {"x": {}}}
    assert declare_tasks(given) == {"roots": {}, "extensions": {"x": {}, TASKS: {}}}
    assert declare_tasks({"extensions": 7}) == DECLARED
    assert add_extensions(given, TASKS_EXTENSION) == declare_tasks(given)
    assert add_extensions({"extensions": 7}, {"y": {}}) == {"extensions": {"y": {}}}


def test_a_server_of_the_former_revision_offers_tasks_of_calls() -> None:
    assert offers_core_tasks({"tasks": CORE_TASKS})
    assert CORE_TASKS == {"cancel": {}, "requests": {"tools": {"call": {}}}}
    rows: list[Any] = [
        {},
        {"tasks": {}},
        {"tasks": {"requests": {"tools": {}}}},
        {"tasks": {"requests": {"tools": True}}},
    ]
    for row in rows:
        assert not offers_core_tasks(row)
    assert (TASK_METHODS, CORE_TASK_METHODS) == (
        ("tasks/get", "tasks/update", "tasks/cancel"),
        ("tasks/get", "tasks/result", "tasks/cancel"),
    )


@pytest.mark.parametrize(
    ("execution", "support"),
    [
        ({"taskSupport": "optional"}, "optional"),
        ({"taskSupport": "required"}, "required"),
        ({"taskSupport": "forbidden"}, "forbidden"),
        ({"taskSupport": "other"}, "forbidden"),
        ({}, "forbidden"),
        (None, "forbidden"),
    ],
)
def test_a_tool_says_whether_it_is_a_task(execution: Any, support: str) -> None:
    assert read_task_support({"execution": execution}) == support


@pytest.mark.parametrize(
    ("params", "task_id"),
    [
        ({"_meta": {RELATED_TASK: {"taskId": "t"}}}, "t"),
        ({"_meta": {RELATED_TASK: {"taskId": 1}}}, ""),
        ({"_meta": {RELATED_TASK: "t"}}, ""),
        ({"_meta": 1}, ""),
        ({}, ""),
    ],
)
def test_a_message_names_its_task(params: Any, task_id: str) -> None:
    assert read_related_task(params) == task_id


def test_a_refusal_for_want_of_the_extension_is_known() -> None:
    assert requires_tasks(new_missing_error())
    assert not requires_tasks(RpcError(INVALID_PARAMS, "m", new_missing_error().data))
    assert not requires_tasks(RpcError(module.MISSING_CAPABILITY, "m", {"requiredCapabilities": {}}))
    assert not requires_tasks(RpcError(module.MISSING_CAPABILITY, "m"))


def test_the_result_of_a_task_is_read_by_its_status() -> None:
    assert read_task_result({"status": "completed", "result": {"a": 1}}) == {"a": 1}
    for task, code, message, data in (
        ({"error": {"code": 5, "message": "m", "data": 7}}, 5, "m", 7),
        ({"error": {"code": "5", "message": None}}, INTERNAL_ERROR, "the server gave no reason", None),
    ):
        with pytest.raises(RpcError) as caught:
            read_task_result({"status": "failed", **task})  # type: ignore[dict-item]
        assert (caught.value.code, str(caught.value), caught.value.data) == (code, message, data)
    for extra, message in (({}, "the task was cancelled"), ({"statusMessage": "no time"}, "no time")):
        with pytest.raises(RpcError, match=message):
            read_task_result({"status": "cancelled", "result": {}, **extra})
    for status in ("completed", "failed", "working"):
        with pytest.raises(InvalidResponseError, match=f"its task is '{status}' and has no result"):
            read_task_result({"status": status})


# -- the host ---------------------------------------------------------------------------------


class Source:
    """A source that gives handles, or none."""

    def __init__(self, *, gives: bool = True) -> None:
        self.gives = gives

    def gives_handles(self) -> bool:
        return self.gives


def test_a_client_gets_a_handle_if_it_knows_tasks() -> None:
    source: Any = Source()
    other: Any = Source(gives=False)
    asking: Any = {"task": {"ttl": 1}}
    assert new_exchange(None, asking) is None
    assert new_exchange(other, asking) is None
    core = new_exchange(source, asking)
    assert isinstance(core, TaskExchange)
    assert core.core == {"ttl": 1}
    assert new_exchange(source, {}) is None
    assert new_exchange(source, {"task": 1}) is None
    assert new_exchange(source, asking, {}) is None
    modern = new_exchange(source, asking, DECLARED)
    assert isinstance(modern, TaskExchange)
    assert modern.core is None
    assert (modern.takes(is_modern=True), modern.takes(is_modern=False)) == (True, False)
    assert core.takes(is_modern=False)


def test_a_request_about_a_task_has_its_id() -> None:
    assert read_task_id("tasks/get", {"taskId": "t"}) == "t"
    assert read_task_id("tasks/get", {"taskId": "t"}, DECLARED) == "t"
    for params in ({}, {"taskId": ""}, {"taskId": 1}):
        with pytest.raises(RpcError, match="tasks/get must have a taskId") as caught:
            read_task_id("tasks/get", params)  # type: ignore[arg-type]
        assert caught.value.code == INVALID_PARAMS
    with pytest.raises(RpcError) as caught:
        read_task_id("tasks/get", {"taskId": "t"}, {})
    assert requires_tasks(caught.value)


def test_a_task_is_written_for_the_revision_of_its_client() -> None:
    task: Any = {"taskId": "t", "status": "completed", "ttlMs": 1, "pollIntervalMs": 2, "result": {}, "error": {}}
    task |= {"inputRequests": {}, "requestState": "s", "_meta": {"a": 1}, "statusMessage": "m"}
    assert build_handle(task, is_modern=True) == {
        "resultType": "task",
        "taskId": "t",
        "status": "completed",
        "ttlMs": 1,
        "pollIntervalMs": 2,
        "statusMessage": "m",
    }
    core = {"taskId": "t", "status": "completed", "ttl": 1, "pollInterval": 2, "requestState": "s", "_meta": {"a": 1}}
    assert build_handle(task, is_modern=False) == {"task": {**core, "statusMessage": "m"}}
    assert to_core_task({**task, "resultType": "x"}) == {**core, "statusMessage": "m"}
    assert build_task_result("tasks/get", "t", task, is_modern=True) == task
    assert build_task_result("tasks/cancel", "t", task, is_modern=True) == {}
    assert build_task_result("tasks/cancel", "t", task, is_modern=False) == {**core, "statusMessage": "m"}
    assert build_task_result("tasks/get", "t", {"a": 1}, is_modern=False) == {"a": 1}
    for meta in ({"x": 1}, 7):
        found = build_task_result("tasks/result", "t", {"a": 1, "_meta": meta}, is_modern=False)  # type: ignore[dict-item]
        own = {"x": 1} if meta != 7 else {}
        assert found == {"a": 1, "_meta": {**own, RELATED_TASK: {"taskId": "t"}}}


# -- a session --------------------------------------------------------------------------------


class Server:
    """Answers requests about a task from a script, and notes them."""

    def __init__(self, *states: Any) -> None:
        self.states, self.asked, self.questions = list(states), list[Any](), list[Any]()

    async def send(self, method: str, params: Any, within_s: float) -> Any:
        self.asked.append((method, {key: value for key, value in params.items() if key != "taskId"}))
        assert params["taskId"] == "t"
        if method in {"tasks/update", "tasks/cancel"}:
            return {}
        if not self.states:
            await anyio.sleep_forever()
        return self.states.pop(0)

    async def answer(self, method: str, params: Any) -> Any:
        self.questions.append((method, params))
        return {"said": method}

    def open(self) -> ServerTasks:
        return ServerTasks(self.send, self.answer, 5.0)


DONE: Any = {"taskId": "t", "status": "completed", "result": {"a": 1}}


async def test_a_modern_task_is_polled_until_it_ends_and_reports_each_state() -> None:
    server, told = Server({**WORKING, "statusMessage": "half"}, DONE), list[Any]()
    found = await server.open().follow(WORKING, is_modern=True, limit_s=30, on_progress=told.append)
    assert (found, server.asked) == ({"a": 1}, [("tasks/get", {}), ("tasks/get", {})])
    assert told == [
        {"progress": 1, "message": "the task is working"},
        {"progress": 2, "message": "half"},
        {"progress": 3, "message": "the task is completed"},
    ]


async def test_a_handle_that_has_ended_is_still_asked_for_its_result() -> None:
    server = Server(DONE)
    assert await server.open().follow({**DONE, "result": {}}, is_modern=True, limit_s=30) == {"a": 1}


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "input_required"])
async def test_the_result_of_a_legacy_task_is_waited_for_once(status: str) -> None:
    server, told = Server({"content": []}), list[Any]()
    task = {**WORKING, "status": status}
    found = await server.open().follow(task, is_modern=False, limit_s=30, on_progress=told.append)
    assert (found, server.asked, told) == ({"content": []}, [("tasks/result", {})], [])


async def test_questions_of_a_task_are_answered_once() -> None:
    asked = {"q": {"method": "m", "params": {"p": 1}}, "r": {"method": "n", "params": 1}, "s": 7}
    waiting = {"taskId": "t", "status": "input_required", "pollIntervalMs": 1, "inputRequests": asked}
    server = Server(waiting, waiting, {**waiting, "inputRequests": None}, DONE)
    assert await server.open().follow(WORKING, is_modern=True, limit_s=30) == {"a": 1}
    assert server.questions == [("m", {"p": 1}), ("n", {}), ("None", {})]
    updates = [params for method, params in server.asked if method == "tasks/update"]
    assert updates == [{"inputResponses": {"q": {"said": "m"}, "r": {"said": "n"}, "s": {"said": "None"}}}]


async def test_a_task_has_so_many_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_INPUTS", 2)
    waiting: Any = {"taskId": "t", "status": "input_required", "inputRequests": {"a": {}, "b": {}, "c": {}}}
    server = Server(waiting)
    with pytest.raises(InvalidResponseError, match="more than 2 questions"):
        await server.open().follow(WORKING, is_modern=True, limit_s=30)
    assert (len(server.questions), server.asked[-1]) == (2, ("tasks/cancel", {}))


async def test_an_answer_without_a_task_ends_the_wait() -> None:
    with pytest.raises(InvalidResponseError, match="tasks/get answered without a task"):
        await Server({"a": 1}).open().follow(WORKING, is_modern=True, limit_s=30)


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_task_that_takes_too_long_is_cancelled_if_wanted(*, cancels: bool) -> None:
    server = Server()
    with pytest.raises(RequestTimeoutError, match=r"the task has not ended within 0\.01 s"):
        await server.open().follow(WORKING, is_modern=True, limit_s=0.01, cancels=cancels)
    assert (("tasks/cancel", {}) in server.asked) is cancels


async def test_a_finished_task_is_not_cancelled_nor_remembered() -> None:
    server = Server(DONE)
    tasks = server.open()
    await tasks.follow(WORKING, is_modern=True, limit_s=30)
    assert server.asked == [("tasks/get", {})]
    assert tasks._changed == {}


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
async def test_a_notification_ends_the_pause(moment: str) -> None:
    server = Server(DONE)
    tasks = server.open()
    slow = {**WORKING, "pollIntervalMs": 60_000}
    if moment == "before":
        for _ in range(2):
            tasks.receive({"taskId": "t"})
        assert list(tasks._early) == ["t"]
    found: list[Any] = []

    async def follow() -> None:
        found.append(await tasks.follow(slow, is_modern=True, limit_s=50))

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        await anyio.lowlevel.checkpoint()
        if moment == "meanwhile":
            tasks.receive({"taskId": "other"})
            tasks.receive({"taskId": "t"})
    assert found == [{"a": 1}]
    assert list(tasks._early) == (["other"] if moment == "meanwhile" else [])


@pytest.mark.parametrize(
    ("told", "pause_s"),
    [(None, 0.7), (0, 0.7), (-1, 0.7), ("9", 0.7), (1, 0.05), (200, 0.2), (0.5, 0.05), (90_000_000, 60.0)],
)
def test_a_server_says_how_long_the_pause_is(monkeypatch: pytest.MonkeyPatch, told: Any, pause_s: float) -> None:
    pauses: list[float] = []

    class Timer:
        def __init__(self, pause_s: float) -> None:
            pauses.append(pause_s)

        async def __aenter__(self) -> None:
            raise TimeoutError

        async def __aexit__(self, *_: object) -> None:
            """Nothing was entered."""

    class Changed:
        def clear(self) -> None:
            pauses.append(0.0)

    monkeypatch.setattr(module.asyncio, "timeout", Timer)
    changed: Any = Changed()
    with pytest.raises(StopIteration):
        module._pause({"pollIntervalMs": told}, changed, 0.7).send(None)
    assert pauses == [pause_s, 0.0]
