"""Who stands behind a call: may be asked on its behalf, and is never confused with another.

A host that serves the tools of servers has clients behind its calls. What a server asks in the
middle of a call is a question for the client that made the call. The newer protocol says which call
that is. On a shared connection of the older one only what runs at the moment tells: where that
leaves a doubt, the question is refused, since an answer of the wrong person is worse than none.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from indusagi.interop.protocol_bridge.handlers import Handlers
from indusagi.interop.protocol_bridge.wire import METHOD_NOT_FOUND, RpcError

if TYPE_CHECKING:
    from collections.abc import Generator

    from indusagi.core.json import JsonObject

HOPS = "indusagi/hops"
"""In the `_meta` of a call: through how many gateways of ours it came."""
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
NOBODY = -32000


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


calling: ContextVar[Caller | None] = ContextVar("calling", default=None)
"""Who stands behind the call that this task works for."""


class InFlight:
    """The calls that one server has not answered."""

    def __init__(self) -> None:
        self._calls: dict[object, Caller | None] = {}

    @contextmanager
    def call(self) -> Generator[Caller | None]:
        """Count a call as long as the block runs, and give who is behind it."""
        place, caller = object(), calling.get()
        self._calls[place] = caller
        try:
            yield caller
        finally:
            del self._calls[place]

    def attributed(self) -> Caller | None:
        """Say whose call a question without an address belongs to; None where that is in doubt."""
        callers = [*self._calls.values()]
        if not callers or callers[-1] is None:
            return None
        newest = callers[-1]
        same = (caller is not None and caller.client is newest.client for caller in callers)
        return newest if len(callers) == 1 or (newest.client is not None and all(same)) else None


def on_behalf(caller: Caller, params: JsonObject, offered: JsonObject | None) -> JsonObject:
    """Say through how many hands a request came, and which of the `offered` its client can do."""
    meta: JsonObject = {HOPS: caller.hops + 1}
    if offered is not None:
        able = {key: value for key, value in caller.capabilities.items() if key in offered}
        meta[CAPABILITIES] = able
    return {**params, "_meta": meta}


def asking_handlers() -> Handlers:
    """Have what servers ask answered by whoever stands behind the call."""

    async def elicit(params: JsonObject) -> JsonObject:
        return await _asked("elicitation/create", "elicitation", params)

    async def sample(params: JsonObject) -> JsonObject:
        return await _asked("sampling/createMessage", "sampling", params)

    return Handlers(elicit=elicit, sample=sample)


async def _asked(method: str, capability: str, params: JsonObject) -> JsonObject:
    caller = calling.get()
    if caller is None:
        said = f"{method} was refused: it cannot be told which client it is meant for"
        raise RpcError(NOBODY, said)
    if capability not in caller.capabilities:
        raise RpcError(METHOD_NOT_FOUND, f"the client cannot be asked: it has no {capability}")
    return await caller.ask(method, params)
