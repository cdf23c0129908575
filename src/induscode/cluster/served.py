"""Served servers: the owner's side of a server that other nodes use.

The owner has one session with the server. Each other node opens a channel and speaks MCP over it, in the era of the
server, as if it were connected to the server itself: requests run on the owner's session under the caller they come
from, so progress, cancellation, requests for input and log messages reach the right client; changes of lists and
resources go to every node.
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
from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.client.handlers import (
    ACKNOWLEDGED,
    CALLER,
    HOPS,
    SUBSCRIPTION,
    UNKNOWN_CALLER,
    Handlers,
    InputExchange,
    current_caller,
)
from indusagi.interop.protocol_bridge.client.session import SUBSCRIPTIONS
from indusagi.interop.protocol_bridge.client.tasks import TASK_STATUSES, TaskExchange
from indusagi.interop.protocol_bridge.contract import FaultDetail, FaultReason
from indusagi.interop.protocol_bridge.host.client_requests import ANSWER_S
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits, RequestDispatcher
from indusagi.interop.protocol_bridge.rpc.connection import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    ConnectionClosedError,
    InvalidResponseError,
    RequestOptions,
    RequestTimeoutError,
    RpcError,
)
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd
from indusagi.runtime.calls import current_trace, read_trace
from induscode.cluster.contract import ClusterFault
from induscode.cluster.seals import is_opening

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.handlers import Caller
    from indusagi.interop.protocol_bridge.client.session import ClientSession
    from indusagi.interop.protocol_bridge.host.dispatcher import HostRequest, PendingResult
    from induscode.cluster.channel import Channel
    from induscode.cluster.contract import Placement

_log = logging.getLogger(__name__)

_FAILED = -32000
_SUBSCRIBE_S = 60.0
_NEWS = ("list_changed", "resources/updated", *TASK_STATUSES)
"""Ends of the methods of notifications that are for every node."""
_LIMITS = HostLimits(calls=1_024, waiting=4_096)
"""Of one node: its clients have limits of their own, and the server has one for all."""


class CallerTokens:
    """Names the clients behind the calls of this node, so that an owner can tell them apart."""

    def __init__(self) -> None:
        self._tokens: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self._count = 0

    def describe(self, caller: Caller) -> JsonObject:
        """Describe a caller for the owner of the server that it calls."""
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
    """A client of another node: equal objects are the same client."""


class PeerCaller:
    """The client of another node behind a call; a `Caller`."""

    def __init__(self, request: HostRequest, fields: JsonObject, client: object | None) -> None:
        capabilities, level = fields.get("capabilities"), fields.get("logLevel")
        hops = request.meta.get(HOPS)
        self.client = client
        self.capabilities: JsonObject = capabilities if is_json_object(capabilities) else {}
        # The session counts this gateway once more.
        self.hops = max(0, hops - 1) if isinstance(hops, int) else 0
        self.log_level = level if isinstance(level, str) else None
        self.exchange = InputExchange(request.params) if fields.get("exchange") is True else None
        self.tasks = _read_tasks(request, fields.get("tasks"))
        self._request = request

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification that belongs to the call, unless the other node does not read."""
        if self._request.channel.writable.is_set():
            self._request.notify(method, params)

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Send a request to the client, and wait for the result."""
        try:
            return await self._request.send_request(method, params, within_s=ANSWER_S)
        except (InvalidResponseError, ConnectionClosedError, RequestTimeoutError) as exc:
            raise RpcError(UNKNOWN_CALLER, f"the client did not answer: {describe_error(exc)}") from exc


def _read_tasks(request: HostRequest, fields: JsonValue) -> TaskExchange | None:
    """Read what a client of another node that knows tasks contributes; None: it waits for the result here."""
    if not is_json_object(fields):
        return None
    core, task_id = fields.get("core"), request.params.get("taskId")
    # The other node knows the task by the server's own id, and gives it the id that the client knows.
    shown_id = task_id if isinstance(task_id, str) else ""
    return TaskExchange(core if is_json_object(core) else None, shown_id=shown_id)


class PeerSession:
    """The requests of one other node to one server."""

    def __init__(self, server: ServedServer, channel: Channel) -> None:
        self.channel = channel
        self._server = server
        self._clients: weakref.WeakValueDictionary[str, _Client] = weakref.WeakValueDictionary()
        self.dispatcher = RequestDispatcher(self._serve, self._receive_notification, _LIMITS)

    def start(self) -> None:
        """Take the frames of the channel."""
        self.channel.attach(lambda data: self.dispatcher.receive(data, self.channel), lambda _: None)

    def _serve(self, request: HostRequest) -> JsonObject | PendingResult:
        if request.method == "ping":
            return self._report_up()
        request.is_subscription = request.method == "subscriptions/listen"
        request.is_forwarded = True
        return self._run(request)

    async def _report_up(self) -> JsonObject:
        await self._server.ready.wait()
        if self._server.session is None:
            raise RpcError(_FAILED, "the server has ended")
        return {}

    async def _run(self, request: HostRequest) -> JsonObject:
        await self._server.ready.wait()
        session, facts = self._server.session, None if self._server.session is None else self._server.session.facts
        if session is None or facts is None:
            raise RpcError(_FAILED, "the server has ended")
        if request.method in {"initialize", "server/discover"}:
            if (request.method == "initialize") is (facts.era == "legacy"):
                return facts.result
            raise RpcError(METHOD_NOT_FOUND, f"{request.method} is not supported")
        caller = current_caller.set(self._find_caller(request))
        try:
            with request.cancel.guard():
                if request.is_subscription:
                    wanted = request.params.get("notifications")
                    meta: JsonObject = {"_meta": {SUBSCRIPTION: request.id}}

                    def acknowledge(reported: JsonObject) -> None:
                        request.notify(ACKNOWLEDGED, {**meta, "notifications": reported})

                    try:
                        await session.listen(acknowledge, **(wanted if is_json_object(wanted) else {}))
                    except ConnectionClosedError:
                        raise await self._wait_ended() from None
                    return {"resultType": "complete"}
                return await self._forward(session, request)
        finally:
            current_caller.reset(caller)
        return {}  # cancelled: it has no response

    async def _forward(self, session: ClientSession, request: HostRequest) -> JsonObject:
        token = request.meta.get("progressToken")

        def report(progress: JsonObject) -> None:
            if token is not None and request.channel.writable.is_set():
                request.notify("notifications/progress", {**progress, "progressToken": token})

        # The session of the owner writes `_meta` itself: from the caller, and from the trace.
        params = {key: value for key, value in request.params.items() if key != "_meta"}
        trace = current_trace.set(read_trace(request.meta))
        try:
            if request.method in SUBSCRIPTIONS:
                return await self._server.share_subscription(self, request.method, params)
            return await session.call(request.method, params, report)
        except ConnectionClosedError:
            raise await self._wait_ended() from None
        except RequestTimeoutError as exc:
            raise RpcError(_FAILED, describe_error(exc)) from exc
        except InvalidResponseError as exc:
            raise RpcError(INTERNAL_ERROR, describe_error(exc)) from exc
        finally:
            current_trace.reset(trace)

    async def _wait_ended(self) -> RpcError:
        """Wait for the end of the channel, which says it: the outcome is unknown there as it is here."""
        await self._server.ended.wait()
        return RpcError(_FAILED, "the server has ended")

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
        """Cancel its requests; the other node learns why."""
        self.channel.finish(end.message, end.detail)
        await self.channel.close()
        await self.dispatcher.close(end.message)


class ServedServer:
    """One server that this node owns, with the nodes that use it."""

    def __init__(
        self, placement: Placement, accept_channel: Callable[[Msg, Callable[[], None]], Channel | None]
    ) -> None:
        self.placement = placement
        self.session: ClientSession | None = None
        self.ready = asyncio.Event()
        """Set when the server is up, or has failed to come up."""
        self.ended = asyncio.Event()
        self.end_reason: FaultReason = "closed"
        """Why messages are refused that come after the end."""
        self._start: asyncio.Timeout | None = None
        """Ends the start of the server; None: it has started, or not yet begun to."""
        self._cut: str | None = None
        """Why it was cut off."""
        self._accept_channel = accept_channel
        self._peers: dict[str, PeerSession] = {}
        """By the subject of the other node's end."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._parted = asyncio.Event()
        """Set when a node has left."""
        self._watchers: dict[str, set[object]] = {}
        """The nodes whose clients watch a resource of a legacy server, by its URI."""
        self.is_leaving = False
        """Whether its placement is being given up."""
        self.is_resting = False
        """Whether it is about to be stopped: new channels are refused."""

    async def receive(self, message: Msg) -> bool:
        """Take a message for the server; the first one of a channel opens this end of it. False: it is refused."""
        reply = message.reply
        peer = self._peers.get(reply)
        if peer is None:
            if self.ended.is_set() or self.is_resting or not is_opening(message.data):
                return False
            channel = self._accept_channel(message, lambda: self._forget(reply))
            if channel is None:
                return True  # forged or repeated: it gets no answer
            peer = self._peers[reply] = PeerSession(self, channel)
            peer.start()
        await peer.channel.receive(message)
        return True

    def _forget(self, reply: str) -> None:
        peer = self._peers.pop(reply, None)
        self._parted.set()
        if peer is not None and not self.ended.is_set():
            # Owned by this server: awaited in `close`.
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
        """Subscribe the server to a resource when the first node wants that, and end it with the last."""
        session, uri = self.session, str(params.get("uri"))
        if session is None:
            raise RpcError(_FAILED, "the server has ended")
        watchers, options = self._watchers.setdefault(uri, set()), RequestOptions(_SUBSCRIBE_S)
        try:
            if method == "resources/subscribe":
                # Each one asks the server: it may refuse, and it may have forgotten the first.
                result = await session.request(method, params, options)
                watchers.add(watcher)
                return result
            watchers.discard(watcher)
            return {} if watchers else await session.request(method, params, options)
        finally:
            if not watchers:
                self._watchers.pop(uri, None)

    def is_idle(self, idle_s: float) -> bool:
        """Return whether it has not been called for so long, and no client watches anything of it."""
        session = self.session
        if session is None or session.calls.is_used or self._watchers or self.is_resting:
            return False
        return asyncio.get_running_loop().time() - session.calls.used_at >= idle_s

    async def ask_peers_to_rest(self, within_s: float) -> bool:
        """Ask the other nodes to leave it unless they use it; return whether all have, and refuse new ones then."""
        for peer in [*self._peers.values()]:
            await peer.channel.tell_rest()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._peers:
                    self._parted.clear()
                    await self._parted.wait()
        # Nothing comes between the look and the refusal: there is no await.
        self.is_resting = not self._peers and self.is_idle(0)
        return self.is_resting

    async def finish_calls(self, within_s: float) -> bool:
        """Refuse new calls, which can be sent again, and wait for the others and their answers; False if that lasts."""
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
        """Return the handlers of the owner's session: notifications go to the nodes they are for, too."""
        receive = handlers.on_notification

        def notify(method: str, params: JsonObject) -> None:
            caller, is_for_all = current_caller.get(), method.endswith(_NEWS)
            if isinstance(caller, PeerCaller) and not is_for_all:
                caller.notify(method, params)
                return
            if receive is not None:
                receive(method, params)
            if is_for_all:
                self._broadcast(method, params)

        return replace(handlers, on_notification=notify)

    def _broadcast(self, method: str, params: JsonObject) -> None:
        for peer in self._peers.values():
            peer.channel.send({"jsonrpc": "2.0", "method": method, "params": params})

    @asynccontextmanager
    async def starting(self) -> AsyncGenerator[None]:
        """Start the server inside the block, unless it is cut off meanwhile.

        Raises:
            ClusterFault: It was.
        """
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
        """Cut the server off at once: calls that run have an unknown outcome, later ones are refused."""
        if self.session is not None:
            self.session.connection.end(TransportEnd(message, FaultDetail(reason=reason)))
        elif self._start is not None and self._cut is None:
            self._start.reschedule(asyncio.get_running_loop().time())
        self._cut = self._cut or message

    async def close(self, end: TransportEnd) -> None:
        """End every channel with the reason for which the server has ended."""
        self.session = None
        if end.detail.reason == "moved":
            # A message may come before the channels have told their end: its refusal must not say less.
            self.end_reason = "moved"
        self.ready.set()
        self.ended.set()
        peers, self._peers = [*self._peers.values()], {}
        async with asyncio.TaskGroup() as tasks:
            for peer in peers:
                tasks.create_task(peer.close(end))
        if self._leaving:
            await asyncio.wait(self._leaving)
