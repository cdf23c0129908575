"""The listening socket of a host: its limits, and how it ends."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from indusagi.interop.protocol_bridge.host.boundary import HostTasks
from indusagi.interop.protocol_bridge.host.http.acceptor import Acceptor
from indusagi.interop.protocol_bridge.host.http.app import HostApp
from indusagi.interop.protocol_bridge.host.http.quota import LINGERING, Quota
from indusagi.interop.protocol_bridge.host.http.settings import build_access_policy, build_url

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from indusagi.interop.protocol_bridge.host.auth.settings import ResourceSettings
    from indusagi.interop.protocol_bridge.host.dispatcher import Reader
    from indusagi.interop.protocol_bridge.host.http.resource_access import ResourceAccess
    from indusagi.interop.protocol_bridge.host.http.settings import FindSchema, FindTarget, HttpSettings, NewSession

_OTHER_FILES = 512
"""Descriptors that servers, files and the program itself need besides connections."""
_FEWEST = 4
"""Connections that are allowed whatever the system says about descriptors."""
_RETRY_S = 30.0
"""After how long background work that failed starts again."""
_CLOSE_S = 1.0
"""How long clients may take to read their last responses at the end."""
_SEND_BUFFER_BYTES = 256 * 1024
"""The kernel's send buffer. It reports progress when a third of it was taken, so with a larger one a slow client
would look like one that reads nothing."""


@asynccontextmanager
async def serve_app(
    new_session: NewSession,
    find_schema: FindSchema,
    find_target: FindTarget,
    read: Reader,
    settings: HttpSettings,
    tokens: Sequence[str],
) -> AsyncGenerator[tuple[int, int]]:
    """Listen until the block is left; yields the port and the number of connections that are accepted at once.

    Raises:
        OSError: The address cannot be listened on.
    """
    # In a thread: the address may be a name that has to be resolved.
    with await asyncio.to_thread(_open_listener, settings) as listener:
        port = listener.getsockname()[1]
        limit = allow_connections(settings.connections)
        quota = Quota(settings, limit)
        auth, access = settings.auth, None
        if auth is not None:
            access = _open_access(auth, settings, port)
        policy = build_access_policy(settings, tokens, port, None if access is None else access.resource)
        tasks = HostTasks()
        app = HostApp(new_session, find_schema, read, settings, policy, quota, tasks, access, find_target)
        if settings.router is not None:
            settings.router.attach(app.handle, build_url(settings, port))
        acceptor = Acceptor(listener, app, quota, tasks)
        tasks.start("the end of idle sessions", app.sessions.watch, retry_s=_RETRY_S)
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
    """Open the access by access tokens; its modules are loaded for such a host only."""
    from indusagi.interop.protocol_bridge.host.auth.resource import ProtectedResource  # noqa: PLC0415 — see above
    from indusagi.interop.protocol_bridge.host.http.resource_access import ResourceAccess  # noqa: PLC0415 — see above

    return ResourceAccess(auth, ProtectedResource(auth, build_url(settings, port), settings.path))


def _open_listener(settings: HttpSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named as TCP: asyncio sets TCP_NODELAY for such sockets only.
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
    """Raise the soft limit of open files (setrlimit(2)) as far as `wanted` connections need; return how many fit."""
    needed = wanted + LINGERING + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return wanted
    allowed = needed if hard == unlimited else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # such as a limit of the whole system, on macOS
        allowed = soft
    # Half of what is left: servers and files need descriptors too.
    return wanted if allowed >= needed else max(min(wanted, (allowed - _count_open_files()) // 2), _FEWEST)


def _count_open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0
