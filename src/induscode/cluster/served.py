"""Served servers: the owner's side of a server that other nodes use.

The owner has one session with the server. Each other node opens a channel and speaks MCP over it, in the server's era,
as if connected to the server directly. Requests run on the owner's session under their original caller, so progress,
cancellation, input requests and log messages reach the right client. List and resource changes go to every node.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.interop.protocol_bridge.client.handlers import (
    ACKNOWLEDGED,
    CALLER,
    HOPS,
    UNKNOWN_CALLER,
    Caller,
    Handlers,
    InputExchange,
    current_caller,
)
from indusagi.interop.protocol_bridge.client.session import SUBSCRIPTIONS, ClientSession
from indusagi.interop.protocol_bridge.client.tasks import TASK_STATUSES, TaskExchange
from indusagi.interop.protocol_bridge.contract import FaultDetail, FaultReason
from indusagi.interop.protocol_bridge.host.client_requests import ANSWER_S
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits, HostRequest, PendingResult, RequestDispatcher
from indusagi.interop.protocol_bridge.rpc.connection import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    ConnectionClosedError,
    InvalidResponseError,
    RequestOptions,
    RequestTimeoutError,
    RpcError,
)
from indusagi.interop.protocol_bridge.rpc.mcp_headers import SUBSCRIPTION
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd
from indusagi.runtime.calls import current_trace, read_trace
from induscode.cluster.contract import ClusterFault, Placement
from induscode.cluster.key import is_opening

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from induscode.cluster.channel import Channel

_log = logging.getLogger(__name__)

_FAILED = -32000
_SUBSCRIBE_S = 60.0
_NEWS = ("list_changed", "resources/updated", *TASK_STATUSES)
"""Suffixes of notification methods that go to every node."""
_LIMITS = HostLimits(calls=1_024, waiting=4_096)
"""Per node. Its clients have separate limits, and the server has one for all."""


class CallerTokens:
    """Names the clients behind this node's calls, so that an owner can tell them apart."""

    def __init__(self) -> None:
        self._tokens: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self._count = 0

    def describe(self, caller: Caller) -> JsonObject:
        """Describe a caller to the owner of the server it calls."""
        token = None
        if caller.client is not None:
            token = self._tokens.get(caller.client)
            if token is None:
                self._count += 1
                token = self._tokens[caller.client] = f"{self._count}"
        return {
            "client": token,
            "capabilities": caller.capabilities,
            "logLevel": caller.log_level,
            "exchange": caller.exchange is not None,
            "tasks": None if caller.tasks is None else {"core": caller.tasks.core},
        }


class _Client:
    """A client of another node, compared by identity."""


class PeerCaller:
    """A `Caller`: the client of another node behind a call."""

    def __init__(self, request: HostRequest, fields: JsonObject, client: object | None) -> None:
        capabilities, level = fields.get("capabilities"), fields.get("logLevel")
        hops = request.meta.get(HOPS)
        self.client = client
        self.capabilities: JsonObject = capabilities if is_json_object(capabilities) else {}
        # The session counts this gateway again.
        self.hops = max(0, hops - 1) if isinstance(hops, int) else 0
        self.log_level = level if isinstance(level, str) else None
        self.exchange = InputExchange(request.params) if fields.get("exchange") is True else None
        self.tasks = _read_tasks(request, fields.get("tasks"))
        self._request = request

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification that belongs to the call, unless the other node isn't reading."""
        if self._request.channel.writable.is_set():
            self._request.notify(method, params)

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Send a request to the client, and wait for the result."""
        try:
            return await self._request.send_request(method, params, within_s=ANSWER_S)
        except (InvalidResponseError, ConnectionClosedError, RequestTimeoutError) as exc:
            raise RpcError(UNKNOWN_CALLER, f"the client did not answer: {describe_error(exc)}") from exc


def _read_tasks(request: HostRequest, fields: JsonValue) -> TaskExchange | None:
    """Read the task support of another node's client. None if it waits for the result here."""
    if not is_json_object(fields):
        return None
    core, task_id = fields.get("core"), request.params.get("taskId")
    # The other node knows the task by the server's id, and maps it to the client's id.
    shown_id = task_id if isinstance(task_id, str) else ""
    return TaskExchange(core if is_json_object(core) else None, shown_id=shown_id)


