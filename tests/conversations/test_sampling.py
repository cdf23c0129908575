"""Sampling requests of servers as requests to a model, over the real streaming APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from anyio import to_thread
from tests.support.model_server import Reply, model_server, says

from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from induscode.conversations.contract import RequestBudget
from induscode.conversations.model_loop import ModelLoop, open_model
from induscode.conversations.models import ModelChoice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.model_server import ModelServer

    from indusagi.core.json import JsonObject
    from induscode.conversations.models import ModelApi

pytestmark = pytest.mark.anyio
PNG = "iVBORw0KGgo="


def user(first: JsonObject, *others: JsonObject) -> JsonObject:
    return {"role": "user", "content": [first, *others] if others else first}


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running


async def complete(
    server: ModelServer, params: JsonObject, api: ModelApi = "openai", budget: RequestBudget | None = None
) -> JsonObject:
    base_url = server.url if api == "anthropic" else f"{server.url}/v1"
    choice = ModelChoice(api, "scripted", base_url, "key")
    async with ModelLoop(await to_thread.run_sync(open_model, choice)) as loop:
        result = await loop.complete_message(params, budget or RequestBudget(5))
        assert loop.usage.requests == 1
        assert loop.usage.input_tokens == 10
        return result


async def test_chat_model_receives_prompt_messages_and_limits(server: ModelServer) -> None:
    server.script[:] = [says("a ", "b")]
    params: JsonObject = {
        "systemPrompt": "Be brief.",
        "messages": [
            user(text("one")),
            {"role": "assistant", "content": text("two")},
            user(text("three"), {"type": "image", "mimeType": "image/png", "data": PNG}),
        ],
        "maxTokens": 30,
        "temperature": 0.5,
        "stopSequences": ["END"],
    }
    assert await complete(server, params) == {
        "role": "assistant",
        "content": {"type": "text", "text": "a b"},
        "model": "scripted",
        "stopReason": "endTurn",
    }
    (body,) = server.requests
    system, one, two, three = body["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert one["content"] == [{"type": "text", "text": "one"}]
    assert two == {"role": "assistant", "content": "two"}
    assert [part["type"] for part in three["content"]] == ["text", "image_url"]
    assert (body["max_completion_tokens"], body["temperature"], body["stop"]) == (30, 0.5, ["END"])
    assert "tools" not in body


async def test_compatible_server_receives_the_older_name_of_the_limit(server: ModelServer) -> None:
    server.script[:] = [Reply(text=("cut",), finish="length")]
    result = await complete(server, {"messages": [user(text("x"))], "maxTokens": 3}, "compatible")
    assert result["stopReason"] == "maxTokens"
    assert server.requests[0]["max_tokens"] == 3


async def test_anthropic_model_answers_in_its_own_api(server: ModelServer) -> None:
    server.script[:] = [Reply(text=("hello",), finish="stop_sequence")]
    params: JsonObject = {"systemPrompt": "Be brief.", "messages": [user(text("x"))], "maxTokens": 9}
    result = await complete(server, params, "anthropic")
    assert result["content"] == text("hello")
    assert result["stopReason"] == "stopSequence"
    (body,) = server.requests
    assert body["max_tokens"] == 9
    assert "Be brief." in str(body["system"])


async def test_budget_of_the_run_counts_sampling(server: ModelServer) -> None:
    server.script[:] = [says("one")]
    budget = RequestBudget(1)
    params: JsonObject = {"messages": [user(text("x"))], "maxTokens": 3}
    await complete(server, params, budget=budget)
    assert budget.left == 0
    with pytest.raises(RpcError, match="limit of 1 requests"):
        await complete(server, params, budget=budget)
    assert len(server.requests) == 1


async def test_failure_of_the_model_is_an_error_of_the_request(server: ModelServer) -> None:
    server.script[:] = [Reply(status=401, error="wrong key")]
    with pytest.raises(RpcError, match=r"the model gave no answer.*wrong key"):
        await complete(server, {"messages": [user(text("x"))], "maxTokens": 3})


@pytest.mark.parametrize(
    "change",
    [
        {"maxTokens": 0},
        {"maxTokens": None},
        {"messages": []},
        {"messages": "x"},
        {"messages": ["x"]},
        {"messages": [{"role": "system", "content": text("x")}]},
        {"messages": [{"role": "assistant", "content": text("x")}]},
        {"messages": [user({"type": "image", "mimeType": "image/png", "data": "?"})]},
        {"messages": [user({"type": "hologram"})]},
        {"messages": [user({"type": ["image"]})]},
        {"messages": [{"role": ["user"], "content": text("x")}]},
        {"tools": [{"name": "x"}]},
    ],
)
async def test_invalid_request_reaches_no_model(change: dict[str, Any], server: ModelServer) -> None:
    with pytest.raises(RpcError) as error:
        await complete(server, {"messages": [user(text("x"))], "maxTokens": 3, **change})
    assert error.value.code == INVALID_PARAMS
    assert not server.requests
