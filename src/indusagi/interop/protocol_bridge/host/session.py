"""One client's session with a host, for every protocol revision.

Up to 2025-11-25 a client sends `initialize` once and gets change notifications unasked. From 2026-07-28 on every
request carries the handshake's fields in `_meta`, and changes arrive on an open request (`subscriptions/listen`). One
connection may mix both kinds; `_meta` tells them apart.

Everything except tools comes from the catalog's `ContentSource`, if it has one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from indusagi.core.faults import describe_error
from indusagi.core.ids import new_ulid
from indusagi.interop.protocol_bridge.client.handlers import ACKNOWLEDGED, UNKNOWN_CALLER, InputExchange, current_caller
from indusagi.interop.protocol_bridge.client.skills import ITEM_LISTS, READ_DIRECTORY
from indusagi.interop.protocol_bridge.client.tasks import TaskExchange, to_core_task
from indusagi.interop.protocol_bridge.contract import LISTED_KINDS, ItemKind
from indusagi.interop.protocol_bridge.host.catalog import (
    CORE_TASK_METHODS,
    CORE_TASKS,
    CORE_VERSION,
    TASK_METHODS,
    TASKS_EXTENSION,
    add_extensions,
    build_call_result,
    build_handle,
    build_task_result,
    new_exchange,
    read_task_id,
)
from indusagi.interop.protocol_bridge.host.client_requests import (
    ANSWER_S,
    LegacyCaller,
    SuspendedCall,
    SuspendedCalls,
    new_sink,
    read_hops,
)
from indusagi.interop.protocol_bridge.host.content import LIST_CHANGES, LOG_LEVELS, ContentSource, cut_page
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits, HostRequest, PendingResult, RequestDispatcher
from indusagi.interop.protocol_bridge.host.identity import ANONYMOUS, ClientIdentity, name_conversation, read_client
from indusagi.interop.protocol_bridge.rpc.connection import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
)
from indusagi.interop.protocol_bridge.rpc.mcp_headers import (
    CAPABILITIES,
    CLIENT_INFO,
    LEGACY_VERSIONS,
    LOG_LEVEL,
    MODERN_VERSIONS,
    SERVER_INFO,
    SUBSCRIPTION,
    VERSION,
)
from indusagi.interop.protocol_bridge.rpc.transport import encode_object
from indusagi.runtime.calls import (
    CallingClient,
    current_client,
    current_completion,
    current_conversation,
    current_trace,
    read_trace,
)
from indusagi.runtime.contract import ProgressSink, ToolCall, ToolResult

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.handlers import Caller
    from indusagi.interop.protocol_bridge.host.catalog import Catalog, Ready, TaskSource
    from indusagi.interop.protocol_bridge.host.outgoing import ResponseChannel

    Method: TypeAlias = Callable[[HostRequest], JsonObject | PendingResult]
    RunRequest: TypeAlias = Callable[[Caller, CancelToken, ProgressSink | None], PendingResult]

_log = logging.getLogger(__name__)

_BEFORE_HANDSHAKE = frozenset({"initialize", "ping"})
_NEED_TOOLS = frozenset(
    {
        "tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read",
        "resources/subscribe", "prompts/list", "prompts/get", "completion/complete", "skills/list", "skills/get",
        READ_DIRECTORY, *TASK_METHODS, *CORE_TASK_METHODS,
    }
)  # fmt: skip
"""Requests that wait until the first servers have listed their tools and content."""
_INSTRUCTIONS_TIMEOUT_S = 1.0
"""How long a handshake waits for the servers' instructions."""
UPDATED = "notifications/resources/updated"
_STATUS = "notifications/tasks/status"
_LOGGED = "notifications/message"
_CACHEABLE = frozenset({"resources/read", READ_DIRECTORY, "skills/get"})
"""Requests whose results carry cache hints."""
_ERA_FIELDS = ("resultType", "ttlMs", "cacheScope")
"""Result fields that the older protocol doesn't have."""
_OWN_PARAMS = frozenset({"_meta", "inputResponses", "requestState"})
"""Params that stay between the client and us. The client session of the server adds its own."""
_MAX_SUBSCRIPTIONS = 1_000
"""Resources one client may subscribe to."""
_DEFAULT_LEVEL = "info"
"""Log level for clients of the older protocol that never set one."""


