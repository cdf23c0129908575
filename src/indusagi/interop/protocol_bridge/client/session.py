"""MCP client session over a JSON-RPC connection: handshake, lists, calls, input requests, change notifications.

The legacy protocol has a handshake (`initialize`) and lets servers send requests. The modern one (2026-07-28) drops the
handshake, repeats version and capabilities in the `_meta` of every request, and returns `input_required` instead of
sending requests. A `ClientSession` detects which one its server speaks and hides the difference.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Literal, TypeAlias

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_json
from indusagi.core.time import TimedLine, now_ms
from indusagi.interop.protocol_bridge.client.handlers import (
    ABANDONED_S,
    ACKNOWLEDGED,
    CALLER,
    HOPS,
    MOVED,
    MOVED_DETAIL,
    Caller,
    Handlers,
    PendingCall,
    PendingCalls,
    current_caller,
    format_log_message,
    name_askers,
    read_acknowledgement,
)
from indusagi.interop.protocol_bridge.client.tasks import (
    TASK_STATUSES,
    TASKS,
    ServerTasks,
    declare_tasks,
    offers_core_tasks,
    read_created_task,
    read_related_task,
    requires_tasks,
)
from indusagi.interop.protocol_bridge.contract import ItemKind, ServerConfig
from indusagi.interop.protocol_bridge.redaction import Redaction
from indusagi.interop.protocol_bridge.rpc.connection import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    InvalidResponseError,
    JsonRpcConnection,
    OnProgress,
    RequestOptions,
    RequestTimeoutError,
    RpcError,
    VersionMismatchError,
    find_supported_versions,
    is_final,
    requires_modern,
)
from indusagi.interop.protocol_bridge.rpc.mcp_headers import (
    CAPABILITIES,
    CLIENT_INFO,
    LEGACY_VERSIONS,
    LOG_LEVEL,
    MISSING_CAPABILITY,
    MODERN_VERSIONS,
    SERVER_INFO,
    VERSION,
)
from indusagi.interop.protocol_bridge.rpc.transport import EncodeError, Transport, get_object
from indusagi.runtime.calls import acting_subject, current_requests, current_subject, current_trace, current_wait

Era: TypeAlias = Literal["modern", "legacy"]

CLIENT_NAME = "indus-protocol-bridge"
CLIENT_VERSION = "0.1.0"
"""The client's version, which is specified; the program has a separate one."""
_CLIENT: JsonObject = {"name": CLIENT_NAME, "version": CLIENT_VERSION}
INPUT_ROUNDS = 10
"""How many times one call may return `input_required`."""
_EMPTY_ROUND_PAUSE_S = 0.1
"""Pause after a round that requests no input, to avoid polling the server in a tight loop."""
_MAX_NOTES = 100
_MORE_NOTES = "there is more of this kind, which is not listed"
SUBSCRIPTIONS = frozenset({"resources/subscribe", "resources/unsubscribe"})
"""Legacy requests about resource updates."""
LISTEN_PREFIX = "listen-"
"""Id prefix of requests that stay open (subscriptions of the modern protocol)."""
_listen_ids = itertools.count(1)
_LIST_CHANGES: dict[str, Sequence[ItemKind]] = {
    "notifications/tools/list_changed": ("tool",),
    "notifications/resources/list_changed": ("resource", "template"),
    "notifications/prompts/list_changed": ("prompt",),
}


@record
class ServerFacts:
    """What a server declared in the handshake."""

    era: Era
    version: str
    result: JsonObject = field(default_factory=dict[str, "JsonValue"])
    """The result of `initialize` or `server/discover`, verbatim."""

    @property
    def server_info(self) -> JsonObject | None:
        """The server's `Implementation`: `serverInfo`, which revision 2026-07-28 moved to `_meta`."""
        info = self.result.get("serverInfo", get_object(self.result, "_meta").get(SERVER_INFO))
        return info if is_json_object(info) else None

    @property
    def capabilities(self) -> JsonObject:
        """The declared server capabilities."""
        return get_object(self.result, "capabilities")

    @property
    def instructions(self) -> str | None:
        """The server's usage hints."""
        text = self.result.get("instructions")
        return text if isinstance(text, str) and text.strip() else None

    def offers(self, subject: str, feature: str | None = None) -> bool:
        """Return whether the server declares a capability such as `tools`, one of its features, or an extension."""
        extensions = get_object(self.capabilities, "extensions")
        capability = self.capabilities.get(subject, extensions.get(subject))
        return isinstance(capability, dict) and (feature is None or capability.get(feature) is True)


