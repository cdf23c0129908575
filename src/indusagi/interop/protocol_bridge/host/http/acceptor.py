"""Accepting connections: as many as there are places for; the others wait in the queue of the listening socket.

`asyncio` accepts without a limit, and logs a traceback for each connection while there are no descriptors. Here one
descriptor is kept in reserve, so that a client that has waited for too long still gets an answer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.host.boundary import RateLimitedLog, log_failure
from indusagi.interop.protocol_bridge.host.http.connection import HttpConnection
from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.boundary import HostTasks
    from indusagi.interop.protocol_bridge.host.http.connection import Application
    from indusagi.interop.protocol_bridge.host.http.quota import Quota

_ACCEPTED_PER_TURN = 128
"""Connections that are accepted in one turn of the event loop."""
_BACKLOG = 4_096
"""Connections that may wait to be accepted; the system may allow fewer (net.core.somaxconn)."""
_POLL_S = 0.02
"""How often it is checked whether there is a place for a waiting connection."""
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_DRAIN_BYTES = 64 * 1024


class Acceptor:
    """Accepts the connections of a listening socket."""

    def __init__(self, listener: socket.socket, app: Application, quota: Quota, tasks: HostTasks) -> None:
        self._listener = listener
        self._app = app
        self._quota = quota
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._connecting = 0
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._queue = select.poll()
        """Tells whether a connection waits."""
        self._queue.register(listener, select.POLLIN)
        self._log = RateLimitedLog("the host", "is short of resources")
        self._timer: asyncio.TimerHandle | None = None
        self._waits_since: float | None = None
        """Since when a connection waits for a place."""
        listener.listen(_BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        else:
            self._loop.remove_reader(self._listener)
        os.close(self._reserve)

    def _accept(self) -> None:
        try:
            for _ in range(_ACCEPTED_PER_TURN):
                if not self._queue.poll(0):
                    self._waits_since = None
                    self._quota.connections.is_crowded = False
                    return
                is_surplus = not self._quota.connections.find_place(self._connecting)
                if is_surplus and not (self._is_overdue() and self._quota.connections.may_refuse(self._connecting)):
                    self._pause()
                    return
                self._accept_one(is_surplus=is_surplus)
        except OSError as exc:
            # Such as a connection that was closed before it was accepted, or too few descriptors.
            if exc.errno in _SHORTAGES:
                self._log.write(f"can't accept a connection: {exc.strerror}; connections wait (see ulimit -n)")
                if self._is_overdue():
                    self._refuse_one()
                self._pause()
        except Exception as exc:  # noqa: BLE001 — boundary: a callback of the event loop
            log_failure("accepting a connection", exc)

    def _accept_one(self, *, is_surplus: bool) -> None:
        accepted, _ = self._listener.accept()
        accepted.setblocking(False)  # noqa: FBT003 — positional only
        if not is_surplus:
            self._waits_since = None
        self._connecting += 1
        self._tasks.start("a new connection", lambda: self._connect(accepted, is_surplus=is_surplus))

    async def _connect(self, accepted: socket.socket, *, is_surplus: bool) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: HttpConnection(self._app, self._quota, is_surplus=is_surplus), accepted
            )
        except OSError:
            accepted.close()  # its client is gone
        finally:
            self._connecting -= 1

    def _is_overdue(self) -> bool:
        """Tell whether a connection waits for so long that it has to be refused."""
        now = self._loop.time()
        if self._waits_since is None:
            self._waits_since = now
        return now - self._waits_since >= self._quota.settings.queue_s

    def _pause(self) -> None:
        self._quota.connections.is_crowded = True
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(_POLL_S, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._accept)
        self._accept()

    def _refuse_one(self) -> None:
        """Answer one client by means of the descriptor in reserve."""
        refusal = HttpRefusal(503, "there are too many open files", close=True)
        lines = [
            *refusal.headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(refusal.body)),
        ]
        head = b"".join(b"%b: %b\r\n" % line for line in lines)
        os.close(self._reserve)
        try:
            with suppress(OSError):
                accepted, _ = self._listener.accept()
                with accepted:
                    accepted.setblocking(False)  # noqa: FBT003 — positional only
                    with suppress(OSError):
                        # Unread bytes would reset the connection, and lose the answer.
                        accepted.recv(_DRAIN_BYTES)
                    accepted.send(b"HTTP/1.1 503 Service Unavailable\r\n%b\r\n%b" % (head, refusal.body))
        finally:
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
