"""The floor: a relay that starts the servers of a file and rewrites ids and names, and does nothing else.

No checks, no records, no limits, no deadlines: what a gateway adds to a call is compared with this.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from typing import Any, cast


class _Lines(asyncio.Protocol):
    """Hands on each line that is read."""

    def __init__(self, receive: Any) -> None:
        self._receive, self._rest = receive, b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._receive(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(0)


class _Server(asyncio.SubprocessProtocol):
    """A server, and the requests it has not answered yet."""

    def __init__(self) -> None:
        self._rest, self._next = b"", 0
        self.waiting: dict[int, tuple[Any, Any]] = {}
        self.input: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.input = cast("asyncio.SubprocessTransport", transport).get_pipe_transport(0)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        *lines, self._rest = (self._rest + cast("bytes", data)).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "method" not in answer:
                then, identity = self.waiting.pop(answer["id"])
                answer["id"] = identity
                then(answer)

    def request(self, message: dict[str, Any], then: Any) -> None:
        self._next += 1
        self.waiting[self._next] = then, message.get("id")
        self.send({**message, "id": self._next})

    def send(self, message: dict[str, Any]) -> None:
        self.input.write(json.dumps(message).encode() + b"\n")


class _Relay:
    """The client's end."""

    def __init__(self, servers: dict[str, _Server]) -> None:
        self._servers = servers
        self.output: Any = None

    def write(self, message: dict[str, Any]) -> None:
        self.output.write(json.dumps(message).encode() + b"\n")

    def receive(self, message: dict[str, Any]) -> None:
        if message["method"] == "tools/call":
            params = message["params"]
            server, _, name = params["name"].partition("__")
            self._servers[server].request({**message, "params": {**params, "name": name}}, self.write)
        elif "id" not in message:
            for one in self._servers.values():
                one.send(message)
        else:
            answers: dict[str, dict[str, Any]] = {}
            for name, one in self._servers.items():
                one.request(message, partial(self._collect, answers, name))

    def _collect(self, answers: dict[str, dict[str, Any]], server: str, answer: dict[str, Any]) -> None:
        answers[server] = answer
        if len(answers) < len(self._servers):
            return
        if "tools" in answer["result"]:
            lists = ((name, tool) for name, one in answers.items() for tool in one["result"]["tools"])
            answer = {
                **answer,
                "result": {"tools": [{**tool, "name": f"{name}__{tool['name']}"} for name, tool in lists]},
            }
        self.write(answer)


async def relay(file: str) -> None:
    """Serve standard input and output until it ends."""
    loop = asyncio.get_running_loop()
    with open(file, encoding="utf-8") as opened:  # noqa: ASYNC230 — before anything runs
        rows = json.load(opened)["mcpServers"]
    servers: dict[str, _Server] = {}
    for name, row in rows.items():
        command = (row["command"], *row["args"])
        _, servers[name] = await loop.subprocess_exec(_Server, *command, stderr=None)
    client = _Relay(servers)
    client.output, _ = await loop.connect_write_pipe(asyncio.Protocol, sys.stdout.buffer)
    await loop.connect_read_pipe(lambda: _Lines(client.receive), sys.stdin.buffer)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(relay(sys.argv[1]))
