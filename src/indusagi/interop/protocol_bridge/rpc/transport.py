"""Transports: carriers of JSON-RPC frames between a client and a server, and the encoding of frames as bytes.

`Transport` is what a connection needs of one. `BaseTransport` implements delivery and the end for every transport of
ours. `QueuedTransport` adds a queue for carriers that must be awaited, such as the streams of the MCP SDK: `send` puts
a frame into the queue, and a task of the transport's owner takes the next one with `next_frame`. `MemoryTransport`
connects a client and a host in one process.
"""

from __future__ import annotations

import asyncio
import collections
import json
import re
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeGuard, cast

from indusagi.core.invisible import clean_json
from indusagi.core.json import build_object, is_json_object, refuse_constant
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import FaultDetail

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.json import JsonObject, JsonValue


RequestId: TypeAlias = int | str

_QUEUE_FRAMES = 64
"""Frames in the queue from which on `writable` is cleared."""
_NOT_SENT = -32000
_CLOSED = FaultDetail(reason="closed")


@record
class TransportEnd:
    """Why a transport ended."""

    message: str
    detail: FaultDetail


class Transport(Protocol):
    """Carrier of frames to one peer and back."""

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Start delivery, with the frames that came before; `on_end` is called once."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Send a frame; does nothing after the end."""
        ...

    @property
    def writable(self) -> asyncio.Event:
        """Set while the transport accepts more frames without growing its buffer past its limit."""
        ...

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget what is known about a request that failed in transit."""
        ...


class BaseTransport:
    """Delivery of frames and of the end. Frames that come before `attach` are kept for it."""

    def __init__(self, writable: asyncio.Event | None = None) -> None:
        self.writable = writable or asyncio.Event()
        self._early: list[bytes | JsonValue] = []
        self._on_frame: Callable[[bytes | JsonValue], None] | None = None
        self._on_end: Callable[[TransportEnd], None] | None = None
        self._end: TransportEnd | None = None
        if writable is None:
            self.writable.set()

    @property
    def accepts_notifications(self) -> bool:
        """Whether the transport has not ended."""
        return self._end is None

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Start delivery, with the frames that came before; `on_end` is called once."""
        self._on_frame, self._on_end = on_frame, on_end
        early, self._early = self._early, []
        for frame in early:
            on_frame(frame)
        if self._end is not None:
            on_end(self._end)

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return `None`: single requests do not fail on this transport."""
        return None

    def deliver(self, frame: bytes | JsonValue) -> None:
        """Pass a frame on; frames after the end are dropped."""
        if self._end is not None:
            return
        if self._on_frame is None:
            self._early.append(frame)
        else:
            self._on_frame(frame)

    def finish(self, message: str, detail: FaultDetail) -> TransportEnd:
        """Declare the end and return it; the first declaration counts."""
        if self._end is None:
            self._end = TransportEnd(message, detail)
            self.writable.set()
            if self._on_end is not None:
                self._on_end(self._end)
        return self._end


class QueuedTransport(BaseTransport):
    """A transport whose frames wait in a queue until its carrier takes them."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: collections.deque[JsonObject] = collections.deque()
        self._queued = asyncio.Event()

    def send(self, frame: JsonObject) -> None:
        """Put a frame into the queue; does nothing after the end."""
        if self._end is not None:
            return
        self._queue.append(frame)
        self._queued.set()
        if len(self._queue) >= _QUEUE_FRAMES:
            self.writable.clear()

    async def next_frame(self) -> JsonObject:
        """Wait for the next frame and take it from the queue."""
        while not self._queue:
            self._queued.clear()
            await self._queued.wait()
        frame = self._queue.popleft()
        if len(self._queue) < _QUEUE_FRAMES:
            self.writable.set()
        return frame

    def fail(self, request_id: RequestId, message: str, code: int = _NOT_SENT) -> None:
        """Deliver an error response to a request that was not sent."""
        error: JsonObject = {"code": code, "message": message}
        self.deliver({"jsonrpc": "2.0", "id": request_id, "error": error})

    def finish(self, message: str, detail: FaultDetail) -> TransportEnd:
        """Declare the end, and drop the queue."""
        self._queue.clear()
        return super().finish(message, detail)


class MemoryTransport(BaseTransport):
    """One end of a pair; a frame sent here is delivered there, in the next iteration of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self
        self._received: collections.deque[JsonObject] = collections.deque()

    def send(self, frame: JsonObject) -> None:
        """Send a frame to the other end; does nothing after the end."""
        if self._end is None:
            self.other.receive(frame)

    def receive(self, frame: JsonObject) -> None:
        """Take a frame from the other end, and deliver it in the next iteration of the event loop."""
        if not self._received:
            asyncio.get_running_loop().call_soon(self._deliver_all)
        self._received.append(frame)

    def finish(self, message: str = "closed the connection", detail: FaultDetail = _CLOSED) -> TransportEnd:
        """End both transports, after the frames that are on their way; safe to call twice."""
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
    """Build two transports; give one to a host's `connect` and the other to an endpoint."""
    ours, theirs = MemoryTransport(), MemoryTransport()
    ours.other, theirs.other = theirs, ours
    return ours, theirs


