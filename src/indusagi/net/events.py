"""Parser for event streams (`text/event-stream`).

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_FIELD = re.compile(rb"(?:\A|(?<=[\r\n]))(data|event|id|retry)(?:: ?([^\r\n]*))?(?![^\r\n])")
_BOM = b"\xef\xbb\xbf"
_OVERLAP = 3
"""How many bytes of a blank line (CR LF CR LF) may have come with the previous chunk."""
_MAX_RETRY_DIGITS = 7
"""A server may ask for a pause of up to three hours."""


class EventTooLargeError(Exception):
    """An event is over the size limit."""


@record
class ServerEvent:
    """One event of a stream."""

    name: str
    data: bytes


class EventParser:
    """Parses the streams of one conversation, chunk by chunk; `reset` begins the next stream.

    Args:
        limit: Largest event in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.last_id: str | None = None
        """Id of the last event that had one, with which the stream can be resumed."""
        self.retry_s: float | None = None
        """Pause before reconnecting, if the server asked for one."""
        self._limit = limit
        self._rest = bytearray()
        self._is_first = True

    def reset(self) -> None:
        """Begin another stream; drop an event that was cut off."""
        self._rest.clear()
        self._is_first = True

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Add a chunk and yield the events that are complete and have data.

        Raises:
            EventTooLargeError: An event is over the limit.
        """
        # A blank line may start in the previous chunk: search its last bytes again.
        searched_from = max(len(self._rest) - _OVERLAP, 0)
        self._rest += piece
        while (end := _BLANK_LINE.search(self._rest, searched_from)) is not None:
            size = end.end()
            self._check_size(size)
            with memoryview(self._rest) as view:
                block = bytes(view[:size])
            del self._rest[:size]
            searched_from = 0
            event = self._parse(block)
            del block
            if event is not None:
                yield event
        self._check_size(len(self._rest))

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            self.reset()
            raise EventTooLargeError

    def _parse(self, block: bytes) -> ServerEvent | None:
        if self._is_first:
            self._is_first = False
            block = block.removeprefix(_BOM)
        name, lines = "", list[bytes]()
        for match in _FIELD.finditer(block):
            field, value = match[1], match[2] or b""
            if field == b"data":
                lines.append(value)
            elif field == b"event":
                name = value.decode("utf-8", "replace")
            elif field == b"id" and b"\0" not in value:
                self.last_id = value.decode("utf-8", "replace") or None
            elif field == b"retry" and value.isdigit():
                self.retry_s = int(value[:_MAX_RETRY_DIGITS]) / 1000
        return ServerEvent(name or "message", b"\n".join(lines)) if lines else None
