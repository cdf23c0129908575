"""A host's listening socket: its limits and shutdown."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import select
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import anyio

from indusagi.interop.protocol_bridge.host.boundary import HostTasks, RateLimitedLog, log_failure
from indusagi.interop.protocol_bridge.host.http.app import HostApp
from indusagi.interop.protocol_bridge.host.http.connection import HttpConnection
from indusagi.interop.protocol_bridge.host.http.quota import LINGERING, Quota
from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal
from indusagi.interop.protocol_bridge.host.http.settings import build_access_policy, build_url

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.auth.resource import ResourceSettings
    from indusagi.interop.protocol_bridge.host.dispatcher import Reader
    from indusagi.interop.protocol_bridge.host.http.resource_access import ResourceAccess
    from indusagi.interop.protocol_bridge.host.http.settings import FindSchema, FindTarget, HttpSettings, NewSession

_OTHER_FILES = 512
"""Descriptors that servers, files and the program itself need in addition to connections."""
_MIN_CONNECTIONS = 4
"""Connections to allow whatever the descriptor limit says."""
_RETRY_S = 30.0
"""Restart delay of failed background work."""
_CLOSE_S = 1.0
"""How long clients may take to read their last responses at the end."""
_SEND_BUFFER_BYTES = 256 * 1024
"""The kernel's send buffer. It reports progress once the client has taken a third of it, so with a larger buffer a
slow client would look like one that reads nothing."""


@asynccontextmanager
async def serve_app(
    new_session: NewSession,
    find_schema: FindSchema,
    find_target: FindTarget,
    read: Reader,
    settings: HttpSettings,
    tokens: Sequence[str],
) -> AsyncGenerator[tuple[int, int]]:
    """Listen until the block ends; yield the port and the number of concurrent connections to accept."""
    # In a thread: resolves the address if it's a name.
    with await asyncio.to_thread(_open_listener, settings) as listener:
        port = listener.getsockname()[1]
        limit = allow_connections(settings.connections)
        quota = Quota(settings, limit)
        auth = settings.auth
        if auth is not None:
            # In a thread, because it takes a while.
            await asyncio.to_thread(import_module, "indusagi.net.client")
            await asyncio.to_thread(import_module, "indusagi.interop.protocol_bridge.host.http.resource_access")
        access = None if auth is None else _open_access(auth, settings, port)
        if access is not None and settings.site is not None:
            settings.site.attach(access.resource, access.verifier)
        policy = build_access_policy(settings, tokens, port, None if access is None else access.resource)
        if settings.named is not None:
            await settings.named.load()
        tasks = HostTasks()
        app = HostApp(new_session, find_schema, read, settings, policy, quota, tasks, access, find_target)
        if settings.router is not None:
            settings.router.attach(app.handle, build_url(settings, port))
        acceptor = Acceptor(listener, app, quota, tasks)
        tasks.start("the end of idle sessions", app.sessions.watch, retry_s=_RETRY_S)
        if (named := settings.named) is not None:
            named.on_ended.add(lambda: tasks.start("the end of clients", partial(app.end_clients, named)))
            tasks.start("the watch of tokens", named.watch, retry_s=_RETRY_S)
        if access is not None:
            tasks.start("the refresh of the issuer's keys", access.verifier.watch, retry_s=_RETRY_S)
        try:
            yield port, limit
        finally:
            with anyio.CancelScope(shield=True):
                await app.stop("the host was stopped")
                acceptor.close()
                await quota.connections.close(_CLOSE_S)
                await tasks.close()


def _open_access(auth: ResourceSettings, settings: HttpSettings, port: int) -> ResourceAccess:
    """Set up access tokens. Their modules load only for hosts that use them."""
    from indusagi.interop.protocol_bridge.host.auth.resource import ProtectedResource  # noqa: PLC0415 — see above
    from indusagi.interop.protocol_bridge.host.http.resource_access import ResourceAccess  # noqa: PLC0415 — see above

    return ResourceAccess(auth, ProtectedResource(auth, build_url(settings, port), settings.path, settings.views))


def _open_listener(settings: HttpSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Explicitly TCP: asyncio sets TCP_NODELAY only then.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listener.bind((settings.host.strip("[]"), settings.port))
        listener.setblocking(False)  # noqa: FBT003 — positional only
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener


def allow_connections(wanted: int) -> int:
    """Raise the soft limit of open files (setrlimit(2)) to fit `wanted` connections; return how many do."""
    needed = wanted + LINGERING + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return wanted
    allowed = needed if hard == unlimited else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # such as a system-wide limit, on macOS
        allowed = soft
    # Half of the rest: servers and files need descriptors too.
    return wanted if allowed >= needed else max(min(wanted, (allowed - _count_open_files()) // 2), _MIN_CONNECTIONS)


def _count_open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0


# -- acceptor ---------------------------------------------------------------------------------
#
# `asyncio` accepts without limit, and logs a traceback per connection while it's out of descriptors. We keep one
# descriptor in reserve, so that a client that has waited too long still gets an answer.


_ACCEPTED_PER_TURN = 128
"""Connections to accept in one turn of the event loop."""
_BACKLOG = 4_096
"""Connections that may wait to be accepted; the system may allow fewer (net.core.somaxconn)."""
_POLL_S = 0.02
"""How often to check for room for a waiting connection."""
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_DRAIN_BYTES = 64 * 1024


class Acceptor:
    """Accepts the connections of a listening socket."""

    def __init__(self, listener: socket.socket, app: HostApp, quota: Quota, tasks: HostTasks) -> None:
        self._listener = listener
        self._app = app
        self._quota = quota
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._connecting = 0
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._queue = select.poll()
        """Tells whether a connection is waiting."""
        self._queue.register(listener, select.POLLIN)
        self._log = RateLimitedLog("the host", "is short of resources")
        self._timer: asyncio.TimerHandle | None = None
        self._waits_since: float | None = None
        """Since when a connection has been waiting for a place."""
        listener.listen(_BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Stop accepting."""
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
            # Such as a connection closed before it was accepted, or too few descriptors.
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
            accepted.close()  # the client is gone
        finally:
            self._connecting -= 1

    def _is_overdue(self) -> bool:
        """Return whether a connection has waited so long that we have to refuse it."""
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
        """Answer one client using the reserve descriptor."""
        refusal = HttpRefusal(503, "too many open files", close=True)
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
                        # Unread bytes would reset the connection and lose the answer.
                        accepted.recv(_DRAIN_BYTES)
                    accepted.send(b"HTTP/1.1 503 Service Unavailable\r\n%b\r\n%b" % (head, refusal.body))
        finally:
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
