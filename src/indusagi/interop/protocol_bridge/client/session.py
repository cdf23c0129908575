"""MCP on a wire: both eras, lists, calls, rounds of input, change notices.

The older protocol shakes hands (`initialize`) and lets a server push requests; the newer one has no
handshake, stamps every request, and answers "input required" instead of pushing. A `ClientSession` finds out
which of the two its server speaks and hides the difference. Results are plain dicts, as they came.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.interop.protocol_bridge.client.handlers import (
    ABANDONED_S,
    Handlers,
    PendingCall,
    PendingCalls,
    add_caller_meta,
    current_caller,
)
from indusagi.interop.protocol_bridge.contract import ServerLimits
from indusagi.interop.protocol_bridge.rpc.codec import EncodeError
from indusagi.interop.protocol_bridge.rpc.connection import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ConnectionClosedError,
    InvalidResponseError,
    JsonRpcConnection,
    OnProgress,
    RequestId,
    RequestTimeoutError,
    RpcError,
    Transport,
)
from indusagi.interop.protocol_bridge.rpc.errors import (
    UNSUPPORTED_VERSION,
    VersionMismatchError,
    is_final,
    names_versions,
    requires_modern,
    supported,
)

Era: TypeAlias = Literal["modern", "legacy"]
Asking: TypeAlias = Coroutine[object, object, JsonObject]
"""A question on its way; handed on as it is, since every coroutine around it would cost time."""

MODERN_VERSIONS = ("2026-07-28",)
LEGACY_VERSIONS = ("2024-10-07", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
INPUT_ROUNDS = 10
"""How often one call may come back with a question."""
_EMPTY_ROUND_PAUSE_S = 0.1
"""A server that asks for nothing and wants to be asked again is not asked at full speed."""
_MOST_NOTES = 100
_MORE_NOTES = "there is more of this kind, which is not listed"
_STAMP = "io.modelcontextprotocol/"
_listen_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server said about itself when it was met."""

    era: Era
    version: str
    answer: JsonObject = field(default_factory=dict[str, "JsonValue"])
    """Its `initialize` or `server/discover` result, verbatim."""

    @property
    def server_info(self) -> JsonObject | None:
        """The `Implementation` object of the server: `serverInfo`, or its place in `_meta`.

        Revision 2026-07-28 moved it to `_meta["io.modelcontextprotocol/serverInfo"]`.
        """
        meta = self.answer.get("_meta")
        modern = meta.get(f"{_STAMP}serverInfo") if is_json_object(meta) else None
        info = self.answer.get("serverInfo", modern)
        return info if is_json_object(info) else None

    @property
    def capabilities(self) -> JsonObject:
        """What it offers."""
        found = self.answer.get("capabilities")
        return found if isinstance(found, dict) else {}

    def offers(self, subject: str, feature: str | None = None) -> bool:
        """Tell whether it offers `tools`, or `tools` with `listChanged`."""
        found = self.capabilities.get(subject)
        if feature is None:
            return isinstance(found, dict)
        return isinstance(found, dict) and found.get(feature) is True


