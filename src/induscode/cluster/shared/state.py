"""The shared state of one node, opened and closed with its ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from induscode.cluster.contract import ClusterFault
from induscode.cluster.shared.ledger import LedgerAuditor, LedgerPublisher
from induscode.cluster.shared.store import PIN, ClusterStore
from induscode.cluster.shared.table import SharedTable, open_table
from induscode.cluster.streams import Stream

if TYPE_CHECKING:
    from induscode.cluster.node import ClusterNode
    from induscode.deck.mcp.store import ThreadedStore

_log = logging.getLogger(__name__)

_RETRY_S = 2.0


class SharedState:
    """What a node shares: its table, and its ledger while that is open."""

    def __init__(self, node: ClusterNode, table: SharedTable) -> None:
        self.node = node
        self.table = table
        self.store: ClusterStore | None = None
        self.on_pins: Callable[[], object] = lambda: None
        """Called when a definition was approved, here or at another node."""
        self.on_other: Callable[[], object] = lambda: None
        """Called when another entry has changed: servers, consents, rules."""
        self._unshared = asyncio.Event()
        table.on_change = self._change

    def _change(self, keys: frozenset[str]) -> None:
        if any(key.startswith(f"{PIN}.") for key in keys):
            self.on_pins()
        if any(not key.startswith(f"{PIN}.") for key in keys):
            self.on_other()

    def share_pins(self) -> None:
        """Look for pins that the others do not have: the servers or the ledger have changed."""
        self._unshared.set()

    @asynccontextmanager
    async def open_store(self, local: ThreadedStore) -> AsyncGenerator[ClusterStore]:
        """Publish the ledger of this machine inside the block, and share its pins."""
        node, broker = self.node, self.node.broker
        settings, key = broker.settings, broker.settings.key
        assert key is not None
        store = self.store = ClusterStore(local, self.table, settings.node)
        stream = Stream(broker, settings.ledger)
        publisher = LedgerPublisher(stream, settings, key, local, node.tell, broker.payload_bytes)
        auditor = LedgerAuditor(stream, settings, key, node.tell)
        store.on_append = publisher.wake

        def count(waiting: int) -> None:
            node.membership.info = replace(node.membership.info, unpublished=waiting)
            self.share_pins()

        def come_back() -> None:
            publisher.forget()
            self.table.look()

        publisher.on_count = count
        node.on_back = come_back
        work: Sequence[Callable[[], Awaitable[None]]] = (publisher.run, auditor.run, self.table.run, self._share)
        running = [asyncio.create_task(keep_running(run), name="shared state") for run in work]  # noqa: TID251 — awaited below
        try:
            yield store
        finally:
            node.on_back = lambda: None
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            if broker.is_connected:
                await publisher.close()
                await auditor.close()
            self.store = None

    async def _share(self) -> None:
        while True:
            await self._unshared.wait()
            self._unshared.clear()
            try:
                if self.store is not None and await self.store.share_pins():
                    self.on_pins()  # another process of this machine may have approved them
            except ClusterFault:
                self._unshared.set()
                raise


async def keep_running(run: Callable[[], Awaitable[None]]) -> None:
    """Run work that never ends; after a failure, again."""
    while True:
        try:
            await run()
        except ClusterFault as fault:
            _log.debug("%s", fault)
        except Exception:  # noqa: BLE001 — boundary: the node serves clients whatever happens here
            _log.exception("the shared state of the cluster has failed")
        await asyncio.sleep(_RETRY_S)


@asynccontextmanager
async def open_shared_state(node: ClusterNode) -> AsyncGenerator[SharedState | None]:
    """Open what the nodes share; None for a node without the key of the cluster.

    Raises:
        ClusterFault: The broker does not answer, or was prepared by an earlier version.
    """
    if node.broker.settings.key is None:
        yield None
        return
    yield SharedState(node, await open_table(node.broker, node.tell))
