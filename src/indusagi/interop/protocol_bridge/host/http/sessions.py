"""Sessions of HTTP clients up to protocol revision 2025-11-25, and the quotas of all clients.

A session belongs to the token that opened it: a request with another token does not find it.
https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#session-management
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal

if TYPE_CHECKING:
    from collections.abc import Generator

    from indusagi.interop.protocol_bridge.host.dispatcher import ServerSession
    from indusagi.interop.protocol_bridge.host.http.request import HttpResponse
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings, NewSession


@dataclass(slots=True, eq=False)
class HttpSession:
    """One client, identified by the Mcp-Session-Id header."""

    owner: bytes
    client: ServerSession
    used_at: float
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    busy: int = 0
    """Requests that are being answered."""
    stream: HttpResponse | None = None
    """The response to the client's GET, open for messages that belong to no request."""

    @property
    def idle(self) -> bool:
        """Whether no request and no stream is open."""
        return not self.busy and self.stream is None


class HttpSessions:
    """A limited number of sessions; idle ones expire, or make place for a new one."""

    def __init__(self, new_session: NewSession, settings: HttpSettings) -> None:
        self._new_session = new_session
        self._settings = settings
        self._open: dict[str, HttpSession] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def admit(self, owner: bytes) -> HttpSession | None:
        """Open a session; None if the limit is reached and no session is idle long enough to end."""
        now = asyncio.get_running_loop().time()
        spare = None
        if len(self._open) >= self._settings.sessions:
            before = now - self._settings.spare_s
            idle = [session for session in self._open.values() if session.idle and session.used_at <= before]
            spare = min(idle, key=lambda session: session.used_at, default=None)
            if spare is None:
                return None
            del self._open[spare.id]
        session = HttpSession(owner, self._new_session(owner), now)
        self._open[session.id] = session
        if spare is not None:
            # The new session counts already: another client may ask for one while the old one ends.
            with self.using(session):
                await self._end(spare, "another client needs its place")
        return session

    @contextmanager
    def using(self, session: HttpSession) -> Generator[None]:
        """Keep a session from being idle."""
        session.busy += 1
        try:
            yield
        finally:
            self.release(session)

    def release(self, session: HttpSession) -> None:
        """Note that a request of a session has ended."""
        session.busy -= 1
        session.used_at = asyncio.get_running_loop().time()

    def find(self, session_id: str, owner: bytes) -> HttpSession | None:
        """Find a session of this owner."""
        session = self._open.get(session_id)
        if session is None or session.owner != owner:
            return None
        session.used_at = asyncio.get_running_loop().time()
        return session

    async def drop(self, session: HttpSession, reason: str) -> None:
        """End a session and cancel its requests."""
        if self._open.pop(session.id, None) is not None:
            await self._end(session, reason)

    async def _end(self, session: HttpSession, reason: str) -> None:
        if session.stream is not None:
            session.stream.end()
        await session.client.close(reason)

    async def watch(self) -> None:
        """End sessions that are idle for longer than `idle_s`; runs until cancelled."""
        while True:
            await anyio.sleep(min(60.0, self._settings.idle_s / 2))
            before = asyncio.get_running_loop().time() - self._settings.idle_s
            for session in [*self._open.values()]:
                if session.idle and session.used_at < before:
                    await self.drop(session, "it was idle for too long")

    async def wait_idle(self) -> None:
        """Wait until every request of every session is answered."""
        for session in [*self._open.values()]:
            await session.client.dispatcher.wait_idle(self._settings.stop_s)

    async def close(self, reason: str) -> None:
        """End all sessions at the same time."""
        async with anyio.create_task_group() as tasks:
            for session in [*self._open.values()]:
                tasks.start_soon(self.drop, session, reason)


class Quota:
    """Limits running requests, in all and per owner, and open streams."""

    def __init__(self, settings: HttpSettings) -> None:
        self.running = 0
        self.streams = 0
        self._settings = settings
        self._per_owner: dict[bytes, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request runs."""
        await self._idle.wait()

    def take(self, owner: bytes) -> None:
        """Count a request until `give`.

        Raises:
            HttpRefusal: The limit is reached.
        """
        running = self._per_owner.get(owner, 0)
        if self.running >= self._settings.requests:
            raise HttpRefusal(503, "there are too many requests at once")
        if running >= self._settings.requests_each:
            raise HttpRefusal(429, "this client has too many requests at once")
        self.running += 1
        self._per_owner[owner] = running + 1
        self._idle.clear()

    def give(self, owner: bytes) -> None:
        """Count a request no longer."""
        self.running -= 1
        self._per_owner[owner] -= 1
        if not self._per_owner[owner]:
            del self._per_owner[owner]
        if not self.running:
            self._idle.set()

    def take_stream(self) -> None:
        """Count a stream until `give_stream`.

        Raises:
            HttpRefusal: The limit is reached.
        """
        if self.streams >= self._settings.streams:
            raise HttpRefusal(503, "there are too many streams")
        self.streams += 1

    def give_stream(self) -> None:
        """Count a stream no longer."""
        self.streams -= 1
