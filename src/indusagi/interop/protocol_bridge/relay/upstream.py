"""A connection of a relay to its server: raw frames, one life, and how soon the next may begin.

What is sent before the connection stands waits in line. A connection that follows one that broke
may have to greet the server first; then everything else waits for the answer to that. The server's
words are handed on as they came: a text that cannot be read is dropped, and if it was meant as an
answer, whoever waits for it is told. What a server does not read is bounded, as is what is said of
it in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from indusagi.core.tasks import BackgroundTask
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.client.connect import open_transport
from indusagi.interop.protocol_bridge.client.faults import FaultSite, to_protocol_fault
from indusagi.interop.protocol_bridge.client.start.causes import find_cause
from indusagi.interop.protocol_bridge.client.supervision import RestartRecord, Supervision
from indusagi.interop.protocol_bridge.host.dispatcher import NO_PARAMS, ForwardedError
from indusagi.interop.protocol_bridge.rpc.codec import decode_frame_verbatim, estimate_size, find_response_id
from indusagi.interop.protocol_bridge.rpc.connection import INTERNAL_ERROR, ConnectionClosedError, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerConfig
    from indusagi.interop.protocol_bridge.host.dispatcher import HostRequest
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId, Transport, TransportEnd


_log = logging.getLogger(__name__)

UNAVAILABLE = -32000
_CLOSE_S = 1.0
"""The host of a relay is to end within seconds, its servers included."""
_SOONEST_S = 1.0
_UNREAD_BYTES = 4 * 1024 * 1024
"""So much is kept for a server that does not read; what comes after it is not taken."""
_KINDS = 20
_SHOWN = 120


class RateLimitedLog:
    """What is said of a server in the log: each kind at its first, 10th, 100th time and so on."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._counts: Counter[str] = Counter()

    def add(self, said: str) -> None:
        """Complain, unless it was said and nothing much has changed."""
        # Most hold words of the server, which may find ever others.
        kind = " ".join(clean_text(cut_text(said, _SHOWN))[0].split())
        if kind not in self._counts and len(self._counts) >= _KINDS:
            kind = "does other things that are not done"
        self._counts[kind] += 1
        count = self._counts[kind]
        if f"{count}".rstrip("0") == "1":
            times = "" if count == 1 else f" ({count:,} times)"
            _log.warning("server %r %s%s", self._server, kind, times)


