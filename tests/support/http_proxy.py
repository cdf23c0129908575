"""A loopback HTTP proxy for tests: it alone knows where the hosts are that it is asked for.

It forwards requests in absolute form, and makes tunnels for CONNECT. What it was asked is kept in
`proxy.requests`: of a tunnel it sees no more than that.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.support.http_peer import Request, read_request

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Mapping

    from tests.support.http_peer import HttpServer


@dataclass(slots=True)
class HttpProxy:
    """A proxy that runs, and what it was asked."""

    hosts: Mapping[str, HttpServer]
    answer: bytes
    """What everybody else's host is answered with."""
    port: int = 0
    requests: list[Request] = field(default_factory=list[Request])
    running: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def url(self, credentials: str = "", scheme: str = "http") -> str:
        """Give its address, as one writes it into `HTTP_PROXY`."""
        return f"{scheme}://{credentials}{'@' if credentials else ''}127.0.0.1:{self.port}"

    @property
    def asked_for(self) -> set[str]:
        """The hosts it was asked for."""
        return {_host(request) for request in self.requests}

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        try:
            request = await self._next(reader)
            if request is not None:
                await self._serve(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as is its right
        except asyncio.CancelledError:
            # The end of the block: no caller waits for it, and asyncio would log it.
            writer.transport.abort()
        finally:
            self.running.discard(task)
            writer.close()

    async def _next(self, reader: asyncio.StreamReader) -> Request | None:
        request = await read_request(reader)
        if request is not None:
            self.requests.append(request)
        return request

    async def _serve(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self.hosts.get(_host(request))
        if target is None:
            writer.write(self.answer)
            await writer.drain()
            return
        theirs, there = await asyncio.open_connection("127.0.0.1", urlsplit(target.url).port)
        try:
            async with asyncio.TaskGroup() as tasks:
                back = tasks.create_task(_pump(theirs, writer))
                if request.method == "CONNECT":
                    writer.write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
                    await _pump(reader, there)
                else:
                    await self._forward(request, reader, there)
                back.cancel()
        finally:
            there.transport.abort()

    async def _forward(self, request: Request, reader: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        following: Request | None = request
        try:
            while following is not None:
                there.write(_in_origin_form(following))
                following = await self._next(reader)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass


@asynccontextmanager
async def http_proxy(
    hosts: Mapping[str, HttpServer] | None = None, *, status: str = "502 Bad Gateway", tls: ssl.SSLContext | None = None
) -> AsyncGenerator[HttpProxy]:
    """Run a proxy to servers by the names they are to have; other hosts are refused."""
    answer = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()
    proxy = HttpProxy(hosts or {}, answer)
    listener = await asyncio.start_server(proxy.connected, "127.0.0.1", 0, ssl=tls)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        tasks = set(proxy.running)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await listener.wait_closed()


def _host(request: Request) -> str:
    whole = f"//{request.path}" if request.method == "CONNECT" else request.path
    return urlsplit(whole).hostname or ""


def _in_origin_form(request: Request) -> bytes:
    """Write a request as its server is to see it: without what is meant for the proxy."""
    kept = {
        name: value
        for name, value in request.headers.items()
        if not name.startswith("proxy-") and name not in {"transfer-encoding", "content-length"}
    }
    lines = [f"{request.method} {urlsplit(request.path).path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in kept.items()]
    lines += [f"content-length: {len(request.body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + request.body


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes from one side to the other, until either ends; then the other sees it too."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
