"""The session of one client of a host, for all protocol revisions.

Up to 2025-11-25 a client sends `initialize` once and is notified of changes unasked. From 2026-07-28 on each request
carries in `_meta` what the handshake would have agreed on, and changes are reported on an open request
(`subscriptions/listen`). Both kinds may come over one connection; `_meta` tells them apart.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, TypeAlias

from indusagi.core.faults import describe_error
from indusagi.core.json import NotJson, compact_json
from indusagi.core.text import clean_text
from indusagi.interop.protocol_bridge.client.handlers import CAPABILITIES, UNKNOWN_CALLER, current_caller
from indusagi.interop.protocol_bridge.client.session import LEGACY_VERSIONS, MODERN_VERSIONS
from indusagi.interop.protocol_bridge.contract import to_blocks
from indusagi.interop.protocol_bridge.host.catalog import SERVER_INFO, EncodedObject
from indusagi.interop.protocol_bridge.host.client_requests import ANSWER_S, SuspendedCall, SuspendedCalls, read_hops
from indusagi.interop.protocol_bridge.host.dispatcher import RequestDispatcher
from indusagi.interop.protocol_bridge.host.identity import ANONYMOUS
from indusagi.interop.protocol_bridge.rpc.connection import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
)
from indusagi.runtime.calls import CallingClient, current_client, current_trace, read_trace
from indusagi.runtime.contract import ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.handlers import Caller
    from indusagi.interop.protocol_bridge.host.catalog import Catalog, Ready
    from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits, HostRequest, PendingResult, ResponseChannel
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
    from indusagi.runtime.contract import ProgressSink, ToolProgress

    Method: TypeAlias = Callable[[HostRequest], JsonObject | PendingResult]

_log = logging.getLogger(__name__)

VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
TOOLS_CHANGED = "notifications/tools/list_changed"
_BEFORE_HANDSHAKE = frozenset({"initialize", "ping"})
_NAME_CHARS = 100
"""Of the name and of the version that a client gives itself."""
_NEED_TOOLS = frozenset({"tools/list", "tools/call"})


class LegacyCaller:
    """The client behind a call, up to protocol revision 2025-11-25; a `Caller`."""

    def __init__(self, request: HostRequest, client: RequestDispatcher, capabilities: JsonObject, hops: int) -> None:
        self.client = client
        self.capabilities = capabilities
        self.hops = hops
        self._request = request

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Send a request to the client, and wait for the result."""
        try:
            return await self._request.send_request(method, params, within_s=ANSWER_S)
        except (InvalidResponseError, ConnectionClosedError, RequestTimeoutError) as exc:
            raise RpcError(UNKNOWN_CALLER, f"the client did not answer: {describe_error(exc)}") from exc


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
        self.principal = identity.principal
        """Who calls: the subject of the client's access token; empty without access tokens."""
        self.version: str | None = None
        """The revision that the handshake has agreed on; None before it, and without one."""
        self.notification_channel: ResponseChannel | None = None
        """Carries notifications that belong to no request, while there is a way to send them."""
        self.dispatcher = RequestDispatcher(self._serve, None, limits)
        self.capabilities: JsonObject = {}
        """What the client declared in its handshake."""
        self._client = CallingClient(principal=self.principal)
        self._suspended = suspended or SuspendedCalls()
        self._owns_suspended = suspended is None
        self._owner = identity.owner
        self._find_catalog = find_catalog
        self._catalog = catalog if find_catalog is None else find_catalog(self._client)
        self._instructions: JsonObject = {} if instructions is None else {"instructions": instructions}
        self._stop_listening: Callable[[], None] | None = None
        self._legacy_methods: dict[str, Method] = {
            "initialize": self._initialize,
            "ping": _return_nothing,
            "logging/setLevel": _return_nothing,
            "tools/list": lambda _: self._catalog.listing().legacy,
            "tools/call": self._call,
        }
        self._modern_methods: dict[str, Method] = {
            "server/discover": self._discover,
            "tools/list": lambda _: self._catalog.listing().modern,
            "tools/call": self._call,
            "subscriptions/listen": self._listen,
        }

    async def close(self, reason: str) -> None:
        """Cancel the client's requests, and wait for their end."""
        if self._stop_listening is not None:
            self._stop_listening()
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
                self._catalog = self._find_catalog(_read_client(request.meta.get(CLIENT_INFO), self.principal))
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

    def _initialize(self, request: HostRequest) -> JsonObject:
        # https://modelcontextprotocol.io/specification/2025-06-18/basic/lifecycle#version-negotiation
        wanted = request.params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise RpcError(INVALID_PARAMS, "initialize must name a protocolVersion")
        self.version = wanted if wanted in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]
        capabilities = request.params.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        self._client = _read_client(request.params.get("clientInfo"), self.principal)
        if self._find_catalog is not None:
            self._catalog = self._find_catalog(self._client)
        if self._stop_listening is None:
            self._stop_listening = self._catalog.listen(self._announce_change)
        return {
            "protocolVersion": self.version,
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": self._catalog.server_info,
            **self._instructions,
        }

    def _announce_change(self) -> None:
        if self.notification_channel is not None:
            self.notification_channel.send({"jsonrpc": "2.0", "method": TOOLS_CHANGED})

    def _discover(self, request: HostRequest) -> JsonObject:
        return {
            "supportedVersions": [*MODERN_VERSIONS],
            "capabilities": {"tools": {"listChanged": True}},
            **self._instructions,
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {SERVER_INFO: self._catalog.server_info},
        }

    def _listen(self, request: HostRequest) -> PendingResult:
        wanted = request.params.get("notifications")
        if not isinstance(wanted, dict):
            raise RpcError(INVALID_PARAMS, "subscriptions/listen must name its notifications")
        request.is_subscription = True
        return self._send_changes(request, wanted.get("toolsListChanged") is True)

    async def _send_changes(self, request: HostRequest, tools: bool) -> JsonObject:
        meta: JsonObject = {SUBSCRIPTION: request.id}
        honoured: JsonObject = {"toolsListChanged": True} if tools else {}
        stop = self._catalog.listen(lambda: request.notify(TOOLS_CHANGED, {"_meta": meta})) if tools else None
        try:
            acknowledged: JsonObject = {"_meta": meta, "notifications": honoured}
            request.notify("notifications/subscriptions/acknowledged", acknowledged)
            await request.cancel.wait()
        finally:
            if stop is not None:
                stop()
        return {"resultType": "complete", "_meta": {**meta, SERVER_INFO: self._catalog.server_info}}

    # -- calls ----------------------------------------------------------------------------------

    def _call(self, request: HostRequest) -> PendingResult:
        params, meta = request.params, request.meta
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "tools/call must name a tool")
        if arguments is not None and not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, f"the arguments of {name!r} must be an object")
        if not self._catalog.may_call(name):
            raise RpcError(INVALID_PARAMS, f"there is no tool named {name!r}")
        hops = read_hops(meta) if meta else 0
        call = ToolCall(str(request.id), name, arguments or {})
        if VERSION not in meta:
            caller = LegacyCaller(request, self.dispatcher, self.capabilities, hops)
            return self._run_tool(request, call, caller, request.cancel, _new_sink(request))
        if "requestState" in params:
            return self._stamp_questions(self._suspended.resume(request, name, self._owner))
        capabilities = meta[CAPABILITIES]
        declared = capabilities if isinstance(capabilities, dict) else {}
        suspended = SuspendedCall(name, declared, hops, _new_sink, self._owner)
        if not suspended.capabilities:
            return self._run_tool(request, call, suspended, request.cancel, _new_sink(request))

        def run(suspended: SuspendedCall) -> PendingResult:
            return self._run_tool(request, call, suspended, suspended.cancel, suspended.report_progress)

        return self._stamp_questions(self._suspended.begin(request, suspended, run))

    async def _stamp_questions(self, round_result: PendingResult) -> JsonObject:
        """Add to questions which server asks them."""
        result = await round_result
        if result.get("resultType") == "input_required":
            result["_meta"] = {SERVER_INFO: self._catalog.server_info}
        return result

    async def _run_tool(
        self, request: HostRequest, call: ToolCall, caller: Caller, cancel: CancelToken, sink: ProgressSink | None
    ) -> JsonObject:
        current_caller.set(caller)
        self._identify_call(request)
        try:
            outcome = await self._catalog.box().runner.run(call, cancel, on_progress=sink)
            return self._build_result(request, outcome.result)
        except Exception as exc:  # noqa: BLE001 — boundary: a tool box of the embedding program
            _log.error("tool %r raised an exception", call.name, exc_info=exc)
            message = f"{call.name} failed inside of the host; its log says more."
            return self._build_result(request, ToolResult.error(message, code="failed"))

    def _identify_call(self, request: HostRequest) -> None:
        """Tell the observers of calls, in this task, which client makes the call and to which trace it belongs."""
        info = request.meta.get(CLIENT_INFO)
        current_client.set(self._client if info is None else _read_client(info, self.principal))
        current_trace.set(read_trace(request.meta) if "traceparent" in request.meta else None)

    def _build_result(self, request: HostRequest, result: ToolResult) -> JsonObject:
        """Convert a tool's result: https://modelcontextprotocol.io/specification/2025-06-18/server/tools#tool-result."""
        is_modern = VERSION in request.meta
        structured = result.structured
        message: JsonObject = {"content": [*to_blocks(result.content)], "isError": result.is_error}
        # Up to 2025-11-25 structured content is an object.
        if isinstance(structured, dict) or (is_modern and structured is not None):
            message["structuredContent"] = structured
        own_meta = result.details.get("_meta")
        meta = dict(own_meta) if isinstance(own_meta, dict) else {}
        # The client sees one server, which is this host.
        meta.pop(SERVER_INFO, None)
        if is_modern:
            message["resultType"] = "complete"
            meta[SERVER_INFO] = self._catalog.server_info
        if meta:
            message["_meta"] = meta
        try:
            return EncodedObject(message, compact_json(message).encode())
        except NotJson as exc:
            error = ToolResult.error(f"The answer cannot be sent: it is {exc}", code="bad_result")
            return self._build_result(request, error)


def _read_client(info: JsonValue, principal: str) -> CallingClient:
    texts = (info.get("name"), info.get("version")) if isinstance(info, dict) else ("", "")
    name, version = (clean_text(text[:_NAME_CHARS])[0] if isinstance(text, str) else "" for text in texts)
    return CallingClient(name, version, principal)


def _new_sink(request: HostRequest) -> ProgressSink | None:
    token = request.meta.get("progressToken")
    if token is None:
        return None
    last = -1.0

    def report(progress: ToolProgress) -> None:
        nonlocal last
        # The values must increase: https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/progress.
        # A client that does not read gets no further ones, so that they do not pile up.
        if not last < progress.done < math.inf or not request.channel.writable.is_set():
            return
        last = progress.done
        params: JsonObject = {"progressToken": token, "progress": progress.done}
        if progress.total is not None and abs(progress.total) < math.inf:
            params["total"] = progress.total
        if progress.message:
            params["message"] = progress.message
        request.notify("notifications/progress", params)

    return report


def _return_nothing(_: HostRequest) -> JsonObject:
    return {}


_NOT_INITIALIZED = (
    "this connection has not been initialized: send initialize first, "
    f"or put {VERSION} and {CAPABILITIES} into _meta of the request"
)