class UpstreamConnection:
    """One life of a connection. Made by `UpstreamPool.open`."""

    def __init__(
        self,
        config: ServerConfig,
        on_frame: Callable[[JsonObject], None],
        on_end: Callable[[ProtocolFault], None],
        greeting: Sequence[JsonObject] = (),
    ) -> None:
        self.version: str | None = None
        """What the handshake has agreed on; some links repeat it with every message."""
        self._config = config
        self._on_frame = on_frame
        self._on_end = on_end
        self._greeting = [*greeting]
        self._waiting: list[JsonObject] = []
        self._unread = 0
        self._warnings = RateLimitedLog(config.id)
        self._link: Transport | None = None
        self._ready = False
        self._over = asyncio.Event()
        self._owner = BackgroundTask("relay")
        self._began_at = asyncio.get_running_loop().time()

    @property
    def up_s(self) -> float:
        """How long ago it was begun."""
        return asyncio.get_running_loop().time() - self._began_at

    @property
    def has_room(self) -> bool:
        """Whether the server takes what is sent to it."""
        return self._link is None or self._link.writable.is_set()

    # -- its life ---------------------------------------------------------------------------

    def start(self, after: Callable[[UpstreamConnection], None]) -> None:
        """Begin; `after` is called when all of it is gone."""
        self._owner.start(self._live(after))

    async def _live(self, after: Callable[[UpstreamConnection], None]) -> None:
        try:
            async with open_transport(self._config, lambda: self.version) as link:
                self._link = link
                link.attach(self._received, self._ended)
                self._begin()
                await self._over.wait()
        except Exception as exc:  # noqa: BLE001 — boundary: whatever it is, those who wait are told
            self._broke(exc)
        finally:
            after(self)

    async def close(self) -> None:
        """End it, and see it gone; nobody is told any more."""
        self._over.set()
        await self._owner.join()

    def _begin(self) -> None:
        if self._greeting:
            self._say(self._greeting[0])
        else:
            self._flow()

    def _flow(self) -> None:
        self._ready = True
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            self._say(frame)

    def _ended(self, end: TransportEnd) -> None:
        if end.detail.stderr and not self._over.is_set():
            # For whoever runs us: a client may be anybody.
            cause = find_cause(end.detail.stderr)
            _log.warning("standard error of server %r: %s", self._config.id, cause)
        self._broke(ConnectionClosedError(replace(end, detail=replace(end.detail, stderr=()))))

    def _broke(self, exc: Exception) -> None:
        if not self._over.is_set():
            self._over.set()
            site = FaultSite.CONNECT if self._link is None else FaultSite.HELD
            self._on_end(to_protocol_fault(exc, self._config, site))

    # -- what is said -----------------------------------------------------------------------

    def send(self, frame: JsonObject) -> bool:
        """Hand a frame to the server, as soon as there is a way; False if it takes no more."""
        if self._ready and self._link is not None and self._link.writable.is_set():
            self._unread = 0
        elif self._unread > _UNREAD_BYTES:
            self._warnings.add("reads nothing: what it is told is dropped")
            return False
        else:
            self._unread += estimate_size(frame)
        if self._ready:
            self._say(frame)
        else:
            self._waiting.append(frame)
        return True

    def _say(self, frame: JsonObject) -> None:
        if self._link is not None and not self._over.is_set():
            self._link.send(frame)

    def _received(self, data: bytes | JsonValue) -> None:
        frames = self._parsed(data) if isinstance(data, bytes) else data
        for frame in frames if isinstance(frames, list) else (frames,):
            if self._over.is_set():
                return
            if isinstance(frame, dict):
                self._frame(frame)
            elif frame is not None:
                self._warnings.add("said something that is no message")

    def _parsed(self, line: bytes) -> JsonValue:
        try:
            return decode_frame_verbatim(line)
        except (ValueError, RecursionError) as exc:
            self._warnings.add("said something that cannot be read")
            identity = find_response_id(line)
            if identity is None:
                return None
            said = f"server {self._config.id!r}: its answer cannot be read: {exc}"
            error: JsonObject = {"code": INTERNAL_ERROR, "message": said}
            return {"jsonrpc": "2.0", "id": identity, "error": error}

    def _frame(self, frame: JsonObject) -> None:
        if not self._ready and self._greeting and frame.get("id") == self._greeting[0]["id"]:
            for more in self._greeting[1:]:
                self._say(more)
            self._flow()
            return
        error, identity = frame.get("error"), frame.get("id")
        if isinstance(error, dict) and isinstance(identity, (int, str)):
            frame = {**frame, "error": self._named(error, identity)}
        self._on_frame(frame)

    def _named(self, error: JsonObject, identity: RequestId) -> JsonObject:
        """Say whose error it is, if it was the way there that failed, and not the server."""
        detail = None if self._link is None else self._link.detail(identity)
        if detail is None or detail.reason is None:
            return error
        return {**error, "message": f"server {self._config.id!r}: {error.get('message')}"}


class ReconnectBackoff:
    """How soon a connection may be made after one that broke."""

    def __init__(self, rules: Supervision | None = None) -> None:
        self._record = RestartRecord(rules or Supervision())
        self._not_before = 0.0
        self._fault: ProtocolFault | None = None

    def check(self) -> None:
        """See whether one may be made now.

        Raises:
            RpcError: The last one broke a moment ago.
        """
        wait = self._not_before - asyncio.get_running_loop().time()
        if wait > 0:
            said = f"{self._fault}; it is not started again before {wait:.0f} s have passed"
            raise RpcError(UNAVAILABLE, said)

    def failed(self, fault: ProtocolFault, up_s: float) -> None:
        """Take note of one that broke."""
        now = asyncio.get_running_loop().time()
        wait = self._record.delay(fault, up_s, now)
        if wait is None:
            wait = _SOONEST_S
        elif self._record.in_a_row == 1:
            wait = 0.0  # once is no habit: whoever asks next has it started at once
        self._not_before = now + wait
        self._fault = fault


