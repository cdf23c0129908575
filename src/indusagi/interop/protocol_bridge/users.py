"""Sessions of a gateway's users with the servers that each of them signs in to.

With access tokens (`indus serve --auth`), a call of such a server goes over a session of its user alone, opened by the
first call. The session's lists reach neither the ledger nor other users: these come from the fleet's own session, with
the operator's sign-in.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from indusagi.core.tasks import BackgroundTask, Listeners
from indusagi.interop.auth.contract import ServerAuth
from indusagi.interop.protocol_bridge.contract import (
    EndpointPhase,
    FaultDetail,
    ProtocolFault,
    ServerConfig,
    StdioServerConfig,
)
from indusagi.interop.protocol_bridge.endpoint import EndpointEvent, ServerEndpointImpl
from indusagi.interop.protocol_bridge.owner import ServerOwner
from indusagi.runtime.calls import current_user

MOST_SESSIONS = 256
_IDLE_S = 600.0
_POLL_S = 1.0

SessionKey: TypeAlias = tuple[str, str]
"""A server and a user."""
BuildAuth: TypeAlias = Callable[[ServerConfig, str], ServerAuth]
"""Returns how a user signs in to a server."""
FindSignedIn: TypeAlias = Callable[[Collection[tuple[ServerConfig, str]]], Awaitable[Collection[SessionKey]]]
"""Returns which of these servers and users have a stored sign-in."""
ReportEvent: TypeAlias = Callable[[ServerOwner, EndpointEvent], None]


def is_per_user(config: ServerConfig) -> bool:
    """Return whether each user of a gateway signs in to a server."""
    return not isinstance(config, StdioServerConfig) and config.auth is not None and config.auth.settings.per_user


def has_own_credentials(config: ServerConfig) -> bool:
    """Return whether a row has credentials that replace a sign-in."""
    if isinstance(config, StdioServerConfig) or config.auth is None:
        return False
    return not config.auth.settings.needs_person or any(name.lower() == "authorization" for name in config.headers)


def name_session(config: ServerConfig) -> str:
    """Name the session that this task's calls of a server go over, without the user's name."""
    if not is_per_user(config) or not (user := current_user.get()):
        return config.id
    return f"{config.id}\n{hashlib.sha256(user.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


@dataclass(slots=True, eq=False)
class UserSession:
    """A session of one user with one server."""

    name: str
    base: ServerConfig
    """The server's configuration, without the user's sign-in."""
    owner: ServerOwner
    used_at: float = 0.0
    is_signed_in: bool = False
    """Whether a sign-in was stored for it."""

    @property
    def is_used(self) -> bool:
        """Whether it's starting, or has a running call or a watched resource or task."""
        endpoint = self.owner.endpoint
        return self.owner.is_starting or (endpoint.phase is EndpointPhase.READY and not endpoint.is_unused)


class UserSessions:
    """The sessions, by server and user. An idle one ends, or makes room; so does one whose sign-in is gone."""

    def __init__(
        self,
        make_owner: Callable[[ServerConfig, str, ReportEvent], ServerOwner],
        build_auth: BuildAuth,
        find_signed_in: FindSignedIn,
        *,
        most: int = MOST_SESSIONS,
        idle_s: float = _IDLE_S,
    ) -> None:
        self.on_ready: Listeners[[ServerEndpointImpl, str]] = Listeners()
        """Called with the endpoint and its user when a session comes up."""
        self._make_owner = make_owner
        self._build_auth = build_auth
        self._find_signed_in = find_signed_in
        self._most, self._idle_s = most, idle_s
        self._open: dict[SessionKey, UserSession] = {}
        """Least recently used first."""
        self._watch: BackgroundTask | None = None
        self._ending: set[BackgroundTask] = set()

    def find(self, shared: ServerOwner) -> ServerOwner:
        """Return the owner of the session for a call: `shared`, or that of this task's user where each one signs in.

        Raises `ProtocolFault` if the task has no user, or all sessions are in use.
        """
        config, user = shared.config, current_user.get()
        if not is_per_user(config):
            return shared
        if shared.waiting == "untrusted":
            raise _build_fault(config, "it needs consent")
        if not user:
            raise _build_fault(config, "each user signs in to it, and this caller is no user of the issuer")
        if has_own_credentials(config):
            raise _build_fault(config, "each user signs in to it, and its row has credentials for all of them")
        session = self._open.pop((config.id, user), None)
        if session is not None and session.base != config:  # its row has changed
            self._end(session)
            session = None
        if session is None:
            self._make_room(config)
            session = self._open_session(config, user)
        session.used_at = asyncio.get_running_loop().time()
        self._open[config.id, user] = session
        if self._watch is None:
            self._watch = BackgroundTask("sessions of users")
            self._watch.start(self._watch_sessions())
        return session.owner

    def _open_session(self, config: ServerConfig, user: str) -> UserSession:
        assert not isinstance(config, StdioServerConfig)

        def report(owner: ServerOwner, event: EndpointEvent) -> None:
            if event == "phase" and owner.endpoint.phase is EndpointPhase.READY:
                self.on_ready(owner.endpoint, user)

        own = replace(config, auth=self._build_auth(config, user))
        return UserSession(name_session(config), config, self._make_owner(own, user, report))

    def find_endpoint(self, name: str) -> ServerEndpointImpl | None:
        """Return the endpoint of an open session by its name."""
        return next((one.owner.endpoint for one in self._open.values() if one.name == name), None)

    def list_sessions(self, user: str) -> Sequence[tuple[str, ServerEndpointImpl]]:
        """List the names and endpoints of a user's open sessions."""
        return [(one.name, one.owner.endpoint) for (_, owner), one in self._open.items() if owner == user]

    async def end(self, *, server: str | None = None, user: str | None = None) -> None:
        """End the sessions with a server, of a user, or all, and wait for their end."""
        if server is user is None and self._watch is not None:
            self._watch.cancel()
            await self._watch.join()
            self._watch = None
        for key in [*self._open]:
            if server in {None, key[0]} and user in {None, key[1]}:
                self._end(self._open.pop(key))
        for task in [*self._ending]:
            await task.join()

    def _make_room(self, config: ServerConfig) -> None:
        if len(self._open) < self._most:
            return
        spare = next((key for key, one in self._open.items() if not one.is_used), None)
        if spare is None:
            raise _build_fault(config, f"{self._most} sessions of users are in use")
        self._end(self._open.pop(spare))

    def _end(self, session: UserSession) -> None:
        task = BackgroundTask("end of a user's session", lambda: self._ending.discard(task))
        self._ending.add(task)
        task.start(session.owner.close())

    async def _watch_sessions(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            await self.drop_spare()

    async def drop_spare(self) -> None:
        """End sessions that are idle, or whose sign-in is gone."""
        signed_in = await self._find_signed_in([(one.base, user) for (_, user), one in self._open.items()])
        now = asyncio.get_running_loop().time()
        for key, session in [*self._open.items()]:
            was_signed_in, session.is_signed_in = session.is_signed_in, key in signed_in
            is_idle = not session.is_used and now - session.used_at > self._idle_s
            if is_idle or (was_signed_in and not session.is_signed_in):
                self._end(self._open.pop(key))


def _build_fault(config: ServerConfig, problem: str) -> ProtocolFault:
    message = f"server {config.id!r} is not called: {problem}"
    return ProtocolFault("not_connected", message, detail=FaultDetail(server=config.id))