class PeerSession:
    """One other node's requests to one server."""

    def __init__(self, server: ServedServer, channel: Channel) -> None:
        self.channel = channel
        self._server = server
        self._clients: weakref.WeakValueDictionary[str, _Client] = weakref.WeakValueDictionary()
        self.dispatcher = RequestDispatcher(self._serve, self._receive_notification, _LIMITS)
        channel.attach(lambda data: self.dispatcher.receive(data, channel), lambda _: None)

    def _serve(self, request: HostRequest) -> JsonObject | PendingResult:
        request.is_subscription = request.method == "subscriptions/listen"
        request.is_forwarded = request.method != "ping"
        return self._run(request)

    async def _run(self, request: HostRequest) -> JsonObject:
        await self._server.ready.wait()
        session, facts = self._server.session, None if self._server.session is None else self._server.session.facts
        if session is None or facts is None:
            raise RpcError(_FAILED, "the server has ended")
        if request.method == "ping":  # asks whether the server is up
            return {}
        if request.method in {"initialize", "server/discover"}:
            if (request.method == "initialize") is (facts.era == "legacy"):
                return facts.result
            raise RpcError(METHOD_NOT_FOUND, f"{request.method} is not supported")
        caller = current_caller.set(self._find_caller(request))
        try:
            with request.cancel.guard():
                try:
                    return await (self._listen if request.is_subscription else self._forward)(session, request)
                except ConnectionClosedError:
                    await self._server.ended.wait()  # the end of the channel reports an unknown outcome, as here
                    raise RpcError(_FAILED, "the server has ended") from None
        finally:
            current_caller.reset(caller)
        return {}  # cancelled: there's no response

    async def _listen(self, session: ClientSession, request: HostRequest) -> JsonObject:
        wanted = request.params.get("notifications")
        meta: JsonObject = {"_meta": {SUBSCRIPTION: request.id}}

        def acknowledge(reported: JsonObject) -> None:
            request.notify(ACKNOWLEDGED, {**meta, "notifications": reported})

        await session.listen(acknowledge, **(wanted if is_json_object(wanted) else {}))
        return {"resultType": "complete"}

    async def _forward(self, session: ClientSession, request: HostRequest) -> JsonObject:
        token = request.meta.get("progressToken")

        def report(progress: JsonObject) -> None:
            if token is not None and request.channel.writable.is_set():
                request.notify("notifications/progress", {**progress, "progressToken": token})

        # The owner's session writes `_meta` itself, from the caller and the trace.
        params = {key: value for key, value in request.params.items() if key != "_meta"}
        trace = current_trace.set(read_trace(request.meta))
        try:
            if request.method in SUBSCRIPTIONS:
                return await self._server.share_subscription(self, request.method, params)
            return await session.call(request.method, params, report)
        except RequestTimeoutError as exc:
            raise RpcError(_FAILED, describe_error(exc)) from exc
        except InvalidResponseError as exc:
            raise RpcError(INTERNAL_ERROR, describe_error(exc)) from exc
        finally:
            current_trace.reset(trace)

    def _find_caller(self, request: HostRequest) -> PeerCaller | None:
        fields = request.meta.get(CALLER)
        if not is_json_object(fields):
            return None
        token = fields.get("client")
        client = None
        if isinstance(token, str):
            client = self._clients.get(token) or _Client()
            self._clients[token] = client
        return PeerCaller(request, fields, client)

    def _receive_notification(self, method: str, params: JsonObject) -> None:
        if method.endswith("roots/list_changed") and self._server.session is not None:
            self._server.session.connection.notify(method)

    async def close(self, end: TransportEnd) -> None:
        """Cancel its requests and send the other node the reason."""
        self.channel.finish(end.message, end.detail)
        await self.channel.close()
        await self.dispatcher.close(end.message)