class UpstreamPool:
    """The connections to one server: so many at once, and no more."""

    def __init__(self, config: ServerConfig, limit: int) -> None:
        hasty = replace(config.limits, close_s=min(config.limits.close_s, _CLOSE_S))
        self.config: ServerConfig = replace(config, limits=hasty)
        self._limit = limit
        self._open: set[UpstreamConnection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, line: UpstreamConnection) -> bool:
        return line in self._open

    def open(
        self,
        on_frame: Callable[[JsonObject], None],
        on_end: Callable[[str], None],
        backoff: ReconnectBackoff,
        greeting: Sequence[JsonObject] = (),
    ) -> UpstreamConnection:
        """Begin a connection.

        Raises:
            RpcError: There are too many, or the last one broke a moment ago.
        """
        backoff.check()
        if len(self._open) >= self._limit:
            said = (
                f"server {self.config.id!r}: {self._limit} clients have a connection of their own, "
                "and more are not allowed: try again when one has left"
            )
            raise RpcError(UNAVAILABLE, said)

        def ended(fault: ProtocolFault) -> None:
            backoff.failed(fault, line.up_s)
            on_end(str(fault))

        line = UpstreamConnection(self.config, on_frame, ended, greeting)
        self._open.add(line)
        line.start(self._open.discard)
        return line


_REMEMBERED = 1_000
_MARK = "x-mcp-header"


class ToolSchemas:
    """The schemas of the tools that were listed, as far as they say something about headers."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, JsonObject] = OrderedDict()

    def learn(self, result: JsonObject) -> None:
        """Look at a list of tools on its way to a client."""
        tools = result.get("tools")
        for row in tools if isinstance(tools, list) else ():
            if not isinstance(row, dict):
                continue
            name, schema = row.get("name"), row.get("inputSchema")
            if not isinstance(name, str):
                continue
            self._known.pop(name, None)
            if isinstance(schema, dict) and _MARK in json.dumps(schema):
                self._known[name] = schema
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)

    def of(self, name: str) -> JsonObject | None:
        """Give the schema of a tool's arguments, if it matters."""
        return self._known.get(name)


LISTEN = "subscriptions/listen"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
CANCELLED = "notifications/cancelled"
PROGRESS = "notifications/progress"


class RelayedRequest:
    """Gives the answer of the server when it is awaited; work of a dispatcher."""

    def __init__(
        self,
        request: HostRequest,
        identity: RequestId,
        on_withdrawn: Callable[[RelayedRequest], None],
        on_closed: Callable[[RelayedRequest], None],
    ) -> None:
        self.request = request
        self.identity = identity
        """The id under which the server knows it."""
        self.withdrawn = False
        """The server was told that nobody waits."""
        self._on_withdrawn = on_withdrawn
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[JsonObject] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._forget = request.cancel.on_cancel(self._cancelled)
        request.is_subscription = request.method == LISTEN
        request.is_forwarded = True

    # -- for the dispatcher ---------------------------------------------------------------

    def __await__(self) -> Generator[object, None, JsonObject]:
        return self._answer.__await__()

    def close(self) -> None:
        """Let go of it; a server that still works on it is told so."""
        self._forget()
        if self._timer is not None:
            self._timer.cancel()
        self._withdraw()
        # One that failed may have no reader, and is no defect.
        if not self._answer.cancel() and not self._answer.cancelled():
            self._answer.exception()
        self._on_closed(self)

    def _cancelled(self) -> None:
        self._withdraw()
        if not self._answer.done():
            # Nobody hears it, but one who listens and is let go in good order.
            meta: JsonObject = {SUBSCRIPTION: self.request.id}
            self._answer.set_result({"resultType": "complete", "_meta": meta})

    def _withdraw(self) -> None:
        if not self._answer.done() and not self.withdrawn:
            self.withdrawn = True
            self._on_withdrawn(self)

    # -- for the relay ----------------------------------------------------------------------

    @property
    def token(self) -> JsonValue:
        """What its client wants to see again in notices of progress."""
        return self.request.meta.get("progressToken")

    def frame(self, params: JsonObject | None = None) -> JsonObject:
        """Write it for the server."""
        frame: JsonObject = {"jsonrpc": "2.0", "id": self.identity, "method": self.request.method}
        given = self.request.params if params is None else params
        return frame if given is NO_PARAMS else {**frame, "params": given}

    def withdrawal(self) -> JsonObject:
        """Write that nobody waits for it."""
        reason = self.request.cancel.reason or "no longer wanted"
        params: JsonObject = {"requestId": self.identity, "reason": reason}
        return {"jsonrpc": "2.0", "method": CANCELLED, "params": params}

    def answered(self, frame: JsonObject) -> None:
        """Take the answer, whatever it is."""
        if self._answer.done():
            return
        if "result" in frame:
            # Servers answer with all kinds of things: what it is, is for the client to judge.
            self._answer.set_result(cast("JsonObject", frame["result"]))
        else:
            self._answer.set_exception(ForwardedError(frame["error"]))

    def failed(self, said: str) -> None:
        """Say that no answer will come."""
        if not self._answer.done():
            self.withdrawn = True
            self._answer.set_exception(RpcError(UNAVAILABLE, said))

    def due(self, within_s: float, said: str) -> None:
        """Give it a deadline."""

        def late() -> None:
            self._withdraw()
            self.failed(said)

        self._timer = self._loop.call_later(within_s, late)


