"""Client sessions in a cluster: any node accepts a request, and the node that has the session answers it.

Session ids and the states of suspended calls are sealed: they name their node and carry an HMAC with the cluster
secret, so clients can't forge them. A node that gets another node's id forwards the whole HTTP request over a channel,
and the response or event stream comes back the same way. The first node checks access, and the other one trusts it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig
from indusagi.interop.protocol_bridge.host.http.request import CLIENT_GONE, Headers, HttpRefusal, HttpRequest
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd, decode_frame
from induscode.cluster.contract import ClusterFault
from induscode.cluster.key import ClusterKey, UnsealedError, is_opening

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from induscode.cluster.channel import Channel
    from induscode.cluster.node import ClusterNode


# -- task handles -----------------------------------------------------------------------------
#
# A handle holds a gateway's facts about a task (server, the server's own id, owner, creation time), sealed with the
# cluster key: clients can't read it, forge it or change its owner. It outlives the node that made it. It names the
# server by the digest of its row, so nodes with different rows don't share tasks. The node that made a task has the
# open record of its call; another node that sees the task end reports it there.


_log = logging.getLogger(__name__)

_TASK_PREFIX = "t1."
_MAX_HANDLE_CHARS = 8_192
"""Upper bound for handles. The longest id accepted from a server gives a shorter one."""


@record
class SealedTask:
    """The contents of a handle."""

    server: str
    """The server's id in the configuration."""
    server_key: str
    """Digest of its row."""
    own: str
    """The server's id for the task."""
    owner: str
    """Digest of the client's token or principal."""
    created: float
    """Creation time by the server's clock, or 0 if unknown."""
    expires_ms: int
    instance: str
    """The node that made the handle."""


class TaskHandles:
    """Seals and opens task handles for one node's clients."""

    def __init__(self, node: ClusterNode, key: ClusterKey) -> None:
        self._node = node
        self._key = key
        self._place = f"{node.broker.settings.prefix} task"
        self.instance = node.info.instance

    def identify_server(self, config: ServerConfig) -> str:
        """Return the digest of a server's row. Nodes with equal rows have the same server."""
        if isinstance(config, StdioServerConfig):
            return self._node.find_target(config).key
        return hashlib.sha256(json.dumps([config.id, config.url]).encode()).hexdigest()[:32]

    def build(self, config: ServerConfig, own: str, owner: str, created: float, expires_ms: int) -> SealedTask:
        """Describe a new task of one of this node's clients."""
        return SealedTask(config.id, self.identify_server(config), own, owner, created, expires_ms, self.instance)

    def seal(self, task: SealedTask) -> str:
        """Return the handle of a task."""
        fields = (task.server, task.server_key, task.own, task.owner, task.created, task.expires_ms, task.instance)
        return _encode(self._key.seal(self._place, compact_json([*fields]).encode()))

    def unseal(self, handle: str) -> SealedTask | None:
        """Open a handle. None if no node of this cluster sealed it."""
        if not handle.startswith(_TASK_PREFIX) or len(handle) > _MAX_HANDLE_CHARS:
            return None
        text = handle.removeprefix(_TASK_PREFIX)
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            if _encode(sealed) != handle:  # base64 has several spellings, and each would count as a separate task
                return None
            return SealedTask(*json.loads(self._key.unseal(self._place, sealed)))
        except (UnsealedError, binascii.Error, ValueError, TypeError):
            return None

    async def report_end(self, handle: str, instance: str) -> None:
        """Report a task's end to the node that made it. A node that's gone has already recorded the call."""
        members = self._node.membership
        try:
            await members.requests.tell(instance, members.find_seal(instance), {"op": "task", "key": handle})
        except ClusterFault as fault:
            _log.debug("the end of a task was not reported: %s", fault)

    def follow(self, look: Callable[[str], None]) -> None:
        """Call `look` with each of this node's handles whose task another node saw end."""
        self._node.on_task_end.add(look)


def _encode(sealed: bytes) -> str:
    return _TASK_PREFIX + base64.urlsafe_b64encode(sealed).decode().rstrip("=")


# -- sessions --------------------------------------------------------------------------------


_PREFIX = "n1."
_DOT = "~"
"""Replaces the dot in the process name of an offering node."""
_MAC_BYTES = 16
_PARTS = 4
_KEPT_BACK = frozenset({"authorization", "connection", "content-length", "cookie", "dpop", "host", "transfer-encoding"})
"""Headers that aren't forwarded: credentials, and headers of the client's connection."""
_IDENTITY_TEXTS = ("principal", "user", "client_id", "view")


class SealedIds:
    """Seals ids with the name of this node's process, and reads other nodes' ids."""

    def __init__(self, instance: str, secret: bytes) -> None:
        self._instance = instance
        self._secret = secret

    def seal(self, identity: str) -> str:
        """Return an id that names this node."""
        text = f"{_PREFIX}{self._instance.replace('.', _DOT)}.{identity}"
        return f"{text}.{self._sign(text)}"

    def find_instance(self, sealed: str) -> str | None:
        """Return the instance an id names, or `None` if this cluster didn't seal it."""
        text, _, mac = sealed.rpartition(".")
        if not sealed.startswith(_PREFIX) or not hmac.compare_digest(mac.encode(), self._sign(text).encode()):
            return None
        parts = text.split(".", _PARTS - 2)
        return parts[1].replace(_DOT, ".") if len(parts) == _PARTS - 1 else None

    def _sign(self, text: str) -> str:
        mac = hmac.digest(self._secret, text.encode("utf-8", "backslashreplace"), hashlib.sha256)[:_MAC_BYTES]
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


