"""Requests that a server sends to its client (elicitation, sampling, roots), and their caller.

Each kind of request is off unless it has a handler.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from indusagi.core.invisible import clean_json
from indusagi.core.json import JsonObject, is_json_object
from indusagi.core.records import record
from indusagi.core.text import cut_text
from indusagi.interop.protocol_bridge.client.tasks import RELATED_TASK, TaskExchange
from indusagi.interop.protocol_bridge.client.tools import ArgumentSpelling
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from indusagi.interop.protocol_bridge.rpc.transport import EncodeError, encode_object
from indusagi.runtime.calls import waiting_for_user

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from indusagi.core.json import JsonValue
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId
    from indusagi.runtime.calls import UserWait

Handler: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]

HOPS = "indusagi/hops"
"""Key in the `_meta` of a call: how many gateways of ours it has passed."""
CALLER = "indusagi/caller"
"""Key in the `_meta` of a call between two nodes of a cluster: the client behind it."""
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
UNKNOWN_CALLER = -32000
current_server: ContextVar[str | None] = ContextVar("current_server", default=None)
"""The id of the server whose request a handler answers."""
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ABANDONED_S = 60.0
"""How long, at least, an abandoned call counts as one that a request of the server may belong to."""


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
    """Receives every notification other than progress (logging, changes, …); `current_caller` is the client whose call
    it belongs to, if that can be told."""
    follow_tasks: bool = True
    """Whether a call that needs a task is followed to its result for callers that know no tasks; otherwise the server
    refuses it."""

    def bind(self, server: str) -> Handlers:
        """Return the same handlers for one server: while one of them runs, `current_server` is its id."""
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
        )

    def by_method(self) -> dict[str, Handler]:
        """Map each method that has a handler to it."""
        elicit = None if self.elicit is None else partial(_ask_user, self.elicit)
        table = {"elicitation/create": elicit, "sampling/createMessage": self.sample, "roots/list": self.roots}
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


class InputExchange:
    """The input of one request of a modern client, handed through to a modern server and back unchanged.

    https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr
    """

    def __init__(self, params: JsonObject) -> None:
        self.given: JsonObject = {key: params[key] for key in ("inputResponses", "requestState") if key in params}
        """What the client's request brings: answers, and the state that they belong to."""
        self.wanted: JsonObject | None = None
        """The server's result that requests input."""
        self.refusal: RpcError | None = None
        """The server's error about the input, or about a capability that the client has not declared."""


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

    @property
    def log_level(self) -> str | None:
        """The least severe log messages that it wants; `None`: none."""
        ...

    @property
    def exchange(self) -> InputExchange | None:
        """The input of its request, if a modern server may request it by itself."""
        ...

    @property
    def tasks(self) -> TaskExchange | None:
        """What it contributes if it knows tasks; None: it waits for the result."""
        ...

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification that belongs to the call; dropped if the client does not read."""
        ...

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Send a request to the client.

        Raises:
            RpcError: It refused, or did not respond.
        """
        ...


current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)
"""The caller of the call that this task works for."""


async def _ask_user(elicit: Handler, params: JsonObject) -> JsonObject:
    with waiting_for_user():
        return await elicit(params)


def forwarding_handlers() -> Handlers:
    """Build handlers that forward requests of servers to the client behind the call."""
    return Handlers(
        elicit=partial(forward_request, "elicitation/create", "elicitation"),
        sample=partial(forward_request, "sampling/createMessage", "sampling"),
        roots=partial(forward_request, "roots/list", "roots"),
    )


async def forward_request(method: str, capability: str, params: JsonObject) -> JsonObject:
    """Forward a request of a server to the client behind the present call.

    Raises:
        RpcError: There is no such client, it lacks the capability, or it refused.
    """
    caller = current_caller.get()
    if caller is None:
        raise RpcError(UNKNOWN_CALLER, f"{method} was refused: it cannot be told which client it is meant for")
    if capability not in caller.capabilities:
        raise RpcError(METHOD_NOT_FOUND, f"the client cannot be asked: it has no {capability}")
    shown = _rename_task(cast("JsonObject", clean_json(params)[0]), caller)
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


def _rename_task(params: JsonObject, caller: Caller) -> JsonObject:
    """Name the task that a question belongs to by the id that the client knows, or not at all."""
    meta = params.get("_meta")
    if not is_json_object(meta) or RELATED_TASK not in meta:
        return params
    known = "" if caller.tasks is None else caller.tasks.shown_id
    rest = {key: value for key, value in meta.items() if key != RELATED_TASK}
    return {**params, "_meta": {**rest, RELATED_TASK: {"taskId": known}} if known else rest}


def read_acknowledgement(params: JsonObject) -> tuple[str, JsonObject]:
    """Read which `subscriptions/listen` a modern server acknowledges, and what it will report."""
    meta, reported = params.get("_meta"), params.get("notifications")
    request_id = meta.get(SUBSCRIPTION) if is_json_object(meta) else None
    return str(request_id), reported if is_json_object(reported) else {}


def format_log_message(params: JsonObject, most_bytes: int) -> str:
    """Format a log message of a server as one line: https://modelcontextprotocol.io/specification/2025-06-18/server/utilities/logging."""
    level, logger, data = (params.get(key) for key in ("level", "logger", "data"))
    source = " ".join(part for part in (level, logger) if isinstance(part, str))
    try:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    except RecursionError:
        text = "(a value that is nested too deeply)"
    line = " ".join(cut_text(text, 4 * most_bytes).split())
    return cut_text(f"{source or 'log'}: {line}", most_bytes)


# -- pending ----------------------------------------------------------------------------------
#
# A legacy server sends a request without saying which call it belongs to: `PendingCalls` finds the caller, and refuses
# to guess between two.


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
