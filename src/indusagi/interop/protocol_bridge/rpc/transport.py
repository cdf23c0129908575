"""Transports: carriers of JSON-RPC frames between a client and a server, and the encoding of frames as bytes.

A connection talks to any `Transport`. `BaseTransport` implements delivery and the end for all of ours.
`QueuedTransport` adds a queue for carriers that must be awaited, such as HTTP requests: `send` enqueues a frame, and a
task of the transport's owner dequeues it with `next_frame`. `MemoryTransport` connects a client and a host
in one process.
"""

from __future__ import annotations

import asyncio
import collections
import json
import re
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, TypeGuard, TypeVar, cast

from indusagi.core.json import JsonObject, JsonValue, build_object, refuse_constant
from indusagi.core.records import record
from indusagi.core.text import clean_json
from indusagi.interop.protocol_bridge.contract import FaultDetail

T = TypeVar("T")
RequestId: TypeAlias = int | str

_MAX_QUEUE_FRAMES = 64
"""Queue length at which `writable` is cleared."""
_NOT_SENT = -32000
_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")
CLOSED = FaultDetail(reason="closed")


@record
class TransportEnd:
    """Why a transport ended."""

    message: str
    detail: FaultDetail


class Transport(Protocol):
    """Carries frames to one peer and back."""

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Start delivery, beginning with the frames received so far; `on_end` is called once."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Send a frame; does nothing after the end."""
        ...

    @property
    def writable(self) -> asyncio.Event:
        """Set while the transport's buffer is below its limit."""
        ...

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget the details of a request that failed in transit."""
        ...


class BaseTransport:
    """Delivers frames and the end. Frames received before `attach` wait for it."""

    def __init__(self, writable: asyncio.Event | None = None) -> None:
        self.writable = writable or asyncio.Event()
        self._early: list[bytes | JsonValue] = []
        self._on_frame: Callable[[bytes | JsonValue], None] = self._early.append
        self._on_end: Callable[[TransportEnd], None] | None = None
        self._end: TransportEnd | None = None
        if writable is None:
            self.writable.set()

    @property
    def room(self) -> asyncio.Event:
        """Set while more can be sent: there's one connection."""
        return self.writable

    @property
    def accepts_notifications(self) -> bool:
        """Whether the transport has not ended."""
        return self._end is None

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Start delivery, beginning with the frames received so far; `on_end` is called once."""
        self._on_frame, self._on_end = on_frame, on_end
        for frame in self._early:
            on_frame(frame)
        self._early.clear()
        if self._end is not None:
            on_end(self._end)

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return `None`: individual requests don't fail on this transport."""
        return None

    def deliver(self, frame: bytes | JsonValue) -> None:
        """Deliver a frame, unless the transport has ended."""
        if self._end is None:
            self._on_frame(frame)

    def finish(self, message: str, detail: FaultDetail) -> TransportEnd:
        """Declare the end and return it; only the first call counts."""
        if self._end is None:
            self._end = TransportEnd(message, detail)
            self.writable.set()
            if self._on_end is not None:
                self._on_end(self._end)
        return self._end


class QueuedTransport(BaseTransport):
    """A transport that queues frames until its carrier takes them."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: collections.deque[JsonObject] = collections.deque()
        self._queued = asyncio.Event()
        self._details: dict[RequestId, FaultDetail] = {}
        """Details of the failure that's being delivered."""

    def send(self, frame: JsonObject) -> None:
        """Enqueue a frame; does nothing after the end."""
        if self._end is not None:
            return
        self._queue.append(frame)
        self._queued.set()
        if len(self._queue) >= _MAX_QUEUE_FRAMES:
            self.writable.clear()

    async def next_frame(self) -> JsonObject:
        """Wait for the next frame and dequeue it."""
        while not self._queue:
            self._queued.clear()
            await self._queued.wait()
        frame = self._queue.popleft()
        if len(self._queue) < _MAX_QUEUE_FRAMES:
            self.writable.set()
        return frame

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget why a request failed in transit."""
        return self._details.pop(request_id, None)

    def fail(
        self, request_id: RequestId, message: str, detail: FaultDetail | None = None, error: JsonObject | None = None
    ) -> None:
        """Deliver an error response for a request that failed in transit.

        `error` is the server's error object, if there is one; its message is replaced.
        """
        if detail is not None:
            self._details[request_id] = detail
        told: JsonObject = {"code": _NOT_SENT, **(error or {}), "message": message}
        self.deliver({"jsonrpc": "2.0", "id": request_id, "error": told})
        self._details.pop(request_id, None)

    def finish(self, message: str, detail: FaultDetail) -> TransportEnd:
        """Declare the end and drop the queue."""
        self._queue.clear()
        return super().finish(message, detail)


class MemoryTransport(BaseTransport):
    """One end of a pair; the other end delivers each frame in the next event loop iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self
        self._received: collections.deque[JsonObject] = collections.deque()

    def send(self, frame: JsonObject) -> None:
        """Send a frame to the other end; does nothing after the end."""
        if self._end is None:
            self.other.receive(frame)

    def receive(self, frame: JsonObject) -> None:
        """Accept a frame from the other end; deliver it in the next event loop iteration."""
        if not self._received:
            asyncio.get_running_loop().call_soon(self._deliver_all)
        self._received.append(frame)

    def finish(self, message: str = "closed the connection", detail: FaultDetail = CLOSED) -> TransportEnd:
        """End both transports after delivering the frames in transit; safe to call twice."""
        self._deliver_all()
        is_first = self._end is None
        end = super().finish(message, detail)
        if is_first:
            self.other.finish(message, detail)
        return end

    def _deliver_all(self) -> None:
        while self._received:
            self.deliver(self._received.popleft())