class ClusterSessions:
    """A `SessionRouter` that forwards requests for other nodes' sessions and answers the ones they forward."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        key = node.broker.settings.key
        # An offering node serves no clients, so it seals nothing for others.
        self._ids = SealedIds(node.info.instance, secrets.token_bytes(32) if key is None else key.derive("session ids"))
        self._handle: Callable[[HttpRequest], None] | None = None
        self._open: dict[str, ForwardedConnection] = {}
        """Other nodes' requests, by the subject of their end."""

    def seal(self, identity: str) -> str:
        """Return the client's version of an id."""
        return self._ids.seal(identity)

    def find_node(self, identity: str) -> str | None:
        """Find the other node an id belongs to. None if it's ours or unknown."""
        instance = self._ids.find_instance(identity)
        return None if instance == self._node.info.instance else instance

    def attach(self, handle: Callable[[HttpRequest], None], url: str) -> None:
        """Answer forwarded requests with `handle`, and report this node's `url`."""
        self._handle = handle
        membership = self._node.membership
        membership.info = replace(membership.info, url=url)

    # -- at the client's node ---------------------------------------------------------------

    def forward(self, request: HttpRequest, node: str) -> None:
        """Let the other node answer a request. If that node is gone or silent, the session is unknown."""
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
            # The request may have taken effect, unless nothing has heard it.
            reason = f"the session {end.message}; whether the request took effect is unknown"
            if channel.is_unheard and end.detail.reason != "node_changed":
                reason = f"there is no such session: its node {end.message}"
            refusal = HttpRefusal(404, f"{reason}; send initialize again")
            request.respond(refusal.status, refusal.body, refusal.headers)

        subject = self._node.broker.settings.subject("http", node)
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
            "scopes": cast("JsonValue", scopes),
            "credential": identity.credential,
            **{name: getattr(identity, name) for name in _IDENTITY_TEXTS},
        }
        self._node.send_first(channel, node, frame)

    # -- at the session's node --------------------------------------------------------------

    async def receive(self, message: Msg) -> None:
        """Handle a message of a request forwarded by another node."""
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
            channel.attach(partial(connection.receive, self._handle), lambda _: None)
        await connection.channel.receive(message)

    def _forget(self, reply: str) -> None:
        connection = self._open.pop(reply, None)
        if connection is not None:
            connection.disconnect()


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
    """A `Connection` that answers one request forwarded by another node."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.writable = self.room = channel.writable
        self.peer = ""
        self._request: HttpRequest | None = None
        self._timer: asyncio.TimerHandle | None = None

    def receive(self, handle: Callable[[HttpRequest], None] | None, data: bytes | JsonValue) -> None:
        """Handle a frame of the channel. The first one is the request."""
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
        scopes, credential = frame.get("scopes"), "principal" if isinstance(frame.get("scopes"), list) else "view"
        if credential == "principal" and frame.get("credential") == "token":
            credential = "token"
        texts: dict[str, Any] = {name: str(frame.get(name, "")) for name in _IDENTITY_TEXTS}
        request.identity = ClientIdentity(
            owner=owner,
            scopes=frozenset(map(str, scopes)) if isinstance(scopes, list) else None,
            credential=credential,  # only session requests are forwarded, never the page or `/health`
            **texts,
        )
        return request

    def send_response(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Send a complete response."""
        self._send({"status": status, "body": body.decode("latin-1"), "headers": _to_json(headers)})
        self._finish()

    def start_stream(self, headers: Headers) -> None:
        """Start a response of unknown length."""
        self._send({"headers": _to_json(headers)})

    def write_stream(self, data: bytes) -> None:
        """Write a part of the stream."""
        self._send({"body": data.decode("latin-1")})

    def end_stream(self) -> None:
        """End the stream."""
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

    def decide(self, request: HttpRequest, refusal: HttpRefusal | None) -> None:
        """Do nothing: the first node accepted the request."""

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        request = self._request
        if request is not None and not request.is_finished:
            request.is_answered = True
            # Only once the caller is done with it.
            asyncio.get_running_loop().call_soon(request.finish)
        self.channel.end_after_queue()

    def disconnect(self) -> None:
        """Handle the loss of the client or the node in between."""
        if self._timer is not None:
            self._timer.cancel()
        request = self._request
        if request is not None and not request.is_finished:
            if not request.is_answered:
                request.disconnect()
            request.finish()


@asynccontextmanager
async def open_sessions(node: ClusterNode) -> AsyncGenerator[ClusterSessions]:
    """Accept other nodes' requests for this node's sessions inside the block."""
    sessions = ClusterSessions(node)
    stop = await node.broker.subscribe(node.broker.settings.subject("http", node.info.instance), sessions.receive)
    try:
        yield sessions
    finally:
        await stop()
