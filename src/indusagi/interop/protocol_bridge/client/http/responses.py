"""The body of an HTTP response, held against the JSON-RPC request that it answers.

The response to a POST may answer only the request in that POST
(https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#sending-messages-to-the-server).
The SDK takes every answer on that stream for its own, and an answer in a JSON body under whatever
id it names, for which nobody waits: the call would end at its deadline. Both are found out here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.json import is_json_object

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId

Kind: TypeAlias = Literal["own", "unnamed", "foreign", "other"]
"""An answer to the request, an error without an id, an answer to another one, or no answer."""

_LARGE = 256 * 1024
"""A message beyond this is not parsed a second time where its beginning and end tell its id."""
_EDGE = 4096
_ID = rb'"id"\s*:\s*(-?\d{1,15}|"[^"\\]{0,200}")\s*'
_HEAD_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb",")
_TAIL_ID = re.compile(rb",\s*" + _ID + rb"\}\s*\Z")
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_DATA_FIELD = re.compile(rb"(?:\A|[\r\n])data: ?")
_BOM = b"\xef\xbb\xbf"
_OVERLAP = 3
"""So many bytes of a blank line (CR LF CR LF) may have come with the piece before."""


@dataclass(frozen=True, slots=True)
class MessageMatch:
    """What a message is to the request that was asked, and the id that it names."""

    kind: Kind
    shown_id: str = "none"


def is_same_id(given: object, asked: RequestId) -> bool:
    """Compare two ids; a number may come back as `1.0` or as `"1"`, as some servers send it."""
    if isinstance(given, bool) or given is None:
        return False
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    return given == asked or (isinstance(given, str) and given == str(asked))


def classify_message(data: bytes, asked: RequestId) -> MessageMatch:
    """Tell whether a message answers the request `asked`; what is not JSON is left to others."""
    if len(data) > _LARGE and (found := _edge_id(data)) is not None:
        return _judge_id(found, asked)
    try:
        message: object = json.loads(data.removeprefix(_BOM))
    except (ValueError, RecursionError):
        return MessageMatch("own")
    if not is_json_object(message) or not ("result" in message or "error" in message):
        return MessageMatch("other")
    identity = message.get("id")
    if identity is None and "error" in message:
        # "If there was an error in detecting the id in the Request object, it MUST be Null":
        # https://www.jsonrpc.org/specification#response_object
        return MessageMatch("unnamed")
    return _judge_id(identity, asked)


def add_response_id(data: bytes, asked: RequestId) -> bytes:
    """Give an error without an id the id of the request that it answers."""
    return json.dumps({**json.loads(data.removeprefix(_BOM)), "id": asked}).encode()


def _edge_id(data: bytes) -> object:
    found = _HEAD_ID.match(data[:_EDGE]) or _TAIL_ID.search(data[-_EDGE:])
    return None if found is None else json.loads(found[1])


def _judge_id(identity: object, asked: RequestId) -> MessageMatch:
    kind: Kind = "own" if is_same_id(identity, asked) else "foreign"
    return MessageMatch(kind, json.dumps(identity)[:80])


class EventFilter:
    """Takes a stream of events in pieces, and gives it back without answers to other requests.

    An event is held until its end comes, unless it is large and begins with the id of the request:
    such an answer passes piece by piece.
    """

    def __init__(self, asked: RequestId) -> None:
        self.foreign: str | None = None
        """The id of the last answer that was left out."""
        self._asked = asked
        self._rest = bytearray()
        self._passing = False
        """The event that has begun is known to be wanted, and is not held."""

    def take(self, piece: bytes) -> bytes:
        """Give the whole events there are, and as much of a large answer as there is."""
        # A blank line may begin in what was kept: its last three bytes are looked at again.
        searched_from = max(len(self._rest) - _OVERLAP, 0)
        self._rest += piece
        kept: list[bytes] = []
        while (end := _BLANK_LINE.search(self._rest, searched_from)) is not None:
            event = self._cut(end.end())
            searched_from = 0
            if self._passing or self._is_wanted(event):
                kept.append(event)
            self._passing = False
        if self._passing or self._begins_own_answer():
            self._passing = True
            kept.append(self._cut(max(len(self._rest) - _OVERLAP, 0)))
        return kept[0] if len(kept) == 1 else b"".join(kept)

    def finish(self) -> bytes:
        """Give what is left at the end of the stream."""
        rest = self._cut(len(self._rest))
        return rest if self._passing or self._is_wanted(rest) else b""

    def _cut(self, end: int) -> bytes:
        with memoryview(self._rest) as view:
            taken = bytes(view[:end])
        del self._rest[:end]
        return taken

    def _begins_own_answer(self) -> bool:
        """Tell whether a large unfinished event begins with the id of the request."""
        if len(self._rest) <= _LARGE:
            return False
        data = _DATA_FIELD.search(self._rest, 0, _EDGE)
        found = data and _HEAD_ID.match(self._rest, data.end(), data.end() + _EDGE)
        return bool(found) and is_same_id(json.loads(found[1]), self._asked)

    def _is_wanted(self, event: bytes) -> bool:
        if b'"result"' not in event and b'"error"' not in event:
            return True
        lines = _LINE_END.split(event.removeprefix(_BOM))
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line[:5] == b"data:")
        judged = classify_message(data, self._asked)
        if judged.kind == "foreign":
            self.foreign = judged.shown_id
        return judged.kind != "foreign"
