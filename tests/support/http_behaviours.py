"""What an HTTP server of a test does with a request: honest MCP of each kind, and faults.

A behaviour is a coroutine function of an `Exchange`. `Legacy`, `Modern` and `OldSse` answer as they
should; the functions below them make faults. `sometimes` mixes the two:

    sometimes(status(500), times=3)                            # three failures, then all is well
    sometimes(silence, on="tools/call", then=Modern())         # connects, but no call is answered
    together(20, sometimes(cut(), on=lambda request: "drop" in request.arguments))
"""

from __future__ import annotations

import asyncio
import itertools
import json
import zlib
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.http_peer import Behaviour, Exchange, Json, Request

Which: TypeAlias = "str | Callable[[Request], bool] | None"
"""An HTTP or JSON-RPC method, a question to the request, or None for all."""

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
LIFE_S = 60
STAMP = "io.modelcontextprotocol/"
MIB = 1024 * 1024
_INFO: Json = {"name": "http", "version": "1.0"}
_CAPABILITIES: Json = {"tools": {"listChanged": True}}
_TOOLS: list[Json] = [
    {"name": "echo", "description": "Say it again.", "inputSchema": {"type": "object"}},
    {"name": "slow", "description": "Take some seconds.", "inputSchema": {"type": "object"}},
    {"name": "fail", "description": "Fail.", "inputSchema": {"type": "object"}},
]


# -- honest servers -----------------------------------------------------------------------------


def _text(text: str, **more: object) -> Json:
    return {"content": [{"type": "text", "text": text}], **more}


def _error(request: Request, code: int, message: str, data: Json | None = None) -> Json:
    error: Json = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": request.rpc.get("id"), "error": error}


def _result(request: Request, result: Json) -> Json:
    return {"jsonrpc": "2.0", "id": request.rpc.get("id"), "result": result}


def _tools(request: Request) -> Json:
    """Answer what is the same in both eras: `tools/list`, `tools/call`, and what is unknown."""
    if request.is_a("tools/list"):
        return _result(request, {"tools": _TOOLS})
    if not request.is_a("tools/call"):
        return _error(request, -32601, "method not found")
    name = request.params.get("name")
    if name == "fail":
        return _result(request, _text("it did not work", isError=True))
    if name not in {"echo", "slow"}:
        return _error(request, -32602, f"unknown tool: {name}")
    return _result(request, _text(str(request.arguments.get("text", "done"))))


async def _slow(exchange: Exchange, answer: Json) -> None:
    """Take `seconds`, with a notice of progress at the start; see whether the client stays."""
    request = exchange.request
    meta: Json = request.params.get("_meta") or {}
    await exchange.open_events()
    if "progressToken" in meta:
        params = {"progressToken": meta["progressToken"], "progress": 1}
        notice = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        await exchange.event(notice)
    try:
        async with asyncio.timeout(float(request.arguments.get("seconds", 1))):
            await exchange.until_gone()
    except TimeoutError:
        await exchange.event(answer)
        await exchange.end_events()


class Legacy:
    """The older protocol: sessions, answers as JSON or as `events`, a standing GET stream.

    The stream stays `open`, `closes` at once every time with `retry: 0`, or is `refused`.
    """

    def __init__(self, *, events: bool = False, stream: Literal["open", "closes", "refused"] = "open") -> None:
        self.sessions: set[str] = set()
        self._events = events
        self._stream = stream
        self._ids = itertools.count(1)
        self._standing: list[Exchange] = []

    async def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        session = request.headers.get("mcp-session-id")
        if request.is_a("initialize"):
            await self._initialize(exchange)
        elif session is None:
            await exchange.reply_json(_error(request, -32600, "no session"), 400)
        elif session not in self.sessions:
            await exchange.reply_json(_error(request, -32600, "session not found"), 404)
        elif request.method == "GET":
            await self._get(exchange)
        elif request.method == "DELETE":
            self.sessions.discard(session)
            await exchange.reply(200)
        elif "id" not in request.rpc or "method" not in request.rpc:
            await exchange.reply(202)
        elif request.is_a("ping"):
            await exchange.reply_json(_result(request, {}))
        else:
            await self._answer(exchange, _tools(request))

    @property
    def is_standing(self) -> bool:
        """Whether a client holds a standing stream."""
        return bool(self._standing)

    async def write(self, data: bytes) -> None:
        """Write bytes to the standing stream."""
        for exchange in self._standing:
            await exchange.write(data)

    async def push(self, frame: Json) -> None:
        """Send a message on the standing stream."""
        for exchange in self._standing:
            await exchange.event(frame)

    async def _initialize(self, exchange: Exchange) -> None:
        session = f"session-{next(self._ids)}"
        self.sessions.add(session)
        said: Json = {"capabilities": _CAPABILITIES, "serverInfo": _INFO, "protocolVersion": LEGACY}
        frame = _result(exchange.request, said)
        await exchange.reply_json(frame, headers={"Mcp-Session-Id": session})

    async def _answer(self, exchange: Exchange, frame: Json) -> None:
        if exchange.request.params.get("name") == "slow":
            await _slow(exchange, frame)
        elif self._events:
            await exchange.open_events()
            await exchange.event(frame, event="message")
            await exchange.end_events()
        else:
            await exchange.reply_json(frame)

    async def _get(self, exchange: Exchange) -> None:
        if self._stream == "refused":
            await exchange.reply(405)
            return
        await exchange.open_events()
        if self._stream == "closes":
            await exchange.event(retry="0")
            await exchange.end_events()
            return
        self._standing.append(exchange)
        try:
            await exchange.until_gone()
        finally:
            self._standing.remove(exchange)


