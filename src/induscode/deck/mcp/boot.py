"""Boot from the ledger: the deck is there before any of its servers is.

Tools of servers that were seen before are enrolled from the store, as they were pinned. An eager
server, which is what they are unless their row says otherwise, is then started in the background; a
lazy one by the first call of one of its tools. What a server lists once it is up goes through the
pins like any listing: nothing happens if it is the same, and a tool that is not is taken out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from anyio import to_thread

from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.start.policy import StartHistory
from indusagi.interop.protocol_bridge.client.tools import DefinitionNote, read_tools
from indusagi.interop.protocol_bridge.contract import BridgeConfig, ProtocolFault
from induscode.deck.mcp.attach import attach_bridge_capabilities
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.mcp.starts import find_seen_up
from induscode.deck.mcp.store.events import Retention
from induscode.deck.mcp.store.journal import Journal
from induscode.deck.mcp.store.pins import definitions_of, disabled_tools, learn_pins, open_pins

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.core.notes import Note
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.client.supervision import Supervision
    from indusagi.interop.protocol_bridge.contract import RemoteTool, RemoteToolRef, ServerConfig
    from indusagi.interop.protocol_bridge.fleet import FleetEvent, ServerFleetImpl, Waiting
    from induscode.deck.mcp.attach import AttachResult
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.enrolment import Enrolment
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.pins import StorePins


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
    reloadable: bool = False
    """Whether servers may be added later: then there is a fleet also without any."""
    decorate_config: Callable[[ServerConfig], ServerConfig] | None = None
    """What a server is started with, where that is more than its pins and the books know."""

    locked: Mapping[RemoteToolRef, JsonObject] = field(default_factory=dict["RemoteToolRef", "JsonObject"])
    """The definitions of the project's lock, for servers that the project has."""
    configured: Sequence[str] = ()
    """The ids of all servers that are configured, in order: names of tools depend on them."""

    def decorate(self, config: ServerConfig) -> ServerConfig:
        """Give what a server is started with."""
        return config if self.decorate_config is None else self.decorate_config(config)


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of the servers when their configuration changed."""

    removed: Sequence[str] = ()
    replaced: Sequence[str] = ()
    added: Sequence[str] = ()
    started: Sequence[str] = ()
    """Of those that are there anew, which are to be woken."""

    def __bool__(self) -> bool:
        return bool(self.removed or self.replaced or self.added)


@dataclass(frozen=True, slots=True)
class BootedBridge:
    """A deck's remote half, with what keeps its books. Whoever boots closes it."""

    attached: AttachResult
    journal: Journal
    from_store: Collection[str]
    """The servers whose tools were there before they were."""
    _background: BackgroundTask
    _pins: StorePins
    _present: dict[str, tuple[ServerConfig, bool]]
    """What each server is made from, and whether it is trusted."""
    _tidying: BackgroundTask
    _seen: set[RemoteToolRef]
    """The tools whose definitions the store had before their servers listed them."""

    def list_remarks(self, server: str) -> Sequence[Note]:
        """Give the notes about what a server lists.

        What is said of a definition is said once, when that definition is new.
        """
        fleet = self.attached.fleet
        status = None if fleet is None else fleet.status().get(server)
        return tuple(
            note
            for note in (() if status is None else status.notes)
            if not (isinstance(note, DefinitionNote) and note.tool in self._seen)
        )

    async def change(self, plan: BootPlan) -> Changed:
        """Have the servers of a plan in place of those there are; what is the same goes on.

        Those that are new stay asleep: whoever calls this wakes them. Only for a fleet that is
        lasting, and by one caller at a time.
        """
        fleet, enrolment = self.attached.fleet, self.attached.enrolment
        assert fleet is not None
        assert enrolment is not None
        wanted = {one.id: (one, one.id not in plan.untrusted) for one in plan.servers}
        removed = [one for one in self._present if one not in wanted]
        replaced = [one for one in self._present if wanted.get(one, self._present[one]) != self._present[one]]
        added = [one for one in wanted if one not in self._present]
        for server in (*removed, *replaced):
            enrolment.forget(server)
            del self._present[server]
        await _close(fleet, (*removed, *replaced))
        self.journal.forget(removed)
        self._pins.learn(dict.fromkeys(removed, ""), (), {})
        self._pins.lock(plan.locked)
        fresh = [wanted[one][0] for one in (*replaced, *added) if wanted[one][1]]
        known, disabled = await self._introduced(fresh)
        for config in await find_seen_up(self.journal.store, fresh):
            fleet.history.record_up(plan.decorate(config))
        for server in (*replaced, *added):
            config, trusted = self._present[server] = wanted[server]
            await fleet.add(plan.decorate(config), waiting="asleep" if trusted else "untrusted")
            if server in known:
                enrolment.take_tools(server, known[server], disabled.get(server, ()))
        enrolment.know_servers(plan.configured)
        started = [one.id for one in fresh if one.id not in known or one.id not in plan.lazy]
        return Changed(removed, replaced, added, started)

    async def _introduced(self, servers: Sequence[ServerConfig]) -> _Remembered:
        store = self.journal.store
        self.journal.introduce(servers)
        await learn_pins(self._pins, store, servers)
        known, _ = await known_tools(store, servers)
        disabled = await disabled_tools(store, servers)
        self.journal.knows(_names(known), disabled)
        self._seen.update(_references(known))
        return _Remembered(known, disabled)

    async def reread_approvals(self) -> None:
        """Take what was approved by another process: `indus mcp approve`, while this one runs."""
        enrolment = self.attached.enrolment
        servers = {one.ref.server for one in enrolment.disabled} if enrolment is not None else ()
        configs = [self._present[one][0] for one in servers if one in self._present]
        if enrolment is not None and configs:
            await learn_pins(self._pins, self.journal.store, configs)
            for config in configs:
                enrolment.take(config.id)

    async def wake(self, servers: Iterable[str]) -> None:
        """Start servers, and wait until each has come up or failed."""
        if self.attached.fleet is not None:
            await _wake_all(self.attached.fleet, servers)

    async def settled(self) -> None:
        """Wait until every server that is started without being called has come up or failed."""
        await self._background.wait()

    async def aclose(self) -> None:
        """Close the servers, and write the books to their end; the store stays open."""
        for owner in (self._background, self._tidying):
            owner.cancel()
            await owner.join()
        if self.attached.enrolment is not None:
            self.attached.enrolment.close()
        if self.attached.fleet is not None:
            await self.attached.fleet.tear_down()
        await self.journal.store.flush()


