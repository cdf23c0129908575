"""The raw client over HTTP: connections that stay, and answers that are JSON or a stream of events.

One `Web` is one client at one address; it opens as many connections as there are requests at once.
It has a session, or, when it speaks the newer protocol, stamps every request and needs none.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, cast

from bench.gateway.client import VERSION, frame
from bench.row import CannotMeasure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from typing import TypeAlias

    from bench.gateway.client import Answer
    from indusagi.core import JsonObject

    Line: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_LIMIT = 64 * 1024 * 1024
_MODERN = "2026-07-28"
_STAMP: JsonObject = {
    "io.modelcontextprotocol/protocolVersion": _MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Web:
    """A session with a server over Streamable HTTP."""

    def __init__(
        self,
        port: int,
        path: str,
        *,
        token: str | None = None,
        modern: bool = False,
        on_notice: Callable[[Answer], None] | None = None,
    ) -> None:
        self._port = port
        self._path = path
        self._modern = modern
        self._on_notice = on_notice
        self._ids = itertools.count(1)
        self._session: str | None = None
        self._idle: list[Line] = []
        self._fixed = (
            f"Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\n"
        )
        if token is not None:
            self._fixed += f"Authorization: Bearer {token}\r\n"

    async def request(self, method: str, params: JsonObject | None = None) -> Answer:
        """Ask, and wait for the answer."""
        identity = next(self._ids)
        named = ""
        if self._modern:
            params = {**(params or {}), "_meta": _STAMP}
            named = f"MCP-Protocol-Version: {_MODERN}\r\nMcp-Method: {method}\r\n"
            named += f"Mcp-Name: {params['name']}\r\n" if "name" in params else ""
        body = frame(method, params, identity)
        answer = await self._exchange("POST", body, identity, named=named)
        if answer is None:
            raise CannotMeasure(f"{method} was not answered over HTTP")
        return answer

    async def notify(self, method: str, params: JsonObject | None = None) -> None:
        """Say something that has no answer."""
        await self._exchange("POST", frame(method, params, None), None)

    async def get(self, path: str) -> Answer:
        """Read a page that is JSON."""
        answer = await self._exchange("GET", b"", None, path=path)
        return answer or {}

    async def leave(self) -> None:
        """End the session."""
        await self._exchange("DELETE", b"", None)

    async def aclose(self) -> None:
        """Close the connections that are left."""
        while self._idle:
            _, writer = self._idle.pop()
            writer.close()

    async def _exchange(
        self, verb: str, body: bytes, identity: int | None, *, path: str | None = None, named: str = ""
    ) -> Answer | None:
        line = await self._line()
        try:
            line[1].write(self._head(verb, path or self._path, body, named) + body)
            status, headers = await _read_head(line[0])
            self._session = headers.get("mcp-session-id", self._session)
            answer = await self._answer(line[0], headers, identity)
        except (OSError, asyncio.IncompleteReadError) as exc:
            line[1].close()
            raise CannotMeasure(f"the connection broke: {exc!r}") from exc
        except BaseException:
            line[1].close()
            raise
        self._idle.append(line)
        if status >= 400 and answer is None:
            raise CannotMeasure(f"{verb} was answered with {status}")
        return answer

    async def _line(self) -> Line:
        """Take a connection that is idle, unless the server has closed it meanwhile."""
        while self._idle:
            line = self._idle.pop()
            if not line[0].at_eof():
                return line
            line[1].close()
        try:
            return await asyncio.open_connection("127.0.0.1", self._port, limit=_LIMIT)
        except OSError as exc:
            raise CannotMeasure(f"no server listens on port {self._port}") from exc

    def _head(self, verb: str, path: str, body: bytes, named: str) -> bytes:
        session = named
        if self._session is not None and not self._modern:
            session = f"Mcp-Session-Id: {self._session}\r\nMCP-Protocol-Version: {VERSION}\r\n"
        length = f"Content-Length: {len(body)}\r\n"
        return f"{verb} {path} HTTP/1.1\r\n{self._fixed}{session}{length}\r\n".encode()

    async def _answer(
        self, reader: asyncio.StreamReader, headers: dict[str, str], identity: int | None
    ) -> Answer | None:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            return cast("Answer", json.loads(body)) if body.strip() else None
        if "text/event-stream" not in headers.get("content-type", ""):
            body = b"".join([part async for part in _chunks(reader)])
            return cast("Answer", json.loads(body)) if body.strip() else None
        answer: Answer | None = None
        async for event in _events(reader):
            if event.get("id") == identity and "method" not in event:
                answer = event
            elif self._on_notice is not None:
                self._on_notice(event)
        return answer


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    named = (line.partition(":") for line in lines)
    return int(first.split()[1]), {key.lower(): value.strip() for key, _, value in named}


async def _chunks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readline()


async def _events(reader: asyncio.StreamReader) -> AsyncGenerator[Answer]:
    rest = b""
    async for part in _chunks(reader):
        *whole, rest = (rest + part.replace(b"\r\n", b"\n")).split(b"\n\n")
        for event in whole:
            data = b"".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if data:
                yield json.loads(data)
