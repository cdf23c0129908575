"""HTTP response bodies, matched against the JSON-RPC request that they answer.

The response to a POST may answer only the request in that POST
(https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#sending-messages-to-the-server). The SDK
accepts every response on that stream, and a response in a JSON body under any id: the call would end at its deadline.
Both are detected here.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.json import build_object, is_json_object
from indusagi.core.records import record

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId

MessageKind: TypeAlias = Literal["own", "unnamed", "foreign", "ambiguous", "other"]
"""A response to the request, an error without an id, a response to another request, one with a name that occurs twice,
or no response."""

_LARGE = 256 * 1024
"""A larger message is not parsed a second time if its beginning or end shows its id."""
_EDGE = 4096
_ID = rb'"id"\s*:\s*(-?\d{1,15}|"[^"\\]{0,200}")\s*'
_HEAD_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb",")
_TAIL_ID = re.compile(rb",\s*" + _ID + rb"\}\s*\Z")
# Fields and line ends of an event stream:
# https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_DATA_FIELD = re.compile(rb"(?:\A|[\r\n])data: ?")
_BOM = b"\xef\xbb\xbf"
OVERLAP = 3
"""How many bytes of a blank line (CR LF CR LF) may have come with the piece before."""


@record
class MessageMatch:
    """How a message relates to a request."""

    kind: MessageKind
    problem: str = "answered with a message that is not an answer"
    """What the server did, if the message can't be used."""

    @property
    def is_refused(self) -> bool:
        """Whether it must not reach the caller."""
        return self.kind in {"foreign", "ambiguous"}


def is_same_id(value: object, request_id: RequestId) -> bool:
    """Compare two ids; some servers send a number back as `1.0` or as `"1"`."""
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value == request_id or (isinstance(value, str) and value == str(request_id))


def classify_message(data: bytes, request_id: RequestId) -> MessageMatch:
    """Classify a message by the request that it should answer; invalid JSON counts as `own`, and fails later."""
    if len(data) > _LARGE and (id_match := _HEAD_ID.match(data[:_EDGE]) or _TAIL_ID.search(data[-_EDGE:])) is not None:
        return _match_id(json.loads(id_match[1]), request_id)
    try:
        message: object = json.loads(data.removeprefix(_BOM), object_pairs_hook=build_object)
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)):
            return MessageMatch("own")
        return MessageMatch(
            "ambiguous", problem=f"answered with a message that two readers may read differently: {exc}"
        )
    if not is_json_object(message) or not ("result" in message or "error" in message):
        return MessageMatch("other")
    identity = message.get("id")
    if identity is None and "error" in message:
        # "If there was an error in detecting the id in the Request object, it MUST be Null":
        # https://www.jsonrpc.org/specification#response_object
        return MessageMatch("unnamed")
    return _match_id(identity, request_id)


def add_response_id(data: bytes, request_id: RequestId) -> bytes:
    """Give an error without an id the id of the request that it answers."""
    return json.dumps({**json.loads(data.removeprefix(_BOM)), "id": request_id}).encode()


def _match_id(identity: object, request_id: RequestId) -> MessageMatch:
    kind: MessageKind = "own" if is_same_id(identity, request_id) else "foreign"
    return MessageMatch(kind, f"answered a request that was not asked (id {json.dumps(identity)[:80]})")


class EventFilter:
    """Removes responses to other requests from an event stream that comes in pieces.

    An event is held until it is complete, unless it is large and begins with the id of the request: such a response
    passes piece by piece.
    """

    def __init__(self, request_id: RequestId) -> None:
        self.problem: str | None = None
        """Why the last response was removed."""
        self._request_id = request_id
        self._rest = bytearray()
        self._is_passing = False
        """The event that has begun is a response to the request, and is not held."""

    def take(self, piece: bytes) -> bytes:
        """Add a piece; return the complete events, and as much of a large response as there is."""
        # A blank line may begin in the bytes kept before: the last three are searched again.
        searched_from = max(len(self._rest) - OVERLAP, 0)
        self._rest += piece
        passed: list[bytes] = []
        while (end := BLANK_LINE.search(self._rest, searched_from)) is not None:
            event = self._cut(end.end())
            searched_from = 0
            if self._is_passing or self._is_wanted(event):
                passed.append(event)
            self._is_passing = False
        if not self._is_passing and len(self._rest) > _LARGE:
            data = _DATA_FIELD.search(self._rest, 0, _EDGE)
            id_match = data and _HEAD_ID.match(self._rest, data.end(), data.end() + _EDGE)
            self._is_passing = bool(id_match) and is_same_id(json.loads(id_match[1]), self._request_id)
        if self._is_passing:
            passed.append(self._cut(max(len(self._rest) - OVERLAP, 0)))
        return passed[0] if len(passed) == 1 else b"".join(passed)

    def finish(self) -> bytes:
        """Return what is left at the end of the stream."""
        rest = self._cut(len(self._rest))
        return rest if self._is_passing or self._is_wanted(rest) else b""

    def _cut(self, end: int) -> bytes:
        with memoryview(self._rest) as view:
            piece = bytes(view[:end])
        del self._rest[:end]
        return piece

    def _is_wanted(self, event: bytes) -> bool:
        if b'"result"' not in event and b'"error"' not in event:
            return True
        lines = _LINE_END.split(event.removeprefix(_BOM))
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line[:5] == b"data:")
        match = classify_message(data, self._request_id)
        if match.is_refused:
            self.problem = match.problem
        return not match.is_refused
