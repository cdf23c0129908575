"""What an HTTP request to a host goes through: the policy, then its era, then the dispatcher.

Both eras share one path. A request that names a version of the older protocol, or none, belongs to
a session; any other stands alone, and its headers must agree with its body. Whoever goes away while
an answer is made has cancelled the request.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qs

import anyio

from indusagi.core.json import compact_json, is_json_object
from indusagi.interop.protocol_bridge.client.session import LEGACY_VERSIONS
from indusagi.interop.protocol_bridge.host.dispatcher import BUSY, NO_PARAMS, is_request_id
from indusagi.interop.protocol_bridge.host.http.auth import HEALTH, OLD_MESSAGES, OLD_STREAM, Quota, authorize
from indusagi.interop.protocol_bridge.host.http.connection import ANNOUNCED, CROWDED, ON_AUTHENTICATED, RECEIVED
from indusagi.interop.protocol_bridge.host.http.headers import (
    STATUSES,
    VERSION_HEADER,
    RequestProblem,
    check_headers,
    check_version,
)
from indusagi.interop.protocol_bridge.host.http.request import (
    AWAY,
    EVENTS,
    JSON,
    HttpRefusal,
    Request,
    ResponseQueue,
    cancelled,
)
from indusagi.interop.protocol_bridge.host.http.sessions import HttpSessions
from indusagi.interop.protocol_bridge.rpc.codec import decode_frame_verbatim
from indusagi.interop.protocol_bridge.rpc.connection import METHOD_NOT_FOUND, PARSE_ERROR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.host.dispatcher import ServerSession
    from indusagi.interop.protocol_bridge.host.http.auth import AccessPolicy
    from indusagi.interop.protocol_bridge.host.http.request import Headers, Receive, Scope, Send
    from indusagi.interop.protocol_bridge.host.http.sessions import HttpSession
    from indusagi.interop.protocol_bridge.host.http.settings import FindSchema, HttpSettings, NewSession
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId

_SESSION = "mcp-session-id"
_NO_STATUS: Mapping[int, int] = {}
_LATER = {"retry-after": "1", "connection": "close"}


class HostApp:
    """Answers HTTP requests; an ASGI application."""

    def __init__(
        self,
        new_session: NewSession,
        find_schema: FindSchema,
        settings: HttpSettings,
        policy: AccessPolicy,
        dropped: Mapping[str, int],
    ) -> None:
        self.sessions = HttpSessions(new_session, settings)
        self._new_client = new_session
        self._schema_of = find_schema
        self._settings = settings
        self._policy = policy
        self._stopping = False
        self._alone: set[ServerSession] = set()
        """Clients of the newer protocol, one for each request."""
        self._quota = Quota(settings)
        self._dropped = dropped
        """ConnectionTracker that were given up, by reason."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request (ASGI)."""
        if scope["type"] != "http":
            return
        state = scope["state"]
        request = Request(scope, receive, send, state[RECEIVED], state[ANNOUNCED])
        try:
            if state[CROWDED]():
                raise HttpRefusal(503, "there are too many connections", BUSY, _LATER)
            authorize(request, self._policy)
            state[ON_AUTHENTICATED]()
            if self._stopping:
                raise HttpRefusal(503, "the host is stopping", BUSY, _LATER)
            await self._route(request)
        except HttpRefusal as refused:
            await request.refuse(refused)

    async def _route(self, request: Request) -> None:
        if request.path == self._settings.path:
            version = request.headers.get(VERSION_HEADER)
            if version is not None and version not in LEGACY_VERSIONS:
                await self._modern(request, version)
            else:
                await self._legacy(request)
        elif request.path == HEALTH:
            _require_method(request, "GET")
            await request.respond(200, compact_json(self._health()).encode())
        elif request.path == OLD_STREAM:
            _require_method(request, "GET")
            await self._old_stream(request)
        else:
            _require_method(request, "POST")
            await self._old_message(request)

    def _health(self) -> JsonObject:
        counts: JsonObject = {"sessions": len(self.sessions), "requests": self._quota.running}
        return {"status": "ok", **counts, "dropped": {**self._dropped}}

    # -- the body ---------------------------------------------------------------------------

    async def _frame(self, request: Request) -> JsonObject:
        return _checked(await self._sent(request))

    async def _sent(self, request: Request) -> JsonValue:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON.decode():
            raise HttpRefusal(415, "the content type must be application/json")
        body = await request.body(self._settings.body_bytes, self._settings.body_s)
        try:
            return decode_frame_verbatim(body)
        except (ValueError, RecursionError):
            raise HttpRefusal(400, "the body is no JSON that can be read", PARSE_ERROR) from None

    # -- the older protocol -----------------------------------------------------------------

    async def _legacy(self, request: Request) -> None:
        if request.method == "POST":
            await self._legacy_post(request)
        elif request.method == "GET":
            await self._legacy_stream(request)
        elif request.method == "DELETE":
            session = self._session(request)
            await self.sessions.drop(session, "its client ended it")
            await request.respond(200)
        else:
            raise _method_refusal("GET, POST, DELETE")

    def _session(self, request: Request) -> HttpSession:
        identity = request.headers.get(_SESSION)
        if identity is None:
            raise HttpRefusal(400, "the header Mcp-Session-Id is missing: send initialize first")
        session = self.sessions.find(identity, request.owner)
        if session is None:
            raise HttpRefusal(404, "there is no such session: send initialize again")
        return session

    async def _legacy_post(self, request: Request) -> None:
        streamed = request.accepts(EVENTS)
        if not streamed and not request.accepts(JSON):
            raise HttpRefusal(406, "the answer is application/json or text/event-stream")
        frame = await self._frame(request)
        opening = frame.get("method") == "initialize" and _SESSION not in request.headers
        if opening and "id" not in frame:
            # Nobody would be told the id of the session: it could only take a place.
            raise HttpRefusal(400, "initialize must be a request: it has no id")
        session = await self._admitted(request) if opening else self._session(request)
        if "id" not in frame or "method" not in frame:
            session.client.dispatcher.receive(frame, ResponseQueue())
            await request.respond(202)
            return
        whose = request.owner + session.id.encode()
        try:
            with self.sessions.using(session), self._quota.request(whose):
                named = [(_SESSION.encode(), session.id.encode())]
                queue = ResponseQueue(only_answers=not streamed)
                await self._exchange(request, session.client, frame, queue, named, _NO_STATUS)
        finally:
            if session.client.version is None:
                # It was opened for a handshake that failed.
                await self.sessions.drop(session, "it was never initialized")

    async def _admitted(self, request: Request) -> HttpSession:
        session = await self.sessions.admit(request.owner)
        if session is None:
            wait = {"retry-after": str(math.ceil(self._settings.spare_s) or 1)}
            raise HttpRefusal(503, "there are too many sessions", BUSY, wait)
        return session

    async def _legacy_stream(self, request: Request) -> None:
        if not request.accepts(EVENTS):
            raise HttpRefusal(406, "the answer is text/event-stream")
        session = self._session(request)
        if session.stream is not None:
            raise HttpRefusal(409, "this session has its stream already")
        session.stream = session.client.notification_channel = queue = ResponseQueue()
        try:
            with self.sessions.using(session), self._quota.stream():
                named = [(_SESSION.encode(), session.id.encode())]
                await self._stream_events(request, queue, named)
        finally:
            session.stream = session.client.notification_channel = None

    # -- the newer protocol -----------------------------------------------------------------

    async def _modern(self, request: Request, version: str) -> None:
        if request.method != "POST":
            raise _method_refusal("POST")
        if not request.accepts(JSON):
            raise HttpRefusal(406, "the answer is application/json or text/event-stream")
        frame = await self._frame(request)
        if "id" not in frame or "method" not in frame:
            unspoken = check_version(version)
            if unspoken is not None:
                raise HttpRefusal(unspoken.status, unspoken.message, unspoken.code)
            await request.respond(202)
            return
        listens = frame["method"] == "subscriptions/listen"
        if listens and not request.accepts(EVENTS):
            raise HttpRefusal(406, "the answer is text/event-stream")
        objection = check_headers(request.lines, frame, self._schema_of)
        if objection is None and frame["method"] == "initialize":
            gone = "there is no handshake in this version of the protocol"
            objection = RequestProblem(METHOD_NOT_FOUND, gone)
        if objection is not None:
            await _reject(request, objection, frame["id"])
            return
        client = self._new_client(request.owner)
        self._alone.add(client)
        queue = ResponseQueue(only_answers=not request.accepts(EVENTS))
        try:
            with self._quota.stream() if listens else self._quota.request(request.owner):
                await self._exchange(request, client, frame, queue, (), STATUSES)
        finally:
            self._alone.discard(client)
            with anyio.CancelScope(shield=True):
                await client.close(AWAY)

    # -- the old transport ------------------------------------------------------------------

    async def _old_stream(self, request: Request) -> None:
        session = await self._admitted(request)
        session.stream = session.client.notification_channel = queue = ResponseQueue()
        try:
            with self._quota.stream():
                place = f"{OLD_MESSAGES}?session_id={session.id}".encode()
                await self._stream_events(request, queue, (), place)
        finally:
            with anyio.CancelScope(shield=True):
                await self.sessions.drop(session, AWAY)

    async def _old_message(self, request: Request) -> None:
        identity = parse_qs(request.query.decode("latin-1")).get("session_id", [""])[0]
        session = self.sessions.find(identity, request.owner)
        if session is None or session.stream is None:
            raise HttpRefusal(404, "there is no such session")
        frame = await self._frame(request)
        session.client.dispatcher.receive(frame, session.stream)
        await request.respond(202)

    # -- answering --------------------------------------------------------------------------

    async def _exchange(
        self,
        request: Request,
        client: ServerSession,
        frame: JsonObject,
        queue: ResponseQueue,
        headers: Headers,
        statuses: Mapping[int, int],
    ) -> None:
        """Have a request answered; the answer decides what it looks like."""
        identity, params = cast("RequestId", frame["id"]), frame.get("params")
        given = params if is_json_object(params) else NO_PARAMS
        method = cast("str", frame["method"])

        async def watch() -> None:
            await request.gone()
            client.dispatcher.cancel(identity, AWAY)
            queue.end()

        async with anyio.create_task_group() as tasks:
            client.dispatcher.request(identity, method, given, queue, queue.end)
            if not queue.ended:
                tasks.start_soon(watch)
            if queue.ended or await queue.settled(self._settings.ping_s):
                # The answer itself is not kept while it is being read.
                body = await queue.next_frame(0) or compact_json(cancelled(identity)).encode()
                status = 200 if queue.error is None else statuses.get(queue.error, 200)
                await request.respond(status, body, headers)
            else:
                await request.begin_events(headers)
                await self._written(request, queue)
            tasks.cancel_scope.cancel()

    async def _stream_events(
        self, request: Request, queue: ResponseQueue, headers: Headers, endpoint: bytes = b""
    ) -> None:
        """Write a standing stream until one of the two ends it."""

        async def watch() -> None:
            await request.gone()
            queue.end()

        async with anyio.create_task_group() as tasks:
            await request.begin_events(headers)
            await request.event(endpoint, b"endpoint")
            tasks.start_soon(watch)
            await self._written(request, queue)
            tasks.cancel_scope.cancel()

    async def _written(self, request: Request, queue: ResponseQueue) -> None:
        """Write events until they end; whoever does not take them is hung up on, and gone."""
        while (data := await queue.next_frame(self._settings.ping_s)) is not None:
            await request.event(data)
        await request.end()

    # -- the end ----------------------------------------------------------------------------

    async def stop(self, reason: str) -> None:
        """Take nothing more, let calls finish within the limit, and cancel the rest."""
        self._stopping = True
        for client in self._alone:
            client.dispatcher.release(reason)
        with anyio.move_on_after(self._settings.stop_s):
            await self._quota.wait_idle()
            await self.sessions.drained()
        for client in [*self._alone]:
            client.dispatcher.gone(reason)
        await self.sessions.close(reason)


def _require_method(request: Request, method: str) -> None:
    if request.method != method:
        raise _method_refusal(method)


def _method_refusal(allowed: str) -> HttpRefusal:
    """Name what is allowed, as https://www.rfc-editor.org/rfc/rfc9110#section-15.5.6 wants it."""
    return HttpRefusal(405, f"only {allowed}", headers={"allow": allowed})


def _checked(frame: JsonValue) -> JsonObject:
    if not is_json_object(frame) or frame.get("jsonrpc") != "2.0":
        raise HttpRefusal(400, "the body must be one JSON-RPC message")
    if "id" in frame and "method" in frame:
        params = frame.get("params")
        if not is_request_id(frame["id"]) or not isinstance(frame["method"], str):
            raise HttpRefusal(400, "the request has no id that can be answered")
        if params is not None and not is_json_object(params):
            raise HttpRefusal(400, "params must be an object")
    return frame


async def _reject(request: Request, objection: RequestProblem, identity: JsonValue) -> None:
    error: JsonObject = {"code": objection.code, "message": objection.message}
    if objection.data is not None:
        error["data"] = objection.data
    frame: JsonObject = {"jsonrpc": "2.0", "id": identity, "error": error}
    await request.respond(objection.status, compact_json(frame).encode())
