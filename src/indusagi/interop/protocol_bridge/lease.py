"""Leases of servers: which of them are in use, and what uses them.

A lease starts no server. As long as it is held, its servers are neither stopped, replaced nor restarted by a change of
the configuration: the caller that wants to do so looks at `find_holders` first.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager

import anyio


class ServerLeases:
    """The leases of one fleet."""

    def __init__(self) -> None:
        self._leases: list[tuple[str, frozenset[str]]] = []
        self._ended = anyio.Event()

    @contextmanager
    def hold(self, servers: Iterable[str], holder: str) -> Generator[None]:
        """Hold a lease of servers inside the block; it ends on every way out."""
        lease = holder, frozenset(servers)
        self._leases.append(lease)
        try:
            yield
        finally:
            self._leases.remove(lease)
            self._ended.set()
            self._ended = anyio.Event()

    def find_holders(self, server: str) -> list[str]:
        """List the holders of the leases of a server, the oldest first."""
        return [holder for holder, servers in self._leases if server in servers]

    async def wait_until_free(self, servers: Collection[str]) -> None:
        """Wait until none of these servers is leased."""
        while any(self.find_holders(server) for server in servers):
            await self._ended.wait()