def linked_pair() -> tuple[MemoryTransport, MemoryTransport]:
    """Create two linked transports, one for a host's `connect` and one for an endpoint."""
    ours, theirs = MemoryTransport(), MemoryTransport()
    ours.other, theirs.other = theirs, ours
    return ours, theirs


def is_transport(value: object) -> TypeGuard[Transport]:
    """Return whether a value has the methods of a `Transport`."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("attach", "send", "detail")
    )


def is_peer_id(value: JsonValue) -> TypeGuard[RequestId | float]:
    """Return whether a value is a valid request id: a string or any number, fractions included."""
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def find_by_id(table: Mapping[RequestId, T], identity: JsonValue) -> T | None:
    """Look up a request, even if the peer returned its numeric id as `1.0` or `"1"`."""
    if isinstance(identity, float) and identity.is_integer():
        identity = int(identity)
    if not isinstance(identity, (int, str)) or isinstance(identity, bool):
        return None
    found = table.get(identity)
    if found is None and isinstance(identity, str) and _NUMBER.fullmatch(identity):
        found = table.get(int(identity))
    return found


def get_object(parent: JsonObject, key: str) -> JsonObject:
    """Return the object under a key, or an empty one if it's missing or something else."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def find_request_id(frame: JsonObject) -> RequestId | None:
    """Return the id of a request, or `None` for any other frame."""
    identity = frame.get("id")
    return identity if "method" in frame and isinstance(identity, (int, str)) else None


def find_cancelled_id(frame: JsonObject) -> RequestId | None:
    """Return the request id in a `notifications/cancelled` frame.

    https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/cancellation
    """
    if frame.get("method") != "notifications/cancelled":
        return None
    identity = get_object(frame, "params").get("requestId")
    return identity if isinstance(identity, (int, str)) else None


# -- frames as bytes -------------------------------------------------------------------------

_BOM = b"\xef\xbb\xbf"
_WHITESPACE = " \t\r\n"
_WHITESPACE_SET = frozenset(_WHITESPACE)
_PAYLOAD_KEYS = ("result", "params", "error")
_ENVELOPE_BYTES = 256
"""Approximate size of a frame without its payload."""
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_RESPONSE_HEAD = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*"(?:result|error)"'
)
"""The usual beginning of a response, which reveals the id even if the rest is invalid."""
_OBJECT_HEAD = re.compile(r'\{\s*"(?:jsonrpc|id|result|error)"\s*:')
"""Possible beginning of a message in the middle of a line."""
_MAX_RESPONSE_TRIES = 16
_SHOWN_CHARS = 60


class EncodeError(ValueError):
    """A frame contains a number that JSON can't represent."""


def decode_frame(line: bytes) -> JsonValue:
    """Decode one line; raise `ValueError` or `RecursionError`.

    Unpaired surrogates become U+FFFD, like invalid UTF-8: Python decodes their escapes, which RFC 8259 §8.2 leaves
    open, but couldn't encode the text again. In an id or token they're an error, because it would become another id.
    """
    text = line.removeprefix(_BOM).decode("utf-8", "replace").strip(_WHITESPACE)
    # Not `decode`, whose search for whitespace takes as long as the parsing.
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(f"more follows at character {end:,}")
    if _SURROGATE_ESCAPE.search(text):
        for frame in cast("list[JsonValue]", value if isinstance(value, list) else [value]):
            _check_identities(frame)
        value, _ = clean_json(cast("JsonValue", value), lambda part: _SURROGATE.subn("\ufffd", part))
    return cast("JsonValue", value)


def _check_identities(frame: JsonValue) -> None:
    if not isinstance(frame, dict):
        return
    params = get_object(frame, "params")
    token = get_object(params, "_meta").get("progressToken")
    for identity in (frame.get("id"), params.get("requestId"), params.get("progressToken"), token):
        if isinstance(identity, str) and _SURROGATE.search(identity):
            raise ValueError("an id has half of a character")


