"""Streamable HTTP client transport: a POST for each of our messages, answered with JSON or an event stream.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#streamable-http. Each request has its own
task, which reads the response and resumes an event stream that broke off. In the legacy protocol the server may assign
a session, and sends messages that belong to no request on a standing stream (GET). The modern one has neither: closing
the response cancels a request (https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio

from indusagi.core.json import JsonObject, is_json_object
from indusagi.core.tasks import Backoff
from indusagi.interop.protocol_bridge.client.http.client import INITIALIZED, FramePosts, HttpClient, open_http_client
from indusagi.interop.protocol_bridge.client.http.failures import (
    EVENTS,
    JSON,
    HttpRequestError,
    build_incomplete_error,
    check_content_type,
)
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import PARSE_ERROR, is_passing
from indusagi.interop.protocol_bridge.rpc.mcp_headers import MODERN_VERSIONS, VERSION_HEADER, McpHeaders, is_modern
from indusagi.interop.protocol_bridge.rpc.transport import (
    QueuedTransport,
    decode_frame,
    decode_frame_verbatim,
    encode_frame,
    find_cancelled_id,
    find_request_id,
    find_response_id,
    get_object,
)
from indusagi.net.client import EventParser, ServerEvent
from indusagi.runtime.calls import SubjectToken, acting_subject

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from indusagi.interop.protocol_bridge.client.session import ClientSession
    from indusagi.interop.protocol_bridge.contract import ServerLimits, SseServerConfig, StreamableHttpServerConfig
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId
    from indusagi.net.address import WebUrl
    from indusagi.net.dial import HttpAnswer

_SESSION_HEADER = "mcp-session-id"
_POST_HEADERS = {"accept": f"{JSON}, {EVENTS}", "content-type": JSON}
_MAX_FAILED_RESUMES = 5
"""Attempts to resume one event stream that may fail in a row."""
_DRAIN_S = 1.0
"""How long the server may keep a stream open after the answer; the connection is reused if it ends by then."""
_FIRST_PAUSE_S, _PAUSE_FACTOR, _LONGEST_PAUSE_S = 0.5, 1.6, 60.0
"""Backoff between two GETs for the same stream."""
_NO_ANSWER = "answered with a message that is not an answer"
_LOST = FaultDetail(reason="closed", http_status=HTTPStatus.NOT_FOUND)


class ResumableRequest:
    """A request in transit, whose event stream can be resumed."""

    def __init__(self, request_id: RequestId, frame: JsonObject) -> None:
        self.id = request_id
        self.method = frame["method"]
        self.is_modern = is_modern(frame)
        self.scope = anyio.CancelScope()
        self.is_answered = False
        self.is_cancelled = False
        self.problem: HttpRequestError | None = None
        """Why the last message on its stream was unusable."""

    def is_own(self, response: JsonObject) -> bool:
        """Return whether a response answers this request; some servers return the id as `1.0` or `"1"`."""
        identity = response.get("id")
        if identity is None:
            # "If there was an error in detecting the id in the Request object, it MUST be Null":
            # https://www.jsonrpc.org/specification#response_object
            return "error" in response
        if isinstance(identity, float) and identity.is_integer():
            identity = int(identity)
        is_number = isinstance(identity, int) and not isinstance(identity, bool)
        return (is_number or isinstance(identity, str)) and identity in {self.id, str(self.id)}


@asynccontextmanager
async def streamable_transport(
    config: SseServerConfig | StreamableHttpServerConfig, *, verbatim: bool = False
) -> AsyncGenerator[StreamableHttpTransport]:
    """Open a transport to a server; end its session on exit."""
    async with open_http_client(config) as http:
        transport = StreamableHttpTransport(http, config.limits, verbatim=verbatim)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(transport.write, tasks)
                try:
                    yield transport
                finally:
                    transport.finish("was let go", FaultDetail(reason="closed"))
                    tasks.cancel_scope.cancel()
        finally:
            await transport.end_session()


class StreamableHttpTransport(QueuedTransport):
    """Transport over POST requests, and a standing stream in the legacy protocol.

    Args:
        http: Sends the requests.
        limits: The server's limits.
        verbatim: Deliver frames with the bytes of their payload, and tools with invalid header marks too.
    """

    def __init__(self, http: HttpClient, limits: ServerLimits, *, verbatim: bool = False) -> None:
        super().__init__()
        self.session: ClientSession | None = None
        """The session over this transport, which gets its notes."""
        self.via = http.via
        """Origin of the proxy, if any."""
        self.http = http
        self._limits = limits
        self._is_verbatim = verbatim
        self._headers = McpHeaders()
        self._session_id: str | None = None
        self._requests: dict[RequestId, ResumableRequest] = {}
        self._subjects: dict[RequestId, SubjectToken] = {}
        """Subjects of queued requests made on behalf of a client."""
        self._posts = FramePosts(http, limits.start_s, self._check_session)
        self._post_url: WebUrl | None = None
        """Where to post; `None`: to the server's URL."""

    def send(self, frame: JsonObject) -> None:
        """Enqueue a frame, with the subject it's sent for."""
        subject, request_id = acting_subject.get(), find_request_id(frame)
        if subject is not None and request_id is not None:
            self._subjects[request_id] = subject
        super().send(frame)

    # -- outbound ---------------------------------------------------------------------------

    async def write(self, tasks: TaskGroup) -> None:
        """Send queued frames in tasks of a group."""
        while True:
            frame = await self.next_frame()
            request_id, cancelled = find_request_id(frame), find_cancelled_id(frame)
            subject = None if request_id is None else self._subjects.pop(request_id, None)
            try:
                content, headers = encode_frame(frame), self._build_headers(frame)
            except (ValueError, RecursionError) as exc:
                if request_id is not None:
                    self.fail(request_id, f"it cannot be sent: {exc}")
                continue
            if request_id is not None:
                request = self._requests[request_id] = ResumableRequest(request_id, frame)
                # The task inherits it, and the authorizer reads it there.
                acting_subject.set(subject)
                tasks.start_soon(self._run_request, request, content, headers)
                acting_subject.set(None)
            elif cancelled is None or not self._give_up(cancelled):
                is_first = frame.get("method") == INITIALIZED
                await self._posts.start(tasks, content, headers, self._post_url, is_first=is_first)
                if is_first and self._session_id is not None:
                    tasks.start_soon(self._keep_stream_open)

    def _build_headers(self, frame: JsonObject) -> dict[str, str]:
        headers = {**_POST_HEADERS, **self._headers.build(frame)}
        if self._session_id is not None and not is_modern(frame):
            headers[_SESSION_HEADER] = self._session_id
        return headers

    def _build_stream_headers(self, accept: str = EVENTS, last_id: str | None = None) -> dict[str, str]:
        """Build the headers of a request without a message."""
        headers = {"accept": accept, "cache-control": "no-store"}
        if self._session_id is not None:
            headers[_SESSION_HEADER] = self._session_id
        if self._headers.version is not None:
            headers[VERSION_HEADER] = self._headers.version
        if last_id is not None:
            headers["last-event-id"] = last_id
        return headers

    def _give_up(self, request_id: RequestId) -> bool:
        """Give up a cancelled request; return whether that's all, because the server needs no notification."""
        request = self._requests.get(request_id)
        if request is None:
            return self._headers.version in MODERN_VERSIONS
        if request.is_modern:
            request.scope.cancel()
            return True
        # The notification may still get the server to answer.
        request.is_cancelled = True
        request.scope.deadline = anyio.current_time() + self._limits.close_s
        return False

    def _check_session(self, exc: HttpRequestError) -> None:
        """End the transport if a POST was refused because the server forgot the session.

        https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#session-management
        """
        if exc.detail.http_status == HTTPStatus.NOT_FOUND and self._session_id is not None:
            self._session_id = None
            self.finish("no longer knows our session (HTTP 404)", _LOST)

    async def end_session(self) -> None:
        """End the session; a server that doesn't respond will expire it."""
        if self._session_id is None:
            return
        with suppress(HttpRequestError), anyio.move_on_after(self._limits.close_s, shield=True):
            async with self.http.request("DELETE", self._build_stream_headers("*/*")):
                pass

    # -- requests ---------------------------------------------------------------------------

    async def _run_request(self, request: ResumableRequest, content: bytes, headers: dict[str, str]) -> None:
        try:
            with request.scope:
                try:
                    await self._exchange(request, content, headers)
                except HttpRequestError as exc:
                    if _SESSION_HEADER in headers:
                        self._check_session(exc)
                    if not request.is_answered:
                        self.fail(request.id, exc.describe(), exc.detail, exc.error)
        finally:
            if self._requests.get(request.id) is request:
                del self._requests[request.id]

    async def _exchange(self, request: ResumableRequest, content: bytes, headers: dict[str, str]) -> None:
        parser = EventParser(self._limits.frame_bytes)
        async with self.http.request("POST", headers, content) as answer:
            if request.method == "initialize":
                self._session_id = answer.headers.get(_SESSION_HEADER)
            if check_content_type(answer, JSON, EVENTS) == JSON:
                frame = self._decode(await self.http.read_body(answer))
                if not _is_response(frame):
                    raise _build_invalid_error(_NO_ANSWER)
                self._answer(request, frame)
                return
            await self._read_stream(request, answer, parser)
        await self._resume(request, parser)

    async def _resume(self, request: ResumableRequest, parser: EventParser) -> None:
        """Resume an event stream that ended before the answer, until a server refuses or fails too often."""
        backoff, failures, retry_s = _make_backoff(), 0, None
        while not request.is_answered:
            if parser.last_id is None or failures == _MAX_FAILED_RESUMES:
                raise request.problem or build_incomplete_error()
            await backoff.pause(retry_s or parser.retry_s)
            if request.is_cancelled:
                return
            try:
                headers = self._build_stream_headers(last_id=parser.last_id)
                async with self.http.request("GET", headers) as answer:
                    check_content_type(answer, EVENTS)
                    failures, retry_s = 0, None
                    await self._read_stream(request, answer, parser)
            except HttpRequestError as exc:
                if exc.detail.reason == "frame_too_large":
                    raise
                # Whatever the refusal, whether the request took effect is unknown.
                failures = failures + 1 if is_passing(exc.detail) else _MAX_FAILED_RESUMES
                retry_s = exc.detail.retry_after_s

    async def _read_stream(self, request: ResumableRequest, answer: HttpAnswer, parser: EventParser) -> None:
        try:
            await self.http.read_events(answer, parser, partial(self._take_event, request))
        except HttpRequestError as exc:
            if exc.detail.reason != "closed":
                raise

    def _take_event(self, request: ResumableRequest | None, event: ServerEvent) -> None:
        """Deliver an event of a request's stream, or of the standing one."""
        if event.name != "message" or not event.data:
            return
        try:
            frame = self._decode(event.data)
            if request is None or not _is_response(frame):
                self.deliver(frame)
            else:
                self._answer(request, frame)
        except HttpRequestError as exc:
            if request is not None and not request.is_answered:
                request.problem = exc
                if find_response_id(event.data) == request.id:
                    self._finish_request(request)
                    self.fail(request.id, exc.describe(), exc.detail, exc.error)
                    return
            if self.session is not None:
                self.session.note(f"it {exc.message}, which was ignored")

    def _answer(self, request: ResumableRequest, frame: JsonObject) -> None:
        if not request.is_own(frame):
            # https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#sending-messages-to-the-server
            shown = json.dumps(frame.get("id"))[:80]
            raise _build_invalid_error(f"answered a request that was not asked (id {shown})")
        if request.is_answered:
            return
        self._finish_request(request)
        result = get_object(frame, "result")
        if request.method == "initialize" and "result" in frame:
            self._headers.learn_version(result)
        elif request.method == "tools/list" and request.is_modern:
            note = None if self._is_verbatim or self.session is None else self.session.note
            learned = self._headers.learn_tools(result, note)
            frame = frame if learned is result else {**frame, "result": learned}
        self.deliver(frame if frame.get("id") == request.id else {**frame, "id": request.id})

    def _finish_request(self, request: ResumableRequest) -> None:
        request.is_answered = True
        request.scope.deadline = anyio.current_time() + _DRAIN_S

    def _decode(self, data: bytes) -> JsonObject:
        try:
            frame = (decode_frame_verbatim if self._is_verbatim else decode_frame)(data)
        except (ValueError, RecursionError) as exc:
            raise _build_invalid_error(f"sent a message that cannot be read: {exc}") from exc
        if not is_json_object(frame):
            raise _build_invalid_error(_NO_ANSWER)
        return frame

    # -- the standing stream ----------------------------------------------------------------

    async def _keep_stream_open(self) -> None:
        """Read messages that belong to no request, reopening the stream until the server refuses it."""
        loop, backoff, parser = asyncio.get_running_loop(), _make_backoff(), EventParser(self._limits.frame_bytes)
        had_stream = False
        while True:
            began_at, is_open, retry_s = loop.time(), False, None
            try:
                headers = self._build_stream_headers(last_id=parser.last_id)
                async with self.http.request("GET", headers) as answer:
                    check_content_type(answer, EVENTS)
                    is_open = True
                    if had_stream and self.session is not None:
                        self.session.on_gap()
                    had_stream = True
                    await self.http.read_events(answer, parser, partial(self._take_event, None))
            except HttpRequestError as exc:
                if not is_open and not is_passing(exc.detail):
                    return
                retry_s = exc.detail.retry_after_s
            if loop.time() - began_at > _LONGEST_PAUSE_S:
                backoff.reset()
            await backoff.pause(retry_s or parser.retry_s)


def _is_response(frame: JsonObject) -> bool:
    return "result" in frame or "error" in frame


def _make_backoff() -> Backoff:
    return Backoff(_FIRST_PAUSE_S, factor=_PAUSE_FACTOR, longest_s=_LONGEST_PAUSE_S)


def _build_invalid_error(problem: str) -> HttpRequestError:
    return HttpRequestError(problem, FaultDetail(reason="malformed"), {"code": PARSE_ERROR})