class ClientSession:
    """A server at the other end of a link."""

    def __init__(
        self,
        link: Transport,
        limits: ServerLimits,
        handlers: Handlers,
        client_info: JsonObject,
        *,
        on_invalid_frame: Callable[[bytes], None] | None = None,
    ) -> None:
        self.facts: ServerFacts | None = None
        self.on_tools_changed: Callable[[], None] = _nothing
        self.notes: list[str] = []
        self._limits = limits
        self._handlers = handlers
        self._answers = handlers.by_method()
        self._info = client_info
        # So long a call may be silent: a server that goes on with one may be as late as that.
        self._in_flight = PendingCalls(max(ABANDONED_S, limits.call_idle_s))
        self.wire = JsonRpcConnection(
            link,
            on_request=self._pushed if self._answers else None,
            on_notify=self._notified,
            on_unmatched=self._in_flight.stray,
            in_flight=limits.in_flight,
            inbound=limits.inbound,
            on_invalid_frame=on_invalid_frame,
        )

    # -- meeting ----------------------------------------------------------------------------

    async def connect(self, first: Era = "modern") -> ServerFacts:
        """Find out what the server speaks; the caller sets the deadline.

        Asked in the modern way first, a server that stays silent is asked in the old way too, and
        the first good answer decides.

        Raises:
            RpcError: It refused.
            VersionMismatchError: It speaks another version.
            ConnectionClosedError: It went away.
        """
        self.facts = await (self._initialize() if first == "legacy" else self._negotiate())
        if self.facts.era == "legacy":
            self.wire.notify("notifications/initialized")
        return self.facts

    async def _negotiate(self) -> ServerFacts:
        loop = asyncio.get_running_loop()
        # Both tasks are owned by this method: it does not return before they have ended.
        discover = loop.create_task(self._discover())
        initialize: asyncio.Task[ServerFacts] | None = None
        try:
            await asyncio.wait({discover}, timeout=self._limits.probe_s)
            if discover.done() and is_final(discover.exception()):
                return discover.result()
            initialize = loop.create_task(self._initialize())
            return await self._first_good(discover, initialize)
        finally:
            tasks = [task for task in (discover, initialize) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _first_good(
        self, discover: asyncio.Task[ServerFacts], initialize: asyncio.Task[ServerFacts]
    ) -> ServerFacts:
        waiting = {discover, initialize}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in (discover, initialize):  # of two good answers the modern one
                if task in done and task.exception() is None:
                    return task.result()
            if initialize in done and requires_modern(initialize.exception()):
                # Our first question made it choose the modern protocol: ask again in that way.
                return await self._discover()
        # The refusal of the old handshake tells more than that of a method it may not know.
        raise (discover.exception() if names_versions(discover.exception()) else initialize.exception())  # type: ignore[misc]

    async def _discover(self) -> ServerFacts:
        try:
            answer = await self._ask_for_versions(MODERN_VERSIONS[-1])
        except RpcError as exc:
            theirs = supported(exc)
            common = [v for v in MODERN_VERSIONS if v in theirs]
            if exc.code != UNSUPPORTED_VERSION or not common:
                raise
            answer = await self._ask_for_versions(common[-1])
        offered = answer.get("supportedVersions")
        theirs = offered if isinstance(offered, list) else []
        common = [v for v in MODERN_VERSIONS if v in theirs]
        if not common:
            raise VersionMismatchError(_mismatch(theirs))
        return ServerFacts("modern", common[-1], answer)

    async def _ask_for_versions(self, version: str) -> JsonObject:
        params: JsonObject = {"_meta": self._stamp(version)}
        return await self._wait_for("server/discover", params)

    async def _initialize(self) -> ServerFacts:
        params: JsonObject = {
            "protocolVersion": LEGACY_VERSIONS[-1],
            "capabilities": self._handlers.capabilities(),
            "clientInfo": self._info,
        }
        answer = await self._wait_for("initialize", params)
        version = answer.get("protocolVersion")
        if version not in LEGACY_VERSIONS:
            raise VersionMismatchError(_mismatch([version]))
        return ServerFacts("legacy", str(version), answer)

    async def _wait_for(self, method: str, params: JsonObject) -> JsonObject:
        # No cancel notice: both protocols forbid to cancel the first request.
        return await self.wire.request(method, params, idle_s=math.inf, cancellable=False)

    # -- asking -----------------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        idle_s: float,
        hard_s: float | None = None,
        on_progress: OnProgress | None = None,
        request_id: RequestId | None = None,
    ) -> Asking:
        """Ask anything of the server, stamped as its era wants it."""
        return self.wire.request(
            method, self._stamped(params), idle_s=idle_s, hard_s=hard_s, on_progress=on_progress, request_id=request_id
        )

    async def pages(self, method: str, key: str) -> Sequence[JsonValue]:
        """Read a list page by page, within the limits; what was left out is noted.

        Raises:
            InvalidResponseError: A page is no list.
        """
        rows: list[JsonValue] = []
        cursor: JsonValue = None
        seen: set[str] = set()
        async with _within(self._limits.list_s, method):
            for _ in range(self._limits.pages):
                params: JsonObject = {} if cursor is None else {"cursor": cursor}
                answer = await self.request(method, params, idle_s=self._limits.list_s)
                page = answer.get(key)
                if not isinstance(page, list):
                    raise InvalidResponseError(f"{method} answered without a list of {key}")
                rows.extend(page)
                cursor = answer.get("nextCursor")
                if not isinstance(cursor, str) or not cursor:
                    return rows
                if cursor in seen:
                    self.note(f"{method} repeats its pages; the rest was left out")
                    return rows
                seen.add(cursor)
        self.note(f"{method} has more than {self._limits.pages} pages; the rest was left out")
        return rows

    def note(self, note: str) -> None:
        """Note what is odd about the server, each thing once; of very many, the first."""
        said = note if len(self.notes) < _MOST_NOTES else _MORE_NOTES
        if note not in self.notes and said not in self.notes:
            self.notes.append(said)

    def call_tool(self, name: str, arguments: JsonObject, *, on_progress: OnProgress | None = None) -> Asking:
        """Call a tool, and answer what it asks on the way if somebody is there to do so.

        Raises:
            RpcError: It refused, or asked for what is not allowed here.
            InvalidResponseError: It asked too often.
        """
        call: JsonObject = {"name": name, "arguments": arguments}
        return self.with_input("tools/call", call, on_progress=on_progress)

    async def with_input(self, method: str, params: JsonObject, *, on_progress: OnProgress | None = None) -> JsonObject:
        """Ask something that may come back with questions, and go on until it is answered."""
        with self._in_flight.call() as place:
            if place.caller is not None:
                modern = self.facts is not None and self.facts.era == "modern"
                able = self._handlers.capabilities() if modern else None
                params = add_caller_meta(place.caller, params, able)
            ask = partial(self._ask, place, method, on_progress)
            try:
                answer = await ask(params)
            except EncodeError as exc:
                raise RpcError(INVALID_PARAMS, f"it cannot be sent: {exc}") from exc
            if answer.get("resultType") == "input_required":
                async with _within(self._limits.call_hard_s, method):
                    answer = await self._with_answers(ask, params, answer)
        kind = answer.get("resultType") or "complete"
        if kind != "complete":
            raise InvalidResponseError(f"{method} answered with a result of type {kind!r}")
        return answer

    def _ask(self, place: PendingCall, method: str, on_progress: OnProgress | None, params: JsonObject) -> Asking:
        limits = self._limits
        place.identity = next(self.wire.ids)
        return self.request(
            method,
            params,
            idle_s=limits.call_idle_s,
            hard_s=limits.call_hard_s,
            on_progress=on_progress,
            request_id=place.identity,
        )

    async def _with_answers(
        self, ask: Callable[[JsonObject], Asking], params: JsonObject, answer: JsonObject
    ) -> JsonObject:
        """Answer what is asked, round by round."""
        for _ in range(INPUT_ROUNDS):
            asked: JsonObject = {**params, "inputResponses": await self._input(answer)}
            if "requestState" in answer:
                asked["requestState"] = answer["requestState"]
            answer = await ask(asked)
            if answer.get("resultType") != "input_required":
                return answer
        raise InvalidResponseError(f"it asked for input more than {INPUT_ROUNDS} times")

    async def _input(self, answer: JsonObject) -> JsonObject:
        questions = answer.get("inputRequests")
        if not isinstance(questions, dict) or not questions:
            await asyncio.sleep(_EMPTY_ROUND_PAUSE_S)
            return {}
        answers: JsonObject = {}
        for key, question in questions.items():
            asked = question if isinstance(question, dict) else {}
            params = asked.get("params")
            answers[key] = await self._requested(str(asked.get("method")), params if isinstance(params, dict) else {})
        return answers

    async def listen(self, **notices: JsonValue) -> None:
        """Hear of changes until the server or the link ends it; legacy servers tell unasked."""
        params: JsonObject = {"notifications": dict(notices)}
        identity = f"listen-{next(_listen_ids)}"
        await self.request("subscriptions/listen", params, idle_s=math.inf, request_id=identity)

    def end_error(self) -> ConnectionClosedError:
        """Say why the link ended; only after it has."""
        return ConnectionClosedError(self.wire.ended.result())

    async def close(self) -> None:
        """Stop answering the server."""
        await self.wire.close()

    # -- being asked ------------------------------------------------------------------------

    async def _pushed(self, method: str, params: JsonObject) -> JsonObject:
        # A task of the wire's own: whoever it would inherit has nothing to do with the question.
        current_caller.set(self._in_flight.attributed())
        return await self._requested(method, params)

    async def _requested(self, method: str, params: JsonObject) -> JsonObject:
        handler = self._answers.get(method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"{method} is not allowed here")
        return await handler(params)

    def _notified(self, method: str, params: JsonObject) -> None:
        if method == "notifications/tools/list_changed":
            self.on_tools_changed()
        if self._handlers.on_notification is not None:
            self._handlers.on_notification(method, params)

    # -- stamps -----------------------------------------------------------------------------

    def _stamp(self, version: str) -> JsonObject:
        return {
            f"{_STAMP}protocolVersion": version,
            f"{_STAMP}clientInfo": self._info,
            f"{_STAMP}clientCapabilities": self._handlers.capabilities(),
        }

    def _stamped(self, params: JsonObject | None) -> JsonObject | None:
        if self.facts is None or self.facts.era == "legacy":
            return params
        meta = (params or {}).get("_meta")
        own = meta if isinstance(meta, dict) else {}
        return {**(params or {}), "_meta": {**self._stamp(self.facts.version), **own}}


@asynccontextmanager
async def _within(limit_s: float, method: str) -> AsyncGenerator[None]:
    """Bound several requests together."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise RequestTimeoutError(f"{method} was not answered within {limit_s:g} s in all") from None


def _mismatch(theirs: Sequence[JsonValue]) -> str:
    spoken = ", ".join(str(version) for version in theirs) or "no version at all"
    ours = ", ".join((*LEGACY_VERSIONS, *MODERN_VERSIONS))
    return f"it speaks {spoken}; we speak {ours}"


def _nothing() -> None:
    """Stand for a listener that nobody has set."""
