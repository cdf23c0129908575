"""The agent of one editor, in memory: what it answers without a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.support.transports import FakeTransport

from indusagi.interop.protocol_bridge.rpc.connection import METHOD_NOT_FOUND, RpcError
from induscode.frontends.acp import agent as module
from induscode.frontends.acp.agent import INVALID_REQUEST, AcpAgent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
async def agent() -> AsyncGenerator[AcpAgent]:
    async with anyio.create_task_group() as tasks:
        yield AcpAgent(cast("Any", FakeTransport()), cast("Any", None), tasks)


async def test_conversations_that_cannot_be_read_are_an_error_of_the_request(
    agent: AcpAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def list_them(cwd: str | None) -> list[dict[str, Any]]:
        asked.append(cwd)
        if cwd is None:
            raise PermissionError(13, "no")
        return [{"sessionId": "s1"}]

    monkeypatch.setattr(module, "list_sessions", list_them)
    await agent._handle_request("initialize", {"protocolVersion": 1})
    assert await agent._handle_request("session/list", {"cwd": str(tmp_path)}) == {"sessions": [{"sessionId": "s1"}]}
    with pytest.raises(RpcError, match="no"):
        await agent._handle_request("session/list", {})
    assert asked == [str(tmp_path), None]


async def test_requests_need_a_known_method_and_a_greeting_first(agent: AcpAgent) -> None:
    for method, code in (("session/list", INVALID_REQUEST), ("session/odd", METHOD_NOT_FOUND)):
        with pytest.raises(RpcError) as failed:
            await agent._handle_request(method, {})
        assert failed.value.code == code
    with pytest.raises(RpcError, match="protocolVersion must be a number"):
        await agent._handle_request("initialize", {"protocolVersion": "1"})


class ClosingSession:
    """A session that was told to close, and ends when the test says so."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.is_closing = False

    def close(self) -> None:
        self.is_closing = True


async def test_an_agent_is_closed_once_every_session_has_ended(agent: AcpAgent) -> None:
    """What a session says while it closes still reaches the editor."""
    open_session, opening = ClosingSession(), ClosingSession()
    agent._sessions["a"] = cast("Any", open_session)
    agent._opening.add(cast("Any", opening))
    closed: list[bool] = []

    async def close() -> None:
        await agent.aclose()
        closed.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        for session in (open_session, opening):
            await anyio.wait_all_tasks_blocked()
            assert session.is_closing
            assert not closed
            session.ended.set()
    assert closed
