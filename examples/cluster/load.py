"""Clients without a home node: each call goes to another node, and nothing is sent twice."""

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from dataclasses import dataclass

import httpx2

META = "io.modelcontextprotocol/"
VERSION = "2026-07-28"
CALL_S = 15.0
PAUSE_S = 0.05


@dataclass(frozen=True)
class Call:
    """What one client saw of one call."""

    identity: str
    server: str
    at: float
    """When it was sent."""
    took_s: float
    outcome: str
    """`answer`, `unknown` (cut off: it may have run), `refused` (it has not run), or `closed` (the node is gone)."""
    said: str
    node: int = 0
    """The process that runs the server, by its pid."""


class Load:
    """Calls of all servers through all nodes, at random."""

    def __init__(self, urls, servers, clients):
        self.calls = []
        self._urls, self._servers, self._clients = [*urls], [*servers], clients
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def running(self):
        """Call until the block is left; every call is awaited."""
        stop = asyncio.Event()
        limits = httpx2.Limits(max_keepalive_connections=self._clients * 4)
        async with httpx2.AsyncClient(timeout=CALL_S, limits=limits) as http, asyncio.TaskGroup() as tasks:
            for number in range(self._clients):
                tasks.create_task(self._run(http, random.Random(number), stop))
            try:
                yield
            finally:
                stop.set()

    async def _run(self, http, chance, stop):
        while not stop.is_set():
            call = await self.call(http, chance.choice(self._urls), chance.choice(self._servers))
            self.calls.append(call)
            if call.outcome != "answer":
                await asyncio.sleep(PAUSE_S)

    async def call(self, http, url, server):
        """Call a tool once, as a client of the modern protocol."""
        identity, tool, at = f"call-{next(self._numbers)}", f"{server}__count", time.monotonic()
        meta = {"protocolVersion": VERSION, "clientCapabilities": {}, "clientInfo": {"name": "demo", "version": "1"}}
        params = {"name": tool, "arguments": {"id": identity}, "_meta": {META + key: meta[key] for key in meta}}
        frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": VERSION}
        headers |= {"mcp-method": "tools/call", "mcp-name": tool}
        node = 0
        try:
            response = await http.post(url, json=frame, headers=headers)
            answer = json.loads(response.text.strip().rpartition("data: ")[2])
        except httpx2.ConnectError:
            outcome, said = "closed", "the node does not answer"
        except (httpx2.HTTPError, ValueError) as exc:
            outcome, said = "unknown", f"the node was gone before it answered: {type(exc).__name__}"
        else:
            outcome, said, node = read_answer(answer)
        return Call(identity, server, at, time.monotonic() - at, outcome, said, node)


def read_answer(answer):
    """Tell an answer, an unknown outcome and a refusal apart."""
    result = answer.get("result")
    if result is None:
        return "refused", answer["error"]["message"], 0
    if not result.get("isError"):
        return "answer", result["content"][0]["text"], result["structuredContent"]["node"]
    said = result["content"][0]["text"]
    return ("unknown" if "unknown" in said else "refused"), said, 0


def count_outcomes(calls):
    """Count what clients saw."""
    return Counter(call.outcome for call in calls)
