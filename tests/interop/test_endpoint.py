from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.opened import fault_of_call, opened
from tests.support.servers import HONEST_TOOLS, diary, fault, honest
from tests.support.waiting import is_alive, until

from indusagi.core.cancel import CancelToken
from indusagi.interop import (
    EndpointPhase,
    Handlers,
    ProtocolFault,
    ServerEndpointImpl,
    ServerLimits,
    create_server_endpoint,
    is_terminal_phase,
)
from indusagi.interop.protocol_bridge.client.handlers import current_server
from indusagi.runtime.calls import UserWait, current_wait

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolProgress

pytestmark = [pytest.mark.anyio, pytest.mark.process]

ERAS = ("legacy", "modern", "both")


@pytest.mark.parametrize("era", ERAS)
async def test_servers_of_both_eras_are_opened_listed_called_and_closed(tmp_path: Path, era: str) -> None:
    log = tmp_path / "log"
    endpoint = create_server_endpoint(honest("--era", era, "--log", log))
    assert endpoint.phase is EndpointPhase.IDLE
    await endpoint.open()
    assert endpoint.phase is EndpointPhase.READY
    assert endpoint.facts is not None
    assert endpoint.facts.era == ("legacy" if era == "legacy" else "modern")
    tools = await endpoint.list_tools()
    assert tuple(tool.ref.name for tool in tools) == HONEST_TOOLS
    assert tools[0].descriptor.name == "honest__echo"
    result = await endpoint.invoke("echo", {"text": "hi"})
    assert (result.is_error, result.content) == (False, ({"type": "text", "text": "hi"},))
    assert endpoint.status().tool_count == len(HONEST_TOOLS)
    await endpoint.close()
    assert endpoint.phase is EndpointPhase.CLOSED
    assert not is_alive(int(diary(log, "start")[0]))


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_older_protocol_versions_work(version: str) -> None:
    async with opened(honest("--version", version)) as endpoint:
        assert endpoint.facts is not None
        assert endpoint.facts.version == version
        assert len(await endpoint.list_tools()) == len(HONEST_TOOLS)


async def test_all_pages_of_a_listing_are_read() -> None:
    async with opened(honest("--pages", 5, "--tools", 30)) as endpoint:
        assert len(await endpoint.list_tools()) == len(HONEST_TOOLS) + 30


async def test_concurrent_opens_share_one_attempt(tmp_path: Path) -> None:
    log = tmp_path / "log"
    endpoint = create_server_endpoint(honest("--log", log))
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(endpoint.open)
    await endpoint.close()
    assert len(diary(log, "start")) == 1


async def test_cancelled_caller_leaves_the_attempt_to_the_others() -> None:
    endpoint = create_server_endpoint(fault("slow-start", 0.3))
    with anyio.move_on_after(0.05) as scope:
        await endpoint.open()
    assert scope.cancelled_caught
    assert endpoint.phase is EndpointPhase.CONNECTING
    await endpoint.open()
    assert endpoint.phase is EndpointPhase.READY
    await endpoint.close()


async def test_endpoint_that_is_not_ready_refuses_requests() -> None:
    endpoint = create_server_endpoint(honest())
    for asked in (endpoint.list_tools(), endpoint.invoke("echo", {}), endpoint.request("ping")):
        with pytest.raises(ProtocolFault, match="server 'honest' is idle") as caught:
            await asked
        assert caught.value.kind == "not_connected"
    with pytest.raises(ProtocolFault, match="is idle"):
        endpoint.notify("notifications/x")


async def test_a_closed_endpoint_cannot_be_opened_again() -> None:
    endpoint = create_server_endpoint(honest())
    await endpoint.close()
    await endpoint.close()
    assert endpoint.phase is EndpointPhase.CLOSED
    with pytest.raises(ProtocolFault, match="is closed") as caught:
        await endpoint.open()
    assert caught.value.kind == "not_connected"


async def test_faulted_endpoint_keeps_its_fault() -> None:
    endpoint = create_server_endpoint(fault("exits", 3, "no"))
    faults: list[ProtocolFault] = []
    for _ in range(2):
        with pytest.raises(ProtocolFault) as caught:
            await endpoint.open()
        faults.append(caught.value)
    await endpoint.close()
    assert faults[0] is faults[1]
    assert (endpoint.phase, endpoint.status().fault) == (EndpointPhase.FAULTED, faults[0])


