"""One connection to the server that many clients of the newer protocol share.

Each of their requests stands alone, so only what must be unique on one connection is changed: ids,
progress tokens and, with the ids, subscriptions. What the server says on the way is given to the
request it names. What names none is given to nobody, with one exception: words for the log, while
there is one request only, which has asked for them. A question names none: it is refused.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.relay_request import (
    PROGRESS,
    SUBSCRIPTION,
    Relayed,
    find,
)
from indusagi.interop.protocol_bridge.wire import METHOD_NOT_FOUND

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.host_request import HostRequest
    from indusagi.interop.protocol_bridge.relay_line import Line, Lines
    from indusagi.interop.protocol_bridge.relay_tools import ToolSchemas
    from indusagi.interop.protocol_bridge.wire import RequestId

_log = logging.getLogger(__name__)

VERSION = "io.modelcontextprotocol/protocolVersion"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
_MESSAGE = "notifications/message"
_DOUBT_S = 5.0
"""For so long a request that was cancelled may still be the one that speaks."""


class SharedLine:
    """Hands on requests of many clients over one connection."""

    def __init__(self, lines: Lines, schemas: ToolSchemas) -> None:
        self._lines = lines
        self._schemas = schemas
        self._line: Line | None = None
        self._ids = itertools.count(1)
        self._open: dict[RequestId, Relayed] = {}
        self._doubt_until = 0.0

    # -- what clients say -------------------------------------------------------------------

    def ask(self, request: HostRequest) -> Relayed:
        """Hand a request on.

        Raises:
            RpcError: There is no connection, and none can be made now.
        """
        if self._line is None:
            self._line = self._lines.open(self._received, self._ended)
        relayed = Relayed(request, next(self._ids))
        relayed.on_withdrawn = self._withdrawn
        relayed.on_closed = self._closed
        self._open[relayed.identity] = relayed
        if request.method == "server/discover":
            limits = self._lines.config.limits
            said = f"it did not answer server/discover within {limits.connect_s:g} s"
            relayed.due(limits.connect_s, f"server {self._lines.config.id!r}: {said}")
        self._line.send(relayed.frame(_with_token(relayed)))
        return relayed

    async def close(self) -> None:
        """End the connection."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    def _withdrawn(self, relayed: Relayed) -> None:
        self._doubt_until = asyncio.get_running_loop().time() + _DOUBT_S
        if self._line is not None:
            self._line.send(relayed.withdrawal())

    def _closed(self, relayed: Relayed) -> None:
        self._open.pop(relayed.identity, None)

    # -- what the server says ---------------------------------------------------------------

    def _received(self, frame: JsonObject) -> None:
        method, identity = frame.get("method"), frame.get("id")
        if not isinstance(method, str):
            self._resolve(frame)
        elif isinstance(identity, (int, str)):
            self._refuse(identity, method)
        else:
            self._notice(frame, method)

    def _resolve(self, frame: JsonObject) -> None:
        relayed = find(self._open, frame.get("id"))
        if relayed is None or ("result" not in frame and "error" not in frame):
            return
        result = frame.get("result")
        if isinstance(result, dict):
            if relayed.request.method == "tools/list":
                self._schemas.learn(result)
            if relayed.request.standing:
                frame = {**frame, "result": _renamed(result, SUBSCRIPTION, relayed)}
        relayed.answered(frame)

    def _refuse(self, identity: RequestId, method: str) -> None:
        name = self._lines.config.id
        _log.warning("server %r asks for %s without saying whom: refused", name, method)
        said = f"{method} cannot be passed on: several clients share this connection"
        error: JsonObject = {"code": METHOD_NOT_FOUND, "message": said}
        if self._line is not None:
            self._line.send({"jsonrpc": "2.0", "id": identity, "error": error})

    def _notice(self, frame: JsonObject, method: str) -> None:
        given = frame.get("params")
        params = given if isinstance(given, dict) else {}
        relayed = self._meant(method, params)
        if relayed is None:
            name = self._lines.config.id
            _log.warning("server %r says %s without saying to whom: dropped", name, method)
            return
        carrier = relayed.request.carrier
        if not carrier.room.is_set() and method in {PROGRESS, _MESSAGE}:
            return  # to a client that does not read, steps are not to pile up
        if method == PROGRESS:
            params = {**params, "progressToken": relayed.token}
        elif relayed.request.standing:
            params = _renamed(params, SUBSCRIPTION, relayed)
        if not relayed.request.settled:
            carrier.send({**frame, "params": params} if params else frame)

    def _meant(self, method: str, params: JsonObject) -> Relayed | None:
        if method == PROGRESS:
            found = find(self._open, params.get("progressToken"))
            return found if found is not None and found.token is not None else None
        meta = params.get("_meta")
        named = meta.get(SUBSCRIPTION) if isinstance(meta, dict) else None
        if named is not None:
            found = find(self._open, named)
            return found if found is not None and found.request.standing else None
        return self._only_one() if method == _MESSAGE else None

    def _only_one(self) -> Relayed | None:
        calls = [relayed for relayed in self._open.values() if not relayed.request.standing]
        if len(calls) != 1 or asyncio.get_running_loop().time() < self._doubt_until:
            return None
        return calls[0] if LOG_LEVEL in calls[0].request.meta else None

    def _ended(self, said: str) -> None:
        self._line = None
        for relayed in [*self._open.values()]:
            relayed.failed(said)


def _with_token(relayed: Relayed) -> JsonObject | None:
    """Put an id that is unique here in the place of a client's progress token."""
    if relayed.token is None:
        return None
    meta: JsonObject = {**relayed.request.meta, "progressToken": relayed.identity}
    return {**relayed.request.params, "_meta": meta}


def _renamed(value: JsonObject, key: str, relayed: Relayed) -> JsonObject:
    """Call a subscription what its client calls it."""
    meta: JsonValue = value.get("_meta")
    if not isinstance(meta, dict) or key not in meta:
        return value
    return {**value, "_meta": {**meta, key: relayed.request.identity}}