class Modern:
    """The newer protocol: no session, every request stamped in its body and in its headers."""

    async def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.method != "POST":
            await exchange.reply(405)
        elif refusal := self._refusal(request):
            await exchange.reply_json(refusal, 400)
        elif request.is_a("server/discover"):
            offer: Json = {"supportedVersions": [MODERN], "capabilities": _CAPABILITIES}
            await exchange.reply_json(self._stamped(_result(request, offer)))
        elif request.is_a("subscriptions/listen"):
            await self._listen(exchange)
        elif request.params.get("name") == "slow":
            await _slow(exchange, self._stamped(_tools(request)))
        else:
            answer = _tools(request)
            unknown = answer.get("error", {}).get("code") == -32601
            await exchange.reply_json(self._stamped(answer), 404 if unknown else 200)

    @staticmethod
    def _stamped(frame: Json) -> Json:
        if "result" not in frame:
            return frame
        meta = {STAMP + "serverInfo": _INFO}
        kept: Json = {"ttlMs": 0, "cacheScope": "private"}
        return {**frame, "result": {"resultType": "complete", **frame["result"], **kept, "_meta": meta}}

    @staticmethod
    def _refusal(request: Request) -> Json | None:
        """Say what is wrong with the stamp of a request, if something is."""
        meta: Json = request.params.get("_meta") or {}
        version = meta.get(STAMP + "protocolVersion")
        if version != MODERN:
            data = {"supported": [MODERN], "requested": version}
            return _error(request, -32022, "unsupported protocol version", data)
        if STAMP + "clientCapabilities" not in meta:
            return _error(request, -32602, "the request is not stamped")
        wanted = {"mcp-protocol-version": version, "mcp-method": request.rpc["method"]}
        if request.is_a("tools/call"):
            wanted["mcp-name"] = request.params["name"]
        for name, value in wanted.items():
            if request.headers.get(name) != value:
                return _error(request, -32020, f"{name} is {request.headers.get(name)!r}")
        return None

    @staticmethod
    async def _listen(exchange: Exchange) -> None:
        request = exchange.request
        meta = {STAMP + "subscriptionId": request.rpc["id"]}
        params: Json = {"_meta": meta, "notifications": request.params["notifications"]}
        method = "notifications/subscriptions/acknowledged"
        await exchange.open_events()
        await exchange.event({"jsonrpc": "2.0", "method": method, "params": params})
        await exchange.until_gone()


class OldSse:
    """The oldest transport: answers come on the GET stream, whatever the POST is answered with."""

    def __init__(self, *, post_status: int = 202) -> None:
        self._post_status = post_status
        self._stream: Exchange | None = None

    @property
    def is_standing(self) -> bool:
        """Whether a client holds the stream."""
        return self._stream is not None

    async def write(self, data: bytes) -> None:
        """Write bytes to the stream."""
        assert self._stream is not None
        await self._stream.write(data)

    async def push(self, frame: Json) -> None:
        """Send a message on the stream."""
        assert self._stream is not None
        await self._stream.event(frame, event="message")

    async def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.method == "GET":
            self._stream = exchange
            await exchange.open_events()
            await exchange.event(event="endpoint", data="/messages?session=1")
            await exchange.until_gone()
            return
        await exchange.reply(self._post_status)
        if self._stream is not None and self._post_status == 202 and "id" in request.rpc:
            said: Json = {"capabilities": {"tools": {}}, "serverInfo": _INFO}
            shaken = _result(request, {**said, "protocolVersion": "2024-11-05"})
            answer = shaken if request.is_a("initialize") else _tools(request)
            await self._stream.event(answer, event="message")


# -- faults -------------------------------------------------------------------------------------


