"""Tasks of a server, as the endpoint follows them: polling, questions, cancellation, both eras."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.support.servers import SERVERS
from tests.support.waiting import until

from indusagi.core.cancel import CancelToken
from indusagi.core.json import is_json_object
from indusagi.interop import ProtocolFault, StdioServerConfig, create_server_endpoint
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.tasks import (
    ServerTasks,
    read_created_task,
    read_task,
    read_task_result,
    read_task_support,
    requires_tasks,
    to_core_task,
)
from indusagi.interop.protocol_bridge.contract import ServerLimits
from indusagi.interop.protocol_bridge.rpc.connection import InvalidResponseError, RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from indusagi.core.json import JsonObject
    from indusagi.interop import ServerEndpointImpl
    from indusagi.interop.protocol_bridge.contract import RemoteCallResult
    from indusagi.runtime.contract import ToolProgress

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@asynccontextmanager
async def server(
    era: str, *flags: str, handlers: Handlers | None = None, limits: ServerLimits | None = None
) -> AsyncGenerator[ServerEndpointImpl]:
    args = ["-I", "-S", str(SERVERS / "tasks.py"), "--era", era, *flags]
    config = StdioServerConfig("s", sys.executable, args, limits=limits or ServerLimits())
    endpoint = create_server_endpoint(config, handlers=handlers)
    await endpoint.open()
    try:
        await endpoint.list_tools()
        yield endpoint
    finally:
        await endpoint.close()


def text_of(result: RemoteCallResult) -> str:
    block = result.content[0]
    assert is_json_object(block)
    return str(block["text"])


async def confirm(params: JsonObject) -> JsonObject:
    return {"action": "accept", "content": {"answer": params["message"]}}


@pytest.mark.process
@ERAS
async def test_a_call_that_needs_a_task_returns_its_final_result(era: str) -> None:
    reported: list[ToolProgress] = []
    async with server(era) as endpoint:
        result = await endpoint.invoke("failing_job", {}, on_progress=reported.append)
        assert (text_of(result), result.is_error) == ("it did not work", True)
        assert text_of(await endpoint.invoke("greet", {"name": "Ada"})) == "Hello, Ada!"
        with pytest.raises(ProtocolFault, match="the machine broke") as caught:
            await endpoint.invoke("protocol_error_job", {})
        assert caught.value.detail.rpc_code == -32603
    # The extension has no progress: the states of the task are reported in its place.
    assert [one.message for one in reported][:1] == (["the task is working"] if era == "modern" else [])


@pytest.mark.process
@pytest.mark.parametrize(("era", "tool"), [("modern", "confirm_delete"), ("modern", "multi_input")])
async def test_questions_of_a_task_are_answered_by_the_handlers_and_each_once(era: str, tool: str) -> None:
    asked: list[str] = []

    async def elicit(params: JsonObject) -> JsonObject:
        asked.append(str(params["message"]))
        return await confirm(params)

    async with server(era, handlers=Handlers(elicit=elicit)) as endpoint:
        said = text_of(await endpoint.invoke(tool, {"filename": "x"}))
        assert '"action": "accept"' in said
    assert asked == (["confirm?"] if tool == "confirm_delete" else ["first?", "second?"])


@pytest.mark.process
async def test_a_question_without_a_handler_fails_the_call_and_cancels_the_task(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with server("modern", "--log", str(log)) as endpoint:
        with pytest.raises(ProtocolFault, match="elicitation/create is not allowed here"):
            await endpoint.invoke("confirm_delete", {})
        await until(lambda: "cancelled task-1" in log.read_text())


@pytest.mark.process
@pytest.mark.parametrize("how", ["token", "deadline"])
async def test_a_call_that_ends_early_cancels_its_task(how: str, tmp_path: Path) -> None:
    log, token = tmp_path / "log", CancelToken()
    limits = ServerLimits(call_hard_s=0.3) if how == "deadline" else None
    async with server("modern", "--log", str(log), limits=limits) as endpoint:

        def stop(progress: ToolProgress) -> None:
            if how == "token":
                token.cancel("enough")

        with pytest.raises(ProtocolFault, match=r"has not ended within 0.3 s|was cancelled: enough"):
            await endpoint.invoke("slow_compute", {"seconds": 60}, cancel=token, on_progress=stop)
        await until(lambda: "cancelled task-1" in log.read_text())


@pytest.mark.process
@ERAS
async def test_tasks_can_be_asked_for_by_hand(era: str) -> None:
    async with server(era) as endpoint:
        assert text_of(await endpoint.invoke("failing_job", {})) == "it did not work"
        got = await endpoint.request("tasks/get", {"taskId": "task-1"})
        assert (got["taskId"], got["status"]) == ("task-1", "completed")
        result = await endpoint.request("tasks/result", {"taskId": "task-1"})
        assert result["isError"] is True
        with pytest.raises(ProtocolFault, match="there is no such task"):
            await endpoint.request("tasks/cancel", {"taskId": "task-9"})


@pytest.mark.process
async def test_without_following_the_server_refuses_a_call_that_needs_a_task() -> None:
    async with server("modern", handlers=Handlers(follow_tasks=False)) as endpoint:
        with pytest.raises(ProtocolFault, match="failing_job needs tasks"):
            await endpoint.invoke("failing_job", {})


@pytest.mark.process
async def test_a_notification_ends_the_pause_between_two_polls() -> None:
    # Polled each minute: only the notification of the server can end the call in time.
    async with server("legacy", "--poll", "60000", limits=ServerLimits(call_hard_s=20)) as endpoint:
        assert text_of(await endpoint.invoke("failing_job", {})) == "it did not work"


async def test_a_notification_that_comes_with_the_handle_ends_the_pause_too() -> None:
    ended: JsonObject = {"taskId": "1", "status": "completed", "result": {"content": []}}

    async def send(method: str, params: JsonObject, limit_s: float) -> JsonObject:
        assert (method, params) == ("tasks/get", {"taskId": "1"})
        return ended

    async def run_handler(method: str, params: JsonObject) -> JsonObject:
        raise AssertionError(method)

    tasks = ServerTasks(send, run_handler, 20.0)
    tasks.receive(ended)
    handle: JsonObject = {"taskId": "1", "status": "working", "pollIntervalMs": 60_000}
    assert await tasks.follow(handle, is_modern=True, limit_s=20.0) == {"content": []}


def test_tasks_of_both_revisions_are_read_into_one_shape() -> None:
    core: JsonObject = {"taskId": "1", "status": "working", "ttl": None, "pollInterval": 5}
    shown = {"taskId": "1", "status": "working", "ttlMs": None, "pollIntervalMs": 5}
    assert read_task(core) == shown == read_created_task({"task": core}, is_modern=False)
    assert read_created_task({"resultType": "task", **shown}, is_modern=True) == shown
    assert read_created_task({"task": core, "content": []}, is_modern=True) is None
    assert read_created_task({"resultType": "task", "status": "working"}, is_modern=True) is None
    assert to_core_task({**shown, "result": {}, "inputRequests": {}}) == core
    assert read_task_support({"execution": {"taskSupport": "required"}}) == "required"
    assert read_task_support({"execution": {"taskSupport": 7}}) == "forbidden"
    assert not requires_tasks(RpcError(-32021, "x", {"requiredCapabilities": {"sampling": {}}}))


@pytest.mark.parametrize(
    ("task", "error"),
    [
        ({"status": "failed", "error": {"code": -7, "message": "no"}}, RpcError),
        ({"status": "cancelled"}, RpcError),
        ({"status": "completed"}, InvalidResponseError),
    ],
)
def test_a_task_without_a_result_raises(task: JsonObject, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_task_result(task)
