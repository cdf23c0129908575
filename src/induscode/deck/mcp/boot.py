"""Boot of a run's servers: the deck is complete before any server is up.

Tools of servers that an earlier run has seen are enrolled from the store, as they were pinned. An eager server
(the default) is then started in the background, a lazy one by the first call of one of its tools. What a server
lists once it is up is compared with the pins like any listing: equal definitions change nothing, and a tool whose
definition has drifted is disabled.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.records import record
from indusagi.core.secrets.names import hide_secrets
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.connect import open_client_session
from indusagi.interop.protocol_bridge.client.start.policy import StartHistory
from indusagi.interop.protocol_bridge.client.tools import DefinitionNote
from indusagi.interop.protocol_bridge.contract import QUALIFIER, BridgeConfig, FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
from induscode.deck.mcp.enrolment import Enrolment
from induscode.deck.mcp.known import find_down_before, find_started_before, read_known_tools
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.mcp.store import SilentStoreError
from induscode.deck.mcp.store.events import Retention
from induscode.deck.mcp.store.journal import LATE, STANDARD_ERROR, Journal
from induscode.deck.mcp.store.pins import StorePins, follow_rows, load_pins, read_disabled_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from indusagi.core.faults import Note
    from indusagi.interop.protocol_bridge.client.connect import OpenSession
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.client.start.policy import Supervision
    from indusagi.interop.protocol_bridge.contract import (
        EndpointStatus,
        FleetStatus,
        ItemKind,
        RemoteTool,
        RemoteToolRef,
        ServerConfig,
    )
    from indusagi.interop.protocol_bridge.fleet import FleetEvent, Waiting
    from induscode.deck.mcp.capability import BridgeCapability
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.store import LedgerStore
    from induscode.servers.plan import ServerPlan

_STDERR_CHARACTERS = 1_900
_FRESH_PINS_S = 1.0
"""Pins that were read this recently aren't read again: at a first start every server lists six kinds."""


@record(kw_only=True)
class BootOptions:
    """How the servers of a plan are started and watched."""

    lazy: Collection[str] | None = None
    """Servers that a first call starts, if the store knows their tools; None: as their rows say."""
    only: Collection[str] | None = None
    """Start no other server at boot, not even an unknown one."""
    wait_s: float | None = None
    """How long a caller waits for servers that start; None: until each has come up or failed."""
    reloadable: bool = False
    """Whether the servers may change during the run (`indus serve`)."""
    decorate_config: Callable[[ServerConfig], ServerConfig] | None = None
    """Transforms the configuration a server is started with; pins and journal use the original."""
    retention: Retention = field(default_factory=Retention)
    supervision: Supervision | None = None
    handlers: Handlers | None = None
    on_event: Callable[[FleetEvent], None] | None = None
    """Receives the events of the fleet from the first start on."""
    kinds: Sequence[ItemKind] = ()
    """What is listed and enrolled beside tools."""
    open_session: OpenSession = open_client_session
    """Connects to servers; a node of a cluster connects to those that another node runs."""
    node: str = ""
    """The name of this process as a node of a cluster."""

    def launch_config(self, config: ServerConfig) -> ServerConfig:
        """Return the configuration a server is started with."""
        return config if self.decorate_config is None else self.decorate_config(config)


@record
class ServerChanges:
    """The effect of a changed configuration on the servers."""

    removed: Sequence[str] = ()
    replaced: Sequence[str] = ()
    added: Sequence[str] = ()
    to_start: Sequence[str] = ()
    """Replaced and added servers that the caller must wake."""
    leased: Sequence[str] = ()
    """Servers that stay as they are because sub-agents use them; the caller applies the plan again later."""

    def __bool__(self) -> bool:
        return bool(self.removed or self.replaced or self.added)


