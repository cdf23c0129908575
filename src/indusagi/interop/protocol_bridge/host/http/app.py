"""The MCP application behind HTTP: access checks, routing, sessions, dispatching.

All protocol revisions share one path. A request that names a revision up to 2025-11-25, or none, belongs to a
session. Any other is self-contained, and its headers must agree with its body. A disconnect cancels the client's
request. A session belongs to the token or principal that opened it; no other client can find it.
https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#session-management
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio

from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.interop.protocol_bridge.host.boundary import HostTasks, log_failure
from indusagi.interop.protocol_bridge.host.dispatcher import NO_PARAMS, Reader, ServerSession, is_request_id
from indusagi.interop.protocol_bridge.host.http.request import (
    CLIENT_GONE,
    EVENTS,
    JSON,
    REQUEST_CANCELLED,
    HttpRefusal,
    HttpResponse,
    NoResponse,
    refuse_method,
    serve_site,
)
from indusagi.interop.protocol_bridge.host.http.settings import HEALTH, METRICS
from indusagi.interop.protocol_bridge.rpc.connection import METHOD_NOT_FOUND, PARSE_ERROR
from indusagi.interop.protocol_bridge.rpc.mcp_headers import (
    LEGACY_VERSIONS,
    STATUSES,
    VERSION_HEADER,
    RequestProblem,
    check_headers,
    check_version,
)

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.http.quota import Place, Quota
    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest
    from indusagi.interop.protocol_bridge.host.http.resource_access import ResourceAccess
    from indusagi.interop.protocol_bridge.host.http.settings import (
        AccessPolicy,
        FindSchema,
        FindTarget,
        HttpSettings,
        NamedTokens,
        NewSession,
    )
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId

_SESSION = "mcp-session-id"
_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
"""https://prometheus.io/docs/instrumenting/exposition_formats/#basic-info"""
_END_S = 0.2
"""How long clients whose access has ended may take to read it."""
_UNACCEPTABLE = "the response is application/json or text/event-stream: accept one of them"


@dataclass(slots=True, eq=False)
class HttpSession:
    """One client, identified by the Mcp-Session-Id header."""

    identity: ClientIdentity
    client: ServerSession
    used_at: float
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    busy: int = 0
    """Requests in progress."""
    stream: HttpResponse | None = None
    """The response to the client's GET, open for messages outside of requests."""
    is_ended: bool = False
    is_ended_by_client: bool = False
    """The client sent DELETE, so it won't read the responses to the requests this cancels."""
    waiting: dict[RequestId | None, Place] = field(default_factory=dict["RequestId | None", "Place"])
    """Requests that wait until fewer are running."""

    @property
    def idle(self) -> bool:
        """Whether no request and no stream is open."""
        return not self.busy and self.stream is None

    def cancel_waiting(self, params: JsonValue, quota: Quota) -> None:
        """Cancel the request that a notification names, if it hasn't started."""
        request_id = params.get("requestId") if is_json_object(params) else None
        place = self.waiting.get(request_id) if is_request_id(request_id) else None
        if place is not None:
            quota.end_wait(place, HttpRefusal(400, "the client cancelled the request", code=REQUEST_CANCELLED))


