"""Boot from the ledger: the deck is there before any of its servers is.

Tools of servers that were seen before are enrolled from the store, as they were pinned. An eager
server, which is what they are unless their row says otherwise, is then started in the background; a
lazy one by the first call of one of its tools. What a server lists once it is up goes through the
pins like any listing: nothing happens if it is the same, and a tool that is not is taken out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.owner import Owner
from indusagi.interop.protocol_bridge.catalog import read_tools
from indusagi.interop.protocol_bridge.contract import BridgeConfig, ProtocolFault
from induscode.deck.mcp.attach import attach_bridge_capabilities
from induscode.deck.mcp.journal import Journal
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.mcp.pins import definitions_of, open_pins
from induscode.deck.mcp.store_rows import Retention

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from indusagi.core.notes import Note
    from indusagi.interop.protocol_bridge.contract import RemoteTool, ServerConfig
    from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl, Waiting
    from indusagi.interop.protocol_bridge.handlers import Handlers
    from indusagi.interop.protocol_bridge.supervision import Supervision
    from induscode.deck.mcp.attach import AttachResult
    from induscode.deck.mcp.store import LedgerStore


@dataclass(frozen=True, slots=True)
class BootPlan:
    """Which servers there are, and when each is started."""

    servers: Sequence[ServerConfig]
    lazy: Collection[str] = ()
    """Started by a first call; those that were never seen are started at once all the same."""
    untrusted: Collection[str] = ()
    """Never started, and nothing of them is shown."""
    wait_for_new: bool = True
    """Whether to wait until servers that were never seen have come up or failed."""
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True, slots=True)
class BootedBridge:
    """A deck's remote half, with what keeps its books. Whoever boots closes it."""

    attached: AttachResult
    journal: Journal
    from_store: Collection[str]
    """The servers whose tools were there before they were."""
    _background: Owner

    async def settled(self) -> None:
        """Wait until every server that is started without being called has come up or failed."""
        await self._background.watched()

    async def aclose(self) -> None:
        """Close the servers, and write the books to their end; the store stays open."""
        self._background.cancel()
        await self._background.ended()
        if self.attached.enrolment is not None:
            self.attached.enrolment.close()
        if self.attached.fleet is not None:
            await self.attached.fleet.tear_down()
        await self.journal.store.flush()


async def known_tools(
    store: LedgerStore, servers: Iterable[ServerConfig]
) -> tuple[Mapping[str, Sequence[RemoteTool]], Sequence[Note]]:
    """Give the tools of servers that were seen before, the way a listing gives them."""
    configs = {config.id: config for config in servers}
    known: dict[str, Sequence[RemoteTool]] = {}
    notes: list[Note] = []
    for server, rows in (await definitions_of(store, configs.values())).items():
        # In a thread, since hundreds of schemas take a while to be made fit for a model.
        known[server], said = await to_thread.run_sync(read_tools, [*rows], configs[server])
        notes.extend(said)
    return known, notes


async def boot_bridge(
    store: LedgerStore,
    plan: BootPlan,
    *,
    ledger: BridgeLedger | None = None,
    journal: Journal | None = None,
    supervision: Supervision | None = None,
    handlers: Handlers | None = None,
) -> BootedBridge:
    """Enrol the tools of servers, from the store where it has them, and start what is to start."""
    trusted = [config for config in plan.servers if config.id not in plan.untrusted]
    books = journal or Journal(store, trusted)
    if journal is not None:
        books.introduce(trusted)
    known, notes = await known_tools(store, trusted)
    books.knows({server: [one.ref.name for one in tools] for server, tools in known.items()})
    started = [one.id for one in trusted if one.id not in known or one.id not in plan.lazy]
    waiting: dict[str, Waiting] = {
        one.id: "asleep" for one in trusted if one.id in known or not plan.wait_for_new
    }
    waiting.update(dict.fromkeys(plan.untrusted, "untrusted"))
    attached = await attach_bridge_capabilities(
        ledger or BridgeLedger.empty(),
        BridgeConfig(plan.servers),
        pins=await open_pins(books, trusted),
        sink=books,
        waiting=waiting,
        known=known,
        supervision=supervision,
        handlers=handlers,
    )
    background = Owner("boot of servers")
    background.start(_start(attached.fleet, started, books, plan.retention))
    told = replace(attached, notes=(*attached.notes, *notes, *store.notes))
    return BootedBridge(told, books, tuple(known), background)


async def _start(
    fleet: ServerFleetImpl | None, servers: Sequence[str], books: Journal, keep: Retention
) -> None:
    async with asyncio.TaskGroup() as tasks:
        for server in servers if fleet is not None else ():
            assert fleet is not None
            tasks.create_task(_wake(fleet, server))
        tasks.create_task(_prune(books, keep))


async def _wake(fleet: ServerFleetImpl, server: str) -> None:
    try:
        await fleet.wake(server)
    except ProtocolFault:
        return  # it was taken out meanwhile


async def _prune(books: Journal, keep: Retention) -> None:
    await books.store.prune(keep, books.run)
