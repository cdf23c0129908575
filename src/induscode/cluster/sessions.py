"""Sessions of clients in a cluster: any node takes a request, and the node that has its session answers it.

The id of a session, and the state of a suspended call, is sealed: it names its node, and carries an HMAC with the
secret of the cluster, so that a client cannot make one up. A node that gets an id of another one forwards the whole
HTTP request over a channel; the response, or the stream of events, comes back the same way. Access was checked at the
first node, whose word the other one takes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from indusagi.core.json import compact_json, is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from indusagi.interop.protocol_bridge.host.http.request import CLIENT_GONE, HttpRefusal, HttpRequest
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.interop.protocol_bridge.rpc.transport import decode_frame
from induscode.cluster.contract import ClusterFault
from induscode.cluster.key import UnsealedError
from induscode.cluster.seals import is_opening

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.host.http.request import Headers
    from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd
    from induscode.cluster.channel import Channel
    from induscode.cluster.key import ClusterKey
    from induscode.cluster.node import ClusterNode


# -- task handles -----------------------------------------------------------------------------
#
# A handle is what a gateway has to know about a task (server, the server's own id, owner, time of creation), sealed
# with the key of the cluster: a client can neither read it, nor make one up, nor change whose it is. It outlives the
# node that made it. A handle names its server by the digest of the row: nodes whose rows differ do not share tasks.
# The node that made a task has the open record of its call, and is told when another one sees the task's end.


_log = logging.getLogger(__name__)

_TASK_PREFIX = "t1."
_LONGEST_CHARS = 8_192
"""Of a handle; one of the longest id that is accepted from a server is shorter."""


@record
class SealedTask:
    """What a handle says."""

    server: str
    """The id of the server in the configuration."""
    server_key: str
    """A digest of its row."""
    own: str
    """The server's own id of the task."""
    owner: str
    """Digest of the client's token or principal."""
    created: float
    """When the server has created it, by the server's clock; 0: unknown."""
    expires_ms: int
    instance: str
    """The node that made it."""


class TaskHandles:
    """Seals and opens the handles of one node's clients."""

    def __init__(self, node: ClusterNode, key: ClusterKey) -> None:
        self._node = node
        self._key = key
        self._place = f"{node.broker.settings.prefix} task"

    @property
    def instance(self) -> str:
        """The name of this node's process."""
        return self._node.info.instance

    def identify_server(self, config: ServerConfig) -> str:
        """Return the digest of a server's row: nodes with equal rows have the same server."""
        if isinstance(config, StdioServerConfig):
            return self._node.find_target(config).key
        return hashlib.sha256(json.dumps([config.id, config.url]).encode()).hexdigest()[:32]

    def build(self, config: ServerConfig, own: str, owner: str, created: float, expires_ms: int) -> SealedTask:
        """Describe a new task of a client of this node."""
        return SealedTask(config.id, self.identify_server(config), own, owner, created, expires_ms, self.instance)

    def seal(self, task: SealedTask) -> str:
        """Return the handle of a task."""
        fields = (task.server, task.server_key, task.own, task.owner, task.created, task.expires_ms, task.instance)
        sealed = self._key.seal(self._place, compact_json([*fields]).encode())
        return _encode(sealed)

    def unseal(self, handle: str) -> SealedTask | None:
        """Return what a handle says; None if it was not sealed by a node of this cluster."""
        if not handle.startswith(_TASK_PREFIX) or len(handle) > _LONGEST_CHARS:
            return None
        text = handle.removeprefix(_TASK_PREFIX)
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            if _encode(sealed) != handle:  # a decoder accepts several spellings, and each would be a task of its own
                return None
            return SealedTask(*json.loads(self._key.unseal(self._place, sealed)))
        except (UnsealedError, binascii.Error, ValueError, TypeError):
            return None

    async def report_end(self, handle: str, instance: str) -> None:
        """Tell the node that made a task that it has ended; a node that is gone has recorded the call already."""
        members = self._node.membership
        try:
            await members.requests.tell(instance, members.find_seal(instance), {"op": "task", "key": handle})
        except ClusterFault as fault:
            _log.debug("the end of a task was not reported: %s", fault)

    def follow(self, look: Callable[[str], None]) -> None:
        """Call `look` with each handle of this node whose task another one has seen to have ended."""
        self._node.on_task_end = look


def _encode(sealed: bytes) -> str:
    return _TASK_PREFIX + base64.urlsafe_b64encode(sealed).decode().rstrip("=")


# -- sessions --------------------------------------------------------------------------------


_PREFIX = "n1."
_DOT = "~"
"""In place of the dot in the name of an offering node's process."""
_MAC_BYTES = 16
_PARTS = 4
_KEPT_BACK = frozenset({"authorization", "connection", "content-length", "cookie", "dpop", "host", "transfer-encoding"})
"""Headers that are not forwarded: credentials, and what belongs to the connection of the client."""


