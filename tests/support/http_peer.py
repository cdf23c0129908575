"""A loopback HTTP/1.1 server for tests, raw enough to break every rule of HTTP on purpose.

`async with http_server(behaviour) as server:` listens on a free port of 127.0.0.1 and hands each
request to the behaviour, which writes the response, or half of it, or nothing. What came in is kept
in `server.requests`. The behaviours are in `tests.support.http_behaviours`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from pathlib import Path

Json: TypeAlias = "dict[str, Any]"
Behaviour: TypeAlias = "Callable[[Exchange], Awaitable[None]]"

_RESET = struct.pack("ii", 1, 0)
"""Linger for no time: closing sends a reset instead of an orderly end."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By name in small letters."""
    body: bytes

    @property
    def rpc(self) -> Json:
        """The JSON-RPC message in the body; empty when there is none."""
        return json.loads(self.body) if self.body else {}

    @property
    def params(self) -> Json:
        return self.rpc.get("params") or {}

    @property
    def arguments(self) -> Json:
        return self.params.get("arguments") or {}

    def is_a(self, what: str) -> bool:
        """Tell whether this is an HTTP method (`DELETE`) or a JSON-RPC one (`tools/call`)."""
        return what in {self.method, self.rpc.get("method")}


@dataclass(slots=True)
class HttpServer:
    """A server that runs, and what it has seen."""

    url: str
    requests: list[Request] = field(default_factory=list[Request])
    hangups: list[Request] = field(default_factory=list[Request])
    """Those whose client went away before the answer."""
    errors: list[Exception] = field(default_factory=list[Exception])

    def heard(self, what: str) -> list[Request]:
        """List the requests of an HTTP or JSON-RPC method."""
        return [request for request in self.requests if request.is_a(what)]


class Exchange:
    """A request, and the ways to answer it."""

    def __init__(
        self, server: HttpServer, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.request = request
        self.server = server
        self._reader = reader
        self._writer = writer

    async def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Write the status line and the headers."""
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        await self.write("\r\n".join([*lines, "", ""]).encode())

    async def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Answer in one piece."""
        await self.head(status, {**(headers or {}), "Content-Length": str(len(body))})
        await self.write(body)

    async def reply_json(self, frame: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answer with JSON."""
        typed = {"Content-Type": "application/json", **(headers or {})}
        await self.reply(status, json.dumps(frame).encode(), typed)

    async def open_events(self, headers: Mapping[str, str] | None = None) -> None:
        """Begin a stream of events; it is ended by `end_events`, or by `cut`."""
        fixed = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        await self.head(200, {**fixed, **(headers or {})})

    async def event(self, frame: Json | None = None, /, **fields: str) -> None:
        """Send an event: its fields (`id`, `retry`, `event`, `data`), and a message as data."""
        if frame is not None:
            fields["data"] = json.dumps(frame)
        text = "".join(f"{name}: {value}\n" for name, value in fields.items()) + "\n"
        data = text.encode()
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_events(self) -> None:
        await self.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Break the connection."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._writer.transport.abort()

    def end(self) -> None:
        """Close the connection in good order: the end of a body whose length was not told."""
        self._writer.close()

    async def until_gone(self) -> None:
        """Wait until the client goes away, and keep that in mind."""
        while await self._reader.read(65536):
            continue
        self.server.hangups.append(self.request)


@asynccontextmanager
async def http_server(behaviour: Behaviour, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[HttpServer, None]:
    """Serve until the end of the block; a defect of the behaviour is raised there."""
    running: set[asyncio.Task[None]] = set()
    server = HttpServer("")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            while (request := await read_request(reader)) is not None:
                server.requests.append(request)
                await behaviour(Exchange(server, request, reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as is its right
        except asyncio.CancelledError:
            # The end of the block: no caller waits for it, and asyncio would log it.
            writer.transport.abort()
        except Exception as exc:  # noqa: BLE001 — boundary: the behaviour may have a defect
            server.errors.append(exc)
        finally:
            running.discard(task)
            writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/mcp"
    try:
        yield server
    finally:
        listener.close()
        tasks = set(running)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await listener.wait_closed()
    if server.errors:
        raise server.errors[0]


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read the next request of a connection; None when there is no other."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding") == "chunked":
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def self_signed(folder: Path, name: str = "IP:127.0.0.1") -> tuple[ssl.SSLContext, Path]:
    """Make a certificate for a name with the command `openssl`: a context, and whom to trust."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subject = ["-subj", "/CN=test", "-addext", f"subjectAltName={name}"]
    made = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", *subject]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *made, *files], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context, certificate
