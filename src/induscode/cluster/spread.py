"""Spread transport: one connection to all replicas of a server.

Each request goes to the replica with the fewest pending requests; a cancellation, and the answer to a replica's own
request, goes where it belongs. A replica that is lost fails the requests that were sent to it, whose outcome is
unknown, and no others. The transport ends with its last replica, unless this node runs one itself, which it reaches
soon: requests wait for that. Other nodes may have calls there, which the end of this transport would cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.client.pending import MOVED
from indusagi.interop.protocol_bridge.client.session import LISTEN_PREFIX
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.transport import (
    BaseTransport,
    decode_frame,
    find_cancelled_id,
    find_request_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId, TransportEnd
    from induscode.cluster.channel import Channel

_LOST = -32000
_CLOSED = FaultDetail(reason="closed")


class SpreadTransport(BaseTransport):
    """A transport over the channels to the replicas of a server."""

    def __init__(self) -> None:
        super().__init__()
        self._channels: dict[str, Channel] = {}
        """By the name of the replica."""
        self._pending: dict[str, set[RequestId]] = {}
        self._leaving: set[str] = set()
        """Replicas that take no further request."""
        self._failed: dict[RequestId, FaultDetail] = {}
        self._waiting: dict[RequestId, JsonObject] = {}
        """Requests that wait for the replica of this node."""
        self._last_end: TransportEnd | None = None
        """Why the last replica was lost, while that of this node isn't reached yet."""
        self._is_kept = False
        self.losses = 0
        """How many replicas were lost."""

    @property
    def replicas(self) -> Iterable[str]:
        """The names of the connected replicas."""
        return self._channels.keys()

    def add(self, name: str, channel: Channel) -> None:
        """Use one more replica."""
        self._channels[name] = channel
        self._pending[name] = set()
        channel.attach(lambda data: self._receive(name, data), lambda end: self._lose(name, end))
        self._last_end = None
        waiting, self._waiting = self._waiting, {}
        for identity, frame in waiting.items():
            self._send_request(identity, frame)

    def keep(self, *, is_kept: bool) -> None:
        """Say whether this node runs a replica itself; without one, the transport ends with the last other."""
        self._is_kept = is_kept
        if not is_kept and self._last_end is not None:
            self.finish(self._last_end.message, self._last_end.detail)

    def send(self, frame: JsonObject) -> None:
        """Send a frame to the replica it is for."""
        identity = find_request_id(frame)
        if identity is not None:
            self._send_request(identity, frame)
        elif (cancelled := find_cancelled_id(frame)) is not None:
            self._waiting.pop(cancelled, None)
            for name, pending in self._pending.items():
                if cancelled in pending:
                    self._channels[name].send(frame)
        elif "method" in frame:
            for channel in self._channels.values():
                channel.send(frame)
        else:
            name, _, number = str(frame.get("id")).partition(" ")
            if name in self._channels:
                is_number, text = number[:1] == "#", number[1:]
                self._channels[name].send({**frame, "id": int(text) if is_number else text})

    def _send_request(self, identity: RequestId, frame: JsonObject) -> None:
        names = [name for name in self._channels if name not in self._leaving] or [*self._channels]
        if names:
            # The first of equal ones is the one that was chosen least recently.
            name = min(names, key=lambda name: len(self._pending[name]))
            self._channels[name] = self._channels.pop(name)
            self._pending[name].add(identity)
            self._channels[name].send(frame)
        else:
            self._waiting[identity] = frame

    def _receive(self, name: str, data: bytes | JsonValue) -> None:
        try:
            frame = decode_frame(data) if isinstance(data, bytes) else data
        except (ValueError, RecursionError):
            self.deliver(data)  # the connection counts it as invalid
            return
        if not is_json_object(frame):
            self.deliver(frame)
        elif "method" not in frame:
            identity, error = frame.get("id"), frame.get("error")
            if isinstance(identity, (int, str)):
                self._pending[name].discard(identity)
            if is_json_object(error) and error.get("code") == MOVED:
                self._leaving.add(name)
            self.deliver(frame)
        elif "id" in frame:
            identity = frame["id"]
            mark = "#" if isinstance(identity, int) else "="
            self.deliver({**frame, "id": f"{name} {mark}{identity}"})
        else:
            self.deliver(frame)

    def _lose(self, name: str, end: TransportEnd) -> None:
        self._channels.pop(name, None)
        self._leaving.discard(name)
        lost = self._pending.pop(name, set())
        self.losses += 1
        if not self._channels:
            if not self._is_kept:
                self.finish(end.message, end.detail)
                return
            self._last_end = end
        for identity in lost:
            if str(identity).startswith(LISTEN_PREFIX):
                # The subscription has ended, as any does some time: it is opened again, at another replica.
                self.deliver({"jsonrpc": "2.0", "id": identity, "result": {"resultType": "complete"}})
                continue
            self._failed[identity] = _CLOSED
            error: JsonObject = {"code": _LOST, "message": f"its replica {end.message}"}
            self.deliver({"jsonrpc": "2.0", "id": identity, "error": error})

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget what is known about a request whose replica was lost."""
        return self._failed.pop(request_id, None)

    async def close(self) -> None:
        """Close the channels."""
        for channel in [*self._channels.values()]:
            await channel.close()