async def test_exit_of_an_idle_server_is_detected(tmp_path: Path) -> None:
    async with opened(honest()) as endpoint:
        result = await endpoint.invoke("pid", {})
        assert isinstance(result.structured, dict)
        pid = result.structured["pid"]
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGTERM)
        await until(lambda: endpoint.phase is EndpointPhase.FAULTED)
        assert "the connection was lost: it was ended by SIGTERM" in str(endpoint.status().fault)


async def test_error_result_is_returned_and_refusal_raises_a_fault() -> None:
    async with opened(honest()) as endpoint:
        assert (await endpoint.invoke("fail", {})).is_error
        failure = await fault_of_call(endpoint, "refuse")
        assert (failure.kind, failure.detail.rpc_code) == ("tool_error", -32602)
        assert endpoint.phase is EndpointPhase.READY


async def test_media_and_unknown_blocks_arrive_verbatim() -> None:
    async with opened(honest()) as endpoint:
        result = await endpoint.invoke("media", {})
        kinds = [block["type"] for block in result.content if isinstance(block, dict)]
        assert kinds[:3] == ["text", "image", "audio"]
        assert "hologram" in kinds


async def test_non_object_arguments_are_refused_before_sending() -> None:
    async with opened(honest()) as endpoint:
        with pytest.raises(ProtocolFault, match="must be an object"):
            await endpoint.invoke("echo", ["x"])
        assert not (await endpoint.invoke("pid", None)).is_error


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_cancellation_of_a_call_reaches_the_server(tmp_path: Path, era: str) -> None:
    log = tmp_path / "log"
    token = CancelToken()
    started: list[ToolProgress] = []
    async with opened(honest("--era", era, "--log", log)) as endpoint:

        async def call() -> None:
            with pytest.raises(ProtocolFault, match="was cancelled: Ctrl-C") as caught:
                await endpoint.invoke(
                    "slow", {"seconds": 30, "progress": 3000}, cancel=token, on_progress=started.append
                )
            assert caught.value.detail.reason == "cancelled"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(lambda: bool(started))
            token.cancel("Ctrl-C")
        await until(lambda: bool(diary(log, "cancelled")))
        assert not (await endpoint.invoke("echo", {"text": "x"})).is_error


