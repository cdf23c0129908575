"""Requests from a server to its client (elicitation, sampling, roots), and their caller.

Each kind of request needs a handler to be enabled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeAlias, cast

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_json, cut_text
from indusagi.interop.protocol_bridge.client.tasks import RELATED_TASK, TaskExchange
from indusagi.interop.protocol_bridge.client.tools import ArgumentSpelling
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from indusagi.interop.protocol_bridge.rpc.mcp_headers import SUBSCRIPTION
from indusagi.interop.protocol_bridge.rpc.transport import EncodeError, RequestId, encode_object, get_object
from indusagi.runtime.calls import UserWait, waiting_for_user

Handler: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]

HOPS = "indusagi/hops"
"""`_meta` key of a call: how many of our gateways it has passed."""
CALLER = "indusagi/caller"
"""`_meta` key of a call between cluster nodes: the client behind it."""
UNKNOWN_CALLER = -32000
current_server: ContextVar[str | None] = ContextVar("current_server", default=None)
"""Id of the server whose request the current handler answers."""
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
ABANDONED_S = 60.0
"""Minimum time during which a server's request may still belong to an abandoned call."""


@record(kw_only=True)
class Handlers:
    """Optional handlers for a server's requests and notifications."""

    elicit: Handler | None = None
    """Answers `elicitation/create`: https://modelcontextprotocol.io/specification/2025-06-18/client/elicitation."""
    sample: Handler | None = None
    """Answers `sampling/createMessage`: https://modelcontextprotocol.io/specification/2025-06-18/client/sampling."""
    roots: Handler | None = None
    """Answers `roots/list`: https://modelcontextprotocol.io/specification/2025-06-18/client/roots."""
    on_notification: Callable[[str, JsonObject], None] | None = None
    """Receives every notification but progress (logging, changes, …); `current_caller` is the client whose call it
    belongs to, if that's clear."""
    follow_tasks: bool = True
    """Whether to follow tasks to their result for callers that don't support them; otherwise the server refuses."""
    server: str = ""
    """Id of the server they're bound to."""

    def bind(self, server: str) -> Handlers:
        """Return these handlers for one server: `current_server` is its id while one of them runs."""
        on_notification = self.on_notification

        def notify(method: str, params: JsonObject) -> None:
            token = current_server.set(server)
            try:
                if on_notification is not None:
                    on_notification(method, params)
            finally:
                current_server.reset(token)

        def bind_handler(handler: Handler | None) -> Handler | None:
            if handler is None:
                return None

            async def handle(params: JsonObject) -> JsonObject:
                token = current_server.set(server)
                try:
                    return await handler(params)
                finally:
                    current_server.reset(token)

            return handle

        return replace(
            self,
            elicit=bind_handler(self.elicit),
            sample=bind_handler(self.sample),
            roots=bind_handler(self.roots),
            on_notification=None if on_notification is None else notify,
            server=server,
        )

    def by_method(self) -> dict[str, Handler]:
        """Return the handlers by method."""
        elicit = None if self.elicit is None else partial(_ask_user, self.elicit)
        table = {"elicitation/create": elicit, "sampling/createMessage": self.sample, "roots/list": self.roots}
        return {method: handler for method, handler in table.items() if handler is not None}

    def capabilities(self) -> JsonObject:
        """Build the client capabilities from the handlers."""
        capabilities: JsonObject = {}
        if self.elicit is not None:
            capabilities["elicitation"] = {"form": {}, "url": {}}
        if self.sample is not None:
            capabilities["sampling"] = {}
        if self.roots is not None:
            capabilities["roots"] = {"listChanged": True}
        return capabilities


class InputExchange:
    """The input of a modern client's request, passed to a modern server and back unchanged.

    https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr
    """

    def __init__(self, params: JsonObject) -> None:
        self.given: JsonObject = {key: params[key] for key in ("inputResponses", "requestState") if key in params}
        """Input in the client's request: answers, and the state they belong to."""
        self.wanted: JsonObject | None = None
        """The server's `input_required` result."""
        self.refusal: RpcError | None = None
        """The server's error about the input, or about a capability the client didn't declare."""


