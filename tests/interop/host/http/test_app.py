"""Which session ends when a new one needs its place."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from indusagi.interop import HttpSettings
from indusagi.interop.protocol_bridge.host.http.app import HttpSession, HttpSessions
from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal, HttpResponse
from indusagi.interop.protocol_bridge.host.identity import ANONYMOUS

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.dispatcher import ServerSession


SPARE_S = 1_000.0
"""So long that no test takes it."""


class Client:
    """A client that leaves when it is let go, and not before."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def close(self, reason: str) -> None:
        self.reasons.append(reason)
        await self.let_go.wait()


def asking(session: HttpSession) -> Any:
    """Build a request with a session's id."""
    return SimpleNamespace(headers={"mcp-session-id": session.id}, identity=ANONYMOUS)


def sessions_of(**settings: Any) -> HttpSessions:
    chosen = HttpSettings(spare_s=SPARE_S, **settings)
    return HttpSessions(lambda _identity: cast("ServerSession", Client()), chosen)


def client_of(session: HttpSession) -> Client:
    return cast("Client", session.client)


async def opened(sessions: HttpSessions) -> HttpSession:
    session = await sessions.admit(ANONYMOUS)
    assert session is not None
    return session


def left_alone(session: HttpSession, seconds: float = SPARE_S) -> None:
    """Make a session look as if it had been idle for some time."""
    session.used_at -= seconds


async def test_a_session_gives_way_some_time_after_its_last_use_and_the_oldest_first() -> None:
    assert HttpSettings().spare_s == 5.0
    sessions = sessions_of(sessions=2)
    first, second = await opened(sessions), await opened(sessions)
    assert await sessions.admit(ANONYMOUS) is None
    left_alone(first, 500.0)
    assert await sessions.admit(ANONYMOUS) is None
    left_alone(first, 500.0)
    left_alone(second, 2 * SPARE_S)
    third = await opened(sessions)
    assert client_of(second).reasons == ["another client needs its place"]
    assert client_of(first).reasons == []
    assert sessions.find(asking(third)) is third
    with pytest.raises(HttpRefusal, match="no such session"):
        sessions.find(asking(second))
    assert len(sessions) == 2


async def test_a_session_that_is_used_does_not_give_way_and_is_idle_only_from_the_end_on() -> None:
    sessions = sessions_of(sessions=1)
    session = await opened(sessions)
    session.busy += 1
    left_alone(session, 2 * SPARE_S)
    assert await sessions.admit(ANONYMOUS) is None
    session.busy -= 1
    session.used_at = asyncio.get_running_loop().time()
    assert await sessions.admit(ANONYMOUS) is None
    left_alone(session)
    session.stream = cast("HttpResponse", object())
    assert await sessions.admit(ANONYMOUS) is None
    session.stream = None
    assert await sessions.admit(ANONYMOUS) is not None


async def test_the_place_of_an_ending_session_is_given_to_one_new_session() -> None:
    sessions = sessions_of(sessions=1)
    slow = await opened(sessions)
    left_alone(slow)
    client_of(slow).let_go.clear()
    got: list[HttpSession | None] = []
    taken: list[HttpSession] = []

    async def come() -> None:
        got.append(await sessions.admit(ANONYMOUS))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(come)
        await anyio.wait_all_tasks_blocked()
        taken.extend(sessions._open.values())
        left_alone(taken[0], 2 * SPARE_S)
        assert await sessions.admit(ANONYMOUS) is None
        assert len(sessions) == 1
        client_of(slow).let_go.set()
    assert got == taken