def is_transport(value: object) -> TypeGuard[Transport]:
    """Return whether a value has the methods of a `Transport`, as an end of a `linked_pair` has."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("attach", "send", "detail")
    )


def is_peer_id(value: JsonValue) -> TypeGuard[RequestId | float]:
    """Tell whether a value can be the id of a peer's request: a text or any number, fractions included."""
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def find_request_id(frame: JsonObject) -> RequestId | None:
    """Return the id of a request; `None` for every other frame."""
    identity = frame.get("id")
    return identity if "method" in frame and isinstance(identity, (int, str)) else None


def find_cancelled_id(frame: JsonObject) -> RequestId | None:
    """Return the id of the request that a `notifications/cancelled` frame names.

    https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/cancellation
    """
    if frame.get("method") != "notifications/cancelled":
        return None
    params = frame.get("params")
    identity = params.get("requestId") if is_json_object(params) else None
    return identity if isinstance(identity, (int, str)) else None


# -- frames as bytes -------------------------------------------------------------------------

_BOM = b"\xef\xbb\xbf"
_WHITESPACE = " \t\r\n"
_WHITESPACE_SET = frozenset(_WHITESPACE)
_PAYLOAD_KEYS = ("result", "params", "error")
_ENVELOPE_BYTES = 256
"""About how many bytes a frame has besides its payload."""
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_RESPONSE_HEAD = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*"(?:result|error)"'
)
"""The usual beginning of a response: it shows the id even if the rest is invalid."""
_OBJECT_HEAD = re.compile(r'\{\s*"(?:jsonrpc|id|result|error)"\s*:')
"""Where a message may begin in the middle of a line."""
_RESPONSE_TRIES = 16
_SHOWN_CHARS = 60


class EncodeError(ValueError):
    """A frame contains a number that JSON cannot represent."""


def decode_frame(line: bytes) -> JsonValue:
    """Decode one line.

    An unpaired surrogate becomes U+FFFD, as invalid UTF-8 does: Python decodes its escape, which RFC 8259 §8.2 leaves
    open, but the text could not be encoded again. An id or token with one is refused: it would become another id.

    Raises:
        ValueError: Invalid JSON, a name that occurs twice in one object, or an id with an unpaired surrogate.
        RecursionError: It is nested too deeply.
    """
    text = line.removeprefix(_BOM).decode("utf-8", "replace").strip(_WHITESPACE)
    # `raw_decode`: `decode` searches for white space in a way that takes as long as the parsing.
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
    value = frame.get("params")
    params = value if isinstance(value, dict) else {}
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    for identity in (frame.get("id"), params.get("requestId"), params.get("progressToken"), token):
        if isinstance(identity, str) and _SURROGATE.search(identity):
            raise ValueError("an id has half of a character")


class EncodedObject(dict[str, "JsonValue"]):
    """An object with its encoded bytes; it must not be changed."""

    __slots__ = ("encoded",)

    def __init__(self, value: JsonObject, encoded: bytes) -> None:
        super().__init__(value)
        self.encoded = encoded


def decode_frame_verbatim(line: bytes) -> JsonValue:
    """Decode a frame and keep the bytes of its payload, so that it can be passed on unchanged.

    Raises:
        ValueError: Invalid JSON, a name that occurs twice in one object, or a value that could not be encoded again.
        RecursionError: It is nested too deeply.
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
            # Strings contain no line ends; between them a line end means nothing, and would end our line.
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
    """Estimate the bytes of a frame that was decoded verbatim."""
    payloads = (frame.get(key) for key in _PAYLOAD_KEYS)
    return _ENVELOPE_BYTES + sum(len(value.encoded) for value in payloads if type(value) is EncodedObject)


def find_response_id(line: bytes) -> int | None:
    """Return the id of an invalid line that begins like a response."""
    match = _RESPONSE_HEAD.match(line.removeprefix(_BOM))
    return int(match[1]) if match else None


def find_responses(line: bytes) -> list[JsonObject]:
    """Find responses in a line that has other text before, between or after them."""
    text = line.decode("utf-8", "replace")
    responses: list[JsonObject] = []
    index = 0
    for _ in range(_RESPONSE_TRIES):
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
    """Encode a frame as one line without its end; an `EncodedObject` in it is not encoded again.

    Raises:
        EncodeError: It contains a number that JSON cannot represent.
    """
    for key in _PAYLOAD_KEYS:
        value = frame.get(key)
        if type(value) is EncodedObject:
            envelope = _encode({name: other for name, other in frame.items() if name != key})
            return b'%b,"%b":%b}' % (envelope[:-1], key.encode(), value.encoded)
    return _encode(frame)


def encode_object(value: JsonObject) -> EncodedObject:
    """Encode an object once, for several frames.

    Raises:
        EncodeError: It contains a number that JSON cannot represent.
    """
    return EncodedObject(value, _encode(value))


def _encode(value: JsonValue) -> bytes:
    try:
        text = _ENCODER.encode(value)
    except ValueError as exc:  # an infinity (also a decoded `1e999`), or too many digits
        raise EncodeError(f"it holds a number that cannot be written: {exc}") from exc
    return text.encode("utf-8", "backslashreplace")


def _check_encodable(value: JsonValue) -> JsonValue:
    # Strings and integers always are.
    if isinstance(value, (float, list, dict)):
        _encode(value)
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=build_object, parse_constant=refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False, allow_nan=False)
