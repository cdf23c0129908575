"""One client of a host: what it is told and what it may ask, in both eras of the protocol.

The older protocol shakes hands once (`initialize`) and is told of changes unasked. The newer one
stamps every request with what the handshake would have said, and hears of changes on a request that
stays open (`subscriptions/listen`). Both may come over one connection; a stamp tells them apart.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, TypeAlias

from indusagi.core.json import NotJson, compact_json
from indusagi.interop.protocol_bridge.client.handlers import CAPABILITIES, current_caller
from indusagi.interop.protocol_bridge.client.session import LEGACY_VERSIONS, MODERN_VERSIONS
from indusagi.interop.protocol_bridge.content import to_blocks
from indusagi.interop.protocol_bridge.host.catalog import SERVER_INFO, EncodedObject
from indusagi.interop.protocol_bridge.host.client_requests import LegacyCaller, SuspendedCall, SuspendedCalls, read_hops
from indusagi.interop.protocol_bridge.host.dispatcher import RequestDispatcher
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from indusagi.interop.protocol_bridge.rpc.errors import UNSUPPORTED_VERSION
from indusagi.runtime.contract import ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.handlers import Caller
    from indusagi.interop.protocol_bridge.host.catalog import Catalog
    from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits, HostRequest, PendingResult, ResponseChannel
    from indusagi.runtime.contract import ProgressSink, ToolProgress

    Answering: TypeAlias = Callable[[HostRequest], JsonObject | PendingResult]

_log = logging.getLogger(__name__)

VERSION = "io.modelcontextprotocol/protocolVersion"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
TOOLS_CHANGED = "notifications/tools/list_changed"


class HostSession:
    """Answers one client from a catalog."""

    def __init__(
        self,
        catalog: Catalog,
        limits: HostLimits,
        instructions: str | None,
        suspended: SuspendedCalls | None = None,
        owner: bytes = b"",
    ) -> None:
        self.version: str | None = None
        """What the handshake has agreed on; None before one, and for the newer protocol."""
        self.notification_channel: ResponseChannel | None = None
        """Takes what an older client is told unasked, while there is a way to tell it."""
        self.dispatcher = RequestDispatcher(self._serve, self._noticed, limits)
        self.capabilities: JsonObject = {}
        """What an older client said it can be asked."""
        self._suspended = suspended or SuspendedCalls()
        self._owns_suspended = suspended is None
        self._owner = owner
        self._catalog = catalog
        self._instructions = instructions
        self._forget: Callable[[], None] | None = None
        self._legacy: dict[str, Answering] = {
            "initialize": self._initialize,
            "ping": _nothing,
            "logging/setLevel": _nothing,
            "tools/list": self._when_ready(lambda _: self._catalog.listing().legacy),
            "tools/call": self._when_ready(self._call),
        }
        self._modern: dict[str, Answering] = {
            "server/discover": self._discover,
            "tools/list": self._when_ready(lambda _: self._catalog.listing().modern),
            "tools/call": self._when_ready(self._call),
            "subscriptions/listen": self._listen,
        }

    async def close(self, reason: str) -> None:
        """End everything this client has asked for."""
        if self._forget is not None:
            self._forget()
        await self.dispatcher.finish(reason)
        if self._owns_suspended:
            await self._suspended.close()

    def _when_ready(self, answering: Answering) -> Answering:
        """Let whoever asks for tools wait until there are those that should be."""
        ready = self._catalog.ready
        if ready is None:
            return answering

        async def later(request: HostRequest) -> JsonObject:
            with request.cancel.guard():
                await ready.wait()
            if request.cancel.cancelled:
                return {}
            # Outside of the guard: a call has its own way to end.
            given = answering(request)
            return given if isinstance(given, dict) else await given

        return lambda request: answering(request) if ready.is_set() else later(request)

    # -- which era --------------------------------------------------------------------------

    def _serve(self, request: HostRequest) -> JsonObject | PendingResult:
        if VERSION in request.meta and request.method != "initialize":
            check_stamp(request.meta)
            answering = self._modern.get(request.method)
        else:
            answering = self._legacy.get(request.method)
            if answering is not None and not self._may_ask(request.method):
                raise RpcError(INVALID_PARAMS, _UNMET)
        if answering is None:
            raise RpcError(METHOD_NOT_FOUND, f"{request.method} is not supported")
        return answering(request)

    def _may_ask(self, method: str) -> bool:
        return self.version is not None or method in {"initialize", "ping"}

    def _noticed(self, method: str, params: JsonObject) -> None:
        """Know nothing that a notification of a client would change."""

    # -- meeting ----------------------------------------------------------------------------

    def _initialize(self, request: HostRequest) -> JsonObject:
        wanted = request.params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise RpcError(INVALID_PARAMS, "initialize must name a protocolVersion")
        self.version = wanted if wanted in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]
        able = request.params.get("capabilities")
        self.capabilities = able if isinstance(able, dict) else {}
        if self._forget is None:
            self._forget = self._catalog.listen(self._announce)
        return {
            "protocolVersion": self.version,
            "capabilities": _capabilities(),
            "serverInfo": self._catalog.server_info,
            **self._said(),
        }

    def _announce(self) -> None:
        if self.notification_channel is not None:
            self.notification_channel.send({"jsonrpc": "2.0", "method": TOOLS_CHANGED})

    def _discover(self, request: HostRequest) -> JsonObject:
        return {
            "supportedVersions": [*MODERN_VERSIONS],
            "capabilities": _capabilities(),
            **self._said(),
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": self._stamp(),
        }

    def _said(self) -> JsonObject:
        return {} if self._instructions is None else {"instructions": self._instructions}

    def _stamp(self) -> JsonObject:
        return {SERVER_INFO: self._catalog.server_info}

    # -- hearing of changes -----------------------------------------------------------------

    async def _stay(self, request: HostRequest, wanted: bool) -> JsonObject:
        meta: JsonObject = {SUBSCRIPTION: request.identity}
        honoured: JsonObject = {"toolsListChanged": True} if wanted else {}

        def changed() -> None:
            request.tell(TOOLS_CHANGED, {"_meta": meta})

        forget = self._catalog.listen(changed) if wanted else None
        try:
            acknowledged: JsonObject = {"_meta": meta, "notifications": honoured}
            request.tell("notifications/subscriptions/acknowledged", acknowledged)
            await request.cancel.wait()
        finally:
            if forget is not None:
                forget()
        return {"resultType": "complete", "_meta": {**meta, **self._stamp()}}

    def _listen(self, request: HostRequest) -> PendingResult:
        wanted = request.params.get("notifications")
        if not isinstance(wanted, dict):
            raise RpcError(INVALID_PARAMS, "subscriptions/listen must name its notifications")
        request.is_subscription = True
        return self._stay(request, wanted.get("toolsListChanged") is True)

    # -- current_caller ----------------------------------------------------------------------------

    def _call(self, request: HostRequest) -> PendingResult:
        name, arguments = request.params.get("name"), request.params.get("arguments")
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "tools/call must name a tool")
        if arguments is not None and not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, f"the arguments of {name!r} must be an object")
        if not self._catalog.may_call(name):
            raise RpcError(INVALID_PARAMS, f"there is no tool named {name!r}")
        hops = read_hops(request.meta)
        call = ToolCall(str(request.identity), name, arguments or {})
        if VERSION not in request.meta:
            caller = LegacyCaller(request, self.dispatcher, self.capabilities, hops)
            return self._answer(request, call, caller, request.cancel, _sink(request))
        able = request.meta[CAPABILITIES]
        if "requestState" in request.params:
            return self._stamped(self._suspended.resume(request, name, self._owner))
        parked = SuspendedCall(name, able if isinstance(able, dict) else {}, hops, _sink, self._owner)
        if not parked.capabilities:
            return self._answer(request, call, parked, request.cancel, _sink(request))

        def running(parked: SuspendedCall) -> PendingResult:
            return self._answer(request, call, parked, parked.cancel, parked.progressed)

        return self._stamped(self._suspended.begin(request, parked, running))

    async def _stamped(self, rounds: PendingResult) -> JsonObject:
        """Say of questions too who has them."""
        answer = await rounds
        if answer.get("resultType") == "input_required":
            answer["_meta"] = self._stamp()
        return answer

    async def _answer(
        self, request: HostRequest, call: ToolCall, caller: Caller, cancel: CancelToken, sink: ProgressSink | None
    ) -> JsonObject:
        current_caller.set(caller)
        try:
            runner = self._catalog.box().runner
            outcome = await runner.run(call, cancel, on_progress=sink)
            return self._result(request, outcome.result)
        except Exception as exc:  # noqa: BLE001 — boundary: a box of somebody's that breaks its word
            _log.error("tool %r failed outside of its own policy", call.name, exc_info=exc)
            said = f"{call.name} failed inside of the host; its log says more."
            return self._result(request, ToolResult.error(said, code="failed"))

    def _result(self, request: HostRequest, result: ToolResult) -> JsonObject:
        try:
            written = self._written(request, result)
            return EncodedObject(written, compact_json(written).encode())
        except NotJson as exc:
            said = ToolResult.error(f"The answer cannot be sent: it is {exc}", code="bad_result")
            return self._written(request, said)

    def _written(self, request: HostRequest, result: ToolResult) -> JsonObject:
        """Write what a tool answered as a result of the protocol."""
        modern = VERSION in request.meta
        structured = result.structured
        written: JsonObject = {"content": [*to_blocks(result.content)], "isError": result.is_error}
        # Clients of the older protocol can read an object here, and nothing else.
        if isinstance(structured, dict) or (modern and structured is not None):
            written["structuredContent"] = structured
        meta = result.details.get("_meta")
        own = dict(meta) if isinstance(meta, dict) else {}
        # Who answers is said by us: to a client there is one server.
        own.pop(SERVER_INFO, None)
        if modern:
            written["resultType"] = "complete"
            own |= self._stamp()
        if own:
            written["_meta"] = own
        return written


def check_stamp(meta: JsonObject) -> None:
    """Refuse what a request of the newer protocol says about itself, if it cannot be served."""
    version = meta[VERSION]
    if not isinstance(version, str) or not isinstance(meta.get(CAPABILITIES), dict):
        raise RpcError(INVALID_PARAMS, f"_meta must hold {VERSION} and {CAPABILITIES}")
    if version not in MODERN_VERSIONS:
        data: JsonObject = {"supported": [*MODERN_VERSIONS], "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "unsupported protocol version", data)


def _sink(request: HostRequest) -> ProgressSink | None:
    token = request.meta.get("progressToken")
    return None if token is None else _progress(request, token)


def _progress(request: HostRequest, token: JsonValue) -> ProgressSink:
    # The protocol wants each number to be larger than the one before.
    last = -1.0

    def tell(progress: ToolProgress) -> None:
        nonlocal last
        # A client that does not read is not told of each step: steps are not to pile up.
        if not last < progress.done < math.inf or not request.channel.writable.is_set():
            return
        last = progress.done
        notice: JsonObject = {"progressToken": token, "progress": progress.done}
        if progress.total is not None and abs(progress.total) < math.inf:
            notice["total"] = progress.total
        if progress.message:
            notice["message"] = progress.message
        request.tell("notifications/progress", notice)

    return tell


def _capabilities() -> JsonObject:
    return {"tools": {"listChanged": True}}


def _nothing(_: HostRequest) -> JsonObject:
    return {}


_UNMET = (
    "this connection has not been initialized: send initialize first, "
    f"or stamp the request with {VERSION} and {CAPABILITIES} in _meta"
)
