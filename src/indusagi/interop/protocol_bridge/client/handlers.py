"""Requests that a server sends to its client (elicitation, sampling, roots), and the calls they belong to.

Each kind of request is off unless it has a handler. A legacy server sends a request without saying which call it
belongs to: `PendingCalls` finds the caller, and refuses to guess between two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from indusagi.core.invisible import clean_json
from indusagi.core.json import JsonObject, is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.tools import ArgumentSpelling
from indusagi.interop.protocol_bridge.rpc.codec import EncodeError, encode_object
from indusagi.interop.protocol_bridge.rpc.errors import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId


Handler: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]

HOPS = "indusagi/hops"
"""Key in the `_meta` of a call: how many gateways of ours it has passed."""
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
UNKNOWN_CALLER = -32000
ABANDONED_S = 60.0
"""How long, at least, an abandoned call counts as one that a request of the server may belong to."""
_ABANDONED_CALLS = 1_000


@record(kw_only=True)
class Handlers:
    """Handlers for requests and notifications of a server; each is off unless given."""

    elicit: Handler | None = None
    """Answers `elicitation/create`: https://modelcontextprotocol.io/specification/2025-06-18/client/elicitation."""
    sample: Handler | None = None
    """Answers `sampling/createMessage`: https://modelcontextprotocol.io/specification/2025-06-18/client/sampling."""
    roots: Handler | None = None
    """Answers `roots/list`: https://modelcontextprotocol.io/specification/2025-06-18/client/roots."""
    on_notification: Callable[[str, JsonObject], None] | None = None
    """Receives every notification that belongs to no request of ours (logging, changes, …)."""

    def by_method(self) -> dict[str, Handler]:
        """Map each method that has a handler to it."""
        table = {"elicitation/create": self.elicit, "sampling/createMessage": self.sample, "roots/list": self.roots}
        return {method: handler for method, handler in table.items() if handler is not None}

    def capabilities(self) -> JsonObject:
        """Build the client capabilities that these handlers allow."""
        capabilities: JsonObject = {}
        if self.elicit is not None:
            capabilities["elicitation"] = {"form": {}, "url": {}}
        if self.sample is not None:
            capabilities["sampling"] = {}
        if self.roots is not None:
            capabilities["roots"] = {"listChanged": True}
        return capabilities


class Caller(Protocol):
    """The client behind one call."""

    @property
    def client(self) -> object | None:
        """Equal for calls of the same client; `None`: this call shares its client with no other."""
        ...

    @property
    def capabilities(self) -> JsonObject:
        """The capabilities that the client has declared."""
        ...

    @property
    def hops(self) -> int:
        """How many gateways the call has passed."""
        ...

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Send a request to the client.

        Raises:
            RpcError: It refused, or did not respond.
        """
        ...


current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)
"""The caller of the call that this task works for."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call that has no response yet."""

    caller: Caller | None
    request_id: RequestId
    """Of the request that carries it at the moment."""


@dataclass(slots=True)
class AbandonedCall:
    """A call whose caller has stopped waiting and which its server may still run."""

    client: object | None
    until: float


class PendingCalls:
    """The calls of one server that have no response, with the abandoned ones of the last `abandoned_s` seconds."""

    def __init__(self, abandoned_s: float = ABANDONED_S) -> None:
        self._abandoned_s = abandoned_s
        self._calls: dict[PendingCall, None] = {}
        self._abandoned: dict[RequestId, AbandonedCall] = {}
        self._ambiguous_until = 0.0

    def add(self, call: PendingCall) -> None:
        """Count a call until it is removed."""
        self._calls[call] = None

    def remove(self, call: PendingCall) -> None:
        """Forget a call."""
        del self._calls[call]

    def abandon(self, call: PendingCall) -> None:
        """Keep a call that its caller no longer waits for: its server may go on with it."""
        now = asyncio.get_running_loop().time()
        self._abandoned = {key: abandoned for key, abandoned in self._abandoned.items() if abandoned.until > now}
        if len(self._abandoned) >= _ABANDONED_CALLS:
            # Too many to keep: until they expire, any request may belong to one of them.
            self._abandoned.clear()
            self._ambiguous_until = now + self._abandoned_s
        client = None if call.caller is None else call.caller.client
        self._abandoned[call.request_id] = AbandonedCall(client, now + self._abandoned_s)

    def on_unmatched(self, identity: JsonValue, kind: Literal["response", "progress"]) -> None:
        """Update an abandoned call: the server has responded to it, or is still working on it."""
        if not isinstance(identity, (int, str)):
            return
        if kind == "response":
            self._abandoned.pop(identity, None)
        elif identity in self._abandoned:
            self._abandoned[identity].until = asyncio.get_running_loop().time() + self._abandoned_s

    def find_caller(self) -> Caller | None:
        """Find the caller that a request of the server belongs to; `None` if it may belong to several clients."""
        callers = [call.caller for call in self._calls]
        if not callers or callers[-1] is None:
            return None
        newest, now = callers[-1], asyncio.get_running_loop().time()
        others = [None if caller is None else caller.client for caller in callers[:-1]]
        others += [abandoned.client for abandoned in self._abandoned.values() if abandoned.until > now]
        if now < self._ambiguous_until:
            others.append(None)
        is_same = newest.client is not None and all(client is newest.client for client in others)
        return newest if is_same or not others else None


def add_caller_meta(caller: Caller, params: JsonObject, offered: JsonObject | None) -> JsonObject:
    """Add the hop count of a call, and which of the `offered` capabilities its caller has."""
    meta: JsonObject = {HOPS: caller.hops + 1}
    if offered is not None:
        meta[CAPABILITIES] = {key: value for key, value in caller.capabilities.items() if key in offered}
    return {**params, "_meta": meta}


def forwarding_handlers() -> Handlers:
    """Build handlers that forward requests of servers to the client behind the call."""
    return Handlers(
        elicit=partial(_forward, "elicitation/create", "elicitation"),
        sample=partial(_forward, "sampling/createMessage", "sampling"),
    )


async def _forward(method: str, capability: str, params: JsonObject) -> JsonObject:
    caller = current_caller.get()
    if caller is None:
        raise RpcError(UNKNOWN_CALLER, f"{method} was refused: it cannot be told which client it is meant for")
    if capability not in caller.capabilities:
        raise RpcError(METHOD_NOT_FOUND, f"the client cannot be asked: it has no {capability}")
    shown = cast("JsonObject", clean_json(params)[0])
    spelling = ArgumentSpelling(params.get("requestedSchema"))
    try:
        # Encoded here, so that a number that JSON cannot carry fails this request alone.
        result = await caller.ask(method, encode_object(shown))
        content = result.get("content")
        if method == "elicitation/create" and is_json_object(content):
            return {**result, "content": spelling.restore(content)}
        return result
    except EncodeError as exc:
        raise RpcError(INVALID_PARAMS, f"{method} cannot be passed on: {exc}") from exc
