"""The provider host, as clients of the official SDK meet it, in every way and in both eras."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from tests.support.host_clients import WAYS, client_of, host_of
from tests.support.host_tools import ECHO, MEDIA, Bench
from tests.support.waiting import until

from indusagi.interop import ProtocolFault, ProviderHostInfo, create_provider_host

if TYPE_CHECKING:
    from mcp.client.session import IncomingMessage

IN_PROCESS = [way for way in WAYS if not way.startswith("stdio")]
TOLD_UNASKED = ["memory-legacy", "http-legacy"]


def plain(model: Any) -> Any:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


async def test_the_snippet_of_the_specification_serves_in_the_background() -> None:
    box = Bench().box()
    host = create_provider_host(box, ProviderHostInfo(name="my-agent", version="1.0"))
    async with create_client_server_memory_streams() as (client_streams, server_streams):
        running = await host.connect(server_streams)
        async with ClientSession(*client_streams) as session:
            met = await session.initialize()
            assert (met.server_info.name, met.server_info.version) == ("my-agent", "1.0")
            assert "echo" in [tool.name for tool in (await session.list_tools()).tools]
    with anyio.fail_after(60):
        await running.waiting()


async def test_a_host_without_references_serves_until_its_streams_end() -> None:
    import gc  # noqa: PLC0415 — only here

    async with create_client_server_memory_streams() as (ours, theirs):
        await create_provider_host(Bench().box()).connect(theirs)
        gc.collect()
        async with ClientSession(*ours) as session:
            met = await session.initialize()
            assert met.server_info.name == "indus-provider-host"
            assert met.server_info.version == "0.1.0"
    await asyncio.sleep(0.01)


async def test_cancel_ends_the_connection_and_running_calls() -> None:
    bench = Bench()
    async with create_client_server_memory_streams() as (ours, theirs):
        running = await host_of(bench).connect(theirs)
        async with ClientSession(*ours) as session, anyio.create_task_group() as tasks:
            await session.initialize()

            async def call() -> None:
                with pytest.raises(MCPError):
                    await session.call_tool("hang", {})

            tasks.start_soon(call)
            await bench.began.wait()
            await running.cancel()
            await running.cancel()
            assert bench.reasons == ["the client went away"]


async def test_a_host_is_stopped_when_its_calls_are_answered() -> None:
    bench = Bench()
    answers: list[Any] = []
    async with create_client_server_memory_streams() as (ours, theirs):
        running = await host_of(bench).connect(theirs)
        async with ClientSession(*ours) as session, anyio.create_task_group() as tasks:
            await session.initialize()
            await session.list_tools()  # this client would do so after the call

            async def call() -> None:
                answers.append(await session.call_tool("hang", {}))

            tasks.start_soon(call)
            await bench.began.wait()
            tasks.start_soon(running.stop)
            await asyncio.sleep(0)
            bench.let_go.set()
            await running.waiting()
    assert answers[0].content[0].text == "let go"


@pytest.mark.parametrize("transport", [object(), (1, 2), "stdio"])
async def test_an_object_that_is_not_a_transport_is_a_transport_fault(transport: Any) -> None:
    with pytest.raises(ProtocolFault, match="cannot serve over") as caught:
        await create_provider_host(Bench().box()).connect(transport)
    assert caught.value.kind == "transport"


@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
async def test_the_catalog_arrives_as_the_box_has_it(way: str) -> None:
    bench = Bench()
    async with client_of(host_of(bench), way) as client:
        listed = (await client.list_tools()).tools
        names = [tool.name for tool in listed]
        assert names[: len(bench.registry.names())] == [*bench.registry.names()]
        echo = plain(listed[0])
        assert echo["title"] == "Say it again"
        assert json.dumps(echo["inputSchema"]) == json.dumps(ECHO)
        assert echo["annotations"] == {"openWorldHint": False, "readOnlyHint": True}
        count, rows = (plain(listed[names.index(name)]) for name in ("count", "rows"))
        assert count["outputSchema"]["required"] == ["count"]
        assert ("outputSchema" in rows) == way.endswith("modern")


@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
async def test_every_kind_of_answer_arrives_as_the_tool_gave_it(way: str) -> None:
    steps: list[tuple[float, float | None, str | None]] = []

    async def stepped(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async with client_of(host_of(Bench()), way) as client:
        said = plain(await client.call_tool("echo", {"text": "grüß\u2028 dich"}))
        assert said["content"] == [{"type": "text", "text": "grüß\u2028 dich"}]
        media = plain(await client.call_tool("media", {}))
        text = {"type": "text", "text": "look", "annotations": {"priority": 1.0}}
        assert media["content"] == [text, *MEDIA]
        assert media["_meta"]["vendor/key"] == [1, None]
        assert "/secret/place" not in json.dumps(media)
        assert plain(await client.call_tool("count", {}))["structuredContent"] == {"count": 3}
        failed = plain(await client.call_tool("fail", {}))
        assert failed["isError"]
        assert failed["content"][0]["text"] == "There is no such file: look in docs/."
        refused = plain(await client.call_tool("echo", {"text": 1}))
        assert refused["isError"]
        assert "text" in refused["content"][0]["text"]
        walked = plain(await client.call_tool("steps", {}, progress_callback=stepped))
        assert walked["content"][0]["text"] == "walked"
        await until(lambda: len(steps) == 3)
        assert steps == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        with pytest.raises(MCPError) as caught:
            await client.call_tool("nope", {})
        assert caught.value.code == -32602


@pytest.mark.parametrize("way", IN_PROCESS)
async def test_a_cancelled_call_reaches_its_tool(way: str) -> None:
    bench = Bench()
    async with client_of(host_of(bench), way) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("hang", {}))
            await bench.began.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            await bench.ended.wait()
        assert bench.reasons[0]
        assert plain(await client.call_tool("echo", {"text": "on"}))["content"][0]["text"] == "on"


@pytest.mark.parametrize("way", IN_PROCESS)
async def test_calls_of_one_client_run_concurrently(way: str) -> None:
    bench = Bench()
    async with client_of(host_of(bench), way) as client, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(lambda: client.call_tool("hang", {}))
        await until(lambda: bench.seen["hang"] == 3)
        bench.let_go.set()


@pytest.mark.parametrize("way", TOLD_UNASKED)
async def test_an_older_client_is_notified_of_changed_tools(way: str) -> None:
    bench, response = Bench(), asyncio.Event()

    async def on_message(message: IncomingMessage) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            response.set()

    host = host_of(bench)
    async with client_of(host, way, message_handler=on_message) as client:
        before = len((await client.list_tools()).tools)
        assert not host.refresh_tools()
        bench.add("late", bench._echo)
        if way == "http-legacy":  # its stream opens by itself, when it pleases
            await until(lambda: response.is_set() or _grown(bench, host))
        else:
            assert host.refresh_tools()
        with anyio.fail_after(60):
            await response.wait()
        assert len((await client.list_tools()).tools) > before


def _grown(bench: Bench, host: Any) -> bool:
    bench.add(f"late_{bench.asked}", bench._echo)
    host.refresh_tools()
    return False


@pytest.mark.parametrize("way", ["memory-modern", "http-modern"])
async def test_a_newer_client_hears_of_changes_on_its_subscription(way: str) -> None:
    bench = Bench()
    host = host_of(bench)
    async with client_of(host, way) as client:
        before = len((await client.list_tools()).tools)
        with anyio.fail_after(60):
            async with client.listen(tools_list_changed=True) as changes:
                bench.add("late", bench._echo)
                assert host.refresh_tools()
                async for _ in changes:
                    break
        assert len((await client.list_tools(cache_mode="refresh")).tools) == before + 1


@pytest.mark.parametrize("way", ["memory-modern", "memory-legacy", "http-modern", "http-legacy"])
async def test_a_client_is_met_at_once_and_waits_for_the_tools(way: str) -> None:
    ready = anyio.Event()
    host = create_provider_host(Bench().box, ready=ready)
    async with client_of(host, way) as client, anyio.create_task_group() as tasks:
        answers: list[str] = []

        async def ask() -> None:
            listed = await client.list_tools()
            response = await client.call_tool("echo", {"text": "hi"})
            answers.append(f"{'echo' in [tool.name for tool in listed.tools]} {response.is_error}")

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert answers == []
        ready.set()
        await until(lambda: answers == ["True False"])


async def test_a_cancelled_wait_for_the_tools_ends_at_once() -> None:
    host = create_provider_host(Bench().box, ready=anyio.Event())
    async with client_of(host, "memory-legacy") as client:
        with anyio.move_on_after(0.05) as waited:
            await client.list_tools()
        assert waited.cancelled_caught