async def test_cancellation_of_the_callers_task_reaches_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with opened(honest("--log", log)) as endpoint:
        task = asyncio.get_running_loop().create_task(endpoint.invoke("slow", {"seconds": 30}))
        await until(lambda: bool(diary(log, "heard tools/call")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: bool(diary(log, "cancelled")))


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_tool_change_triggers_a_new_listing(era: str) -> None:
    limits = ServerLimits(relist_gap_s=0.05)
    async with opened(honest("--era", era, limits=limits)) as endpoint:
        before = [tool.ref.name for tool in await endpoint.list_tools()]
        await endpoint.invoke("mutate", {"kind": "add"})
        await until(lambda: endpoint.status().tool_count == len(before) + 1)
        assert [tool.ref.name for tool in await endpoint.list_tools()][: len(before)] == before


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
async def test_server_requests_reach_their_handlers_with_the_id_of_the_server(era: str, method: str) -> None:
    asked: list[str | None] = []

    async def answer(params: JsonObject) -> JsonObject:
        asked.append(current_server.get())
        return {"action": "accept", "content": {"word": "pelican"}, "roots": []}

    handlers = Handlers(elicit=answer, sample=answer, roots=answer)
    async with opened(honest("--era", era), handlers) as endpoint:
        result = await endpoint.invoke("ask", {"method": method})
        assert not result.is_error
        assert asked == ["honest"]
        assert "pelican" in str(result.content)
    assert current_server.get() is None


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("method", ["elicitation/create", "roots/list"])
async def test_finding_u2_form_of_a_server_counts_as_waiting_for_the_user(
    era: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("indusagi.runtime.calls.perf_counter", lambda: now[0])

    async def answer(params: JsonObject) -> JsonObject:
        now[0] += 60
        return {"action": "accept", "content": {"word": "pelican"}, "roots": []}

    wait = UserWait()
    async with opened(honest("--era", era), Handlers(elicit=answer, roots=answer)) as endpoint:
        token = current_wait.set(wait)
        await endpoint.invoke("ask", {"method": method})
        current_wait.reset(token)
    assert wait.seconds == (60 if method == "elicitation/create" else 0)


async def test_other_lists_and_requests_are_supported() -> None:
    async with opened(honest("--pages", 2)) as endpoint:
        resources = await endpoint.list_all("resources/list", "resources")
        assert _values(resources, "uri") == ["test://text", "test://blob"]
        read = await endpoint.request("resources/read", {"uri": "test://text"})
        assert "contents" in read
        prompts = await endpoint.list_all("prompts/list", "prompts")
        assert "greet" in _values(prompts, "name")
        with pytest.raises(ProtocolFault) as caught:
            await endpoint.list_all("nonsense/list", "nonsense")
        assert caught.value.kind == "protocol"
        with pytest.raises(ProtocolFault) as caught:
            await endpoint.request("nonsense")
        assert caught.value.kind == "tool_error"


def _values(rows: Sequence[JsonValue], key: str) -> list[JsonValue]:
    return [row[key] for row in rows if isinstance(row, dict)]


async def test_notifications_reach_the_listener() -> None:
    heard: list[str] = []
    handlers = Handlers(on_notification=lambda method, params: heard.append(method))
    async with opened(honest(), handlers) as endpoint:
        await endpoint.request("logging/setLevel", {"level": "debug"})
        await until(lambda: "notifications/message" in heard)


async def test_phase_and_tool_events_reach_the_listener() -> None:
    told: list[str] = []
    endpoint = ServerEndpointImpl(honest(), on_event=lambda event: told.append(f"{event} {endpoint.phase}"))
    await endpoint.open()
    await endpoint.list_tools()
    await endpoint.close()
    told = [event for event in told if event != "slow_start connecting"]  # on a busy machine
    assert told == ["phase connecting", "phase ready", "tools ready", "phase closing", "phase closed"]


@pytest.mark.parametrize("step", ["open", "list", "invoke", "close"])
async def test_r56_cancelling_at_any_moment_leaves_nothing_behind(tmp_path: Path, step: str) -> None:
    log = tmp_path / "log"
    for turns in range(0, 60, 6):
        endpoint = create_server_endpoint(honest("--log", log))
        if step != "open":
            await endpoint.open()
        work = {
            "open": endpoint.open,
            "list": endpoint.list_tools,
            "invoke": lambda endpoint=endpoint: endpoint.invoke("echo", {"text": "x"}),
            "close": endpoint.close,
        }[step]
        task = asyncio.get_running_loop().create_task(_run(work))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        await endpoint.close()
        assert is_terminal_phase(endpoint.phase)
    assert not any(is_alive(int(pid)) for pid in diary(log, "start"))


async def _run(work: object) -> None:
    await work()  # type: ignore[operator]


async def test_end_of_the_event_loop_ends_its_servers(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def forget() -> None:
        await create_server_endpoint(honest("--log", log)).open()

    await anyio.to_thread.run_sync(lambda: asyncio.run(forget()))
    await until(lambda: not is_alive(int(diary(log, "start")[0])))


async def test_failed_later_listing_keeps_the_old_tools_and_reports_a_fault(tmp_path: Path) -> None:
    limits = ServerLimits(relist_gap_s=0.02)
    async with opened(honest(limits=limits)) as endpoint:
        before = await endpoint.list_tools()
        assert endpoint._session is not None
        endpoint._session.read_pages = _failing
        await endpoint.invoke("mutate", {"kind": "add"})
        await until(lambda: endpoint.status().fault is not None)
        assert (await endpoint.list_tools()) == before
        assert endpoint.phase is EndpointPhase.READY


async def _failing(method: str, key: str) -> Sequence[JsonValue]:
    raise TimeoutError


async def test_cancelled_endpoint_task_is_a_fault() -> None:
    endpoint = create_server_endpoint(honest())
    await endpoint.open()
    endpoint._task.cancel()
    await endpoint.wait_closed()
    assert endpoint.phase is EndpointPhase.FAULTED
    failure = endpoint.status().fault
    assert failure is not None
    assert failure.kind == "transport"
