"""In-memory store of sign-ins, for tests and for programs that sign in again with each start."""

from __future__ import annotations

import collections
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from indusagi.interop.auth.contract import AuthFault

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from indusagi.interop.auth.contract import CredentialKey, StoredCredentials

_LOCK_S = 60.0


class MemoryCredentialStore:
    """Sign-ins of one process; they end with it."""

    def __init__(self) -> None:
        self._rows: dict[CredentialKey, StoredCredentials] = {}
        self._locks: collections.defaultdict[CredentialKey, anyio.Lock] = collections.defaultdict(anyio.Lock)

    async def load(self, resource: str, client: str = "") -> StoredCredentials | None:
        """Return the sign-in of a server that was saved last, whatever its issuer."""
        rows = reversed(self._rows.values())
        return next((row for row in rows if (row.key.resource, row.key.client) == (resource, client)), None)

    async def find(self, key: CredentialKey) -> StoredCredentials | None:
        """Return the sign-in of exactly this key."""
        return self._rows.get(key)

    async def save(self, credentials: StoredCredentials) -> None:
        """Store a sign-in in place of the one with the same key."""
        self._rows.pop(credentials.key, None)
        self._rows[credentials.key] = credentials

    async def delete(self, key: CredentialKey) -> None:
        """Remove a sign-in."""
        self._rows.pop(key, None)

    async def list_credentials(self) -> Sequence[StoredCredentials]:
        """List every sign-in."""
        return (*self._rows.values(),)

    @asynccontextmanager
    async def lock(self, key: CredentialKey) -> AsyncGenerator[None]:
        """Exclude other tasks from refreshing this sign-in."""
        lock = self._locks[key]
        try:
            with anyio.fail_after(_LOCK_S):
                await lock.acquire()
        except TimeoutError:
            message = f"{key.issuer}: another task has been refreshing its sign-in for {_LOCK_S:g} s"
            raise AuthFault(message, is_transient=True) from None
        try:
            yield
        finally:
            lock.release()