_DISCOVER = "server/discover"
_LONGEST_NUMBER = 15


class RequestForwarder:
    """Hands requests on, and finds them again when something comes back."""

    def __init__(self, lines: UpstreamPool, backoff: ReconnectBackoff, on_frame: Callable[[JsonObject], None]) -> None:
        self.open: dict[RequestId, RelayedRequest] = {}
        """By the ids under which the server knows them, the newest last."""
        self.line: UpstreamConnection | None = None
        self.withdrawn_at = float("-inf")
        """When a request was withdrawn last, by the clock of the loop."""
        self._lines = lines
        self._backoff = backoff
        self._on_frame = on_frame
        self._spent: list[UpstreamConnection] = []
        self._over = False

    def ready(self, greeting: Sequence[JsonObject] = ()) -> UpstreamConnection:
        """Give the connection; if there is none, begin one with a greeting.

        Raises:
            RpcError: None can be made now, or ever again.
        """
        if self._over:
            raise RpcError(UNAVAILABLE, "the relay has ended")
        if self.line is None:
            self.line = self._lines.open(self._on_frame, self._ended, self._backoff, greeting)
        return self.line

    def hand_on(self, request: HostRequest, identity: RequestId, params: JsonObject | None = None) -> RelayedRequest:
        """Hand a request on, as it is or with other params; the connection is there.

        Raises:
            RpcError: The server reads nothing, and much waits for it already.
        """
        relayed = RelayedRequest(request, identity, self._withdrawn, self._closed)
        self.open[identity] = relayed
        if request.method == _DISCOVER:
            # A server of the older protocol may stay silent: its client shall not wait for ever.
            limit_s = self._lines.config.limits.start_s
            said = f"it did not answer {_DISCOVER} within {limit_s:g} s"
            relayed.due(limit_s, f"server {self._lines.config.id!r}: {said}")
        if not self.send(relayed.frame(params)):
            relayed.withdrawn = True  # it was never there
            relayed.close()
            raise RpcError(UNAVAILABLE, "the server takes nothing more at the moment")
        return relayed

    def send(self, frame: JsonObject) -> bool:
        """Say something to the server, if there is one; False if it takes no more."""
        return self.line is None or self.line.send(frame)

    def find(self, identity: JsonValue) -> RelayedRequest | None:
        """Find a request, also where a number comes back as `1.0` or `"1"`."""
        if isinstance(identity, float) and identity.is_integer():
            identity = int(identity)
        if not isinstance(identity, (int, str)) or isinstance(identity, bool):
            return None
        found = self.open.get(identity)
        if found is None and isinstance(identity, str) and _is_number(identity):
            return self.open.get(int(identity))
        return found

    def answered(self, frame: JsonObject) -> RelayedRequest | None:
        """Find the request that a frame answers."""
        is_answer = "result" in frame or "error" in frame
        return self.find(frame.get("id")) if is_answer else None

    async def close(self) -> None:
        """End the connection for good, and see those gone that broke before."""
        self._over = True
        ending, self._spent = self._spent, []
        if self.line is not None:
            ending.append(self.line)
            self.line = None
        for line in ending:
            await line.close()

    def _withdrawn(self, relayed: RelayedRequest) -> None:
        self.withdrawn_at = asyncio.get_running_loop().time()
        # Both protocols forbid to cancel the first request.
        if relayed.request.method != "initialize":
            self.send(relayed.withdrawal())

    def _closed(self, relayed: RelayedRequest) -> None:
        self.open.pop(relayed.identity, None)

    def _ended(self, said: str) -> None:
        self._spent = [line for line in self._spent if line in self._lines]
        if self.line is not None:
            self._spent.append(self.line)
        self.line = None
        for relayed in [*self.open.values()]:
            relayed.failed(said)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