class SealedIds:
    """Seals ids with the name of this node's process, and reads those of others."""

    def __init__(self, instance: str, secret: bytes) -> None:
        self._instance = instance
        self._secret = secret

    def seal(self, identity: str) -> str:
        """Return an id that names this node."""
        text = f"{_PREFIX}{self._instance.replace('.', _DOT)}.{identity}"
        return f"{text}.{self._sign(text)}"

    def find_instance(self, sealed: str) -> str | None:
        """Return the instance that an id names; `None` if it is not sealed by this cluster."""
        text, _, mac = sealed.rpartition(".")
        if not sealed.startswith(_PREFIX) or not hmac.compare_digest(mac.encode(), self._sign(text).encode()):
            return None
        parts = text.split(".", _PARTS - 2)
        return parts[1].replace(_DOT, ".") if len(parts) == _PARTS - 1 else None

    def _sign(self, text: str) -> str:
        mac = hmac.digest(self._secret, text.encode("utf-8", "backslashreplace"), hashlib.sha256)[:_MAC_BYTES]
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


class ClusterSessions:
    """Forwards requests for sessions of other nodes, and answers those that others forward; a `SessionRouter`."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._ids = SealedIds(node.info.instance, node.secret)
        self._handle: Callable[[HttpRequest], None] | None = None
        self._open: dict[str, ForwardedConnection] = {}
        """Requests of other nodes, by the subject of their end."""

    def seal(self, identity: str) -> str:
        """Return the id that a client gets."""
        return self._ids.seal(identity)

    def find_node(self, identity: str) -> str | None:
        """Find the other node that an id belongs to; None: it is one of this node, or none of ours."""
        instance = self._ids.find_instance(identity)
        return None if instance == self._node.info.instance else instance

    def attach(self, handle: Callable[[HttpRequest], None], url: str) -> None:
        """Answer requests that other nodes forward with `handle`; the node reports its `url`."""
        self._handle = handle
        membership = self._node.membership
        membership.info = replace(membership.info, url=url)

    # -- at the node that the client has chosen ---------------------------------------------

    def forward(self, request: HttpRequest, node: str) -> None:
        """Have the other node answer a request; a session of a node that is gone, or does not answer, is unknown."""
        has_begun = False

        def receive(data: bytes | JsonValue) -> None:
            nonlocal has_begun
            frame = decode_frame(data) if isinstance(data, bytes) else data
            if is_json_object(frame) and not request.is_answered:
                has_begun = True
                _write(request, frame)

        def finish(end: TransportEnd) -> None:
            if request.is_answered:
                return
            if has_begun:
                request.connection.end_stream()
                return
            refusal = HttpRefusal(404, _explain_end(end, channel))
            request.respond(refusal.status, refusal.body, refusal.headers)

        subject = self._node.broker.settings.http_subject(node)
        channel = self._node.open_channel(subject, node, self._node.membership.find_seal(node))
        channel.attach(receive, finish)

        def leave() -> None:
            channel.finish(CLIENT_GONE)

        request.on_disconnect = leave
        identity = request.identity
        lines: list[JsonValue] = [[name, value] for name, value in request.lines if name not in _KEPT_BACK]
        scopes = None if identity.scopes is None else sorted(identity.scopes)
        frame: JsonObject = {
            "method": request.method,
            "target": f"{request.path}?{request.query}" if request.query else request.path,
            "headers": lines,
            "body": request.body.decode("latin-1"),
            "owner": identity.owner.hex(),
            "principal": identity.principal,
            "client_id": identity.client_id,
            "scopes": cast("JsonValue", scopes),
        }
        self._node.send_first(channel, node, frame)

    # -- at the node that has the session ---------------------------------------------------

    async def receive(self, message: Msg) -> None:
        """Take a message of a request that another node forwards."""
        reply = message.reply
        connection = self._open.get(reply)
        if connection is None:
            if not is_opening(message.data):
                if reply:
                    await self._node.channels.refuse(message)
                return
            channel = self._node.channels.accept(message, lambda: self._forget(reply))
            if channel is None:
                return  # forged or repeated
            connection = self._open[reply] = ForwardedConnection(channel)
            channel.attach(connection.receive(self._handle), lambda _: None)
        await connection.channel.receive(message)

    def _forget(self, reply: str) -> None:
        connection = self._open.pop(reply, None)
        if connection is not None:
            connection.disconnect()


def _explain_end(end: TransportEnd, channel: Channel) -> str:
    """Say why a request for a session of another node has no response, and whether it may have taken effect."""
    if channel.is_unheard and end.detail.reason != "node_changed":
        return f"there is no such session: its node {end.message}; send initialize again"
    return f"the session {end.message}; whether the request took effect is unknown; send initialize again"


def _write(request: HttpRequest, frame: JsonObject) -> None:
    """Write a part of the other node's response to the client."""
    connection, body = request.connection, frame.get("body")
    data = body.encode("latin-1", "replace") if isinstance(body, str) else b""
    status = frame.get("status")
    if isinstance(status, int):
        connection.send_response(status, data, _read_headers(frame))
    elif "headers" in frame:
        connection.start_stream(_read_headers(frame))
    elif data:
        connection.write_stream(data)
    else:
        connection.end_stream()


