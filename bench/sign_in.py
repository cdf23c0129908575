"""What signing in costs: five calls of a second at once beside one, and a call with a token beside one without."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tests.support.http_behaviours import Modern
from tests.support.http_peer import http_server
from tests.support.protected import Protected, make_auth, stored_sign_in

from bench.measure import Pair, awaits, compare
from bench.row import Row
from indusagi.interop import StreamableHttpServerConfig, create_server_endpoint

if TYPE_CHECKING:
    from tests.support.http_peer import Behaviour

    from indusagi.interop import ServerEndpointImpl

_ROUNDS = 5
_CALLS = 5


async def _connect(stack: AsyncExitStack, behaviour: Behaviour, *, signs_in: bool) -> ServerEndpointImpl:
    """Connect to a server in this process, with a stored sign-in or without one."""
    server = await stack.enter_async_context(http_server(behaviour))
    auth = await make_auth(stored_sign_in(server.url)) if signs_in else None
    endpoint = create_server_endpoint(StreamableHttpServerConfig("s", server.url, auth=auth))
    stack.push_async_callback(endpoint.close)
    await endpoint.open()
    return endpoint


def _protect() -> Protected:
    protected = Protected(Modern())
    protected.accepted = {"access-0"}
    return protected


async def _call_slowly(endpoint: ServerEndpointImpl, count: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(endpoint.invoke("slow", {"seconds": 1}))


def _parallel() -> Pair:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        endpoint = runner.run(_connect(stack, _protect(), signs_in=True))
        try:
            ours = awaits(runner, lambda: _call_slowly(endpoint, _CALLS))
            return compare(ours, awaits(runner, lambda: _call_slowly(endpoint, 1)), rounds=_ROUNDS)
        finally:
            runner.run(stack.aclose())


def _token() -> Pair:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        signed_in = runner.run(_connect(stack, _protect(), signs_in=True))
        plain = runner.run(_connect(stack, Modern(), signs_in=False))
        try:
            ours = awaits(runner, lambda: signed_in.invoke("echo", {"text": "hi"}))
            return compare(ours, awaits(runner, lambda: plain.invoke("echo", {"text": "hi"})))
        finally:
            runner.run(stack.aclose())


ROWS = (
    Row("oauth-parallel", "five calls of a second at once under OAuth", "one of them", _parallel, budget=1.05),
    Row("oauth-call", "a call over HTTP with a token", "one without", _token, budget=1.2),
)
