"""Fake transports, for tests that play the server themselves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import anyio
from tests.support.waiting import LIMIT_S

from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import METHOD_NOT_FOUND, RpcError
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import pytest

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import FaultReason
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId

Reply: TypeAlias = "JsonObject | RpcError | None"
"""A result, an error, or silence."""
Script: TypeAlias = "Reply | Callable[[JsonObject], Reply]"
"""A reply to every request, or a function from the parameters to a reply."""


class FakeTransport:
    """Keeps the sent frames; the test delivers the responses."""

    def __init__(self) -> None:
        self.sent: list[JsonObject] = []
        self.details: dict[RequestId, FaultDetail] = {}
        self.writable = asyncio.Event()
        """Cleared, requests wait."""
        self.writable.set()
        self._ended = False
        self._sent_event = asyncio.Event()
        self._on_frame: Callable[[bytes | JsonValue], None] | None = None
        self._on_end: Callable[[TransportEnd], None] | None = None

    # -- for the connection -----------------------------------------------------------------

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        self._on_frame, self._on_end = on_frame, on_end

    def send(self, frame: JsonObject) -> None:
        if not self._ended:
            self.sent.append(frame)
            self._sent_event.set()

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        return self.details.pop(request_id, None)

    # -- for the test -----------------------------------------------------------------------

    def say(self, *frames: bytes | JsonValue) -> None:
        """Deliver frames, one after the other."""
        assert self._on_frame is not None
        for frame in frames:
            self._on_frame(frame)

    def answer(self, identity: JsonValue, result: JsonValue) -> None:
        """Deliver a response."""
        self.say({"jsonrpc": "2.0", "id": identity, "result": result})

    def end(self, message: str = "went away", reason: FaultReason = "closed") -> TransportEnd:
        """End the transport."""
        assert self._on_end is not None
        end = TransportEnd(message, FaultDetail(reason=reason))
        self._ended = True
        self.writable.set()
        self._on_end(end)
        return end

    def heard(self, method: str) -> list[JsonObject]:
        """Return the sent frames of a method."""
        return [frame for frame in self.sent if frame.get("method") == method]

    def replies(self) -> list[JsonObject]:
        """Return the responses to requests of the server."""
        return [frame for frame in self.sent if "method" not in frame]

    async def hears(self, method: str, count: int = 1) -> list[JsonObject]:
        """Wait until `count` frames of a method were sent."""
        with anyio.fail_after(LIMIT_S):
            while len(found := self.heard(method)) < count:
                self._sent_event.clear()
                await self._sent_event.wait()
        return found


class ScriptedTransport(FakeTransport):
    """A scripted server: replies by method, and refuses other methods."""

    def __init__(self, script: Mapping[str, Script]) -> None:
        super().__init__()
        self.script = dict(script)

    def send(self, frame: JsonObject) -> None:
        super().send(frame)
        method, params = frame.get("method"), frame.get("params")
        if isinstance(method, str) and "id" in frame:
            unknown = RpcError(METHOD_NOT_FOUND, f"no {method} here")
            said = self.script.get(method, unknown)
            reply = said(params if isinstance(params, dict) else {}) if callable(said) else said
            asyncio.get_running_loop().call_soon(self._reply, frame["id"], reply)

    def _reply(self, identity: JsonValue, reply: Reply) -> None:
        if isinstance(reply, RpcError):
            error: JsonObject = {"code": reply.code, "message": reply.message}
            if reply.data is not None:
                error["data"] = reply.data
            self.say({"jsonrpc": "2.0", "id": identity, "error": error})
        elif reply is not None:
            self.answer(identity, reply)


def one_after_the_other(*replies: Reply) -> Callable[[JsonObject], Reply]:
    """Reply with each in turn, and then always with the last."""
    left = list(replies)
    return lambda params: left.pop(0) if len(left) > 1 else left[0]


async def outcome_of(waiting: Awaitable[JsonObject]) -> JsonObject | Exception:
    """Return the result, or the exception that was raised."""
    try:
        return await waiting
    except Exception as exc:  # noqa: BLE001 — what it is is for the test to say
        return exc


class LoopTime:
    """A clock that the test moves, so that a slow machine reaches no deadline."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self._ahead_s = 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self._ahead_s)

    async def passes(self, seconds: float) -> None:
        """Move the clock when every task waits, and let the tasks run."""
        await settled()
        self._ahead_s += seconds
        await settled()


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(25):
        await asyncio.sleep(0)