def status(code: int, **headers: str) -> Behaviour:
    """Answer with a status alone; `retry_after="2"` becomes a header."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda exchange: exchange.reply(code, b"", named)


def redirect(location: str, code: int = 307) -> Behaviour:
    """Send the client somewhere else."""
    return status(code, location=location)


def page(body: bytes = b"<html>Sign in</html>", content_type: str = "text/html") -> Behaviour:
    """Answer with something that is no MCP."""
    return lambda exchange: exchange.reply(200, body, {"Content-Type": content_type})


def mistyped(content_type: str = "text/plain") -> Behaviour:
    """Answer rightly under a wrong content type; an empty one means none."""

    async def behave(exchange: Exchange) -> None:
        headers = {"Content-Type": content_type} if content_type else {}
        frame = _result(exchange.request, {**_text("good"), "tools": []})
        await exchange.reply(200, json.dumps(frame).encode(), headers)

    return behave


async def silence(exchange: Exchange) -> None:
    """Take the request and never answer."""
    await exchange.until_gone()


def drip(pause_s: float = 0.02, *, inside: Literal["headers", "body"] = "headers") -> Behaviour:
    """Send headers, or after them a body, byte by byte and without an end."""

    async def behave(exchange: Exchange) -> None:
        if inside == "headers":
            await exchange.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        else:
            await exchange.head(200, {"Content-Type": "application/json", "Content-Length": "9999"})
        for _ in range(int(LIFE_S / pause_s)):
            await exchange.write(b" ")
            await asyncio.sleep(pause_s)

    return behave


def cut(after: Literal["nothing", "headers", "body"] = "nothing") -> Behaviour:
    """Break the connection before the response, after its headers, or in its body."""

    async def behave(exchange: Exchange) -> None:
        if after != "nothing":
            await exchange.head(200, {"Content-Type": "application/json", "Content-Length": "500"})
        if after == "body":
            await exchange.write(b'{"jsonrpc": "2.0", ')
        exchange.cut()

    return behave


def large(mib: int, *, of: Literal["json", "event"] = "json", length_told: bool = True) -> Behaviour:
    """Answer rightly with a text of that many MiB, as JSON or as one event."""

    async def behave(exchange: Exchange) -> None:
        whole = json.dumps(_result(exchange.request, _text("@"))).encode()
        before, _, after = whole.partition(b"@")
        if of == "event":
            before, after = b"data: " + before, after + b"\n\n"
        kind = "text/event-stream" if of == "event" else "application/json"
        size = len(before) + mib * MIB + len(after)
        until = {"Content-Length": str(size)} if length_told else {"Connection": "close"}
        await exchange.head(200, {"Content-Type": kind, **until})
        await exchange.write(before)
        for _ in range(mib):
            await exchange.write(b"x" * MIB)
        await exchange.write(after)
        if not length_told:
            exchange.end()

    return behave


def gzip_bomb(mib: int = 1024) -> Behaviour:
    """Answer with a small gzip body that unpacks to that many MiB of blanks, asked for or not.

    The checksum at its end is wrong: only a client that decompresses everything notices.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    # A block after a full flush stands alone, so that it can be repeated without packing it again.
    block = packer.compress(b" " * 16 * MIB) + packer.flush(zlib.Z_FULL_FLUSH)
    head = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"
    body = head + block * (mib // 16) + packer.flush() + bytes(8)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    return lambda exchange: exchange.reply(200, body, headers)


def events_cut(
    *, event_id: str | None = None, retry_ms: int | None = None, resumes_after: int | None = None
) -> Behaviour:
    """Answer calls with a stream of events that ends before the answer.

    With an id the client may come back for the rest: in vain, or with success after so many times.
    """
    honest = Legacy()
    owed: dict[str, Json] = {}
    resumed = itertools.count(1)

    async def behave(exchange: Exchange) -> None:
        request = exchange.request
        wanted = owed.get(request.headers.get("last-event-id", ""))
        if not request.is_a("tools/call") and wanted is None:
            await honest(exchange)
            return
        await exchange.open_events()
        if wanted is not None and next(resumed) == resumes_after:
            await exchange.event(wanted, id="last")
        else:
            retry = {} if retry_ms is None else {"retry": str(retry_ms)}
            if event_id is not None:
                owed[event_id] = wanted or _tools(request)
                await exchange.event(id=event_id, **retry, data="")
            elif retry:
                await exchange.event(**retry)
        await exchange.end_events()

    return behave


def forgets_session(times: int = 1) -> Behaviour:
    """Lose all sessions at the first so many calls of a tool; a new `initialize` works."""
    honest = Legacy()

    async def behave(exchange: Exchange) -> None:
        nonlocal times
        if exchange.request.is_a("tools/call") and times > 0:
            times -= 1
            honest.sessions.clear()
        await honest(exchange)

    return behave


# -- mixing -------------------------------------------------------------------------------------


def sometimes(
    fault: Behaviour, *, on: Which = None, times: int | None = None, then: Behaviour | None = None
) -> Behaviour:
    """Misbehave for those requests, only the first so many times; otherwise do as `then` does."""
    honest = then or Legacy()
    left = -1 if times is None else times

    def concerns(request: Request) -> bool:
        return request.is_a(on) if isinstance(on, str) else on is None or on(request)

    async def behave(exchange: Exchange) -> None:
        nonlocal left
        if left != 0 and concerns(exchange.request):
            left -= 1
            await fault(exchange)
        else:
            await honest(exchange)

    return behave


def together(count: int, then: Behaviour | None = None) -> Behaviour:
    """Hold calls of tools back until so many of them are there at the same time."""
    honest = then or Legacy()
    arrived = 0
    complete = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        nonlocal arrived
        if exchange.request.is_a("tools/call"):
            arrived += 1
            if arrived >= count:
                complete.set()
            await complete.wait()
        await honest(exchange)

    return behave
