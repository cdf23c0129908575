"""What a server may ask of us. Off unless somebody is there to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from indusagi.core.invisible import clean_json
from indusagi.core.json import JsonObject, is_json_object
from indusagi.interop.protocol_bridge.client.tools import ArgumentSpelling
from indusagi.interop.protocol_bridge.rpc.codec import EncodeError, encode_object
from indusagi.interop.protocol_bridge.rpc.connection import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RequestTimeoutError,
    RpcError,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from indusagi.core.json import JsonValue
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId


Handler: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """What a server may ask of us, and hear of. All off unless given."""

    elicit: Handler | None = None
    """Answers `elicitation/create`."""
    sample: Handler | None = None
    """Answers `sampling/createMessage`."""
    roots: Handler | None = None
    """Answers `roots/list`."""
    on_notification: Callable[[str, JsonObject], None] | None = None
    """Hears every notification that is not part of a request of ours (logging, changes, …)."""

    def by_method(self) -> dict[str, Handler]:
        """Map the method a server calls to whoever answers it."""
        table = {"elicitation/create": self.elicit, "sampling/createMessage": self.sample, "roots/list": self.roots}
        return {method: handler for method, handler in table.items() if handler is not None}

    def capabilities(self) -> JsonObject:
        """Say to a server what it may ask."""
        said: JsonObject = {}
        if self.elicit is not None:
            said["elicitation"] = {"form": {}, "url": {}}
        if self.sample is not None:
            said["sampling"] = {}
        if self.roots is not None:
            said["roots"] = {"listChanged": True}
        return said


HOPS = "indusagi/hops"
"""In the `_meta` of a call: through how many gateways of ours it came."""
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
UNKNOWN_CALLER = -32000
ABANDONED_S = 60.0
"""For so long at least a call that nobody waits for may still be the one that asks."""
_MOST_DOUBTS = 1_000


class Caller(Protocol):
    """The client behind one call."""

    @property
    def client(self) -> object | None:
        """The same for calls whose questions go to the same ear; None: this call has its own."""
        ...

    @property
    def capabilities(self) -> JsonObject:
        """What it said it can be asked."""
        ...

    @property
    def hops(self) -> int:
        """Through how many gateways the call has come."""
        ...

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Put a question to it.

        Raises:
            RpcError: It refused, or did not answer.
        """
        ...


current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)
"""Who stands behind the call that this task works for."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call that its server has not answered."""

    caller: Caller | None
    identity: RequestId | None = None
    """Of the request that carries it at the moment."""


@dataclass(slots=True)
class AbandonedCall:
    """A call whose caller has stopped waiting and which its server may still run."""

    client: object | None
    until: float


class PendingCalls:
    """The calls that one server has not answered, those that nobody waits for included."""

    def __init__(self, doubt_s: float = ABANDONED_S) -> None:
        self._doubt_s = doubt_s
        self._calls: dict[PendingCall, None] = {}
        self._left: dict[RequestId, AbandonedCall] = {}
        self._blind_until = 0.0

    @contextmanager
    def call(self) -> Generator[PendingCall]:
        """Count a call as long as the block runs, and as long as its server may go on with it."""
        place = PendingCall(current_caller.get())
        self._calls[place] = None
        try:
            yield place
        except (asyncio.CancelledError, RequestTimeoutError):
            self._leave(place)
            raise
        finally:
            del self._calls[place]

    def _leave(self, place: PendingCall) -> None:
        if place.identity is None:
            return
        now = asyncio.get_running_loop().time()
        self._left = {key: doubt for key, doubt in self._left.items() if doubt.until > now}
        if len(self._left) >= _MOST_DOUBTS:
            # Too many to be kept apart: whoever it is, it may be another.
            self._left.clear()
            self._blind_until = now + self._doubt_s
        client = None if place.caller is None else place.caller.client
        self._left[place.identity] = AbandonedCall(client, now + self._doubt_s)

    def stray(self, identity: JsonValue, said: Literal["answer", "progress"]) -> None:
        """Hear of a request that nobody waits for: the server has answered it, or goes on."""
        if not isinstance(identity, (int, str)):
            return
        if said == "answer":
            self._left.pop(identity, None)
        elif identity in self._left:
            self._left[identity].until = asyncio.get_running_loop().time() + self._doubt_s

    def attributed(self) -> Caller | None:
        """Say whose call a question without an address belongs to; None where that is in doubt."""
        callers = [place.caller for place in self._calls]
        if not callers or callers[-1] is None:
            return None
        newest, now = callers[-1], asyncio.get_running_loop().time()
        others = [None if caller is None else caller.client for caller in callers[:-1]]
        others += [doubt.client for doubt in self._left.values() if doubt.until > now]
        if now < self._blind_until:
            others.append(None)
        same = newest.client is not None and all(client is newest.client for client in others)
        return newest if same or not others else None


def add_caller_meta(caller: Caller, params: JsonObject, offered: JsonObject | None) -> JsonObject:
    """Say through how many hands a request came, and which of the `offered` its client can do."""
    meta: JsonObject = {HOPS: caller.hops + 1}
    if offered is not None:
        able = {key: value for key, value in caller.capabilities.items() if key in offered}
        meta[CAPABILITIES] = able
    return {**params, "_meta": meta}


def forwarding_handlers() -> Handlers:
    """Have what servers ask answered by whoever stands behind the call."""

    async def elicit(params: JsonObject) -> JsonObject:
        return await _asked("elicitation/create", "elicitation", params)

    async def sample(params: JsonObject) -> JsonObject:
        return await _asked("sampling/createMessage", "sampling", params)

    return Handlers(elicit=elicit, sample=sample)


async def _asked(method: str, capability: str, params: JsonObject) -> JsonObject:
    caller = current_caller.get()
    if caller is None:
        said = f"{method} was refused: it cannot be told which client it is meant for"
        raise RpcError(UNKNOWN_CALLER, said)
    if capability not in caller.capabilities:
        raise RpcError(METHOD_NOT_FOUND, f"the client cannot be asked: it has no {capability}")
    shown = cast("JsonObject", clean_json(params)[0])
    spelling = ArgumentSpelling(params.get("requestedSchema"))
    try:
        # The way to the client may be long: what cannot be written there is found out here.
        answer = await caller.ask(method, encode_object(shown))
        content = answer.get("content")
        if method == "elicitation/create" and is_json_object(content):
            return {**answer, "content": spelling.restore(content)}
        return answer
    except EncodeError as exc:
        raise RpcError(INVALID_PARAMS, f"{method} cannot be passed on: {exc}") from exc