class _Remembered(NamedTuple):
    """What the store knows of servers from the runs before."""

    known: Mapping[str, Sequence[RemoteTool]]
    disabled: Mapping[str, Sequence[DisabledTool]]


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
    on_event: Callable[[FleetEvent], None] | None = None,
) -> BootedBridge:
    """Enrol the tools of servers, from the store where it has them, and start what is to start."""
    trusted = [config for config in plan.servers if config.id not in plan.untrusted]
    books = journal or Journal(store, trusted)
    if journal is not None:
        books.introduce(trusted)
    known, _ = await known_tools(store, trusted)
    disabled = await disabled_tools(store, trusted)
    books.knows(_names(known), disabled)
    started = [one.id for one in trusted if one.id not in known or one.id not in plan.lazy]
    waiting: dict[str, Waiting] = {one.id: "asleep" for one in trusted if one.id in known or not plan.wait_for_new}
    waiting.update(dict.fromkeys(plan.untrusted, "untrusted"))
    pins = await open_pins(books, trusted)
    pins.lock(plan.locked)
    history = StartHistory()
    for config in await find_seen_up(store, trusted):
        history.record_up(plan.decorate(config))
    attached = await attach_bridge_capabilities(
        ledger or BridgeLedger.empty(),
        BridgeConfig([plan.decorate(one) for one in plan.servers]),
        pins=pins,
        sink=books,
        waiting=waiting,
        known=known,
        disabled=disabled,
        supervision=supervision,
        handlers=handlers,
        reloadable=plan.reloadable,
        history=history,
        on_event=on_event,
        servers=plan.configured,
    )
    background = BackgroundTask("boot of servers")
    background.start(_start(attached.fleet, started, books, plan.retention))
    tidying = BackgroundTask("tidying of the ledger")
    if attached.enrolment is not None:
        tidying.start(_keep_short(attached.enrolment, store))
    told = replace(attached, notes=(*attached.notes, *store.notes))
    present = {one.id: (one, one.id not in plan.untrusted) for one in plan.servers}
    seen = set(_references(known))
    return BootedBridge(told, books, tuple(known), background, pins, present, tidying, seen)


def _names(known: Mapping[str, Sequence[RemoteTool]]) -> dict[str, list[str]]:
    return {server: [one.ref.name for one in tools] for server, tools in known.items()}


def _references(known: Mapping[str, Sequence[RemoteTool]]) -> list[RemoteToolRef]:
    return [tool.ref for tools in known.values() for tool in tools]


async def _close(fleet: ServerFleetImpl, servers: Sequence[str]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for server in servers:
            tasks.create_task(fleet.remove(server))


async def _start(fleet: ServerFleetImpl | None, servers: Sequence[str], books: Journal, keep: Retention) -> None:
    async with asyncio.TaskGroup() as tasks:
        if fleet is not None:
            tasks.create_task(_wake_all(fleet, servers))
        tasks.create_task(_prune(books, keep))


async def _wake_all(fleet: ServerFleetImpl, servers: Iterable[str]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for server in servers:
            tasks.create_task(_wake(fleet, server))


async def _wake(fleet: ServerFleetImpl, server: str) -> None:
    try:
        await fleet.wake(server, urgent=False)
    except ProtocolFault:
        return  # it was taken out meanwhile


async def _keep_short(enrolment: Enrolment, store: LedgerStore) -> None:
    """Have the ledger go on without its past, whenever that is long and in the store."""
    while True:
        await enrolment.long()
        end = enrolment.ledger.next_seq
        # A store that has lost its file keeps in memory what this process needs.
        if await store.flush() or store.path is None:
            enrolment.compact(end)


async def _prune(books: Journal, keep: Retention) -> None:
    await books.store.prune(keep, books.run)
