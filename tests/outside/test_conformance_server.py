"""The server that the conformance suite judges: whole in both eras of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CreateMessageResult,
    ElicitResult,
    JSONRPCNotification,
    ListRootsResult,
    TextContent,
)
from outside.conformance.server.events import Events
from outside.conformance.server.serving import Subject

if TYPE_CHECKING:
    from mcp.client.client import ConnectMode

ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


async def elicit(ctx: object, params: object) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada", "color": "blue", "ok": True})


async def sample(ctx: object, params: object) -> CreateMessageResult:
    text = TextContent(text="Paris")
    return CreateMessageResult(role="assistant", content=text, model="none")


async def roots(ctx: object) -> ListRootsResult:
    return ListRootsResult(roots=[])


def client(mode: ConnectMode, **handlers: Any) -> Client:
    return Client(Subject().server, mode=mode, **handlers)


def answering(mode: ConnectMode) -> Client:
    return client(mode, elicitation_callback=elicit, sampling_callback=sample, list_roots_callback=roots)


@ERAS
async def test_every_tool_answers_a_client_that_answers(mode: ConnectMode) -> None:
    async with answering(mode) as suite:
        failed = [
            tool.name
            for tool in (await suite.list_tools()).tools
            if (await suite.call_tool(tool.name, dict.fromkeys(tool.input_schema.get("required", ()), "x"))).is_error
        ]

    assert failed == ["test_error_handling"]


@ERAS
async def test_every_resource_and_every_prompt_can_be_had(mode: ConnectMode) -> None:
    async with answering(mode) as suite:
        for resource in (await suite.list_resources()).resources:
            assert (await suite.read_resource(resource.uri)).contents
        for prompt in (await suite.list_prompts()).prompts:
            given = {one.name: "x" for one in prompt.arguments or ()}
            assert (await suite.get_prompt(prompt.name, given)).messages


@ERAS
async def test_a_client_that_cannot_be_asked_is_told_what_it_would_need(mode: ConnectMode) -> None:
    async with client(mode) as suite:
        with pytest.raises(MCPError) as caught:
            await suite.call_tool("test_missing_capability", {})

    assert caught.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
    assert caught.value.data == {"requiredCapabilities": {"sampling": {}}}


@ERAS
async def test_what_is_not_there_is_refused(mode: ConnectMode) -> None:
    async with client(mode) as suite:
        for asked in (
            suite.call_tool("no_such_tool", {}),
            suite.call_tool("test_sampling", {}),
            suite.get_prompt("no_such_prompt"),
            suite.get_prompt("test_prompt_with_arguments", {"arg1": "x"}),
            suite.read_resource("test://nothing"),
        ):
            with pytest.raises(MCPError) as caught:
                await asked
            assert caught.value.code == -32602


@ERAS
async def test_a_tool_and_a_prompt_come_and_go(mode: ConnectMode) -> None:
    async with client(mode) as suite:
        counts: list[tuple[int, int]] = []
        for _ in range(3):
            tools = await suite.list_tools(cache_mode="refresh")
            prompts = await suite.list_prompts(cache_mode="refresh")
            counts.append((len(tools.tools), len(prompts.prompts)))
            await suite.call_tool("test_trigger_tool_change", {})
            await suite.call_tool("test_trigger_prompt_change", {})

    first, second, third = counts
    assert second == (first[0] + 1, first[1] + 1)
    assert third == first


async def test_whoever_comes_back_gets_what_came_later_on_the_same_stream() -> None:
    events, sent = Events(), list[str]()

    async def send(event: Any) -> None:
        sent.append(event.message.method)

    def said(word: str) -> JSONRPCNotification:
        return JSONRPCNotification(jsonrpc="2.0", method=word)

    first = await events.store_event("a", None)
    await events.store_event("a", said("later"))
    await events.store_event("b", said("elsewhere"))

    assert await events.replay_events_after(first, send) == "a"
    assert sent == ["later"]
    assert await events.replay_events_after("no number", send) is None
