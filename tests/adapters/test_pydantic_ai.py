"""The adapter for pydantic-ai, with the library itself and a scripted model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.support.adapters import PDF, PNG, Shelf

from indusagi.adapters.calls import allow_all
from indusagi.adapters.pydantic_ai import to_pydantic_ai

if TYPE_CHECKING:
    from indusagi.adapters.calls import Gate


class Script:
    """A model that calls one tool and then ends."""

    def __init__(self, name: str, arguments: dict[str, Any] | str) -> None:
        self.call = ToolCallPart(name, arguments, "call-1")
        self.tools: list[str] = []
        self.returned: list[ToolReturnPart] = []

    def reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.tools = [tool.name for tool in info.function_tools]
        self.returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        return ModelResponse([self.call] if len(messages) == 1 else [TextPart("done")])

    async def run(self, shelf: Shelf, gate: Gate = allow_all) -> ToolReturnPart:
        agent = Agent(FunctionModel(self.reply), toolsets=[to_pydantic_ai(shelf.open_box(), gate=gate)])
        assert (await agent.run("go")).output == "done"
        (returned,) = self.returned
        return returned


async def test_a_model_lists_and_calls_the_tools() -> None:
    script = Script("echo", {"text": "hi"})
    assert (await script.run(Shelf())).content == "hi"
    assert script.tools == ["echo", "change", "fail", "picture", "slow"]


async def test_pictures_and_documents_are_binary_content() -> None:
    returned = await Script("picture", {}).run(Shelf())
    content = cast("list[object]", returned.content)
    files = [part for part in content if isinstance(part, BinaryContent)]
    assert [(file.media_type, file.data) for file in files] == [("image/png", PNG), ("application/pdf", PDF)]


@pytest.mark.parametrize("arguments", [{"text": 1}, "[1]", "{"], ids=["type", "list", "invalid"])
async def test_wrong_arguments_are_a_failed_result(arguments: Any) -> None:
    returned = await Script("echo", arguments).run(Shelf())
    assert returned.outcome == "failed"


async def test_an_error_of_a_tool_is_a_failed_result() -> None:
    returned = await Script("fail", {}).run(Shelf())
    assert (returned.outcome, returned.content) == ("failed", "the shelf is empty")


async def test_a_denied_call_is_a_failed_result() -> None:
    shelf = Shelf()
    returned = await Script("echo", {"text": "hi"}).run(shelf, lambda request: "not today")
    assert (returned.outcome, returned.content) == ("failed", "echo was not run: the user declined: not today")
    assert shelf.events == []


async def test_cancelling_the_run_cancels_the_call() -> None:
    shelf = Shelf()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Script("slow", {}).run, shelf)
        await shelf.started.wait()
        tasks.cancel_scope.cancel()
    assert shelf.events == ["slow begins", "slow is cancelled"]