class HttpSessions:
    """A limited number of sessions. Idle ones expire, or make room for a new one."""

    def __init__(self, new_session: NewSession, settings: HttpSettings) -> None:
        self._new_session = new_session
        self._settings = settings
        self._open: dict[str, HttpSession] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def admit(self, identity: ClientIdentity) -> HttpSession | None:
        """Open a session, or return None if the limit is reached and no session has been idle long enough."""
        now = asyncio.get_running_loop().time()
        spare = None
        if len(self._open) >= self._settings.sessions:
            before = now - self._settings.spare_s
            idle = [session for session in self._open.values() if session.idle and session.used_at <= before]
            spare = min(idle, key=lambda session: session.used_at, default=None)
            if spare is None:
                return None
            del self._open[spare.id]
        session = HttpSession(identity, self._new_session(identity), now)
        if self._settings.router is not None:
            session.id = self._settings.router.seal(session.id)
        self._open[session.id] = session
        if spare is not None:
            # The new session counts already: another client may ask for one while the old session ends.
            session.busy += 1
            try:
                await self._end(spare, "another client needs its place")
            finally:
                session.busy -= 1
                session.used_at = asyncio.get_running_loop().time()
        return session

    def find(self, request: HttpRequest) -> HttpSession:
        """Find the session of a request's client, or refuse the request."""
        session_id = request.headers.get(_SESSION)
        if session_id is None:
            raise HttpRefusal(400, "the header Mcp-Session-Id is missing: send initialize first")
        session = self._open.get(session_id)
        if session is None or session.identity.owner != request.identity.owner:
            raise HttpRefusal(404, "there is no such session: send initialize again")
        session.used_at = asyncio.get_running_loop().time()
        return session

    async def drop(self, session: HttpSession, reason: str) -> None:
        """End a session and cancel its requests."""
        if self._open.pop(session.id, None) is not None:
            await self._end(session, reason)

    async def _end(self, session: HttpSession, reason: str) -> None:
        session.is_ended = True
        try:
            if session.stream is not None:
                session.stream.end()
            await session.client.close(reason)
        except Exception as exc:  # noqa: BLE001 — boundary: end the other sessions too
            log_failure("the end of a session", exc)

    async def watch(self) -> None:
        """End sessions idle for longer than `idle_s`, until cancelled."""
        while True:
            await anyio.sleep(min(60.0, self._settings.idle_s / 2))
            before = asyncio.get_running_loop().time() - self._settings.idle_s
            for session in [*self._open.values()]:
                if session.idle and session.used_at < before:
                    await self.drop(session, "it was idle for too long")

    async def wait_idle(self) -> None:
        """Wait until all requests of all sessions are answered."""
        for session in [*self._open.values()]:
            await session.client.dispatcher.wait_idle(self._settings.stop_s)

    async def close(self, reason: str, is_meant: Callable[[ClientIdentity], object] = lambda _: True) -> None:
        """End all sessions concurrently, or only those of some clients."""
        async with anyio.create_task_group() as tasks:
            for session in [*self._open.values()]:
                if is_meant(session.identity):
                    tasks.start_soon(self.drop, session, reason)


