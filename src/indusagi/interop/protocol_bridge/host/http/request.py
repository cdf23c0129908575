"""One HTTP request and the ways to answer it: at once, or as a stream of events."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from indusagi.core.json import compact_json
from indusagi.interop.protocol_bridge.host.dispatcher import INVALID_REQUEST
from indusagi.interop.protocol_bridge.rpc.codec import encode_frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId

    # Any: these are the shapes of ASGI.
    Scope: TypeAlias = dict[str, Any]
    Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
    Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
    Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

JSON = b"application/json"
EVENTS = b"text/event-stream"
AWAY = "the client went away"
_CANCELLED = -32800
_LINE = 64
"""So many events may wait before those who send are asked to wait."""
_SLICE = 256 * 1024
"""So much of an answer is written before its client has to have taken it."""
_FRAMING = 8
_FRAMING_BYTES = 1024 * 1024
"""A chunked body may take so many times the bytes of its data, and so many more.

A chunk of one byte takes six; one with an extension of any length could be sent without end. What
was received and not yet read, half a megabyte at most, counts as well.
"""
_CLOSE = (b"connection", b"close")
_STREAMED: Headers = (
    (b"content-type", EVENTS),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class HttpRefusal(Exception):
    """A request that is answered with an HTTP status and no more."""

    def __init__(
        self, status: int, message: str, code: int = INVALID_REQUEST, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = [(key.encode(), value.encode()) for key, value in (headers or {}).items()]


class Request:
    """What came: method, path, headers, and the body once it is read."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, received: Callable[[], int], announced: Callable[[], int]
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.lines: list[tuple[str, str]] = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        self.headers: Mapping[str, str] = dict(self.lines)
        self.owner = b""
        """The token it has shown."""
        self._receive = receive
        self._send = send
        self._received = received
        """Tells how many bytes have come of it, the framing of its body included."""
        self._announced = announced
        """Tells how many bytes the chunk that has begun still announces."""
        sized = self.headers.get("content-length", "0").strip("0")
        self._has_unread_body = bool(sized) or "transfer-encoding" in self.headers

    def accepts(self, kind: bytes) -> bool:
        """Tell whether the client takes this kind of answer."""
        wanted = self.headers.get("accept", "").lower().split(",")
        kinds = {part.partition(";")[0].strip() for part in wanted}
        whole = kind.decode()
        return bool(kinds & {whole, f"{whole.partition('/')[0]}/*", "*/*"})

    async def body(self, limit: int, within_s: float) -> bytes:
        """Read the body, unless it is too large or too slow.

        Raises:
            HttpRefusal: It is.
        """
        parts: list[bytes] = []
        size = 0
        with anyio.move_on_after(within_s):
            while size <= limit:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise HttpRefusal(400, "the request was broken off")
                part: bytes = message.get("body", b"")
                size += len(part)
                if size + self._announced() > limit:
                    raise HttpRefusal(413, f"the body has more than {limit:,} bytes")
                if self._received() > size * _FRAMING + _FRAMING_BYTES:
                    raise HttpRefusal(400, "most of the body is not data but the framing of chunks")
                if size <= limit:
                    parts.append(part)
                else:
                    parts.clear()
                if not message.get("more_body"):
                    self._has_unread_body = False
                    break
            if size > limit:
                raise HttpRefusal(413, f"the body has more than {limit:,} bytes")
            return b"".join(parts)
        raise HttpRefusal(408, "the request took too long to arrive")

    async def gone(self) -> None:
        """Wait until the client goes away; only after the body."""
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def respond(self, status: int, body: bytes = b"", headers: Headers = (), kind: bytes = JSON) -> None:
        """Answer in one piece."""
        typed = [(b"content-type", kind)] if body else []
        length = (b"content-length", str(len(body)).encode())
        await self._begin(status, [*typed, length, *headers])
        await self._write(body)
        await self.end()

    async def refuse(self, refused: HttpRefusal) -> None:
        """Answer that it was not taken."""
        error: JsonObject = {"code": refused.code, "message": refused.message}
        frame: JsonObject = {"jsonrpc": "2.0", "id": None, "error": error}
        await self.respond(refused.status, compact_json(frame).encode(), refused.headers)

    async def begin_events(self, headers: Headers = ()) -> None:
        """Begin a stream of events."""
        await self._begin(200, [*_STREAMED, *headers])

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Begin to answer; after a body that was not read nothing more can be asked."""
        if self._has_unread_body and _CLOSE not in headers:
            headers = [*headers, _CLOSE]
        start = {"type": "http.response.start", "status": status}
        await self._send({**start, "headers": headers})

    async def event(self, data: bytes, name: bytes = b"message") -> None:
        """Send an event; empty: a sign of life."""
        if not data:
            await self._write(b": \r\n\r\n")
        elif len(data) <= _SLICE:
            await self._write(b"event: %b\r\ndata: %b\r\n\r\n" % (name, data))
        else:
            # A large one is not copied.
            await self._write(b"event: %b\r\ndata: " % name)
            await self._write(data)
            await self._write(b"\r\n\r\n")

    async def _write(self, body: bytes) -> None:
        """Write as its client takes it; after one that is gone nothing is waited for."""
        for start in range(0, len(body), _SLICE):
            part = body[start : start + _SLICE]
            await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self) -> None:
        """Say that this was all; it waits until the rest before it is taken."""
        await self._send({"type": "http.response.body", "body": b""})


class ResponseQueue:
    """Takes what is said to a client until somebody writes it; a channel."""

    def __init__(self, *, only_answers: bool = False) -> None:
        self.writable = asyncio.Event()
        self.writable.set()
        self.error: int | None = None
        """The code of the error that the answer is, if it is one."""
        self.ended = False
        self._only_answers = only_answers
        self._line: deque[JsonObject] = deque()
        self._stirred = asyncio.Event()

    @property
    def accepts_notifications(self) -> bool:
        """Whether anything but an answer would be written."""
        return not self.ended and not self._only_answers

    def send(self, frame: JsonObject) -> None:
        """Put a frame in line."""
        if self.ended or (self._only_answers and "method" in frame):
            return
        error = frame.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        self.error = code if isinstance(code, int) else None
        self._line.append(frame)
        self._stirred.set()
        if len(self._line) >= _LINE:
            self.writable.clear()

    def end(self) -> None:
        """Take nothing more."""
        self.ended = True
        self.writable.set()
        self._stirred.set()

    async def next_frame(self, within_s: float) -> bytes | None:
        """Take the next frame; empty if none came in time, None if none will come."""
        with anyio.move_on_after(within_s):
            while not self._line and not self.ended:
                self._stirred.clear()
                await self._stirred.wait()
        if not self._line:
            return None if self.ended else b""
        if len(self._line) <= _LINE:
            self.writable.set()
        return encode_frame(self._line.popleft())

    async def settled(self, within_s: float = 0) -> bool:
        """Wait for an answer without anything before it; False if it takes a stream to tell.

        Whoever takes no stream waits for as long as the answer takes.
        """
        with anyio.move_on_after(None if self._only_answers else within_s):
            while not self._line and not self.ended:
                self._stirred.clear()
                await self._stirred.wait()
        return self.ended and len(self._line) <= 1


def cancelled(identity: RequestId) -> JsonObject:
    """Answer a request that nothing will come of: somebody still waits for it."""
    error: JsonObject = {"code": _CANCELLED, "message": "the request was cancelled"}
    return {"jsonrpc": "2.0", "id": identity, "error": error}