def _to_json(headers: Headers) -> JsonValue:
    return [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]


def _read_headers(frame: JsonObject) -> Headers:
    headers = frame.get("headers")
    pairs = headers if isinstance(headers, list) else []
    return [
        (str(pair[0]).encode("latin-1"), str(pair[1]).encode("latin-1")) for pair in pairs if isinstance(pair, list)
    ]


class ForwardedConnection:
    """Answers one request that another node has forwarded; a `Connection`."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.writable = channel.writable
        self._request: HttpRequest | None = None
        self._timer: asyncio.TimerHandle | None = None

    def receive(self, handle: Callable[[HttpRequest], None] | None) -> Callable[[bytes | JsonValue], None]:
        """Return the function that takes the frames of the channel: the first one is the request."""

        def receive(data: bytes | JsonValue) -> None:
            frame = decode_frame(data) if isinstance(data, bytes) else data
            if self._request is not None or not is_json_object(frame):
                return
            try:
                request = self._request = self._build_request(frame)
                if handle is None:
                    raise HttpRefusal(503, "the node does not serve clients")
                handle(request)
            except HttpRefusal as refusal:
                self.send_response(refusal.status, refusal.body, refusal.headers)
            except Exception as exc:  # noqa: BLE001 — boundary: each request is answered
                _log.error("the host failed in a forwarded request", exc_info=exc)
                self.send_response(500)

        return receive

    def _build_request(self, frame: JsonObject) -> HttpRequest:
        import h11  # noqa: PLC0415 — with a host over HTTP

        try:
            event = h11.Request(
                method=str(frame.get("method")),
                target=str(frame.get("target")),
                headers=[(b"host", b"cluster"), *_read_headers(frame)],
            )
            owner = bytes.fromhex(str(frame.get("owner")))
        except (h11.ProtocolError, ValueError) as exc:
            raise HttpRefusal(400, "the forwarded request is invalid") from exc
        request = HttpRequest(self, event)
        request.body = str(frame.get("body", "")).encode("latin-1", "replace")
        scopes = frame.get("scopes")
        request.identity = ClientIdentity(
            owner=owner,
            principal=str(frame.get("principal", "")),
            client_id=str(frame.get("client_id", "")),
            scopes=frozenset(map(str, scopes)) if isinstance(scopes, list) else None,
            # Only requests to sessions are forwarded: they open neither the page nor `/health`.
            credential="principal" if isinstance(scopes, list) else "view",
        )
        return request

    def send_response(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Answer in one piece."""
        self._send({"status": status, "body": body.decode("latin-1"), "headers": _to_json(headers)})
        self._finish()

    def start_stream(self, headers: Headers) -> None:
        """Begin a response of unknown length."""
        self._send({"headers": _to_json(headers)})

    def write_stream(self, data: bytes) -> None:
        """Write a part of it."""
        self._send({"body": data.decode("latin-1")})

    def end_stream(self) -> None:
        """End it."""
        self._send({})
        self._finish()

    def _send(self, frame: JsonObject) -> None:
        if self._request is None or not self._request.is_finished:
            self.channel.send(frame)

    def set_deadline(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` after this time, unless another deadline replaces this one."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, action)

    def may_write(self, size: int) -> bool:
        """Return True: the first node counts what its client has not read."""
        return True

    def decide(self, request: HttpRequest, refusal: HttpRefusal | None) -> None:
        """Do nothing: a forwarded request was accepted at the first node."""

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        request = self._request
        if request is not None and not request.is_finished:
            request.is_answered = True
            # Not before the caller has done with it.
            asyncio.get_running_loop().call_soon(request.finish)
        self.channel.end_after_queue()

    def disconnect(self) -> None:
        """The client, or the node in between, is gone."""
        if self._timer is not None:
            self._timer.cancel()
        request = self._request
        if request is not None and not request.is_finished:
            if not request.is_answered:
                request.disconnect()
            request.finish()


@asynccontextmanager
async def open_sessions(node: ClusterNode) -> AsyncGenerator[ClusterSessions]:
    """Take requests for sessions of this node from the others inside the block.

    Raises:
        ClusterFault: The broker is away.
    """
    sessions = ClusterSessions(node)
    stop = await node.broker.subscribe(node.broker.settings.http_subject(node.info.instance), sessions.receive)
    try:
        yield sessions
    finally:
        await stop()
