"""Pending calls of a server: whose call a request or a notification of the server belongs to.

A legacy server sends a request without saying which call it belongs to: `PendingCalls` finds the caller, and refuses to
guess between two.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from indusagi.interop.protocol_bridge.client.handlers import ABANDONED_S
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import RpcError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from indusagi.core.json import JsonValue
    from indusagi.interop.protocol_bridge.client.handlers import Caller
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId
    from indusagi.runtime.calls import UserWait

_ABANDONED_CALLS = 1_000
_WATCHED = frozenset({"resourceSubscriptions", "taskIds"})
MOVED = -32097
"""Code of our own between two nodes: the call has not run, since its server is moved to another node."""
MOVED_DETAIL = FaultDetail(reason="moved")


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call that has no response yet."""

    caller: Caller | None
    request_id: RequestId
    """Of the request that carries it at the moment."""
    wait: UserWait | None = None
    """Where the call counts how long it waits for the user."""


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
        self.idle = asyncio.Event()
        """Set while there is no call."""
        self.idle.set()
        self.is_moving = False
        """Whether the server is about to be moved to another node: new calls are refused, and can be sent again."""
        self.used_at = asyncio.get_running_loop().time()
        """When the last call ended."""
        self._watches = 0
        """Subscriptions to resources and tasks that are open."""

    @property
    def is_used(self) -> bool:
        """Whether a call runs, or a resource or a task is watched."""
        return bool(self._calls or self._watches)

    def build_refusal(self) -> RpcError:
        """Build the error of a call that has not run, since its server is moved."""
        refusal = RpcError(MOVED, "the server is moved to another node")
        refusal.detail = MOVED_DETAIL
        return refusal

    @contextmanager
    def watch(self, notifications: Iterable[str]) -> Generator[None]:
        """Count a subscription inside the block, if it is one to resources or tasks."""
        is_counted = not _WATCHED.isdisjoint(notifications)
        self._watches += is_counted
        try:
            yield
        finally:
            self._watches -= is_counted
            self.used_at = asyncio.get_running_loop().time()

    def add(self, call: PendingCall) -> None:
        """Count a call until it is removed."""
        self._calls[call] = None
        self.idle.clear()

    def remove(self, call: PendingCall) -> None:
        """Forget a call."""
        del self._calls[call]
        self.used_at = asyncio.get_running_loop().time()
        if not self._calls:
            self.idle.set()

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

    def find_wait(self) -> UserWait | None:
        """Find where the call that a request of the server belongs to counts its waits; `None` with several calls."""
        return next(iter(self._calls)).wait if len(self._calls) == 1 else None

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