class Caller(Protocol):
    """The client behind one call."""

    @property
    def client(self) -> object | None:
        """Equal for calls of the same client; `None` if the call's client makes no other calls."""
        ...

    @property
    def capabilities(self) -> JsonObject:
        """The client's declared capabilities."""
        ...

    @property
    def hops(self) -> int:
        """How many of our gateways the call has passed."""
        ...

    @property
    def log_level(self) -> str | None:
        """Minimum severity of log messages to send; `None` to send none."""
        ...

    @property
    def exchange(self) -> InputExchange | None:
        """The input of its request, if a modern server may request more directly."""
        ...

    @property
    def tasks(self) -> TaskExchange | None:
        """Its side of a task, if it supports tasks; otherwise it waits for the result."""
        ...

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification that belongs to the call; dropped if the client doesn't read."""
        ...

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Send a request to the client; raise `RpcError` if it refuses or doesn't respond."""
        ...


current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)
"""The caller that the current task works for."""


async def _ask_user(elicit: Handler, params: JsonObject) -> JsonObject:
    with waiting_for_user():
        return await elicit(params)


def forwarding_handlers() -> Handlers:
    """Build handlers that forward a server's requests to the client behind the call."""
    return Handlers(
        elicit=partial(forward_request, "elicitation/create", "elicitation"),
        sample=partial(forward_request, "sampling/createMessage", "sampling"),
        roots=partial(forward_request, "roots/list", "roots"),
    )


async def forward_request(method: str, capability: str, params: JsonObject) -> JsonObject:
    """Forward a server's request to the client behind the call; raise `RpcError` if it's unknown, unable or refuses."""
    caller = current_caller.get()
    if caller is None:
        raise RpcError(UNKNOWN_CALLER, f"{method} was refused: it cannot be told which client it is meant for")
    if capability not in caller.capabilities:
        raise RpcError(METHOD_NOT_FOUND, f"the client cannot be asked: it has no {capability}")
    shown = _rename_task(cast("JsonObject", clean_json(params)[0]), caller)
    if method == "elicitation/create":
        shown = name_asker(current_server.get() or "", shown)
    spelling = ArgumentSpelling(params.get("requestedSchema"))
    try:
        # Encode here, so that a number JSON can't represent fails only this request.
        result = await caller.ask(method, encode_object(shown))
        content = result.get("content")
        if method == "elicitation/create" and is_json_object(content):
            return {**result, "content": spelling.restore(content)}
        return result
    except EncodeError as exc:
        raise RpcError(INVALID_PARAMS, f"{method} cannot be passed on: {exc}") from exc


def name_asker(server: str, question: JsonObject) -> JsonObject:
    """Put a server's id before its question: clients only know us, so one server could pose as another."""
    message = question.get("message")
    return {**question, "message": f"Server {server!r} asks: {message}"} if isinstance(message, str) else question


def name_askers(server: str, requests: JsonValue) -> JsonValue:
    """Put a server's id before each question of its input requests."""
    if not is_json_object(requests):
        return requests
    return {
        key: {**request, "params": name_asker(server, get_object(request, "params"))}
        if is_json_object(request) and request.get("method") == "elicitation/create"
        else request
        for key, request in requests.items()
    }


def _rename_task(params: JsonObject, caller: Caller) -> JsonObject:
    """Replace the related task's id with the one the client knows, or drop it."""
    meta = get_object(params, "_meta")
    if RELATED_TASK not in meta:
        return params
    known = "" if caller.tasks is None else caller.tasks.shown_id
    rest = {key: value for key, value in meta.items() if key != RELATED_TASK}
    return {**params, "_meta": {**rest, RELATED_TASK: {"taskId": known}} if known else rest}


def read_acknowledgement(params: JsonObject) -> tuple[str, JsonObject]:
    """Return which `subscriptions/listen` a modern server acknowledges, and the filter it accepted."""
    return str(get_object(params, "_meta").get(SUBSCRIPTION)), get_object(params, "notifications")


def format_log_message(params: JsonObject, most_bytes: int) -> str:
    """Format a server's log message as one line: https://modelcontextprotocol.io/specification/2025-06-18/server/utilities/logging."""
    level, logger, data = (params.get(key) for key in ("level", "logger", "data"))
    source = " ".join(part for part in (level, logger) if isinstance(part, str))
    try:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    except RecursionError:
        text = "(a value that is nested too deeply)"
    line = " ".join(cut_text(text, 4 * most_bytes).split())
    return cut_text(f"{source or 'log'}: {line}", most_bytes)


