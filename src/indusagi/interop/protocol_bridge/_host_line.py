"""One connection to a host behind HTTP, and how long its client may make others wait.

Whoever can reach the port can connect, be slow, send garbage and read nothing. None of that is
written anywhere a reader would have to keep up with: it is counted, by what it was.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from indusagi.interop.protocol_bridge.host_settings import HttpSettings

WELCOME = "welcome"
"""The key of what is called when a client has shown that it may come in."""
_LOOKS = 4
"""So many times it is looked whether a client has taken anything before it is given up."""
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

    def __init__(self, settings: HttpSettings) -> None:
        self.settings = settings
        self.dropped: Counter[str] = Counter()
        """How many were given up, by reason."""
        self._strangers: dict[HostLine, None] = {}
        """Those that have shown no token, the oldest first."""

    def enter(self, line: HostLine) -> None:
        """Note one whose client is not known yet."""
        if len(self._strangers) >= self.settings.strangers:
            next(iter(self._strangers)).give_up("crowded")
        self._strangers[line] = None

    def known(self, line: HostLine) -> None:
        """Note that its client is known, or gone."""
        self._strangers.pop(line, None)


class HostLine(H11Protocol):
    """One connection."""

    def __init__(self, lines: Lines, **given: Any) -> None:  # Any: the server's own affair
        super().__init__(**given)
        self.logger = _QUIET
        self.app_state = {**self.app_state, WELCOME: self._welcome}
        self._lines = lines
        self._due: asyncio.TimerHandle | None = None
        """Rings when a request should have begun."""
        self._look: asyncio.TimerHandle | None = None
        """Rings when something of what is written should have been taken."""
        self._left = self._in_vain = 0

    def _welcome(self) -> None:
        self._lines.known(self)

    def give_up(self, why: str) -> None:
        """Hang up, whatever has not been read or written."""
        self._lines.dropped[why] += 1
        self._lines.known(self)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin."""
        super().connection_made(transport)
        # Whoever answers waits for all of it to be taken, and is told of any rest.
        transport.set_write_buffer_limits(high=0)
        self._lines.enter(self)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._expect_no_more()
        self._look_no_more()
        self._lines.known(self)
        super().connection_lost(exc)

    # -- what is asked ----------------------------------------------------------------------

    @property
    def _answers(self) -> bool:
        """Whether a request is being answered."""
        # Typed as always there, which it is not before the first request.
        return bool(self.cycle) and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Take what came; what begins no request may not go on for long."""
        super().data_received(data)
        if self._answers:
            self._expect_no_more()
        elif not self.transport.is_closing():
            # Also after an answer that did not wait for the body it was asked with.
            self._expect()

    def _expect(self) -> None:
        if self._due is None:
            self._due = self.loop.call_later(self._lines.settings.head_s, self.give_up, "late")

    def _expect_no_more(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

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

    # -- what is answered -------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Begin to look whether the client takes what is written."""
        super().pause_writing()
        self._left, self._in_vain = self.transport.get_write_buffer_size(), 0
        self._look_later()

    def resume_writing(self) -> None:
        """It has taken all."""
        self._look_no_more()
        super().resume_writing()

    def _look_later(self) -> None:
        self._look = self.loop.call_later(self._lines.settings.unread_s / _LOOKS, self._looked)

    def _looked(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._in_vain = 0 if left < self._left else self._in_vain + 1
        self._left = left
        if self._in_vain >= _LOOKS:
            self.give_up("unread")
        else:
            self._look_later()

    def _look_no_more(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
