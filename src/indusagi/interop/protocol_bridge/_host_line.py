"""One connection to a host behind HTTP, and how long its client may make others wait.

Whoever can reach the port can connect, be slow, send garbage and read nothing. None of that is
written anywhere a reader would have to keep up with: it is counted, by what it was.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_log = logging.getLogger(__name__)


class _Quiet(logging.Logger):
    """Takes what the server says: anybody can make it warn, so that is a detail."""

    def __init__(self) -> None:
        super().__init__(__name__, logging.DEBUG)

    def handle(self, record: logging.LogRecord) -> None:
        """Pass it on; only what is broken in here is an error."""
        level = logging.ERROR if record.exc_info else logging.DEBUG
        _log.log(level, "%s", record.getMessage().strip(), exc_info=record.exc_info)


_QUIET = _Quiet()


class Lines:
    """The connections of a host."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        """How many were given up, by reason."""


class HostLine(H11Protocol):
    """One connection."""

    def __init__(self, lines: Lines, **given: Any) -> None:  # Any: the server's own affair
        super().__init__(**given)
        self.logger = _QUIET
        self._lines = lines

    @property
    def _answers(self) -> bool:
        """Whether a request is being answered."""
        # Typed as always there, which it is not before the first request.
        return bool(self.cycle) and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; once another answer has begun there is no way to."""
        self._lines.dropped["garbled"] += 1
        if self._answers:
            # Whoever answers the request so far would write behind this.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.abort()
