"""One client of a relay, and the connection to the server that is its own.

Whoever shakes hands, or has a connection of its own to us, gets a connection of its own to the
server: whatever either of the two says is handed to the other, with nothing changed, ids included.
Over HTTP a client has several streams, and the server does not say which one it means: what belongs
to a call by its progress token goes there, news go to the standing stream, everything else goes to
the newest call, and waits if there is no stream at all. Whatever it is, it belongs to this client.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.host.dispatcher import NO_PARAMS, RequestDispatcher
from indusagi.interop.protocol_bridge.relay.shared import VERSION
from indusagi.interop.protocol_bridge.relay.upstream import CANCELLED, PROGRESS, UNAVAILABLE, RequestForwarder
from indusagi.interop.protocol_bridge.rpc.codec import decode_frame_verbatim, estimate_size
from indusagi.interop.protocol_bridge.rpc.connection import RpcError

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits, HostRequest, ResponseChannel
    from indusagi.interop.protocol_bridge.relay.shared import SharedUpstream
    from indusagi.interop.protocol_bridge.relay.upstream import (
        ReconnectBackoff,
        RelayedRequest,
        ToolSchemas,
        UpstreamPool,
    )
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId

_log = logging.getLogger(__name__)

_KEPT = 64
"""So many words of the server wait for a stream; those after them are dropped or refused."""
_UNREAD = 1_000
"""So many words are sent to a client that does not read; those after them go the same way."""
_UNREAD_BYTES = 4 * 1024 * 1024
"""And so much of them at most, be they sent or kept."""
_REMEMBERED = 1_000
"""So many subscriptions outlive the server that they were made with."""
_greetings = itertools.count(1)


class RelaySession:
    """Hands on what one client says, and what it is told."""

    def __init__(
        self,
        lines: UpstreamPool,
        backoff: ReconnectBackoff,
        limits: HostLimits,
        schemas: ToolSchemas,
        shared: SharedUpstream | None = None,
    ) -> None:
        self.version: str | None = None
        """What the handshake has agreed on; None before one."""
        self.dispatcher = RequestDispatcher(
            self._serve, self._noticed, limits, on_response=self._answered, read=decode_frame_verbatim
        )
        self._channel = RequestForwarder(lines, backoff, self._received)
        self._schemas = schemas
        self._shared = shared
        self._limits = limits
        self._notification_channel: ResponseChannel | None = None
        self._asked: dict[RequestId, ResponseChannel | None] = {}
        """What the server has asked, and where it was put to the client."""
        self._kept: deque[JsonObject] = deque()
        self._kept_bytes = 0
        self._unread = 0
        self._unread_bytes = 0
        self._greeting: RelayedRequest | None = None
        self._settings: dict[JsonValue, JsonObject] = {}
        """What the server was told to remember, by what it is about."""

    @property
    def notification_channel(self) -> ResponseChannel | None:
        """Takes what it is told unasked, while there is a way to tell it."""
        return self._notification_channel

    @notification_channel.setter
    def notification_channel(self, channel: ResponseChannel | None) -> None:
        self._notification_channel = channel
        kept, self._kept, self._kept_bytes = self._kept, deque(), 0
        for frame in kept:
            self._tell(frame)

    async def close(self, reason: str) -> None:
        """End everything this client has asked for, and its connection."""
        await self.dispatcher.close(reason)
        await self._channel.close()

    # -- what the client says ---------------------------------------------------------------

    def _serve(self, request: HostRequest) -> RelayedRequest:
        if self._shared is not None and VERSION in request.meta and request.method != "initialize":
            return self._shared.ask(request)
        channel = self._channel
        if channel.line is None:
            self._asked.clear()
            self._kept = deque(said for said in self._kept if "id" not in said)
            self._kept_bytes = sum(estimate_size(said) for said in self._kept)
            replay = [] if request.method == "initialize" else self._replay()
            channel.ready(replay).version = self.version
        elif not channel.line.has_room and len(channel.open) >= self._limits.waiting:
            raise RpcError(UNAVAILABLE, "the server takes nothing more at the moment")
        relayed = channel.hand_on(request, request.id)
        if request.method == "initialize":
            self._greeting = relayed
        return relayed

    def _replay(self) -> list[JsonObject]:
        """Say again what a server has to know that was started anew."""
        if self._greeting is None or self.version is None:
            return []
        told: list[JsonObject] = [
            {**self._greeting.frame(), "id": f"relay-{next(_greetings)}"},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
        ]
        kept = self._settings.values()
        told.extend({**frame, "id": f"relay-{next(_greetings)}"} for frame in kept)
        return told

    def _noticed(self, method: str, params: JsonObject) -> None:
        if method == CANCELLED:
            relayed = self._channel.find(params.get("requestId"))
            if relayed is not None:
                relayed.withdrawn = True
        frame: JsonObject = {"jsonrpc": "2.0", "method": method}
        self._channel.send(frame if params is NO_PARAMS else {**frame, "params": params})

    def _answered(self, frame: JsonObject) -> None:
        identity = frame.get("id")
        if isinstance(identity, (int, str)) and identity in self._asked:
            del self._asked[identity]
            self._channel.send(frame)

    # -- what the server says ---------------------------------------------------------------

    def _received(self, frame: JsonObject) -> None:
        if isinstance(frame.get("method"), str):
            self._tell(frame)
        else:
            self._resolve(frame)

    def _refuse(self, identity: RequestId, said: str) -> None:
        error: JsonObject = {"code": UNAVAILABLE, "message": said}
        self._channel.send({"jsonrpc": "2.0", "id": identity, "error": error})

    def _resolve(self, frame: JsonObject) -> None:
        relayed = self._channel.answered(frame)
        if relayed is None:
            return
        result = frame.get("result")
        if isinstance(result, dict):
            self._learn(relayed.request, result)
        relayed.answered(frame)

    def _learn(self, request: HostRequest, result: JsonObject) -> None:
        method, params = request.method, request.params
        if method == "initialize":
            agreed = result.get("protocolVersion")
            self.version = agreed if isinstance(agreed, str) else ""
            if self._channel.line is not None:
                self._channel.line.version = self.version
        elif method == "tools/list":
            self._schemas.learn(result)
        elif method in {"logging/setLevel", "resources/subscribe"}:
            frame: JsonObject = {"jsonrpc": "2.0", "method": method, "params": params}
            if len(self._settings) < _REMEMBERED:
                self._settings[_subject(params)] = frame
        elif method == "resources/unsubscribe":
            self._settings.pop(_subject(params), None)

    # -- which way to the client ------------------------------------------------------------

    def _tell(self, frame: JsonObject) -> None:
        channel, identity = self._way(frame), frame.get("id")
        asks = isinstance(identity, (int, str))
        if not self._takes(channel, estimate_size(frame)):
            if asks:
                self._refuse(identity, "the client reads nothing at the moment")
            return
        if asks:
            if len(self._asked) >= self._limits.asks:
                # A server may give up a question without a word: those must not add up.
                del self._asked[next(iter(self._asked))]
            self._asked[identity] = channel
        if channel is None:
            self._kept.append(frame)
            self._kept_bytes += estimate_size(frame)
        else:
            channel.send(frame)

    def _takes(self, channel: ResponseChannel | None, size: int) -> bool:
        """Tell whether there is room for one more; what nobody reads is not to pile up."""
        if channel is None:
            taken = len(self._kept) < _KEPT and self._kept_bytes + size <= _UNREAD_BYTES
        elif channel.writable.is_set():
            self._unread = self._unread_bytes = 0
            taken = True
        else:
            self._unread += 1
            self._unread_bytes += size
            taken = self._unread <= _UNREAD and self._unread_bytes <= _UNREAD_BYTES
        if not taken:
            _log.debug("a client reads nothing: what it is told is dropped")
        return taken

    def _way(self, frame: JsonObject) -> ResponseChannel | None:
        method, params = frame.get("method"), frame.get("params")
        given = params if isinstance(params, dict) else {}
        if method == PROGRESS:
            token = given.get("progressToken")
            for relayed in reversed(self._channel.open.values()):
                if relayed.token == token and relayed.request.channel.accepts_notifications:
                    return relayed.request.channel
        if method == CANCELLED:
            identity = given.get("requestId")
            asked = self._asked.pop(identity, None) if isinstance(identity, (int, str)) else None
            if asked is not None and asked.accepts_notifications:
                return asked
        calls = [relayed.request.channel for relayed in reversed(self._channel.open.values())]
        # News concern no call: a client that has a standing stream expects them there.
        news = isinstance(method, str) and method.endswith(("list_changed", "resources/updated"))
        ways = [self._notification_channel, *calls] if news else [*calls, self._notification_channel]
        return next((way for way in ways if way is not None and way.accepts_notifications), None)


def _subject(params: JsonObject) -> str:
    """Say what a setting is about: a resource, or the one level of all."""
    uri = params.get("uri")
    return uri if isinstance(uri, str) else ""
