"""HTTP response bodies, matched to the JSON-RPC request they answer.

The response to a POST may only answer the request in that POST
(https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#sending-messages-to-the-server). The SDK
accepts any response on that stream, and a JSON body with any id, so the call would run into its deadline. This module
detects both.
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
"""A response to the request, an error without an id, a response to another request, one with duplicate keys, or not a
response."""

# Fields and line endings of an event stream:
# https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_DATA = re.compile(rb"(?:\A|(?<=[\r\n]))data: ?([^\r\n]*)")
_BOM = b"\xef\xbb\xbf"
OVERLAP = 3
"""How many bytes of a blank line (CR LF CR LF) may have come with the previous chunk."""


@record
class MessageMatch:
    """How a message relates to a request."""

    kind: MessageKind
    problem: str = "answered with a message that is not an answer"
    """The server's mistake, if the message can't be used."""

    @property
    def is_refused(self) -> bool:
        """Whether it must not reach the caller."""
        return self.kind in {"foreign", "ambiguous"}


def is_same_id(value: object, request_id: RequestId) -> bool:
    """Compare two ids; some servers return a number as `1.0` or `"1"`."""
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value == request_id or (isinstance(value, str) and value == str(request_id))


def classify_message(data: bytes, request_id: RequestId | None) -> MessageMatch:
    """Classify a message by the request it should answer. Invalid JSON counts as `own`, and fails later.

    Without a request, nothing is `foreign`.
    """
    try:
        message: object = json.loads(_decode(data), object_pairs_hook=build_object)
    except (json.JSONDecodeError, RecursionError):
        return MessageMatch("own")
    except ValueError as exc:
        return MessageMatch("ambiguous", problem=f"sent a message that two readers may read differently: {exc}")
    if request_id is None or not is_json_object(message) or not ("result" in message or "error" in message):
        return MessageMatch("other")
    identity = message.get("id")
    if identity is None and "error" in message:
        # "If there was an error in detecting the id in the Request object, it MUST be Null":
        # https://www.jsonrpc.org/specification#response_object
        return MessageMatch("unnamed")
    kind: MessageKind = "own" if is_same_id(identity, request_id) else "foreign"
    return MessageMatch(kind, f"answered a request that was not asked (id {json.dumps(identity)[:80]})")


def add_response_id(data: bytes, request_id: RequestId | None) -> bytes:
    """Add the request's id to an error response that lacks one."""
    return json.dumps({**json.loads(_decode(data)), "id": request_id}).encode()


def _decode(data: bytes) -> str:
    # Like the SDK decodes events, so that invalid UTF-8 can't hide a message from this check.
    return data.removeprefix(_BOM).decode("utf-8", "replace")


class EventFilter:
    """Filters responses to other requests, and messages with duplicate keys, out of a chunked event stream.

    Events are held until they're complete.
    """

    def __init__(self, request_id: RequestId | None) -> None:
        self.problem: str | None = None
        """Why the last message was removed."""
        self._request_id = request_id
        self._rest = bytearray()

    def take(self, piece: bytes) -> bytes:
        """Add a chunk; return the complete events."""
        # A blank line may start in the previous chunk: search its last bytes again.
        searched_from = max(len(self._rest) - OVERLAP, 0)
        self._rest += piece
        passed: list[bytes] = []
        while (end := BLANK_LINE.search(self._rest, searched_from)) is not None:
            event = self._cut(end.end())
            searched_from = 0
            if self._is_wanted(event):
                passed.append(event)
        return passed[0] if len(passed) == 1 else b"".join(passed)

    def finish(self) -> bytes:
        """Return the rest at the end of the stream."""
        rest = self._cut(len(self._rest))
        return rest if self._is_wanted(rest) else b""

    def _cut(self, end: int) -> bytes:
        with memoryview(self._rest) as view:
            piece = bytes(view[:end])
        del self._rest[:end]
        return piece

    def _is_wanted(self, event: bytes) -> bool:
        match = classify_message(b"\n".join(_DATA.findall(event.removeprefix(_BOM))), self._request_id)
        if match.is_refused:
            self.problem = match.problem
        return not match.is_refused