class ClientSession:
    """The client's side of one MCP session."""

    def __init__(
        self,
        transport: Transport,
        config: ServerConfig,
        handlers: Handlers,
        *,
        on_invalid_frame: Callable[[bytes], None] | None = None,
    ) -> None:
        limits = config.limits
        self.redaction = Redaction((config,))
        """Hides the secrets of the row, and of requests, in the server's messages."""
        self.facts: ServerFacts | None = None
        self.on_list_changed: Callable[[Sequence[ItemKind]], None] = lambda _: None
        self.on_gap: Callable[[], None] = lambda: None
        """Called when the notification stream reopens: notifications sent during the gap are lost."""
        self.describe_caller: Callable[[Caller], JsonObject] | None = None
        """Describes the calling client to a server that another node owns, unless `None`."""
        self.share_subscription: Callable[[str, JsonObject], Awaitable[JsonObject]] | None = None
        """Answers `resources/subscribe` and `resources/unsubscribe` if several nodes share this session."""
        self._acknowledgements: dict[str, Callable[[JsonObject], None]] = {}
        self.ttl_ms: dict[str, int] = {}
        """Cache lifetime of each list by method, from the server's last hint; 0 without one."""
        self.notes: list[str] = []
        self.log: deque[str] = deque(maxlen=limits.stderr_lines)
        """The server's last log messages, one line each."""
        self.makes_core_tasks = False
        """Whether the server turns tool calls into tasks as revision 2025-11-25 defines them."""
        self.is_modern = self._offers_tasks = False
        self._limits = limits
        self._handlers = handlers
        self._handlers_by_method = handlers.by_method()
        # A server may keep working on an abandoned call for as long as a call may be silent.
        self.calls = PendingCalls(max(ABANDONED_S, limits.call_idle_s))
        self._tasks = ServerTasks(self._request_task, self._run_handler, limits.call_idle_s)
        self._task_callers: dict[str, Caller | None] = {}
        """The caller waiting for each task; input requests about the task go to it."""
        self.connection = JsonRpcConnection(
            transport,
            on_request=self._handle_server_request if self._handlers_by_method else None,
            on_notify=self.report,
            on_unmatched=self.calls.on_unmatched,
            in_flight=limits.in_flight,
            inbound=limits.inbound,
            on_invalid_frame=on_invalid_frame,
            clean=self.redaction.hide_in_frame,
        )

    # -- handshake --------------------------------------------------------------------------

    async def connect(self, first: Era = "modern") -> ServerFacts:
        """Negotiate the protocol version; the caller sets the deadline.

        With `first="modern"`, send `server/discover`, then also `initialize` if the server stays silent or refuses. The
        first good response wins. Raises if the server refuses, shares no version with us, or the transport ends.
        """
        self.facts = await (self._initialize() if first == "legacy" else self._negotiate())
        self.is_modern = self.facts.era == "modern"
        self._offers_tasks = self.facts.offers(TASKS)
        self.makes_core_tasks = not self.is_modern and offers_core_tasks(self.facts.capabilities)
        if not self.is_modern:
            self.connection.notify("notifications/initialized")
        return self.facts

    async def _negotiate(self) -> ServerFacts:
        loop = asyncio.get_running_loop()
        # This method owns both tasks and doesn't return before they have ended.
        discover = loop.create_task(self._discover())
        initialize: asyncio.Task[ServerFacts] | None = None
        try:
            await asyncio.wait({discover}, timeout=self._limits.probe_s)
            if discover.done() and is_final(discover.exception()):
                return discover.result()
            initialize = loop.create_task(self._initialize())
            waiting = {discover, initialize}
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in (discover, initialize):  # if both succeeded, prefer the modern one
                    if task in done and task.exception() is None:
                        return task.result()
                if initialize in done and requires_modern(initialize.exception()):
                    # `server/discover` made the server pick the modern protocol: send it again.
                    return await self._discover()
            # A refused `initialize` says more than a refused method that the server may not know.
            refusal = discover.exception()
            names_versions = isinstance(refusal, VersionMismatchError) or requires_modern(refusal)
            raise (refusal if names_versions else initialize.exception())  # type: ignore[misc]
        finally:
            tasks = [task for task in (discover, initialize) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _discover(self) -> ServerFacts:
        try:
            result = await self._request_versions(MODERN_VERSIONS[-1])
        except RpcError as exc:
            common = [version for version in MODERN_VERSIONS if version in find_supported_versions(exc)]
            if exc.code != UNSUPPORTED_VERSION or not common:
                raise
            result = await self._request_versions(common[-1])
        value = result.get("supportedVersions")
        offered = value if isinstance(value, list) else []
        common = [version for version in MODERN_VERSIONS if version in offered]
        if not common:
            raise VersionMismatchError(_format_mismatch(offered))
        return ServerFacts("modern", common[-1], result)

    def _request_versions(self, version: str) -> Coroutine[object, object, JsonObject]:
        return self._request_first("server/discover", {"_meta": self._build_meta(version)})

    async def _initialize(self) -> ServerFacts:
        # https://modelcontextprotocol.io/specification/2025-06-18/basic/lifecycle#initialization
        params: JsonObject = {
            "protocolVersion": LEGACY_VERSIONS[-1],
            "capabilities": self._handlers.capabilities(),
            "clientInfo": _CLIENT,
        }
        result = await self._request_first("initialize", params)
        version = result.get("protocolVersion")
        if version not in LEGACY_VERSIONS:
            raise VersionMismatchError(_format_mismatch([version]))
        return ServerFacts("legacy", str(version), result)

    async def _request_first(self, method: str, params: JsonObject) -> JsonObject:
        # The first request must not be cancelled.
        # https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/cancellation#behavior-requirements
        return await self.connection.request(method, params, RequestOptions(math.inf, cancellable=False))

    # -- requests ---------------------------------------------------------------------------

    async def request(self, method: str, params: JsonObject | None, options: RequestOptions) -> JsonObject:
        """Send a request with the `_meta` the server's era requires; raises like `JsonRpcConnection.request`."""
        return await self.connection.request(method, self._add_meta(params), options)

    async def read_pages(self, method: str, key: str) -> Sequence[JsonValue]:
        """Read a list page by page; hitting a limit leaves a note, and a page without the list `key` raises.

        https://modelcontextprotocol.io/specification/2025-06-18/server/utilities/pagination
        """
        rows: list[JsonValue] = []
        cursor: JsonValue = None
        cursors: set[str] = set()
        async with _deadline(self._limits.list_s, method):
            for _ in range(self._limits.pages):
                params: JsonObject = {} if cursor is None else {"cursor": cursor}
                result = await self.request(method, params, RequestOptions(self._limits.list_s))
                page = result.get(key)
                if not isinstance(page, list):
                    raise InvalidResponseError(f"{method} answered without a list of {key}")
                rows.extend(page)
                ttl = result.get("ttlMs")
                self.ttl_ms[method] = ttl if isinstance(ttl, int) and ttl > 0 else 0
                cursor = result.get("nextCursor")
                if not isinstance(cursor, str) or not cursor:
                    return rows
                if cursor in cursors:
                    self.note(f"{method} repeats its pages; the rest was left out")
                    return rows
                cursors.add(cursor)
        self.note(f"{method} has more than {self._limits.pages} pages; the rest was left out")
        return rows

    def note(self, note: str) -> None:
        """Note an oddity of the server, once, up to a limit."""
        text = note if len(self.notes) < _MAX_NOTES else _MORE_NOTES
        if note not in self.notes and text not in self.notes:
            self.notes.append(text)

    async def call(self, method: str, params: JsonObject, on_progress: OnProgress | None = None) -> JsonObject:
        """Send a request, handle `input_required` and tasks, and return the final result.

        A caller that speaks the modern protocol gets the server's input request as the result and calls again with the
        input (`InputExchange`). A caller that supports tasks gets the task's handle (`TaskExchange`). Raises like
        `JsonRpcConnection.request`, also if the server requests input too often or without a handler.
        """
        if self.share_subscription is not None and method in SUBSCRIPTIONS:
            return await self.share_subscription(method, params)
        if self.calls.is_moving:
            raise self.calls.build_refusal()
        limits, call = self._limits, PendingCall(current_caller.get(), next(self.connection.ids), current_wait.get())
        requests, result = current_requests.get(), dict[str, JsonValue]()
        observed = None
        if requests is not None:
            version = "" if self.facts is None else self.facts.version
            observed = requests.start_request(method, str(params.get("name") or ""), version)
        exchange = None if call.caller is None else call.caller.exchange
        options = RequestOptions(limits.call_idle_s, limits.call_hard_s, on_progress, call.request_id)
        self.calls.add(call)
        acting = acting_subject.set(current_subject.get())
        try:
            result = await self._complete(method, params, call, options)
            return result
        except RpcError as exc:
            if exc.code == MOVED and self.describe_caller is not None:  # comes from another node, not from a server
                exc.detail = MOVED_DETAIL
            # Errors about the input are for the client, not for its model.
            if exchange is not None and (exc.code == MISSING_CAPABILITY or exchange.given):
                exchange.refusal = exc
            raise
        except EncodeError as exc:
            raise RpcError(INVALID_PARAMS, f"it cannot be sent: {exc}") from exc
        except (asyncio.CancelledError, RequestTimeoutError):
            self.calls.abandon(call)
            raise
        finally:
            acting_subject.reset(acting)
            self.calls.remove(call)
            if observed is not None:
                observed.finish(sys.exception(), result)

    async def _complete(
        self, method: str, params: JsonObject, call: PendingCall, options: RequestOptions
    ) -> JsonObject:
        """Send a request and continue until its result is final or the caller can handle it."""
        if method == "tasks/result":  # in both eras, although only the legacy one has this request
            return await self._follow(params, call, options.on_progress, cancels=False)
        caller = call.caller
        sent = self._add_caller(method, params, caller)
        try:
            result = await self.connection.request(method, self._add_meta(sent) if self.is_modern else sent, options)
        except RpcError as exc:
            if not (method == "tools/call" and self._handlers.follow_tasks and requires_tasks(exc)):
                raise
            # Nothing has run yet. The caller doesn't support tasks, so we follow them for it.
            options.request_id = call.request_id = next(self.connection.ids)
            sent = self._declare_tasks(sent)
            result = await self.connection.request(method, self._add_meta(sent), options)
        if result.get("resultType") == "input_required":
            # Names with invisible characters are translated both ways, which only `_provide_input` does.
            exchange = None if caller is None else caller.exchange
            if exchange is not None and not clean_json(result.get("inputRequests"))[1]:
                asked = name_askers(self._handlers.server, result.get("inputRequests"))
                exchange.wanted = result if asked is None else {**result, "inputRequests": asked}
                return exchange.wanted
            result = await self._provide_input(method, sent, result, call, options)
        task = None
        if method == "tools/call" and (self.is_modern or "task" in params):
            task = read_created_task(result, is_modern=self.is_modern)
        if task is not None:
            tasks = None if caller is None else caller.tasks
            if tasks is None or not tasks.takes(is_modern=self.is_modern):
                return await self._follow(task, call, options.on_progress)
            tasks.created = task
            return result
        kind = result.get("resultType") or "complete"
        # The specification's own examples have "task" in results of `tasks/get`.
        if kind != "complete" and (method, kind) != ("tasks/get", "task"):
            raise InvalidResponseError(f"{method} answered with a result of type {kind!r}")
        return result

    async def _follow(
        self, task: JsonObject, call: PendingCall, on_progress: OnProgress | None, *, cancels: bool = True
    ) -> JsonObject:
        """Wait for a task's result on behalf of a call."""
        task_id, callers = str(task["taskId"]), self._task_callers
        callers[task_id] = call.caller
        if on_progress is not None:
            self._tasks.sinks[call.request_id] = on_progress
        try:
            return await self._tasks.follow(
                task,
                is_modern=self.is_modern,
                limit_s=self._limits.call_hard_s,
                on_progress=on_progress,
                cancels=cancels,
            )
        finally:
            callers.pop(task_id, None)
            self._tasks.sinks.pop(call.request_id, None)

    async def _request_task(self, method: str, params: JsonObject, within_s: float) -> JsonObject:
        """Send a request about a task on behalf of the call that waits for it."""
        sent = self._add_caller(method, params, current_caller.get())
        return await self.connection.request(method, self._add_meta(sent), RequestOptions(within_s))

    def _declare_tasks(self, params: JsonObject) -> JsonObject:
        meta = get_object(params, "_meta")
        declared = declare_tasks(meta.get(CAPABILITIES, self._handlers.capabilities()))
        return {**params, "_meta": {**meta, CAPABILITIES: declared}}

    def _add_caller(self, method: str, params: JsonObject, caller: Caller | None) -> JsonObject:
        """Add trace context and the caller's hops, capabilities and input to a request's parameters.

        Raises `RpcError` if the caller supplies input that the server didn't request.
        """
        meta: JsonObject = dict(current_trace.get() or ())
        about_task = method.startswith("tasks/")
        if caller is None:
            sent: JsonObject = {**params, "_meta": meta} if meta else params
            follows = method == "tools/call" and self._handlers.follow_tasks and self._offers_tasks
            return self._declare_tasks(sent) if self.is_modern and (follows or about_task) else sent
        meta[HOPS] = caller.hops + 1
        if self.describe_caller is not None:
            meta[CALLER] = self.describe_caller(caller)
        given: JsonObject = {} if caller.exchange is None or about_task else caller.exchange.given
        if not self.is_modern:
            if "requestState" in given:
                message = "no call waits under this requestState: it has ended, or waited for too long"
                raise RpcError(INVALID_PARAMS, message)
            return {**params, "_meta": meta}
        offered = self._handlers.capabilities()
        meta[CAPABILITIES] = {key: value for key, value in caller.capabilities.items() if key in offered}
        if caller.log_level is not None:
            meta[LOG_LEVEL] = caller.log_level
        sent = {**params, **given, "_meta": meta}
        knows_tasks = caller.tasks is not None and method == "tools/call"
        return self._declare_tasks(sent) if knows_tasks or about_task else sent

    async def _provide_input(
        self, method: str, params: JsonObject, result: JsonObject, call: PendingCall, options: RequestOptions
    ) -> JsonObject:
        """Repeat a request with the requested input until its result is complete."""
        async with _deadline(self._limits.call_hard_s, method):
            for _ in range(INPUT_ROUNDS):
                requests = get_object(result, "inputRequests")
                responses: JsonObject = {}
                if not requests:
                    await asyncio.sleep(_EMPTY_ROUND_PAUSE_S)
                for key in requests:
                    request = get_object(requests, key)
                    responses[key] = await self._run_handler(str(request.get("method")), get_object(request, "params"))
                repeated: JsonObject = {**params, "inputResponses": responses}
                if "requestState" in result:
                    repeated["requestState"] = result["requestState"]
                options.request_id = call.request_id = next(self.connection.ids)
                result = await self.connection.request(method, self._add_meta(repeated), options)
                if result.get("resultType") != "input_required":
                    return result
        raise InvalidResponseError(f"it asked for input more than {INPUT_ROUNDS} times")

    async def listen(
        self, on_acknowledged: Callable[[JsonObject], None] | None = None, /, **notifications: JsonValue
    ) -> None:
        """Subscribe to a modern server's notifications; return when the server ends the subscription.

        `on_acknowledged` receives the filter that the server accepted.
        """
        params: JsonObject = {"notifications": dict(notifications)}
        if "taskIds" in notifications:
            params = self._declare_tasks(params)
        request_id = f"{LISTEN_PREFIX}{next(_listen_ids)}"
        if on_acknowledged is not None:
            self._acknowledgements[request_id] = on_acknowledged
        try:
            with self.calls.watch(notifications):
                await self.request("subscriptions/listen", params, RequestOptions(math.inf, request_id=request_id))
        finally:
            self._acknowledgements.pop(request_id, None)

    # -- inbound ----------------------------------------------------------------------------

    async def _handle_server_request(self, method: str, params: JsonObject) -> JsonObject:
        # Runs in its own task, which inherits an unrelated caller from the connection.
        related, callers = read_related_task(params), self._task_callers
        current_caller.set(callers[related] if related in callers else self.calls.find_caller())
        current_wait.set(self.calls.find_wait())
        return await self._run_handler(method, params)

    async def _run_handler(self, method: str, params: JsonObject) -> JsonObject:
        handler = self._handlers_by_method.get(method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"{method} is not allowed here")
        return await handler(params)

    def report(self, method: str, params: JsonObject) -> None:
        """Handle a notification: one from the server, or one it would have sent during a gap."""
        if (kinds := _LIST_CHANGES.get(method)) is not None:
            self.on_list_changed(kinds)
        if method == "notifications/message":
            self.log.append(TimedLine(format_log_message(params, self._limits.stderr_line_bytes), now_ms()))
        if method == ACKNOWLEDGED:
            request_id, reported = read_acknowledgement(params)
            if request_id in self._acknowledgements:
                self._acknowledgements[request_id](reported)
        if method in TASK_STATUSES:
            self._tasks.receive(params)
        if method == "notifications/progress":
            token = params.get("progressToken")
            sink = self._tasks.sinks.get(token) if isinstance(token, (int, str)) else None
            if sink is not None:
                sink(params)
            return
        if self._handlers.on_notification is not None:
            token = current_caller.set(self.calls.find_caller())
            try:
                self._handlers.on_notification(method, params)
            finally:
                current_caller.reset(token)

    # -- metadata ---------------------------------------------------------------------------

    def _build_meta(self, version: str) -> JsonObject:
        return {VERSION: version, CLIENT_INFO: _CLIENT, CAPABILITIES: self._handlers.capabilities()}

    def _add_meta(self, params: JsonObject | None) -> JsonObject | None:
        if self.facts is None or not self.is_modern:
            return params
        params = params or {}
        return {**params, "_meta": {**self._build_meta(self.facts.version), **get_object(params, "_meta")}}


@asynccontextmanager
async def transport_session(
    transport: Transport, config: ServerConfig, handlers: Handlers
) -> AsyncGenerator[ClientSession]:
    """Open a session over a transport; close both on exit."""
    session = ClientSession(transport, config, handlers)
    try:
        await session.connect()
        yield session
    finally:
        await session.connection.close()
        finish = getattr(transport, "finish", None)
        if callable(finish):
            finish()


@asynccontextmanager
async def _deadline(limit_s: float, method: str) -> AsyncGenerator[None]:
    """Apply one deadline to several requests of one method."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise RequestTimeoutError(f"{method} was not answered within {limit_s:g} s in all") from None


def _format_mismatch(versions: Sequence[JsonValue]) -> str:
    theirs = ", ".join(str(version) for version in versions) or "no version at all"
    ours = ", ".join((*LEGACY_VERSIONS, *MODERN_VERSIONS))
    return f"it speaks {theirs}; we speak {ours}"