class BootedBridge:
    """The servers of a run with their enrolled tools and their journal. The caller of `boot_bridge` closes it."""

    def __init__(
        self,
        store: LedgerStore,
        plan: ServerPlan,
        options: BootOptions | None = None,
        *,
        ledger: BridgeLedger | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Prepare a bridge without servers; `boot_bridge` adds those of the plan."""
        self.plan = plan
        self.options = options or BootOptions()
        self.from_store: Collection[str] = ()
        """The servers whose tools were enrolled from the store."""
        self._unlisted: dict[str, None] = {}
        """The servers of which the store does not know everything that is listed beside tools."""
        self._down_before: set[str] = set()
        """The servers whose last start, in an earlier run, has not come up."""
        self._store = store
        self.owns_store = False
        """Whether closing the bridge closes the store."""
        self._journal = journal
        self.fleet = ServerFleetImpl(
            supervision=self.options.supervision,
            handlers=self.options.handlers,
            history=StartHistory(),
            kinds=self.options.kinds,
            open_session=self.options.open_session,
            before_list=None if journal is None else self._reread_first,
        )
        if self.options.on_event is not None:
            self.fleet.subscribe(self.options.on_event)
        self._pins = StorePins(journal)
        self._pins_read_at: dict[str, float] = {}
        """When the pins of servers were read last, in the loop's time."""
        self._configs: dict[str, tuple[ServerConfig, bool]] = {}
        """The configuration of each server, and whether it is trusted."""
        self._known_refs: set[RemoteToolRef] = set()
        """The tools whose definitions the store had before their servers listed them."""
        self._startup = BackgroundTask("boot of servers")
        self._compaction = BackgroundTask("compaction of the ledger")
        # Follows the fleet before anything starts: a server may come up or fail at once.
        self.enrolment = Enrolment(
            self.fleet,
            ledger or BridgeLedger.empty(),
            pins=None if journal is None else self._pins,
            sink=journal,
            servers=plan.configured,
        )

    @property
    def journal(self) -> Journal:
        """The journal of this run; a run without servers begins it when it is first used."""
        if self._journal is None:
            self._journal = Journal(self._store, node=self.options.node)
        return self._journal

    def find_place(self) -> tuple[str, int]:
        """Return the run of the journal and its present turn; empty before the journal has begun."""
        return ("", 0) if self._journal is None else (self._journal.run, self._journal.turns)

    def hide_secrets(self, text: str) -> str:
        """Replace the secrets of the servers' rows, and secrets of known shapes."""
        return hide_secrets(text) if self._journal is None else self._journal.hide_secrets(text)

    @property
    def ledger(self) -> BridgeLedger:
        """The ledger as it is now."""
        return self.enrolment.ledger

    def __iter__(self) -> Iterator[BridgeCapability]:
        """Yield the servers' tools that are enrolled now, for `deck.graft`."""
        return iter(self.capabilities)

    @property
    def capabilities(self) -> Sequence[BridgeCapability]:
        """The servers' tools that are enrolled now."""
        return self.enrolment.ledger.live_capabilities()

    @property
    def items(self) -> Sequence[BridgeCapability]:
        """Everything of the servers that is enrolled now: tools, and what was listed beside them."""
        return tuple(self.enrolment.ledger.snapshot.live.values())

    @property
    def disabled(self) -> Sequence[DisabledTool]:
        """The tools that may not be called until their changed definitions are approved."""
        return self.enrolment.disabled

    def status(self) -> FleetStatus:
        """Return the status of every server; disabled tools are among its notes."""
        return self.enrolment.status()

    def status_of(self, server: str) -> EndpointStatus | None:
        """Return the status of one server; None: there's no such server."""
        return self.enrolment.status_of(server)

    def require_status(self, server: str) -> EndpointStatus:
        """Return the status of one server.

        Raises:
            ProtocolFault: There's no such server; it may have been removed meanwhile.
        """
        status = self.status_of(server)
        if status is None:
            raise ProtocolFault("not_connected", f"server {server!r} was removed", detail=FaultDetail(server=server))
        return status

    @property
    def notes(self) -> Sequence[Note]:
        """Everything that was left out so far, with the reason.

        Remarks about new definitions are among them, unless the servers may change: `list_remarks` has those.
        """
        notes = [*self.plan.notes, *self.fleet.notes, *self.enrolment.notes, *self._store.notes]
        if not self.options.reloadable:
            servers = (endpoint.config.id for endpoint in self.fleet.endpoints())
            remarks = [note for server in servers for note in self.list_remarks(server)]
            notes += [note for note in remarks if isinstance(note, DefinitionNote)]
        return tuple(dict.fromkeys(notes))

    def list_remarks(self, server: str) -> Sequence[Note]:
        """List the notes about what a server lists; a note about a definition only if the definition is new."""
        endpoint = self.fleet.endpoint(server)
        return tuple(
            note
            for note in (() if endpoint is None else endpoint.status().notes)
            if not (isinstance(note, DefinitionNote) and note.tool in self._known_refs)
        )

    def missing(self) -> Sequence[str]:
        """List the required servers that are not ready."""
        required = {row.id: self.fleet.status_of(row.id) for row in self.plan.rows if row.required}
        return tuple(server for server, status in required.items() if status is None or status.phase != "ready")

    def unknown_servers(self) -> Sequence[str]:
        """List the servers that can be started and whose tools the store did not know."""
        return tuple(server for server in self.plan.configs if server not in self.from_store)

    def awaited_servers(self) -> Sequence[str]:
        """List the unknown servers worth waiting for: those that didn't fail to come up the last time."""
        return tuple(server for server in self.unknown_servers() if server not in self._down_before)

    def record_late(self, servers: Iterable[str]) -> None:
        """Record that a first list or prompt goes on without those that are still starting: the next one won't wait."""
        for server in servers:
            if self.fleet.is_starting(server):
                self.journal.record_event("connect", server, LATE, "it was still starting when it was needed")

    def find_starting(self, name: str) -> str | None:
        """Find the server that a qualified name begins with, if it's starting and its tools aren't known yet."""
        for server in self.unknown_servers():
            endpoint = self.fleet.endpoint(server) if name.startswith(f"{server}{QUALIFIER}") else None
            if endpoint is not None and endpoint.known_tools is None and self.fleet.is_starting(server):
                return server
        return None

    async def wait_starting(self, name: str) -> None:
        """Wait for the server that `find_starting` finds until it has listed everything, or has failed."""
        server = self.find_starting(name)
        if server is not None:
            with suppress(ProtocolFault):  # it was removed meanwhile
                await self.fleet.wake(server)
                await self.wait_listed(server)

    def eager_servers(self) -> Sequence[str]:
        """List the servers that run whether one of their tools is called or not."""
        return tuple(row.id for row in self.plan.rows if row.start != "lazy" and row.id in self.plan.configs)

    # -- starting -----------------------------------------------------------------------------

    async def wake(self, servers: Iterable[str], limit_s: float | None = None) -> Sequence[str]:
        """Start servers and wait until each has come up or failed, for `limit_s` at most.

        Returns:
            The servers that are still starting.
        """
        starting = dict.fromkeys(servers)

        async def wake(server: str) -> None:
            with suppress(ProtocolFault):  # it was removed meanwhile
                await self.fleet.wake(server, urgent=False)
            starting.pop(server, None)

        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
                for server in [*starting]:
                    tasks.create_task(wake(server))
        return tuple(starting)

    async def list_content(self, limit_s: float | None = None) -> Sequence[str]:
        """Start the servers whose other items (prompts, resources) are unknown, and wait for their lists.

        Returns:
            The servers that haven't listed theirs within `limit_s`.
        """
        servers = dict.fromkeys(server for server in self._unlisted if server in self.plan.configs)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
                for server in [*servers]:
                    tasks.create_task(self._list_content_of(server, servers))
        self._unlisted.clear()
        return tuple(servers)

    async def _list_content_of(self, server: str, unlisted: dict[str, None]) -> None:
        with suppress(ProtocolFault):  # it was removed meanwhile
            await self.fleet.wake(server, urgent=False)
            await self.wait_listed(server)
        unlisted.pop(server, None)

    async def wait_listed(self, server: str) -> None:
        """Wait until a server that was started has listed everything, or has failed.

        Raises:
            ProtocolFault: The id is unknown.
        """
        await self.fleet.wait_listed(server)
        self.enrolment.finish_listings(server, ("tool", *self.options.kinds))

    async def wait_for_required(self) -> None:
        """Wait until every required server has come up or failed."""
        await self.wake(row.id for row in self.plan.rows if row.required and row.id in self.plan.configs)

    async def wait_started(self) -> None:
        """Wait until every server that starts without a call has come up or failed, for `wait_s` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.wait_s):
                await self._startup.wait()

    async def boot(self) -> None:
        """Enrol the tools that the store knows, and start servers in the background."""
        plan, options = self.plan, self.options
        untrusted = plan.untrusted
        trusted = [*plan.configs.values()]
        known, disabled = await self._introduce(trusted, plan)
        self._configs = {config.id: (config, True) for config in trusted}
        self._configs.update((row.id, (row.config, False)) for row in untrusted)
        waiting: dict[str, Waiting] = dict.fromkeys(plan.configs, "asleep")
        waiting.update((row.id, "untrusted") for row in untrusted)
        config = BridgeConfig([options.launch_config(config) for config, _ in self._configs.values()])
        await self.fleet.start(config, waiting=waiting)
        await self.enrolment.sync_all(known, disabled)
        await self._introduce_items(trusted)
        self.from_store = tuple(known)
        lazy = plan.lazy if options.lazy is None else options.lazy
        started = [server for server in plan.configs if server not in known or server not in lazy]
        if options.only is not None:
            started = [server for server in started if server in options.only]
        self._startup.start(self._start(started))
        self._compaction.start(self._compact())

    async def _introduce(
        self, servers: Sequence[ServerConfig], plan: ServerPlan
    ) -> tuple[Mapping[str, Sequence[RemoteTool]], Mapping[str, Sequence[DisabledTool]]]:
        """Read from the store which tools servers have, and which of these are disabled.

        If the store does not answer, nothing of these servers is approved until it does.
        """
        self.journal.add_servers(servers)
        self._pins.lock(plan.locked)
        self._pins.allow_additions(plan.growing)
        self._pins.forget([config.id for config in servers], unread=True)
        known: Mapping[str, Sequence[RemoteTool]] = {}
        disabled: Mapping[str, Sequence[DisabledTool]] = {}
        with suppress(SilentStoreError):  # a note of the store says so
            await follow_rows(self.journal, servers, await to_thread.run_sync(plan.find_places))
            known, _ = await read_known_tools(self._store, servers)
            disabled = await read_disabled_tools(self._store, servers)
            started = await find_started_before(self._store, servers)
            self._down_before.update(await find_down_before(self._store, servers))
            now = asyncio.get_running_loop().time()
            await load_pins(self._pins, self._store, servers)
            self._pins_read_at.update((config.id, now) for config in servers)
            self.journal.set_known_listings(
                {server: [tool.ref.name for tool in tools] for server, tools in known.items()}, disabled
            )
            self._known_refs.update(tool.ref for tools in known.values() for tool in tools)
            for config in started:
                self.fleet.history.record_up(self.options.launch_config(config))
            return known, disabled
        return {}, {}

    async def _introduce_items(self, servers: Sequence[ServerConfig]) -> None:
        """Enrol what the store knows beside tools of servers that have not listed it yet."""
        for kind in self.options.kinds:
            try:
                known, _ = await read_known_tools(self._store, servers, kind)
                disabled = await read_disabled_tools(self._store, servers, kind)
            except SilentStoreError:  # a note of the store says so
                self._unlisted |= {config.id: None for config in servers}
                return
            self.journal.set_known_listings(
                {server: [item.ref.name for item in items] for server, items in known.items()}, disabled, kind
            )
            self._unlisted |= {config.id: None for config in servers if config.id not in known}
            for server, items in known.items():
                endpoint = self.fleet.endpoint(server)
                if endpoint is not None and endpoint.known_items(kind) is None:
                    self.enrolment.sync_tools(server, items, disabled.get(server, ()), kind=kind)

    async def _start(self, servers: Sequence[str]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.wake(servers))
            await self._store.prune(self.options.retention, self.journal.run)

    async def _compact(self) -> None:
        """Drop past events from the ledger in memory whenever they are many and the store has them."""
        while True:
            await self.enrolment.wait_until_long()
            end = self.enrolment.ledger.next_seq
            # A store that has lost its file keeps the rest of this run in memory.
            if await self._store.flush() or self._store.path is None:
                self.enrolment.compact(end)

    # -- changes while it runs ----------------------------------------------------------------

    async def change(self, plan: ServerPlan) -> ServerChanges:
        """Replace the servers by those of a plan; servers that stay the same go on.

        New servers stay asleep: the caller wakes those in `to_start`. A server with a lease stays as it is. Only one
        caller at a time.
        """
        wanted = {config.id: (config, True) for config in plan.configs.values()}
        wanted.update((row.id, (row.config, False)) for row in plan.untrusted)
        leased = [
            server
            for server, present in self._configs.items()
            if wanted.get(server) != present and self.fleet.leases.find_holders(server)
        ]
        wanted |= {server: self._configs[server] for server in leased}
        removed = [server for server in self._configs if server not in wanted]
        replaced = [
            server for server in self._configs if wanted.get(server, self._configs[server]) != self._configs[server]
        ]
        added = [server for server in wanted if server not in self._configs]
        for server in (*removed, *replaced):
            self.enrolment.remove_server(server)
            del self._configs[server]
        async with asyncio.TaskGroup() as tasks:
            for server in (*removed, *replaced):
                tasks.create_task(self.fleet.remove(server))
        self.journal.remove_servers(removed)
        self._pins.forget((*removed, *replaced))
        fresh = [wanted[server][0] for server in (*replaced, *added) if wanted[server][1]]
        known, disabled = await self._introduce(fresh, plan)
        for server in (*replaced, *added):
            config, trusted = self._configs[server] = wanted[server]
            await self.fleet.add(self.options.launch_config(config), waiting="asleep" if trusted else "untrusted")
            if server in known:
                self.enrolment.sync_tools(server, known[server], disabled.get(server, ()))
        await self._introduce_items(fresh)
        self.from_store = tuple({*self.from_store}.difference(removed, replaced) | {*known})
        self.enrolment.set_configured_servers(plan.configured)
        to_start = [config.id for config in fresh if config.id not in known or config.id not in plan.lazy]
        return ServerChanges(removed, replaced, added, to_start, leased)

    async def reread_approvals(self) -> None:
        """Apply what another process has approved (`indus mcp approve`) while this one runs."""
        servers = {tool.ref.server for tool in self.enrolment.disabled}
        configs = [self._configs[server][0] for server in servers if server in self._configs]
        if configs:
            with suppress(SilentStoreError):  # a note of the store says so; nothing changes until it answers
                await load_pins(self._pins, self._store, configs)
            for config in configs:
                self.enrolment.sync_server(config.id)

    async def _reread_first(self, server: str, kind: ItemKind) -> None:
        """Read the pins again before a first listing is approved: another process may have listed the server since.

        Otherwise a server could fail here until a user has looked at it elsewhere, and then list something else.
        """
        if server not in self._configs or not self._pins.is_first(server, kind):
            return
        now = asyncio.get_running_loop().time()
        if now - self._pins_read_at.get(server, 0.0) < _FRESH_PINS_S:
            return
        firsts = [config for config, _ in self._configs.values() if self._pins.is_first(config.id, kind)]
        try:
            await load_pins(self._pins, self._store, firsts)
        except SilentStoreError:  # a note of the store says so
            self._pins.forget([server], unread=True)
        else:
            self._pins_read_at.update((config.id, now) for config in firsts)

    async def aclose(self) -> None:
        """Close the servers and write the journal to its end; the store stays open unless it's the bridge's own."""
        if self._journal is not None:
            for server, status in self.status().items():
                if status.fault is not None and status.fault.detail.stderr:
                    text = "\n".join(status.fault.detail.stderr)[-_STDERR_CHARACTERS:]
                    self._journal.record_event("fault", server, STANDARD_ERROR, text)
        for task in (self._startup, self._compaction):
            task.cancel()
            await task.join()
        self.enrolment.close()
        if self._configs:
            await self.fleet.tear_down()
        if self._journal is not None:
            await self._store.flush()
        if self.owns_store:
            await self._store.aclose()


async def boot_bridge(
    store: LedgerStore,
    plan: ServerPlan,
    options: BootOptions | None = None,
    *,
    ledger: BridgeLedger | None = None,
    journal: Journal | None = None,
) -> BootedBridge:
    """Boot the servers of a plan; see `BootedBridge.boot`."""
    node = "" if options is None else options.node
    journal = journal or Journal(store, plan.configs.values(), node=node)
    bridge = BootedBridge(store, plan, options, ledger=ledger, journal=journal)
    await bridge.boot()
    return bridge
