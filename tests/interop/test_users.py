"""Sessions of a gateway's users with servers that each of them signs in to."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.support.protected import make_auth, stored_sign_in
from tests.support.protected_server import TOOL
from tests.support.sdk_hosts import served
from tests.support.waiting import until

from indusagi.interop.auth.contract import AuthSettings, ServerAuth
from indusagi.interop.protocol_bridge.contract import BridgeConfig, ProtocolFault, StreamableHttpServerConfig
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
from indusagi.interop.protocol_bridge.users import UserSessions
from indusagi.runtime.calls import current_user

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Generator, Sequence

    from starlette.requests import Request

    from indusagi.interop.protocol_bridge.contract import ServerConfig

SETTINGS = AuthSettings(per_user=True)


class Upstream:
    """A server whose tokens name their users, and whose sessions belong to whoever opened them."""

    def __init__(self) -> None:
        self.url = ""
        self.sessions: dict[str, str] = {}
        self.crossed: list[tuple[str, str]] = []
        self.methods: list[tuple[str, str]] = []
        """Who sent which request."""

    async def answer(self, request: Request) -> Response:
        who = request.headers.get("authorization", "").removeprefix("Bearer token-of-")
        if request.method != "POST":
            return Response(status_code=405)
        message: dict[str, Any] = await request.json()
        method, session = message["method"], request.headers.get("mcp-session-id", "")
        if not who:
            return Response("sign in", 401, {"WWW-Authenticate": "Bearer"})
        self.methods.append((who, method))
        if method == "initialize":
            session = f"s{len(self.sessions)}"
            self.sessions[session] = who
        if "id" not in message:
            return Response(status_code=202)
        if session and self.sessions.get(session) != who:
            self.crossed.append((self.sessions.get(session, "?"), who))
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "up", "version": "1"},
            },
            "tools/list": {"tools": [TOOL]},
            "tools/call": {"content": [{"type": "text", "text": who}]},
        }
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if method not in results:
            return JSONResponse({**reply, "error": {"code": -32601, "message": "unknown method"}})
        return JSONResponse({**reply, "result": results[method]}, headers={"mcp-session-id": session})


class Fleet:
    """A fleet with one server, where each user signs in with its name."""

    def __init__(self, fleet: ServerFleetImpl, upstream: Upstream) -> None:
        self.fleet, self.upstream = fleet, upstream
        self.gone: set[str] = set()
        self.sessions: UserSessions
        self.auths: dict[str, ServerAuth] = {}

    def build_auth(self, config: ServerConfig, user: str) -> ServerAuth:
        return self.auths[user]

    async def find_signed_in(self, sessions: Collection[tuple[ServerConfig, str]]) -> Collection[tuple[str, str]]:
        return {(config.id, user) for config, user in sessions if user not in self.gone}

    async def enter(self, *users: str) -> None:
        for user in users:
            stored = stored_sign_in(self.upstream.url, f"token-of-{user}", refresh=None)
            self.auths[user] = await make_auth(stored, settings=SETTINGS, user=user)

    async def call(self, user: str) -> str:
        with acting(user):
            endpoint = await self.fleet.reach("crm")
            assert endpoint is not None
            block = (await endpoint.invoke("whoami", {})).content[0]
        assert isinstance(block, dict)
        return str(block["text"])

    def list_open(self) -> Sequence[str]:
        return sorted(user for user in self.auths if self.sessions.list_sessions(user))


@contextmanager
def acting(user: str) -> Generator[None]:
    token = current_user.set(user)
    try:
        yield
    finally:
        current_user.reset(token)


@asynccontextmanager
async def opened_fleet(**limits: Any) -> AsyncGenerator[Fleet]:
    upstream, fleet = Upstream(), ServerFleetImpl()
    async with served(Starlette(routes=[Route("/mcp", upstream.answer, methods=["GET", "POST", "DELETE"])])) as place:
        upstream.url = f"{place}/mcp"
        own = await make_auth(stored_sign_in(upstream.url, "token-of-operator", refresh=None), settings=SETTINGS)
        opened = Fleet(fleet, upstream)
        opened.sessions = fleet.open_users(opened.build_auth, opened.find_signed_in)
        for name, value in limits.items():
            setattr(opened.sessions, f"_{name}", value)
        await fleet.start(BridgeConfig([StreamableHttpServerConfig("crm", upstream.url, auth=own)]))
        try:
            yield opened
        finally:
            await fleet.tear_down()


async def test_concurrent_calls_go_over_their_users_own_session() -> None:
    users = [*(f"user{number}" for number in range(12)), "a/b", "a%2Fb", "A/B"]
    async with opened_fleet() as opened:
        await opened.enter(*users)
        async with asyncio.TaskGroup() as tasks:
            calls = [(user, tasks.create_task(opened.call(user))) for user in users * 20]
        assert [call.result() for _, call in calls] == [user for user, _ in calls]
        upstream = opened.upstream
        assert upstream.crossed == []
        assert sorted(upstream.sessions.values()) == sorted([*users, "operator"])
        assert {method for who, method in upstream.methods if who == "operator"}.isdisjoint({"tools/call"})


async def test_a_session_serves_its_user_alone_and_nobody_without_a_name() -> None:
    async with opened_fleet() as opened:
        await opened.enter("alice", "bob")
        with acting("alice"):
            own = await opened.fleet.reach("crm")
        shared = opened.fleet.endpoint("crm")
        assert own is not None
        assert shared is not None
        for endpoint, user in ((own, "bob"), (own, ""), (shared, "bob")):
            for use in (
                endpoint.invoke("whoami", {}),
                endpoint.request("resources/read"),
                endpoint.watch_resource("x"),
            ):
                with acting(user), pytest.raises(ProtocolFault, match="belongs to another user"):
                    await use
        with pytest.raises(ProtocolFault, match="this caller is no user"):
            await opened.fleet.reach("crm")
        assert opened.upstream.crossed == []


async def test_an_unused_session_ends_when_idle_or_for_the_place_of_another() -> None:
    async with opened_fleet(most=2) as opened:
        await opened.enter("alice", "bob", "carol")
        for user in ("alice", "bob", "alice", "carol"):
            assert await opened.call(user) == user
        assert opened.list_open() == ["alice", "carol"]
        opened.sessions._idle_s = -1.0
        await opened.sessions.drop_spare()
        assert opened.list_open() == []
        assert await opened.call("bob") == "bob"


async def test_a_session_ends_with_its_sign_in_and_with_its_row() -> None:
    async with opened_fleet() as opened:
        await opened.enter("alice", "bob")
        for user in ("alice", "bob"):
            await opened.call(user)
        await opened.sessions.drop_spare()
        opened.gone = {"alice"}
        await until(lambda: opened.list_open() == ["bob"])
        config = StreamableHttpServerConfig("crm", opened.upstream.url, {"x": "1"}, auth=opened.auths["bob"])
        await opened.fleet.add(config)
        assert opened.list_open() == []


@pytest.mark.parametrize(
    ("headers", "settings"),
    [({"Authorization": "Bearer all"}, SETTINGS), ({}, AuthSettings(per_user=True, grant="client_credentials"))],
)
async def test_credentials_for_all_are_not_mistaken_for_those_of_users(
    headers: dict[str, str], settings: AuthSettings
) -> None:
    async with opened_fleet() as opened:
        await opened.enter("alice")
        auth = await make_auth(settings=settings)
        await opened.fleet.add(StreamableHttpServerConfig("crm", opened.upstream.url, headers, auth=auth))
        with pytest.raises(ProtocolFault, match="its row has credentials for all of them"):
            await opened.call("alice")
