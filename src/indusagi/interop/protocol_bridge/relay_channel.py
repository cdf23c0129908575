"""A connection of a relay, as long as there is one, and the requests handed on over it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.relay_line import UNAVAILABLE
from indusagi.interop.protocol_bridge.relay_request import Relayed
from indusagi.interop.protocol_bridge.wire import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.host_request import HostRequest
    from indusagi.interop.protocol_bridge.relay_line import Line, Lines, Pace
    from indusagi.interop.protocol_bridge.wire import RequestId

_DISCOVER = "server/discover"
_LONGEST_NUMBER = 15


class Channel:
    """Hands requests on, and finds them again when something comes back."""

    def __init__(self, lines: Lines, pace: Pace, on_frame: Callable[[JsonObject], None]) -> None:
        self.open: dict[RequestId, Relayed] = {}
        """By the ids under which the server knows them, the newest last."""
        self.line: Line | None = None
        self.withdrawn_at = float("-inf")
        """When a request was withdrawn last, by the clock of the loop."""
        self._lines = lines
        self._pace = pace
        self._on_frame = on_frame
        self._spent: list[Line] = []
        self._over = False

    def ready(self, greeting: Sequence[JsonObject] = ()) -> Line:
        """Give the connection; if there is none, begin one with a greeting.

        Raises:
            RpcError: None can be made now, or ever again.
        """
        if self._over:
            raise RpcError(UNAVAILABLE, "the relay has ended")
        if self.line is None:
            self.line = self._lines.open(self._on_frame, self._ended, self._pace, greeting)
        return self.line

    def hand_on(
        self, request: HostRequest, identity: RequestId, params: JsonObject | None = None
    ) -> Relayed:
        """Hand a request on, as it is or with other params; the connection is there.

        Raises:
            RpcError: The server reads nothing, and much waits for it already.
        """
        relayed = Relayed(request, identity, self._withdrawn, self._closed)
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

    def find(self, identity: JsonValue) -> Relayed | None:
        """Find a request, also where a number comes back as `1.0` or `"1"`."""
        if isinstance(identity, float) and identity.is_integer():
            identity = int(identity)
        if not isinstance(identity, (int, str)) or isinstance(identity, bool):
            return None
        found = self.open.get(identity)
        if found is None and isinstance(identity, str) and _is_number(identity):
            return self.open.get(int(identity))
        return found

    def answered(self, frame: JsonObject) -> Relayed | None:
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

    def _withdrawn(self, relayed: Relayed) -> None:
        self.withdrawn_at = asyncio.get_running_loop().time()
        # Both protocols forbid to cancel the first request.
        if relayed.request.method != "initialize":
            self.send(relayed.withdrawal())

    def _closed(self, relayed: Relayed) -> None:
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
