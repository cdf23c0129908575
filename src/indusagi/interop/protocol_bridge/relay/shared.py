"""One connection to the server that many clients of the newer protocol share.

Each of their requests stands alone, so only what must be unique on one connection is changed: ids,
progress tokens and, with the ids, subscriptions. What the server says on the way is given to the
request it names. What names none is given to nobody, with one exception: words for the log, while
there is one request only, which has asked for them. A question names none: it is refused.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.client.handlers import ABANDONED_S
from indusagi.interop.protocol_bridge.relay.upstream import PROGRESS, SUBSCRIPTION, RateLimitedLog, RequestForwarder
from indusagi.interop.protocol_bridge.rpc.codec import encode_object
from indusagi.interop.protocol_bridge.rpc.connection import METHOD_NOT_FOUND, RpcError

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host.dispatcher import HostRequest
    from indusagi.interop.protocol_bridge.relay.upstream import (
        ReconnectBackoff,
        RelayedRequest,
        ToolSchemas,
        UpstreamPool,
    )
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId

VERSION = "io.modelcontextprotocol/protocolVersion"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
_MESSAGE = "notifications/message"
_INVALID_PARAMS = -32602
_TOO_LARGE = "it holds a number that is too large to be written again"


class SharedUpstream:
    """Hands on requests of many clients over one connection."""

    def __init__(self, lines: UpstreamPool, backoff: ReconnectBackoff, schemas: ToolSchemas) -> None:
        self._warnings = RateLimitedLog(lines.config.id)
        self._schemas = schemas
        self._channel = RequestForwarder(lines, backoff, self._received)
        self._ids = itertools.count(1)

    def ask(self, request: HostRequest) -> RelayedRequest:
        """Hand a request on.

        Raises:
            RpcError: There is no connection, and none can be made now; or it cannot be written.
        """
        self._channel.ready()
        identity = next(self._ids)
        try:
            params = _with_token(request, identity)
        except ValueError:
            raise RpcError(_INVALID_PARAMS, _TOO_LARGE) from None
        return self._channel.hand_on(request, identity, params)

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    # -- what the server says ---------------------------------------------------------------

    def _received(self, frame: JsonObject) -> None:
        method, identity = frame.get("method"), frame.get("id")
        try:
            if not isinstance(method, str):
                self._resolve(frame)
            elif isinstance(identity, (int, str)):
                self._refuse(identity, method)
            else:
                self._notice(frame, method)
        except ValueError:
            self._warnings.add(f"says something that is dropped: {_TOO_LARGE}")

    def _resolve(self, frame: JsonObject) -> None:
        relayed = self._channel.answered(frame)
        if relayed is None:
            return
        result = frame.get("result")
        if isinstance(result, dict):
            if relayed.request.method == "tools/list":
                self._schemas.learn(result)
            if relayed.request.is_subscription:
                frame = {**frame, "result": _renamed(result, relayed)}
        relayed.answered(frame)

    def _refuse(self, identity: RequestId, method: str) -> None:
        self._warnings.add(f"asks without saying whom, and is refused: {method}")
        said = f"{method} cannot be passed on: several clients share this connection"
        error: JsonObject = {"code": METHOD_NOT_FOUND, "message": said}
        self._channel.send({"jsonrpc": "2.0", "id": identity, "error": error})

    def _notice(self, frame: JsonObject, method: str) -> None:
        given = frame.get("params")
        params = given if isinstance(given, dict) else {}
        relayed = self._meant(method, params)
        if relayed is None:
            self._warnings.add(f"says something to nobody, which is dropped: {method}")
            return
        request = relayed.request
        if method in {PROGRESS, _MESSAGE} and not request.channel.writable.is_set():
            return  # to a client that does not read, steps are not to pile up
        if not request.is_answered:
            request.channel.send({**frame, "params": _addressed(params, relayed)})

    def _meant(self, method: str, params: JsonObject) -> RelayedRequest | None:
        if method == PROGRESS:
            found = self._channel.find(params.get("progressToken"))
            return found if found is not None and found.token is not None else None
        meta = params.get("_meta")
        named = meta.get(SUBSCRIPTION) if isinstance(meta, dict) else None
        if named is not None:
            found = self._channel.find(named)
            return found if found is not None and found.request.is_subscription else None
        return self._only_one() if method == _MESSAGE else None

    def _only_one(self) -> RelayedRequest | None:
        calls = [one for one in self._channel.open.values() if not one.request.is_subscription]
        clear_s = asyncio.get_running_loop().time() - self._channel.withdrawn_at
        if len(calls) != 1 or clear_s < ABANDONED_S:
            return None
        return calls[0] if LOG_LEVEL in calls[0].request.meta else None


def _with_token(request: HostRequest, identity: RequestId) -> JsonObject | None:
    """Put an id that is unique here in the place of a client's progress token."""
    if request.meta.get("progressToken") is None:
        return None
    return encode_object({**request.params, "_meta": {**request.meta, "progressToken": identity}})


def _addressed(params: JsonObject, relayed: RelayedRequest) -> JsonObject:
    """Write a notice in the words of its client."""
    if "progressToken" in params and relayed.token is not None:
        return encode_object({**params, "progressToken": relayed.token})
    return _renamed(params, relayed) if relayed.request.is_subscription else params


def _renamed(value: JsonObject, relayed: RelayedRequest) -> JsonObject:
    """Call a subscription what its client calls it."""
    meta = value.get("_meta")
    if not isinstance(meta, dict) or SUBSCRIPTION not in meta:
        return value
    return encode_object({**value, "_meta": {**meta, SUBSCRIPTION: relayed.request.id}})