class HostSession:
    """Answers one client from a catalog."""

    def __init__(
        self,
        catalog: Catalog,
        limits: HostLimits,
        instructions: str | None,
        suspended: SuspendedCalls | None = None,
        identity: ClientIdentity = ANONYMOUS,
        find_catalog: Callable[[CallingClient], Catalog] | None = None,
    ) -> None:
        self.principal, self.user = identity.principal, identity.user
        self.version: str | None = None
        """Revision agreed on in the handshake, if there was one."""
        self.notification_channel: ResponseChannel | None = None
        """Carries notifications outside of requests, while there is a way to send them."""
        self.dispatcher = RequestDispatcher(self._serve, self._receive_notification, limits)
        self.capabilities: JsonObject = {}
        """The client's capabilities from its handshake."""
        self._client = CallingClient(principal=self.principal)
        self._suspended = suspended or SuspendedCalls()
        self._owns_suspended = suspended is None
        self._owner, self._id = identity.owner, new_ulid()
        self._find_catalog = find_catalog
        self._catalog = catalog if find_catalog is None else find_catalog(self._client)
        self._instructions: JsonObject = {} if instructions is None else {"instructions": instructions}
        self.level_set: str | None = None
        """Lowest log level the client asked for."""
        self.log_level: str | None = None
        """Lowest level of log messages to send outside of calls."""
        self._stops: list[Callable[[], None]] = []
        """Undo the registrations of the handshake."""
        self._watched: dict[str, Callable[[], None]] = {}
        """Subscribed resources, each with its unsubscribe function."""
        self._legacy_methods: dict[str, Method] = {
            "initialize": self._initialize,
            "ping": lambda _: {},
            "logging/setLevel": self._set_level,
            "tools/list": self._list_tools,
            "tools/call": self._call,
        }
        self._modern_methods: dict[str, Method] = {
            "server/discover": self._discover,
            "tools/list": self._list_tools,
            "tools/call": self._call,
            "subscriptions/listen": self._listen,
        }
        both = {ITEM_LISTS[kind].method: self._with_content(partial(self._list, kind)) for kind in LISTED_KINDS}
        for method in ("resources/read", READ_DIRECTORY, "prompts/get", "completion/complete", "skills/get"):
            both[method] = self._with_content(self._forward)
        self._modern_methods |= both
        self._legacy_methods |= both | {
            "resources/subscribe": self._with_content(self._subscribe),
            "resources/unsubscribe": self._with_content(self._unsubscribe),
        }
        if catalog.tasks is not None:
            forward = partial(self._forward_task, catalog.tasks)
            self._modern_methods |= dict.fromkeys(TASK_METHODS, forward)
            self._legacy_methods |= dict.fromkeys(CORE_TASK_METHODS, forward)

    @property
    def _capabilities(self) -> JsonObject:
        """The capabilities we announce."""
        if self._catalog.content is None:
            return {"tools": {"listChanged": True}}
        return {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }

    def _with_content(self, answer: Callable[[ContentSource, HostRequest], JsonObject | PendingResult]) -> Method:
        """Return a method that passes the catalog's content to `answer`; without content it's unsupported."""

        def method(request: HostRequest) -> JsonObject | PendingResult:
            if self._catalog.content is None:
                raise RpcError(METHOD_NOT_FOUND, f"{request.method} is not supported")
            return answer(self._catalog.content, request)

        return method

    async def close(self, reason: str) -> None:
        """Cancel the client's requests and wait for them to end."""
        for stop in (*self._stops, *self._watched.values()):
            stop()
        self._stops, self._watched = [], {}
        await self.dispatcher.close(reason)
        if self._owns_suspended:
            await self._suspended.close()

    def _serve(self, request: HostRequest) -> JsonObject | PendingResult:
        name = request.method
        if VERSION in request.meta and name != "initialize":
            version = request.meta[VERSION]
            if not isinstance(version, str) or not isinstance(request.meta.get(CAPABILITIES), dict):
                raise RpcError(INVALID_PARAMS, f"_meta must hold {VERSION} and {CAPABILITIES}")
            if version not in MODERN_VERSIONS:
                data: JsonObject = {"supported": [*MODERN_VERSIONS], "requested": version}
                raise RpcError(UNSUPPORTED_VERSION, "unsupported protocol version", data)
            if self._find_catalog is not None:
                self._catalog = self._find_catalog(read_client(request.meta.get(CLIENT_INFO), self.principal))
            method = self._modern_methods.get(name)
        else:
            method = self._legacy_methods.get(name)
            if method is not None and self.version is None and name not in _BEFORE_HANDSHAKE:
                raise RpcError(INVALID_PARAMS, _NOT_INITIALIZED)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"{name} is not supported")
        if name in _NEED_TOOLS and self._catalog.ready is not None and not self._catalog.ready.is_set():
            return self._serve_when_ready(request, method, self._catalog.ready)
        return method(request)

    async def _serve_when_ready(self, request: HostRequest, method: Method, ready: Ready) -> JsonObject:
        with request.cancel.guard():
            await ready.wait()
        if request.cancel.cancelled:
            return {}
        # Outside of the guard: a call handles its own cancellation.
        result = method(request)
        return result if isinstance(result, dict) else await result

    # -- handshake and discovery ----------------------------------------------------------------

    def _initialize(self, request: HostRequest) -> JsonObject | PendingResult:
        # https://modelcontextprotocol.io/specification/2025-06-18/basic/lifecycle#version-negotiation
        wanted = request.params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise RpcError(INVALID_PARAMS, "initialize must name a protocolVersion")
        self.version = wanted if wanted in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]
        self.log_level = self.level_set or _DEFAULT_LEVEL
        declared = request.params.get("capabilities")
        self.capabilities = declared if isinstance(declared, dict) else {}
        self._client = read_client(request.params.get("clientInfo"), self.principal)
        if self._find_catalog is not None:
            self._catalog = self._find_catalog(self._client)
        if not self._stops:
            self._stops = [
                self._catalog.listen(partial(self.notify, note), kind) for kind, (_, note) in self._changes()
            ]
            if self._catalog.content is not None:
                self._stops.append(self._catalog.content.add_client(self))
        tasks, capabilities = self._catalog.tasks, dict(self._capabilities)
        if tasks is not None and self.version >= CORE_VERSION and tasks.offers_core():
            capabilities["tasks"] = CORE_TASKS
        greeting: JsonObject = {
            "protocolVersion": self.version,
            "capabilities": capabilities,
            "serverInfo": self._catalog.server_info,
        }
        return self._add_instructions(greeting)

    def _changes(self) -> list[tuple[ItemKind, tuple[str, str]]]:
        """List the kinds whose changes we report."""
        has_content = self._catalog.content is not None
        return [(kind, names) for kind, names in LIST_CHANGES.items() if kind == "tool" or has_content]

    def _add_instructions(self, greeting: JsonObject) -> JsonObject | PendingResult:
        content, opened = self._catalog.content, self._catalog.opened
        if content is None:
            return {**greeting, **self._instructions}

        def add() -> JsonObject:
            capabilities, extensions = greeting["capabilities"], content.extensions()
            if extensions and isinstance(capabilities, dict):
                greeting["capabilities"] = add_extensions(capabilities, extensions)
            texts = [text for text in (self._instructions.get("instructions"), content.instructions()) if text]
            return {**greeting, "instructions": "\n\n".join(map(str, texts))} if texts else greeting

        async def add_when_opened(opened: Ready) -> JsonObject:
            with suppress(TimeoutError):
                async with asyncio.timeout(_INSTRUCTIONS_TIMEOUT_S):
                    await opened.wait()
            return add()

        return add() if opened is None or opened.is_set() else add_when_opened(opened)

    def notify(self, method: str, params: JsonObject | None = None) -> None:
        """Send a notification outside of any request, if there is a way to; no log to a client that doesn't read."""
        channel = self.notification_channel
        if channel is None or (method == _LOGGED and not channel.writable.is_set()):
            return
        frame: JsonObject = {"jsonrpc": "2.0", "method": method}
        channel.send(frame if params is None else {**frame, "params": params})

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Send the client a request of ours; raise `RpcError` if it refuses, doesn't answer, or can't be reached."""
        if self.notification_channel is None:
            raise RpcError(UNKNOWN_CALLER, "the client cannot be asked at the moment")
        try:
            channel = self.notification_channel
            return await self.dispatcher.send_request(method, params, channel, within_s=ANSWER_S)
        except (InvalidResponseError, ConnectionClosedError, RequestTimeoutError) as exc:
            raise RpcError(UNKNOWN_CALLER, f"the client did not answer: {describe_error(exc)}") from exc

    def _receive_notification(self, method: str, params: JsonObject) -> None:
        content = self._catalog.content
        if method == "notifications/roots/list_changed" and content is not None and self.version is not None:
            content.change_client(self, method)

    def _discover(self, request: HostRequest) -> JsonObject | PendingResult:
        capabilities = self._capabilities
        if self._catalog.tasks is not None:
            capabilities = add_extensions(capabilities, TASKS_EXTENSION)
        return self._add_instructions(
            {
                "supportedVersions": [*MODERN_VERSIONS],
                "capabilities": capabilities,
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": {SERVER_INFO: self._catalog.server_info},
            }
        )

    def _listen(self, request: HostRequest) -> PendingResult:
        wanted = request.params.get("notifications")
        if not isinstance(wanted, dict):
            raise RpcError(INVALID_PARAMS, "subscriptions/listen must name its notifications")
        if self._catalog.tasks is not None and isinstance(wanted.get("taskIds"), list):
            read_task_id(request.method, {"taskId": "any"}, request.meta[CAPABILITIES])
        request.is_subscription = True
        return self._send_changes(request, wanted)

    async def _send_changes(self, request: HostRequest, wanted: JsonObject) -> JsonObject:
        self._identify_call(request)
        meta: JsonObject = {SUBSCRIPTION: request.id}
        honoured: JsonObject = {}
        stops: list[Callable[[], None]] = []
        try:
            for kind, (key, method) in self._changes():
                if wanted.get(key) is True:
                    honoured[key] = True
                    stops.append(self._catalog.listen(partial(request.notify, method, {"_meta": meta}), kind))
            uris, content = wanted.get("resourceSubscriptions"), self._catalog.content
            if isinstance(uris, list) and content is not None:
                watched: list[JsonValue] = []
                for uri in filter(_is_text, uris[:_MAX_SUBSCRIPTIONS]):
                    params: JsonObject = {"uri": uri, "_meta": meta}
                    with suppress(RpcError), request.cancel.guard():  # acknowledge only what succeeds
                        stops.append(await content.subscribe(str(uri), partial(request.notify, UPDATED, params)))
                        watched.append(uri)
                honoured["resourceSubscriptions"] = watched
            task_ids, tasks = wanted.get("taskIds"), self._catalog.tasks
            if isinstance(task_ids, list) and tasks is not None:

                def report(task: JsonObject) -> None:
                    request.notify("notifications/tasks", {**task, "_meta": meta})

                followed: list[JsonValue] = []
                for task_id in filter(_is_text, task_ids[:_MAX_SUBSCRIPTIONS]):
                    with suppress(RpcError), request.cancel.guard():
                        stops.append(await tasks.watch(str(task_id), self._owner, report))
                        followed.append(task_id)
                honoured["taskIds"] = followed
            request.notify(ACKNOWLEDGED, {"_meta": meta, "notifications": honoured})
            await request.cancel.wait()
        finally:
            for stop in stops:
                stop()
        return {"resultType": "complete", "_meta": {**meta, SERVER_INFO: self._catalog.server_info}}

    # -- content --------------------------------------------------------------------------------

    def _list_tools(self, request: HostRequest) -> JsonObject:
        client = current_client.set(self._find_client(request))
        try:
            listing = self._catalog.list_for_caller()
        finally:
            current_client.reset(client)  # the next request may share this context
        return listing.modern if VERSION in request.meta else listing.legacy

    async def _list(self, kind: ItemKind, content: ContentSource, request: HostRequest) -> JsonObject:
        current_client.set(self._find_client(request))
        listing = await content.list_content(kind)
        page = cut_page(ITEM_LISTS[kind].key, listing.rows, request.params.get("cursor"))
        if VERSION in request.meta:
            page |= {"resultType": "complete", "ttlMs": listing.ttl_ms, "cacheScope": "private"}
            page["_meta"] = {SERVER_INFO: self._catalog.server_info}
        return encode_object(page)

    def _forward(self, content: ContentSource, request: HostRequest) -> PendingResult:
        subject = "name" if request.method == "prompts/get" else "uri"
        name = request.params.get(subject)
        if request.method == "completion/complete":
            name = ""
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, f"{request.method} must have a {subject}")
        params = {key: value for key, value in request.params.items() if key not in _OWN_PARAMS}
        return self._relay(request, name, lambda sink: content.request(request.method, params, sink))

    def _forward_task(self, source: TaskSource, request: HostRequest) -> PendingResult:
        is_modern = VERSION in request.meta
        declared = request.meta[CAPABILITIES] if is_modern else None
        task_id = read_task_id(request.method, request.params, declared)
        params = {key: value for key, value in request.params.items() if key not in {"_meta", "requestState"}}
        # While it waits, the server sends its questions to this client, under this task id.
        tasks = None if is_modern else TaskExchange({}, shown_id=task_id)

        async def fetch(sink: ProgressSink | None) -> JsonObject:
            result = await source.request(request.method, params, self._owner, sink)
            return build_task_result(request.method, task_id, result, is_modern=is_modern)

        return self._relay(request, task_id, fetch, tasks)

    def _relay(
        self,
        request: HostRequest,
        subject: str,
        fetch: Callable[[ProgressSink | None], Awaitable[JsonObject]],
        tasks: TaskExchange | None = None,
    ) -> PendingResult:
        """Answer a request with another server's result."""

        async def run(caller: Caller, cancel: CancelToken, sink: ProgressSink | None) -> JsonObject:
            current_caller.set(caller)
            self._identify_call(request)
            with cancel.guard():
                return encode_object(self._finish(request, await fetch(sink), caller))
            return {}

        return self._answer(request, f"{request.method} {subject}", run, is_remote=True, tasks=tasks)

    def _finish(self, request: HostRequest, result: JsonObject, caller: Caller) -> JsonObject:
        """Convert another server's result to the client's revision, in our name."""
        if caller.exchange is not None and caller.exchange.wanted is not None:
            result = caller.exchange.wanted
        meta = result.get("_meta")
        own = {key: value for key, value in meta.items() if key != SERVER_INFO} if isinstance(meta, dict) else {}
        rest = {key: value for key, value in result.items() if key not in _ERA_FIELDS}
        if VERSION in request.meta:
            hints: JsonObject = {"resultType": "complete"}
            if request.method in _CACHEABLE:
                hints |= {"ttlMs": 0, "cacheScope": "private"}
            own[SERVER_INFO] = self._catalog.server_info
            rest = {**rest, **hints, **{key: result[key] for key in _ERA_FIELDS if key in result}}
        return {**rest, "_meta": own} if own else rest

    async def _subscribe(self, content: ContentSource, request: HostRequest) -> JsonObject:
        uri = request.params.get("uri")
        if not isinstance(uri, str):
            raise RpcError(INVALID_PARAMS, "resources/subscribe must have a uri")
        if len(self._watched) >= _MAX_SUBSCRIPTIONS:
            message = f"{_MAX_SUBSCRIPTIONS:,} resources are subscribed to, and more are not allowed"
            raise RpcError(INVALID_PARAMS, message)
        if uri not in self._watched:
            with request.cancel.guard():
                stop = await content.subscribe(uri, partial(self.notify, UPDATED, {"uri": uri}))
                if uri in self._watched:
                    stop()  # a second request for it was faster
                else:
                    self._watched[uri] = stop
        return {}

    def _unsubscribe(self, _: ContentSource, request: HostRequest) -> JsonObject:
        uri = request.params.get("uri")
        stop = self._watched.pop(uri, None) if isinstance(uri, str) else None
        if stop is not None:
            stop()
        return {}

    def _set_level(self, request: HostRequest) -> JsonObject:
        level, content = request.params.get("level"), self._catalog.content
        if content is not None:
            if level not in LOG_LEVELS:
                raise RpcError(INVALID_PARAMS, f"level must be one of: {', '.join(LOG_LEVELS)}")
            self.level_set = self.log_level = str(level)
            content.change_client(self, request.method)
        return {}

    # -- calls ----------------------------------------------------------------------------------

    def _call(self, request: HostRequest) -> PendingResult:
        name, arguments = request.params.get("name"), request.params.get("arguments")
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "tools/call must name a tool")
        if arguments is not None and not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, f"the arguments of {name!r} must be an object")
        call = self._catalog.resolve_call(ToolCall(str(request.id), name, arguments or {}))
        if call is None:
            raise RpcError(INVALID_PARAMS, self._catalog.describe_unknown(name))
        run = partial(self._run_tool, request, call)
        declared, tasks = request.meta[CAPABILITIES] if VERSION in request.meta else None, None
        if declared is not None or "task" in request.params:
            tasks = new_exchange(self._catalog.tasks, request.params, declared)
        is_remote = VERSION in request.meta and self._catalog.forwards_input(call.name)
        return self._answer(request, call.name, run, is_remote=is_remote, tasks=tasks)

    def _answer(
        self, request: HostRequest, subject: str, run: RunRequest, *, is_remote: bool, tasks: TaskExchange | None = None
    ) -> PendingResult:
        """Run a request for its client, over several rounds in the newer protocol.

        A modern server behind us requests input by itself (`is_remote`). Older servers and our own tools ask their
        caller, and we suspend the call until the client returns with the answers.
        """
        params, meta = request.params, request.meta
        hops = read_hops(meta) if meta else 0
        if VERSION not in meta:
            level = self.log_level if self._catalog.content is not None else None
            caller = LegacyCaller(request, self.dispatcher, self.capabilities, hops, level, tasks)
            return run(caller, request.cancel, new_sink(request) if "progressToken" in meta else None)
        if "requestState" in params and (self._suspended.holds(params["requestState"]) or not is_remote):
            return self._stamp_questions(self._suspended.resume(request, subject, self._owner))
        capabilities, level = meta[CAPABILITIES], meta.get(LOG_LEVEL)
        suspended = SuspendedCall(
            subject,
            capabilities if isinstance(capabilities, dict) else {},
            hops,
            self._owner,
            log_level=level if isinstance(level, str) else None,
            exchange=InputExchange(params) if is_remote else None,
            tasks=tasks,
        )
        if not suspended.capabilities:
            suspended.request = request
            return run(suspended, request.cancel, new_sink(request))
        return self._stamp_questions(
            self._suspended.begin(
                request, suspended, lambda suspended: run(suspended, suspended.cancel, suspended.report_progress)
            )
        )

    async def _stamp_questions(self, round_result: PendingResult) -> JsonObject:
        """Stamp questions with our server info."""
        result = await round_result
        if result.get("resultType") == "input_required":
            result["_meta"] = {SERVER_INFO: self._catalog.server_info}
        return result

    async def _run_tool(
        self, request: HostRequest, call: ToolCall, caller: Caller, cancel: CancelToken, sink: ProgressSink | None
    ) -> JsonObject:
        current_caller.set(caller)
        self._identify_call(request)
        tasks, source, is_modern = caller.tasks, self._catalog.tasks, VERSION in request.meta
        current_completion.set(None if tasks is None else tasks.completion)
        try:
            outcome = await self._catalog.box().runner.run(call, cancel, on_progress=sink)
            if tasks is not None and tasks.created is not None and source is not None:
                report = None if is_modern else self._report_core_task
                task = await source.add(tasks, self._owner, report)
                return self._finish(request, build_handle(task, is_modern=is_modern), caller)
            exchange = caller.exchange
            if exchange is not None and exchange.refusal is not None:
                raise exchange.refusal
            if exchange is not None and exchange.wanted is not None:
                return self._finish(request, exchange.wanted, caller)
            return build_call_result(outcome.result, self._catalog.server_info, is_modern=is_modern)
        except RpcError:
            raise
        except Exception as exc:  # noqa: BLE001 — boundary: a tool box of the embedding program
            _log.error("tool %r raised an exception", call.name, exc_info=exc)
            message = f"{call.name} failed inside the host; see its log."
            failure = ToolResult.error(message, code="failed")
            return build_call_result(failure, self._catalog.server_info, is_modern=is_modern)

    def _report_core_task(self, task: JsonObject) -> None:
        self.notify(_STATUS, to_core_task(task))

    def _find_client(self, request: HostRequest) -> CallingClient:
        info = request.meta.get(CLIENT_INFO)
        return self._client if info is None else read_client(info, self.principal)

    def _identify_call(self, request: HostRequest) -> None:
        """Set the client, conversation and trace that others see in this task."""
        client = self._find_client(request)
        current_client.set(client)
        has_session = VERSION not in request.meta or self._owns_suspended
        current_conversation.set(self._id if has_session else name_conversation(self._owner, client))
        current_trace.set(read_trace(request.meta) if "traceparent" in request.meta else None)


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


_NOT_INITIALIZED = (
    "this connection has not been initialized: send initialize first, "
    f"or put {VERSION} and {CAPABILITIES} into _meta of the request"
)