class ServedServer:
    """A server this node owns, with the nodes that use it."""

    def __init__(
        self, placement: Placement, accept_channel: Callable[[Msg, Callable[[], None]], Channel | None]
    ) -> None:
        self.placement = placement
        self.session: ClientSession | None = None
        self.ready = asyncio.Event()
        """Set when the server is up or failed to start."""
        self.ended = asyncio.Event()
        self.end_reason: FaultReason = "closed"
        """Why to reject messages after the end."""
        self._start: asyncio.Timeout | None = None
        """Aborts the server's start; None before and after it."""
        self._cut: str | None = None
        """Why it was cut off."""
        self._accept_channel = accept_channel
        self._peers: dict[str, PeerSession] = {}
        """By the subject of the other node's end."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._parted = asyncio.Event()
        """Set when a node leaves."""
        self._watchers: dict[str, set[object]] = {}
        """Nodes whose clients watch a resource of a legacy server, by URI."""
        self.is_leaving = False
        """Whether its placement is being released."""
        self.is_resting = False
        """Whether it's about to stop and rejects new channels."""

    async def receive(self, message: Msg) -> bool:
        """Handle a message for the server. A channel's first message opens our end. False if rejected."""
        reply = message.reply
        peer = self._peers.get(reply)
        if peer is None:
            if self.ended.is_set() or self.is_resting or not is_opening(message.data):
                return False
            channel = self._accept_channel(message, lambda: self._forget(reply))
            if channel is None:
                return True  # forged or replayed: no answer
            peer = self._peers[reply] = PeerSession(self, channel)
        await peer.channel.receive(message)
        return True

    def _forget(self, reply: str) -> None:
        peer = self._peers.pop(reply, None)
        self._parted.set()
        if peer is not None and not self.ended.is_set():
            # `close` awaits it.
            task = asyncio.create_task(self._part_with(peer))  # noqa: TID251
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _part_with(self, peer: PeerSession) -> None:
        await peer.dispatcher.close("the other node went away")
        for uri in [uri for uri, watchers in self._watchers.items() if peer in watchers]:
            try:
                await self.share_subscription(peer, "resources/unsubscribe", {"uri": uri})
            except (RpcError, ConnectionClosedError, RequestTimeoutError, InvalidResponseError) as exc:
                _log.debug("the server keeps a subscription to %s: %s", uri, describe_error(exc))

    async def share_subscription(self, watcher: object, method: str, params: JsonObject) -> JsonObject:
        """Subscribe to a resource for the first node that wants it, and unsubscribe after the last."""
        session, uri = self.session, str(params.get("uri"))
        if session is None:
            raise RpcError(_FAILED, "the server has ended")
        watchers, options = self._watchers.setdefault(uri, set()), RequestOptions(_SUBSCRIBE_S)
        try:
            if method == "resources/subscribe":
                # Ask the server each time: it may reject this one, or have forgotten the first.
                result = await session.request(method, params, options)
                watchers.add(watcher)
                return result
            watchers.discard(watcher)
            return {} if watchers else await session.request(method, params, options)
        finally:
            if not watchers:
                self._watchers.pop(uri, None)

    def is_idle(self, idle_s: float) -> bool:
        """Return whether there were no calls for `idle_s` seconds, and no client watches a resource."""
        session = self.session
        if session is None or session.calls.is_used or self._watchers or self.is_resting:
            return False
        return asyncio.get_running_loop().time() - session.calls.used_at >= idle_s

    async def ask_peers_to_rest(self, within_s: float) -> bool:
        """Ask the other nodes to disconnect unless they use it. If all do, reject new ones and return True."""
        for peer in [*self._peers.values()]:
            await peer.channel.tell_rest()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._peers:
                    self._parted.clear()
                    await self._parted.wait()
        # There's no await between the check and the rejection.
        self.is_resting = not self._peers and self.is_idle(0)
        return self.is_resting

    async def finish_calls(self, within_s: float) -> bool:
        """Reject new calls, which can be retried, and wait for the others to finish. False on timeout."""
        if self.session is None:
            return True
        self.session.calls.is_moving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.session.calls.idle.wait()
                for peer in [*self._peers.values()]:
                    await peer.dispatcher.wait_idle(within_s)
                    await peer.channel.flush()
                return True
        return False

    def wrap_handlers(self, handlers: Handlers) -> Handlers:
        """Wrap the handlers of the owner's session so that notifications also reach the right nodes."""
        receive = handlers.on_notification

        def notify(method: str, params: JsonObject) -> None:
            caller, is_for_all = current_caller.get(), method.endswith(_NEWS)
            if isinstance(caller, PeerCaller) and not is_for_all:
                caller.notify(method, params)
                return
            if receive is not None:
                receive(method, params)
            if is_for_all:
                for peer in self._peers.values():
                    peer.channel.send({"jsonrpc": "2.0", "method": method, "params": params})

        return replace(handlers, on_notification=notify)

    @asynccontextmanager
    async def starting(self) -> AsyncGenerator[None]:
        """Start the server inside the block; raises `ClusterFault` if it was cut off in the meantime."""
        try:
            async with asyncio.timeout(None) as self._start:
                yield
        except TimeoutError:
            if self._cut is None:
                raise
        finally:
            self._start = None
        if self._cut is not None:
            raise ClusterFault("ready", self._cut)

    def end(self, message: str, reason: FaultReason = "closed") -> None:
        """Cut the server off at once. Running calls have an unknown outcome, later ones are rejected."""
        if self.session is not None:
            self.session.connection.end(TransportEnd(message, FaultDetail(reason=reason)))
        elif self._start is not None and self._cut is None:
            self._start.reschedule(asyncio.get_running_loop().time())
        self._cut = self._cut or message

    async def close(self, end: TransportEnd) -> None:
        """End every channel with the reason the server ended."""
        self.session = None
        if end.detail.reason == "moved":
            # A message may arrive before the channels report their end, and its rejection must give the same reason.
            self.end_reason = "moved"
        self.ready.set()
        self.ended.set()
        peers, self._peers = [*self._peers.values()], {}
        async with asyncio.TaskGroup() as tasks:
            for peer in peers:
                tasks.create_task(peer.close(end))
        if self._leaving:
            await asyncio.wait(self._leaving)