class EncodedObject(dict[str, "JsonValue"]):
    """An object with its encoding; don't modify it."""

    __slots__ = ("encoded",)

    def __init__(self, value: JsonObject, encoded: bytes) -> None:
        super().__init__(value)
        self.encoded = encoded


def decode_frame_verbatim(line: bytes) -> JsonValue:
    """Decode a frame like `decode_frame`, and keep the bytes of its payload to pass it on unchanged.

    A value that couldn't be encoded again is an error.
    """
    text = line.removeprefix(_BOM).decode("utf-8", "replace").strip(_WHITESPACE)
    if not text.startswith("{"):
        return _check_encodable(decode_frame(line))
    frame: JsonObject = {}
    index = _skip_whitespace(text, 1)
    has_more = not text.startswith("}", index)
    while has_more:
        if not text.startswith('"', index):
            raise ValueError(f"a name is expected at character {index:,}")
        key, index = _DECODER.raw_decode(text, index)
        if key in frame:
            raise ValueError(f"the name {key[:_SHOWN_CHARS]!r} occurs twice in one object")
        start = _skip_sign(text, index, ":")
        value, index = _DECODER.raw_decode(text, start)
        if key in _PAYLOAD_KEYS and isinstance(value, dict):
            # Strings contain no newlines. Between tokens a newline means nothing, but would end our line.
            payload = text[start:index].replace("\r", " ").replace("\n", " ")
            frame[key] = EncodedObject(cast("JsonObject", value), payload.encode("utf-8", "backslashreplace"))
        else:
            frame[key] = _check_encodable(value)
        index = _skip_whitespace(text, index)
        has_more = text.startswith(",", index)
        index = _skip_whitespace(text, index + 1) if has_more else index
    if _skip_sign(text, index, "}") != len(text):
        raise ValueError(f"more follows at character {index:,}")
    return frame


def _skip_sign(text: str, index: int, sign: str) -> int:
    index = _skip_whitespace(text, index)
    if not text.startswith(sign, index):
        raise ValueError(f"{sign!r} is expected at character {index:,}")
    return _skip_whitespace(text, index + 1)


def _skip_whitespace(text: str, index: int) -> int:
    while text[index : index + 1] in _WHITESPACE_SET:
        index += 1
    return index


def estimate_size(frame: JsonObject) -> int:
    """Estimate the size of a frame that was decoded verbatim, in bytes."""
    payloads = (frame.get(key) for key in _PAYLOAD_KEYS)
    return _ENVELOPE_BYTES + sum(len(value.encoded) for value in payloads if type(value) is EncodedObject)


def find_response_id(line: bytes) -> int | None:
    """Return the id of an invalid line that starts like a response."""
    match = _RESPONSE_HEAD.match(line.removeprefix(_BOM))
    return int(match[1]) if match else None


def find_responses(line: bytes) -> list[JsonObject]:
    """Find responses in a line with other text around them."""
    text = line.decode("utf-8", "replace")
    responses: list[JsonObject] = []
    index = 0
    for _ in range(_MAX_RESPONSE_TRIES):
        head = _OBJECT_HEAD.search(text, index)
        if head is None:
            break
        try:
            value, index = _DECODER.raw_decode(text, head.start())
        except (ValueError, RecursionError):
            index = head.end()
            continue
        if value.get("jsonrpc") == "2.0" and ("result" in value or "error" in value):
            responses.append(value)
    return responses


def encode_frame(frame: JsonObject) -> bytes:
    """Encode a frame as one line without its newline, reusing the bytes of an `EncodedObject`.

    Raises `EncodeError` for a number that JSON can't represent.
    """
    payload = None
    for key in _PAYLOAD_KEYS:
        value = frame.get(key)
        if type(value) is EncodedObject:
            payload = key.encode(), value.encoded
            frame = {name: other for name, other in frame.items() if name != key}
            break
    try:
        text = _ENCODER.encode(frame)
    except ValueError as exc:  # an infinity (also a decoded `1e999`), or too many digits
        raise EncodeError(f"it holds a number that cannot be written: {exc}") from exc
    data = text.encode("utf-8", "backslashreplace")
    return data if payload is None else b'%b,"%b":%b}' % (data[:-1], *payload)


def encode_object(value: JsonObject) -> EncodedObject:
    """Encode an object once, for several frames; raise like `encode_frame`."""
    return EncodedObject(value, encode_frame(value))


def _check_encodable(value: JsonValue) -> JsonValue:
    # Strings and integers always are encodable.
    if isinstance(value, (float, list, dict)):
        encode_frame({"": value})
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=build_object, parse_constant=refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False, allow_nan=False)
