"""The sessions of clients that speak the older protocol over HTTP; each belongs to its token."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Generator

    from indusagi.interop.protocol_bridge.host.dispatcher import ServerSession
    from indusagi.interop.protocol_bridge.host.http.request import ResponseQueue
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings, NewSession


@dataclass(slots=True, eq=False)
class HttpSession:
    """One client, found again by the id it was given."""

    owner: bytes
    client: ServerSession
    used_at: float
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    busy: int = 0
    """Requests that are being answered."""
    stream: ResponseQueue | None = None
    """The standing one."""

    @property
    def idle(self) -> bool:
        """Whether nothing of it is open."""
        return not self.busy and self.stream is None


class HttpSessions:
    """So many at once; idle ones end, or make room."""

    def __init__(self, new_session: NewSession, settings: HttpSettings) -> None:
        self._new_client = new_session
        self._settings = settings
        self._open: dict[str, HttpSession] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def admit(self, owner: bytes) -> HttpSession | None:
        """Open a session; None if there is no room for one."""
        now = asyncio.get_running_loop().time()
        spare = None
        if len(self._open) >= self._settings.sessions:
            spare = self._spare(now)
            if spare is None:
                return None
            del self._open[spare.id]
        session = HttpSession(owner, self._new_client(owner), now)
        self._open[session.id] = session
        if spare is not None:
            # The place is taken already: others may come while it is being left.
            with self.using(session):
                await self._end(spare, "another client needs its place")
        return session

    def _spare(self, now: float) -> HttpSession | None:
        before = now - self._settings.spare_s
        idle = [s for s in self._open.values() if s.idle and s.used_at <= before]
        return min(idle, key=lambda session: session.used_at, default=None)

    @contextmanager
    def using(self, session: HttpSession) -> Generator[None]:
        """Keep a session while something of it is open; it is idle from the end on."""
        session.busy += 1
        try:
            yield
        finally:
            session.busy -= 1
            session.used_at = asyncio.get_running_loop().time()

    def find(self, identity: str, owner: bytes) -> HttpSession | None:
        """Find a session; somebody else's is not there."""
        session = self._open.get(identity)
        if session is None or session.owner != owner:
            return None
        session.used_at = asyncio.get_running_loop().time()
        return session

    async def drop(self, session: HttpSession, reason: str) -> None:
        """End a session and what it has asked for."""
        if self._open.pop(session.id, None) is not None:
            await self._end(session, reason)

    async def _end(self, session: HttpSession, reason: str) -> None:
        if session.stream is not None:
            session.stream.end()
        await session.client.close(reason)

    async def watch(self) -> None:
        """End sessions that nobody uses."""
        while True:
            await anyio.sleep(min(60.0, self._settings.idle_s / 2))
            before = asyncio.get_running_loop().time() - self._settings.idle_s
            for session in [*self._open.values()]:
                if session.idle and session.used_at < before:
                    await self.drop(session, "it was idle for too long")

    async def drained(self) -> None:
        """Wait until every request of every session is answered."""
        for session in [*self._open.values()]:
            await session.client.dispatcher.drained(self._settings.stop_s)

    async def close(self, reason: str) -> None:
        """End them all, at the same time."""
        async with anyio.create_task_group() as tasks:
            for session in [*self._open.values()]:
                tasks.start_soon(self.drop, session, reason)
