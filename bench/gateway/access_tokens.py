"""`indus serve --http --auth`: what the checks of access tokens cost, beside a gateway that requires no token.

Two gateways run at the same time and are called in turns by as many callers each. The issuer is in
this process; it is asked for its keys once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
from contextlib import AsyncExitStack
from time import perf_counter
from typing import TYPE_CHECKING

from tests.support.issuer import running_issuer

from bench.gateway.crowd import open_gateway
from bench.gateway.http_client import Web
from bench.measure import Pair, Sample
from bench.row import CannotMeasure, Row

if TYPE_CHECKING:
    from indusagi.core import JsonObject

CALLERS = 32
PRINCIPALS = 8
_EACH = 3
_ROUNDS = 41
"""Many short turns: what else the machine does then meets both."""
_CALL: JsonObject = {"name": "echo__echo", "arguments": {"text": "The quick brown fox."}}
_UNLIMITED = ("--max-rate-per-principal", "1000000", "--max-requests-per-principal", "10000")


def compare_access_tokens(callers: int = CALLERS, each: int = _EACH, rounds: int = _ROUNDS) -> Pair:
    """Compare calls with JWT access tokens with calls without any token."""
    return asyncio.run(_compare(callers, each, rounds))


async def _compare(callers: int, each: int, rounds: int) -> Pair:
    async with AsyncExitStack() as stack:
        issuer = await stack.enter_async_context(running_issuer())
        plain = await stack.enter_async_context(open_gateway("--no-token"))
        guarded = await stack.enter_async_context(open_gateway("--auth", issuer.url, *_UNLIMITED))
        tokens = [issuer.mint(f"http://127.0.0.1:{guarded}/mcp", sub=f"user-{n}") for n in range(PRINCIPALS)]
        ours = [Web(guarded, "/mcp", token=tokens[n % PRINCIPALS], modern=True) for n in range(callers)]
        theirs = [Web(plain, "/mcp", modern=True) for _ in range(callers)]
        stranger = Web(guarded, "/mcp", modern=True)
        refused = await stranger.request("tools/call", _CALL)
        await stranger.aclose()
        if "result" in refused:
            raise CannotMeasure("a call without a token was answered")
        taken: dict[int, list[float]] = {0: [], 1: []}
        for number in range(rounds + 1):  # the first one warms up
            for which, clients in enumerate((ours, theirs)):
                seconds = await _call_together(clients, each)
                if number:
                    taken[which].append(seconds)
        for client in itertools.chain(ours, theirs):
            await client.aclose()
    samples = [Sample(statistics.median(seconds), min(seconds)) for seconds in taken.values()]
    return Pair(samples[0], samples[1])


async def _call_together(clients: list[Web], each: int) -> float:
    async def call(client: Web) -> None:
        for _ in range(each):
            answer = await client.request("tools/call", _CALL)
            if "result" not in answer:
                raise CannotMeasure(f"a call was refused: {json.dumps(answer)[:200]}")

    started = perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(call(client))
    return perf_counter() - started


ROWS = (
    Row(
        "gateway-http-jwt",
        f"{CALLERS} callers over HTTP with access tokens (JWT) of {PRINCIPALS} principals",
        "the same calls of a gateway that requires no token",
        compare_access_tokens,
        budget=1.25,
    ),
)
"""Within the budget, calls per second are 0.8 times as many or more."""