class HostApp:
    """Answers HTTP requests from a host's sessions."""

    def __init__(
        self,
        new_session: NewSession,
        find_schema: FindSchema,
        read: Reader,
        settings: HttpSettings,
        policy: AccessPolicy,
        quota: Quota,
        tasks: HostTasks,
        access: ResourceAccess | None = None,
        find_target: FindTarget = lambda method, params: (method, None),
    ) -> None:
        self.sessions = HttpSessions(new_session, settings)
        self._new_session = new_session
        self._find_schema = find_schema
        self._read = read
        self._settings = settings
        self._policy = policy
        self._quota = quota
        self._tasks = tasks
        self._access = access
        """Checks access tokens; None: use the user's token."""
        self._find_target = find_target
        self._is_stopping = False
        self._single_sessions: dict[ServerSession, ClientIdentity] = {}
        """One session per self-contained request."""

    def accept(self, request: HttpRequest) -> bool:
        """Check a request's `Host`, `Origin`, path and token before its body is read, and set its identity.

        Return whether to go on. If not, it was answered, or a call of `HttpConnection.decide` follows.
        """
        self._policy.check(request)
        if self._is_stopping:
            raise HttpRefusal(503, "the host is stopping", close=True)
        site, asks_for_token = self._settings.site, self._access is not None or bool(self._policy.tokens)
        if site is not None and request.path not in self._policy.paths:
            if "authorization" not in request.headers or not asks_for_token:
                return site.accept(request)
        if self._access is not None and self._access.describe(request):
            return False
        identity = self._policy.identify(request)
        if identity is None:
            return self._access is not None and self._access.accept(request, self._tasks, self._admit)
        (self._admit if identity.principal else self._policy.admit)(request, identity)
        return True

    def _admit(self, request: HttpRequest, identity: ClientIdentity) -> None:
        """Set a request's client, and count the request for its principal; or refuse it."""
        self._policy.admit(request, identity)
        self._quota.count_request(identity)

    def handle(self, request: HttpRequest) -> None:
        """Answer a request, or refuse it."""
        method, path = request.method, request.path
        if self._settings.router is not None and self._forward(request, request.headers.get(_SESSION)):
            return
        if path == self._settings.path or path in self._policy.views:
            version = request.headers.get(VERSION_HEADER)
            if version is not None and version not in LEGACY_VERSIONS:
                self._require_method(request, "POST")
                self._post_single(request, version)
            elif method == "POST":
                self._post(request)
            elif method == "GET":
                self._open_stream(request)
            else:
                self._require_method(request, "DELETE", "GET, POST, DELETE")
                self._start(partial(self._delete_session, request, self.sessions.find(request)), request)
        elif path == HEALTH:
            self._require_method(request, "GET")
            quota = self._quota
            counts = {"sessions": len(self.sessions), "requests": quota.running, "waiting": quota.waiting}
            health: JsonObject = {"status": "ok", **counts, "dropped": {**quota.connections.dropped}}
            request.respond(200, compact_json(health).encode())
        elif path == METRICS:
            self._require_method(request, "GET")
            request.respond(200, self._write_metrics(), [(b"content-type", _METRICS_TYPE)])
        elif self._settings.site is not None:  # `accept` has let only the site's paths through
            quota, site = self._quota, self._settings.site
            serve = partial(serve_site, site, request, quota.take_stream, quota.give_stream)
            self._run(request, request.identity.owner, partial(self._start, serve, request))

    def _forward(self, request: HttpRequest, identity: object) -> bool:
        """Forward a request to the node that `identity` points to; return False if it's ours."""
        router = self._settings.router
        node = router.find_node(identity) if router is not None and isinstance(identity, str) else None
        if router is None or node is None:
            return False
        router.forward(request, node)
        return True

    def _write_metrics(self) -> bytes:
        assert self._settings.metrics is not None
        lines = [self._settings.metrics().rstrip("\n")]
        running, waiting = self._quota.running, self._quota.waiting
        counts = {"sessions": len(self.sessions), "requests_running": running, "requests_waiting": waiting}
        for name, value in counts.items():
            lines += [f"# TYPE indus_{name} gauge", f"indus_{name} {value}"]
        lines.append("# TYPE indus_connections_dropped_total counter")
        lines += [
            f'indus_connections_dropped_total{{reason="{key}"}} {value}'
            for key, value in self._quota.connections.dropped.items()
        ]
        return "\n".join((*lines, "")).encode()

    @staticmethod
    def _require_method(request: HttpRequest, method: str, allowed: str | None = None) -> None:
        if request.method != method:
            raise refuse_method(allowed or method)

    def _read_message(self, request: HttpRequest) -> JsonObject:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise HttpRefusal(415, "the content type must be application/json")
        try:
            message = self._read(request.body)
        except (ValueError, RecursionError) as exc:
            message = f"the body is not valid JSON: {describe_error(exc)}"
            raise HttpRefusal(400, message, code=PARSE_ERROR) from None
        if not is_json_object(message) or message.get("jsonrpc") != "2.0":
            raise HttpRefusal(400, "the body must be one JSON-RPC message")
        if "id" in message and "method" in message:
            params = message.get("params")
            if type(message["id"]) not in {int, str} or not isinstance(message["method"], str):
                raise HttpRefusal(400, "the request has no id that can be answered")
            if params is not None and not is_json_object(params):
                raise HttpRefusal(400, "params must be an object")
        self._policy.authorize(request, message, self._find_target)
        return message

    # -- revisions up to 2025-11-25, with sessions ----------------------------------------------

    def _post(self, request: HttpRequest) -> None:
        if not request.accepts(EVENTS) and not request.accepts(JSON):
            raise HttpRefusal(406, _UNACCEPTABLE)
        message = self._read_message(request)
        if message.get("method") == "initialize" and _SESSION not in request.headers:
            if "id" not in message:
                # There'd be no response to carry the session id: the session would only take up a place.
                raise HttpRefusal(400, "initialize must be a request: it has no id")
            self._start(partial(self._initialize, request, message), request)
            return
        session = self.sessions.find(request)
        if "id" in message and "method" in message:
            self._dispatch(request, session, message)
        else:
            if message.get("method") == "notifications/cancelled":
                session.cancel_waiting(message.get("params"), self._quota)
            session.client.dispatcher.receive(message, NoResponse(request.connection))
            request.respond(202)

    async def _initialize(self, request: HttpRequest, message: JsonObject) -> None:
        session = await self.sessions.admit(request.identity)
        if session is None:
            raise HttpRefusal(503, "too many sessions", retry_s=math.ceil(self._settings.spare_s) or 1)
        if request.is_finished:
            await self.sessions.drop(session, "it was never initialized")
        else:
            self._dispatch(request, session, message)

    def _dispatch(self, request: HttpRequest, session: HttpSession, message: JsonObject) -> None:
        owner, request_id = request.identity.owner + session.id.encode(), cast("RequestId", message["id"])
        session.busy += 1

        send = partial(self._send, request, session.client, message, session)
        place = self._run(request, owner, send, partial(self._release, session, request_id))
        if place.turn is not None:
            session.waiting[request_id] = place

    def _release(self, session: HttpSession, request_id: RequestId | None = None) -> None:
        """Record the end of a request."""
        session.busy -= 1
        session.used_at = asyncio.get_running_loop().time()
        session.waiting.pop(request_id, None)
        if session.client.version is None:  # opened for a handshake that failed
            self._start(partial(self.sessions.drop, session, "it was never initialized"))

    def _run(
        self, request: HttpRequest, owner: bytes, work: Callable[[], None], release: Callable[[], None] | None = None
    ) -> Place:
        """Do `work` as soon as its client has a place for one more request; `release` runs when it's finished."""
        if release is not None:
            request.on_finish.append(release)  # also if there's no place
        place = self._quota.enter(owner, request.identity, len(request.body))
        request.on_finish.append(partial(self._quota.leave, place))

        async def wait(turn: asyncio.Future[None]) -> None:
            await turn
            if not request.is_finished:  # the client may have gone in the same turn of the loop
                work()

        if place.turn is None:
            work()
        else:
            self._start(partial(wait, place.turn), request)
        return place

    def _send(
        self, request: HttpRequest, client: ServerSession, message: JsonObject, session: HttpSession | None = None
    ) -> None:
        """Pass a JSON-RPC request to its client. A disconnect cancels it."""
        if session is not None and session.is_ended:
            raise HttpRefusal(404, "the session has ended: send initialize again")
        request_id, params = cast("RequestId", message["id"]), message.get("params")
        response = HttpResponse(
            request,
            self._settings.ping_s,
            () if session is None else [(_SESSION.encode(), session.id.encode())],
            json_only=not request.accepts(EVENTS),
            request_id=request_id,
            statuses=STATUSES if session is None else None,
            is_abandoned=bool if session is None else lambda: session.is_ended_by_client,
        )

        def cancel() -> None:
            response.is_ended = True
            client.dispatcher.cancel(request_id, CLIENT_GONE)

        request.on_disconnect = cancel
        given = params if is_json_object(params) else NO_PARAMS
        client.dispatcher.request(request_id, cast("str", message["method"]), given, response, response.end)

    def _open_stream(self, request: HttpRequest) -> None:
        if not request.accepts(EVENTS):
            raise HttpRefusal(406, "the response is text/event-stream")
        session = self.sessions.find(request)
        if session.stream is not None:
            raise HttpRefusal(409, "this session has an open stream already")
        self._quota.take_stream()
        session.busy += 1

        def finish() -> None:
            session.stream = session.client.notification_channel = None
            self._quota.give_stream()
            self._release(session)

        request.on_finish.append(finish)
        headers = [(_SESSION.encode(), session.id.encode())]
        response = HttpResponse(request, self._settings.ping_s, headers)
        response.start_stream()
        session.stream = session.client.notification_channel = response

    async def _delete_session(self, request: HttpRequest, session: HttpSession) -> None:
        session.is_ended_by_client = True
        await self.sessions.drop(session, "its client ended it")
        request.respond(200)

    # -- revision 2026-07-28, self-contained requests -------------------------------------------

    def _post_single(self, request: HttpRequest, version: str) -> None:
        if not request.accepts(JSON):
            raise HttpRefusal(406, _UNACCEPTABLE)
        message = self._read_message(request)
        if "id" not in message or "method" not in message:
            self._take_notification(request, version)
            return
        problem = check_headers(request.lines, message, self._find_schema)
        if problem is None and message["method"] == "initialize":
            problem = RequestProblem(METHOD_NOT_FOUND, "this version of the protocol has no handshake")
        if problem is not None:
            request.respond(problem.status, problem.to_response(message["id"]))
            return
        if self._forward(request, cast("JsonObject", message.get("params") or NO_PARAMS).get("requestState")):
            return
        self._send_single(request, message)

    def _send_single(self, request: HttpRequest, message: JsonObject) -> None:
        identity, is_subscription = request.identity, message["method"] == "subscriptions/listen"
        if is_subscription and not request.accepts(EVENTS):
            raise HttpRefusal(406, "the response is text/event-stream")
        if is_subscription:
            self._quota.take_stream()
        client = self._new_session(identity)
        self._single_sessions[client] = identity

        def release() -> None:
            if is_subscription:
                self._quota.give_stream()
            self._single_sessions.pop(client, None)
            if not client.dispatcher.is_idle:
                self._start(partial(client.close, CLIENT_GONE))

        if is_subscription:
            request.on_finish.append(release)
            self._send(request, client, message)
        else:
            self._run(request, identity.owner, partial(self._send, request, client, message), release)

    @staticmethod
    def _take_notification(request: HttpRequest, version: str) -> None:
        unsupported = check_version(version)
        if unsupported is not None:
            raise HttpRefusal(unsupported.status, unsupported.message, code=unsupported.code)
        request.respond(202)

    # -- background tasks and shutdown ----------------------------------------------------------

    def _start(self, work: Callable[[], Coroutine[object, object, None]], request: HttpRequest | None = None) -> None:
        """Run `work` in its own task; a refusal or failure answers `request`."""

        async def run() -> None:
            try:
                await work()
            except HttpRefusal as refusal:
                if request is not None:
                    request.respond(refusal.status, refusal.body, refusal.headers)
            except Exception:
                if request is not None:
                    request.respond(500)
                raise  # gets logged

        self._tasks.start("a request" if request is not None else "the end of a session", run)

    async def end_clients(self, named: NamedTokens) -> None:
        """End sessions, streams and calls of clients whose access has ended."""
        reason = "the access of its client has ended"
        for client, identity in [*self._single_sessions.items()]:
            if named.find_end(identity):
                client.dispatcher.cancel_all(reason)
        await self.sessions.close(reason, named.find_end)
        await anyio.sleep(_END_S)  # so that they learn it from an answer
        for connection in [*self._quota.connections.open]:
            if named.find_end(connection.identity):
                connection.abort()

    async def stop(self, reason: str) -> None:
        """Refuse new requests, let running ones finish within `stop_s`, and cancel the rest."""
        self._is_stopping = True
        for client in self._single_sessions:
            client.dispatcher.release(reason)
        with anyio.move_on_after(self._settings.stop_s):
            await self._quota.wait_idle()
            await self.sessions.wait_idle()
        for client in [*self._single_sessions]:
            client.dispatcher.cancel_all(reason)
        await self.sessions.close(reason)
