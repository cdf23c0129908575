"""One request to a host: what it asks, who carries its answer, and what may be said on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.host_asking import closed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.host_asking import Questions
    from indusagi.interop.protocol_bridge.wire import RequestId

NO_PARAMS: JsonObject = {}
"""What stands for the params of a message that has none."""


class Work(Protocol):
    """Gives a result when it is awaited; a coroutine, mostly."""

    def __await__(self) -> Generator[object, None, JsonObject]:
        """Wait for the result."""
        ...

    def close(self) -> None:
        """Let go of it: called once, awaited or not, done or not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """What one client may take of us."""

    calls: int = 64
    """Run at the same time; further ones wait in line."""
    waiting: int = 1_024
    """Run or wait in line; further ones are refused."""
    listeners: int = 16
    """Standing requests to hear of changes."""
    asks: int = 64
    """Questions of ours that it has not answered."""
    upstreams: int = 17
    """Connections to the server behind a relay: one for each session, and one that is shared."""
    frame_bytes: int = 16 * 1024 * 1024
    unread_bytes: int = 128 * 1024 * 1024
    """Of answers that wait for a client to read those before; larger ones become an error."""
    linger_s: float = 1.0
    """How long calls may finish after a client has said its last word and still listens."""
    stop_s: float = 5.0
    """How long calls may finish when the host is stopped, before they are cancelled."""


class Refusal(Exception):
    """An error that is answered as it stands."""

    def __init__(self, error: JsonValue) -> None:
        super().__init__("refused")
        self.error = error


class Carrier(Protocol):
    """Takes what is said to a client."""

    @property
    def room(self) -> asyncio.Event:
        """Set while it can take more."""
        ...

    @property
    def hears(self) -> bool:
        """Whether the client would read more here than the answer it waits for."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Put a frame on its way; nothing happens when the client is gone."""
        ...


@dataclass(slots=True, eq=False)
class HostRequest:
    """One request that waits for its answer."""

    identity: RequestId
    method: str
    params: JsonObject
    carrier: Carrier
    questions: Questions
    cancel: CancelToken = field(default_factory=CancelToken)
    standing: bool = False
    """It stays for as long as the client likes, and takes nobody's place."""
    elsewhere: bool = False
    """Somebody else works on it: it waits in no line of ours."""
    released: bool = False
    """It was ended by us, in good order: it is answered all the same."""
    settled: bool = False
    on_settled: Callable[[], None] | None = None

    @property
    def meta(self) -> JsonObject:
        """What was sent along with it."""
        found = self.params.get("_meta")
        return found if isinstance(found, dict) else {}

    def tell(self, method: str, params: JsonObject) -> None:
        """Say something on the way to the answer; nothing is said after it."""
        if not self.settled:
            self.carrier.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def ask(
        self, method: str, params: JsonObject | None = None, *, within_s: float
    ) -> JsonObject:
        """Ask its client something on the way to the answer.

        Raises:
            RpcError: The client refused, or was asked too much.
            BadAnswer: It answered with something else than an object.
            WireTimeout: It did not answer in time, and was told that nobody waits.
            WireClosed: It is gone, hears nothing here, or wants no answer any more.
        """
        with self.cancel.guard():
            return await self.questions.ask(method, params, self.carrier, within_s)
        raise closed("the request was cancelled")

    def settle(self, frame: JsonObject | None = None) -> None:
        """Answer, unless nobody wants it any more."""
        if self.settled:
            return
        if frame is not None and (self.released or not self.cancel.cancelled):
            self.carrier.send(frame)
        self.settled = True
        if self.on_settled is not None:
            self.on_settled()
