"""The adapters for the OpenAI and Anthropic APIs: definitions, and the answers to the calls of a response."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from pydantic import TypeAdapter
from tests.support.adapters import PDF, PNG, Shelf

from indusagi.adapters.anthropic import to_anthropic
from indusagi.adapters.calls import allow_all
from indusagi.adapters.openai import to_openai
from indusagi.core.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable

    from anthropic.types import Message

    from indusagi.adapters.calls import GateRequest

IMAGE = base64.b64encode(PNG).decode()
DOCUMENT = base64.b64encode(PDF).decode()


def responses(*calls: tuple[str, Any]) -> dict[str, Any]:
    """Build a response of the Responses API that calls tools after a thought."""
    output = [
        {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": json.dumps(arguments)}
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"output": [{"type": "reasoning", "id": "r", "summary": []}, *output]}


def chat(*calls: tuple[str, Any]) -> dict[str, Any]:
    """Build a response of the Chat Completions API that calls tools."""
    rows = [
        {"type": "function", "id": f"c{number}", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": rows}}]}


def messages(*calls: tuple[str, Any]) -> Message:
    """Build a response of the Messages API, as its own library gives it, that calls tools."""
    from anthropic.types import Message  # noqa: PLC0415 — takes a second, in each worker if it were above

    blocks = [
        {"type": "tool_use", "id": f"c{number}", "name": name, "input": arguments}
        for number, (name, arguments) in enumerate(calls)
    ]
    usage = {"input_tokens": 1, "output_tokens": 1}
    row = {"id": "m", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "tool_use"}
    return Message.model_validate({**row, "stop_sequence": None, "usage": usage, "content": blocks})


async def test_definitions_have_the_form_of_each_api() -> None:
    box = Shelf().open_box()
    schema: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    schema["additionalProperties"] = False
    function = {"name": "echo", "description": "The tool echo.", "parameters": schema, "strict": False}
    assert to_openai(box, gate=allow_all).definitions[0] == {"type": "function", **function}
    assert to_openai(box, gate=allow_all, api="chat").definitions[0] == {"type": "function", "function": function}
    tools = to_anthropic(box, gate=allow_all).definitions
    assert tools[0] == {"name": "echo", "description": "The tool echo.", "input_schema": schema}
    from anthropic.types import ToolParam  # noqa: PLC0415

    TypeAdapter(list[ToolParam]).validate_python(tools)


async def test_a_response_without_calls_is_answered_with_nothing() -> None:
    box = Shelf().open_box()
    assert await to_openai(box, gate=allow_all).run({"output": [{"type": "message", "content": []}]}) == []
    assert await to_openai(box, gate=allow_all, api="chat").run({"choices": []}) == []
    assert await to_anthropic(box, gate=allow_all).run({"content": [{"type": "text", "text": "hello"}]}) == []


async def test_the_responses_api_gets_the_output_and_a_result_for_each_call() -> None:
    tools = to_openai(Shelf().open_box(), gate=allow_all)
    response = responses(("echo", {"text": "hi"}), ("fail", {}), ("picture", {}), ("absent", {}))
    items = await tools.run(response)
    assert items[:5] == response["output"]
    echo, fail, picture, absent = [item["output"] for item in items[5:]]
    assert [item["call_id"] for item in items[5:]] == ["c0", "c1", "c2", "c3"]
    assert (echo, fail) == ("hi", "Error: the shelf is empty")
    text = "a picture\n[resource file:///a.pdf: attached]"
    assert picture == [
        {"type": "input_text", "text": text},
        {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}", "detail": "auto"},
        {"type": "input_file", "filename": "attachment.pdf", "file_data": f"data:application/pdf;base64,{DOCUMENT}"},
    ]
    assert absent.startswith("Error: ")
    assert "absent" in absent


async def test_the_chat_api_gets_pictures_in_a_message_of_the_user() -> None:
    tools = to_openai(Shelf().open_box(), gate=allow_all, api="chat")
    response = chat(("echo", {"text": "hi"}), ("picture", {}))
    said, echo, picture, user = await tools.run(response)
    assert said == response["choices"][0]["message"]
    assert echo == {"role": "tool", "tool_call_id": "c0", "content": "hi"}
    assert picture["content"] == "a picture\n[resource file:///a.pdf: attached]"
    assert user["role"] == "user"
    assert [part["type"] for part in user["content"]] == ["text", "image_url", "file"]
    assert user["content"][1]["image_url"] == {"url": f"data:image/png;base64,{IMAGE}"}


async def test_the_anthropic_api_gets_blocks_with_an_error_mark() -> None:
    tools = to_anthropic(Shelf().open_box(), gate=allow_all)
    answer = await tools.run(messages(("echo", {"text": "hi"}), ("fail", {}), ("picture", {})))
    from anthropic.types import MessageParam  # noqa: PLC0415

    TypeAdapter(list[MessageParam]).validate_python(answer)
    said, user = answer
    assert [block["type"] for block in said["content"]] == ["tool_use"] * 3
    echo, fail, picture = user["content"]
    assert echo == {"type": "tool_result", "tool_use_id": "c0", "content": [{"type": "text", "text": "hi"}]}
    assert (fail["is_error"], fail["content"][0]["text"]) == (True, "the shelf is empty")
    assert [block["type"] for block in picture["content"]] == ["text", "image", "document"]
    assert picture["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": IMAGE}


async def test_invalid_arguments_are_explained_to_the_model() -> None:
    tools = to_openai(Shelf().open_box(), gate=allow_all)
    row = {"type": "function_call", "call_id": "c", "name": "echo", "arguments": '{"text": '}
    (_, answer) = await tools.run({"output": [row]})
    assert answer["output"].startswith("Error: ")


async def test_calls_that_change_something_run_alone_and_in_order() -> None:
    shelf = Shelf()
    tools = to_openai(shelf.open_box(), gate=allow_all)
    await tools.run(responses(("change", {}), ("echo", {"text": "a"}), ("change", {})))
    assert shelf.events == ["change begins", "change ends", "echo a", "change begins", "change ends"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (False, "Error: echo was not run: the user declined"),
        ("ask me tomorrow", "Error: echo was not run: the user declined: ask me tomorrow"),
        (None, "Error: echo was not run: the user declined"),
        (1, "Error: echo was not run: the user declined"),
    ],
    ids=["no", "reason", "nothing", "number"],
)
async def test_a_denied_call_does_not_run(answer: Any, message: str) -> None:
    shelf = Shelf()
    asked: list[GateRequest] = []

    def gate(request: GateRequest) -> Any:
        asked.append(request)
        return answer

    (*_, item) = await to_openai(shelf.open_box(), gate=gate).run(responses(("echo", {"text": "a\x1b[2J"})))
    assert (item["output"], shelf.events) == (message, [])
    assert [(one.tool, one.arguments, one.title) for one in asked] == [
        ("echo", {"text": "a\x1b[2J"}, 'echo {"text": "a\\u001b[2J"}')
    ]


async def test_a_gate_that_raises_has_denied_the_call() -> None:
    async def gate(request: GateRequest) -> bool:
        raise RuntimeError("no terminal")

    shelf = Shelf()
    (*_, item) = await to_openai(shelf.open_box(), gate=gate).run(responses(("echo", {"text": "a"})))
    assert "asking failed: RuntimeError: no terminal" in item["output"]
    assert shelf.events == []


async def test_questions_are_asked_one_at_a_time() -> None:
    asking: list[int] = []

    async def gate(request: GateRequest) -> bool:
        asking.append(1)
        assert len(asking) == 1
        await anyio.lowlevel.checkpoint()
        asking.pop()
        return True

    items = await to_openai(Shelf().open_box(), gate=gate).run(responses(*[("echo", {"text": "a"})] * 4))
    assert [item["output"] for item in items[5:]] == ["a"] * 4


async def test_a_cancelled_token_ends_a_running_call_with_an_error() -> None:
    shelf, cancel = Shelf(), CancelToken()
    tools = to_anthropic(shelf.open_box(), gate=allow_all, cancel=cancel)
    answers: list[dict[str, Any]] = []

    async def run() -> None:
        answers.extend(await tools.run(messages(("slow", {}))))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await shelf.started.wait()
        cancel.cancel("the user is gone")
    assert answers[1]["content"][0]["is_error"] is True
    assert shelf.events == ["slow begins", "slow is cancelled"]


async def test_cancelling_the_task_cancels_the_call() -> None:
    shelf = Shelf()
    tools = to_openai(shelf.open_box(), gate=allow_all)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tools.run, responses(("slow", {})))
        await shelf.started.wait()
        tasks.cancel_scope.cancel()
    assert shelf.events == ["slow begins", "slow is cancelled"]


@pytest.mark.parametrize("adapt", [to_openai, to_anthropic])
def test_a_toolbox_without_any_check_needs_a_gate(adapt: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="gate=allow_all"):
        adapt(Shelf().open_box())


def test_something_else_than_a_response_is_refused() -> None:
    with pytest.raises(TypeError, match="list"):
        to_openai(Shelf().open_box(), gate=allow_all).run_sync([])