# -- pending calls ----------------------------------------------------------------------------

_MAX_ABANDONED = 1_000
_WATCHED = frozenset({"resourceSubscriptions", "taskIds"})
MOVED = -32097
"""Our error code between two nodes: the call hasn't run because its server is moving to another node."""
MOVED_DETAIL = FaultDetail(reason="moved")


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call without a response yet."""

    caller: Caller | None
    request_id: RequestId
    """Id of its current request."""
    wait: UserWait | None = None
    """Where the call accounts for time spent waiting for the user."""


@dataclass(slots=True)
class AbandonedCall:
    """A call without a waiting caller, which the server may still be running."""

    client: object | None
    until: float


class PendingCalls:
    """A server's unanswered calls, including those abandoned in the last `abandoned_s` seconds.

    A legacy server's requests don't say which call they belong to. `find_caller` works it out, and refuses to guess
    between two clients.
    """

    def __init__(self, abandoned_s: float = ABANDONED_S) -> None:
        self._abandoned_s = abandoned_s
        self._calls: dict[PendingCall, None] = {}
        self._abandoned: dict[RequestId, AbandonedCall] = {}
        self._ambiguous_until = 0.0
        self.idle = asyncio.Event()
        """Set while there are no calls."""
        self.idle.set()
        self.is_moving = False
        """Whether the server is about to move to another node: new calls are refused, but may be resent."""
        self.used_at = asyncio.get_running_loop().time()
        """Event loop time at which the last call ended."""
        self._watches = 0
        """Open subscriptions to resources and tasks."""

    @property
    def is_used(self) -> bool:
        """Whether a call is running, or a resource or task is watched."""
        return bool(self._calls or self._watches)

    def build_refusal(self) -> RpcError:
        """Build the error for a call that hasn't run because its server is moving."""
        refusal = RpcError(MOVED, "the server is moved to another node")
        refusal.detail = MOVED_DETAIL
        return refusal

    @contextmanager
    def watch(self, notifications: Iterable[str]) -> Generator[None]:
        """Count a subscription to resources or tasks for the duration of the block."""
        is_counted = not _WATCHED.isdisjoint(notifications)
        self._watches += is_counted
        try:
            yield
        finally:
            self._watches -= is_counted
            self.used_at = asyncio.get_running_loop().time()

    def add(self, call: PendingCall) -> None:
        """Add a call."""
        self._calls[call] = None
        self.idle.clear()

    def remove(self, call: PendingCall) -> None:
        """Remove a call."""
        del self._calls[call]
        self.used_at = asyncio.get_running_loop().time()
        if not self._calls:
            self.idle.set()

    def abandon(self, call: PendingCall) -> None:
        """Remember a call whose caller stopped waiting, because the server may still be running it."""
        now = asyncio.get_running_loop().time()
        self._abandoned = {key: abandoned for key, abandoned in self._abandoned.items() if abandoned.until > now}
        if len(self._abandoned) >= _MAX_ABANDONED:
            # Too many to remember: until they expire, any request may belong to one of them.
            self._abandoned.clear()
            self._ambiguous_until = now + self._abandoned_s
        client = None if call.caller is None else call.caller.client
        self._abandoned[call.request_id] = AbandonedCall(client, now + self._abandoned_s)

    def on_unmatched(self, identity: JsonValue, kind: Literal["response", "progress"]) -> None:
        """Update an abandoned call: the server has responded, or is still working on it."""
        if not isinstance(identity, (int, str)):
            return
        if kind == "response":
            self._abandoned.pop(identity, None)
        elif identity in self._abandoned:
            self._abandoned[identity].until = asyncio.get_running_loop().time() + self._abandoned_s

    def find_wait(self) -> UserWait | None:
        """Return the user wait of the call a server's request belongs to; `None` unless there's exactly one call."""
        return next(iter(self._calls)).wait if len(self._calls) == 1 else None

    def find_caller(self) -> Caller | None:
        """Return the caller a server's request belongs to; `None` if it could be one of several clients."""
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
