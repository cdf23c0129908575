"""One node's shared state, opened and closed with its ledger."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.json import compact_json
from indusagi.core.tasks import Listeners
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.cluster.contract import ClusterFault
from induscode.cluster.requests import Stream
from induscode.cluster.shared.ledger import LedgerAuditor, LedgerPublisher
from induscode.cluster.shared.table import PIN, ClusterStore, SharedTable, open_table
from induscode.servers.config.rows import find_project_dir
from induscode.servers.config.trust import TrustStore, consent_facts

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.cluster.key import ClusterKey
    from induscode.cluster.node import ClusterNode
    from induscode.core.consent import ConsentState
    from induscode.deck.mcp.store import ThreadedStore
    from induscode.servers.config.rows import ServerRow

_log = logging.getLogger(__name__)

_RETRY_S = 2.0


class SharedState:
    """A node's table, and its ledger while that's open."""

    def __init__(self, node: ClusterNode, table: SharedTable) -> None:
        self.node = node
        self.table = table
        self.store: ClusterStore | None = None
        self.on_pins: Listeners[[]] = Listeners()
        """Called when a definition was approved, here or on another node."""
        self.on_other: Listeners[[]] = Listeners()
        """Called when another entry changed: servers, consents, rules."""
        self._unshared = asyncio.Event()
        table.on_change.add(self._change)

    def _change(self, keys: frozenset[str]) -> None:
        if any(key.startswith(f"{PIN}.") for key in keys):
            self.on_pins()
        if any(not key.startswith(f"{PIN}.") for key in keys):
            self.on_other()

    def share_pins(self) -> None:
        """Look for pins the other nodes don't have, after the servers or the ledger changed."""
        self._unshared.set()

    @asynccontextmanager
    async def open_store(self, local: ThreadedStore) -> AsyncGenerator[ClusterStore]:
        """Publish this machine's ledger inside the block, and share its pins."""
        node, broker = self.node, self.node.broker
        settings, key = broker.settings, broker.settings.key
        assert key is not None
        stream = Stream(broker, settings.ledger)

        def count(waiting: int) -> None:
            node.membership.info = replace(node.membership.info, unpublished=waiting)
            self.share_pins()

        def come_back() -> None:
            publisher.forget()
            self.table.look()

        publisher = LedgerPublisher(stream, settings, key, local, node.on_note, broker.payload_bytes, count)
        auditor = LedgerAuditor(stream, settings, key, node.on_note)
        store = self.store = ClusterStore(local, self.table, settings.node, publisher.wake)
        forget = node.on_back.add(come_back)
        work: Sequence[Callable[[], Awaitable[None]]] = (publisher.run, auditor.run, self.table.run, self._share)
        running = [asyncio.create_task(keep_running(run), name="shared state") for run in work]  # noqa: TID251 — awaited below
        try:
            yield store
        finally:
            forget()
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
                    self.on_pins()  # another process on this machine may have approved them
            except ClusterFault:
                self._unshared.set()
                raise


async def keep_running(run: Callable[[], Awaitable[None]]) -> None:
    """Run endless work, and restart it after a failure."""
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
    """Open the nodes' shared state. None for a node without the cluster key.

    Raises:
        ClusterFault: The broker doesn't answer, or an earlier version prepared it.
    """
    if node.broker.settings.key is None:
        yield None
        return
    yield SharedState(node, await open_table(node.broker, node.on_note))


# -- consents ---------------------------------------------------------------------------------
#
# A node shares its user's consents to the rows it serves, and withdraws revoked ones. Another node trusts a row that's
# equal in every fact: name, command, arguments, variables, address. Its file may be elsewhere there, unless the row
# runs something from its project: that must be in the same directory on both nodes. Without the key, the digest doesn't
# reveal the facts.


KIND = "consent"


class SharedTrust(TrustStore):
    """The consents of this user and of the other nodes. `consent` runs in threads."""

    def __init__(self, table: SharedTable, key: ClusterKey, node: str, path: str | None = None) -> None:
        super().__init__(path)
        self.on_checked: Listeners[[]] = Listeners()
        """Called in a thread after looking up a row: there may be a consent to share."""
        self._table = table
        self._key = key
        self._node = node
        self._own: dict[tuple[str, str], str] = {}
        """Digests of rows this user trusts, by file and server."""

    def consent(self, row: ServerRow) -> ConsentState:
        """Look up this user's consent, or another node's to an equal row."""
        own = super().consent(row)
        digest = self._digest(row)
        place = row.origin.file, row.id
        if own == "trusted":
            self._own[place] = digest
        else:
            self._own.pop(place, None)
        self.on_checked()
        others = self._table.list(KIND).values()
        is_trusted = own == "trusted" or any(
            value.get("digest") == digest and value.get("by") != self._node for value in others
        )
        return "trusted" if is_trusted else own

    def _digest(self, row: ServerRow) -> str:
        facts = consent_facts(row)
        if (folder := find_used_project(row)) is not None:
            facts["project"] = folder
        return self._key.digest(KIND, compact_json(facts, sort_keys=True))

    async def share(self) -> None:
        """Write this user's missing consents, and remove revoked ones.

        Raises:
            ClusterFault: The broker failed.
        """
        wanted: dict[str, JsonObject] = {}
        for (file, server), digest in [*self._own.items()]:
            value: JsonObject = {"digest": digest, "server": server, "file": file, "by": self._node}
            wanted[self._table.build_key(KIND, digest, self._node)] = value
        present = self._table.list(KIND)
        for key, value in present.items():
            if key not in wanted and value.get("by") == self._node:
                file, server = str(value.get("file")), str(value.get("server"))
                # Keep consents of other projects that aren't served now.
                if (file, server) in self._own or not await to_thread.run_sync(self.has_consent, file, server):
                    await self._table.remove(key)
        for key, value in wanted.items():
            if key not in present:
                await self._table.put(key, {**value, "at": iso_utc(now_ms())})


def find_used_project(row: ServerRow) -> str | None:
    """Return the directory of a row's project if its command names something there, otherwise None. Blocks.

    An equal row of another project (`node server.js`) runs another program.
    """
    config, command = row.config, (row.auth or {}).get("header_command")
    words = [config.command, *config.args, config.cwd or ""] if isinstance(config, StdioServerConfig) else []
    words += map(str, command) if isinstance(command, list) else ()
    folder = os.path.realpath(find_project_dir(row.origin))
    is_used = any(_names_file(folder, part) for word in words for part in (word, *word.split()))
    return folder if is_used else None


def _names_file(folder: str, word: str) -> bool:
    """Return whether a word of a command names something in a directory, or is a path with a variable."""
    # `--option=value`, `file.ts:run`, `-m package.module`
    names = {word, word.partition("=")[2], word.partition(":")[0], word.partition(".")[0]} - {""}
    return any(
        name.startswith(".")
        or (os.sep in name and ("$" in name or "{" in name))
        or (not os.path.isabs(name) and os.path.lexists(os.path.join(folder, name)))
        for name in names
    )
