"""Boots a run's servers. The deck is complete before any server is up.

Tools of servers seen in an earlier run enrol from the store, as pinned. Eager servers (the default) then start in the
background; lazy ones start with the first call to one of their tools. Once a server is up, its listing is checked
against the pins like any other: equal definitions change nothing, drifted ones disable their tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.sandbox.behaviour import parse_behaviour
from indusagi.core.records import record
from indusagi.core.secrets import hide_secrets
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.connect import OpenSession, open_client_session
from indusagi.interop.protocol_bridge.client.start import StartHistory, Supervision
from indusagi.interop.protocol_bridge.client.tools import DefinitionNote
from indusagi.interop.protocol_bridge.contract import (
    QUALIFIER,
    BridgeConfig,
    EndpointStatus,
    FaultDetail,
    FleetStatus,
    ItemKind,
    ProtocolFault,
    RemoteTool,
    RemoteToolRef,
    ServerConfig,
    StdioServerConfig,
)
from indusagi.interop.protocol_bridge.fleet import FleetEvent, ServerFleetImpl, Waiting
from induscode.deck.mcp.capability import BridgeCapability, build_behaviour
from induscode.deck.mcp.enrolment import Enrolment
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.mcp.lock import lock_behaviour
from induscode.deck.mcp.store import LedgerStore, SilentStoreError
from induscode.deck.mcp.store.events import Retention
from induscode.deck.mcp.store.journal import LATE, STANDARD_ERROR, Journal
from induscode.deck.mcp.store.pins import (
    StorePins,
    find_down_before,
    find_started_before,
    follow_rows,
    load_pins,
    read_asked,
    read_disabled_tools,
    read_known_tools,
)

if TYPE_CHECKING:
    from indusagi.core.faults import Note
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from induscode.deck.mcp.drift import DisabledTool, Drift
    from induscode.servers.plan import ServerPlan

_MAX_STDERR_CHARS = 1_900
_PINS_MAX_AGE_S = 1.0
"""Don't reread pins younger than this: on first start, every server lists six kinds, and all start at once."""


@record(kw_only=True)
class BootOptions:
    """How to start and watch the servers of a plan."""

    lazy: Collection[str] | None = None
    """Servers to start on first call, if the store knows their tools. `None`: follow their rows."""
    only: Collection[str] | None = None
    """If set, start only these servers at boot, skipping others even if unknown."""
    wait_s: float | None = None
    """How long callers wait for starting servers. `None`: until each is up or has failed."""
    reloadable: bool = False
    """Whether the servers may change during the run (`indus serve`)."""
    decorate_config: Callable[[ServerConfig], ServerConfig] | None = None
    """Transforms the launch configuration of a server. Pins and journal use the original."""
    retention: Retention = field(default_factory=Retention)
    supervision: Supervision | None = None
    handlers: Handlers | None = None
    on_event: Callable[[FleetEvent], None] | None = None
    """Receives fleet events, from the first start on."""
    kinds: Sequence[ItemKind] = ()
    """Kinds to list and enrol in addition to tools."""
    open_session: OpenSession = open_client_session
    """Connects to servers. A cluster node can connect to servers another node runs."""
    node: str = ""
    """This process's node name in a cluster."""

    def launch_config(self, config: ServerConfig) -> ServerConfig:
        """Return the configuration to start a server with."""
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
    """Unchanged because sub-agents are using them; the caller applies the plan again later."""

    def __bool__(self) -> bool:
        return bool(self.removed or self.replaced or self.added)

    def group(self, plan: ServerPlan, replaced: str) -> Mapping[str, str]:
        """Map a word for each kind of change to the servers it applies to. The plan starts no held-back servers."""
        held_back = [server for server in (*self.replaced, *self.added) if server not in plan.configs]
        groups = {
            "removed": self.removed,
            replaced: [server for server in self.replaced if server not in held_back],
            "added": [server for server in self.added if server not in held_back],
            "held back": held_back,
        }
        return {word: ", ".join(servers) for word, servers in groups.items() if servers}


class BootedBridge:
    """A run's servers, their enrolled tools and journal. The caller of `boot_bridge` closes it."""

    def __init__(
        self,
        store: LedgerStore,
        plan: ServerPlan,
        options: BootOptions | None = None,
        *,
        ledger: BridgeLedger | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Prepare a bridge without servers. `boot_bridge` adds the plan's."""
        self.plan = plan
        self.options = options or BootOptions()
        self.from_store: Collection[str] = ()
        """Servers with tools enrolled from the store."""
        self._unlisted: dict[str, None] = {}
        """Servers with prompts, resources or other items the store doesn't fully know."""
        self._down_before: set[str] = set()
        """Servers that didn't come up the last time an earlier run started them."""
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
        """Loop time of the last pin read, per server."""
        self._rereading = asyncio.Lock()
        self._configs: dict[str, tuple[ServerConfig, bool]] = {}
        """Each server's configuration, and whether it's trusted."""
        self._neighbours: Sequence[ServerConfig] = ()
        """Servers outside a narrowed plan that the review doesn't know yet."""
        self._known_refs: set[RemoteToolRef] = set()
        """Tools the store knew before their servers listed them."""
        self._startup = BackgroundTask("boot of servers")
        self._compaction = BackgroundTask("compaction of the ledger")
        # Follow the fleet before anything starts: a server may come up or fail immediately.
        self.enrolment = Enrolment(
            self.fleet,
            ledger or BridgeLedger.empty(),
            pins=None if journal is None else self._pins,
            sink=journal,
            servers=plan.configured,
        )

    @property
    def journal(self) -> Journal:
        """The journal of this run, created on first use if the run has no servers."""
        if self._journal is None:
            self._journal = Journal(self._store, node=self.options.node)
        return self._journal

    def find_place(self) -> tuple[str, int]:
        """Return the journal's run and current turn, or `("", 0)` before it exists."""
        return ("", 0) if self._journal is None else (self._journal.run, self._journal.turns)

    def hide_secrets(self, text: str) -> str:
        """Mask secrets from the servers' rows, and secrets of known shapes."""
        return hide_secrets(text) if self._journal is None else self._journal.hide_secrets(text)

    @property
    def ledger(self) -> BridgeLedger:
        """The current ledger."""
        return self.enrolment.ledger

    def __iter__(self) -> Iterator[BridgeCapability]:
        """Yield the currently enrolled tools, for `deck.graft`."""
        return iter(self.capabilities)

    @property
    def capabilities(self) -> Sequence[BridgeCapability]:
        """The currently enrolled tools."""
        return self.enrolment.ledger.live_capabilities()

    @property
    def items(self) -> Sequence[BridgeCapability]:
        """Everything currently enrolled: tools, prompts, resources and so on."""
        return tuple(self.enrolment.ledger.snapshot.live.values())

    @property
    def disabled(self) -> Sequence[DisabledTool]:
        """Tools that can't be called until a user approves their changed definitions."""
        return self.enrolment.disabled

    def status(self) -> FleetStatus:
        """Return the status of every server, with notes about disabled tools."""
        return self.enrolment.status()

    def status_of(self, server: str) -> EndpointStatus | None:
        """Return a server's status, or `None` if the id is unknown."""
        return self.enrolment.status_of(server)

    def require_status(self, server: str) -> EndpointStatus:
        """Return a server's status; raises `ProtocolFault` if the id is unknown, as after a removal."""
        status = self.status_of(server)
        if status is None:
            raise ProtocolFault("not_connected", f"server {server!r} was removed", detail=FaultDetail(server=server))
        return status

    @property
    def notes(self) -> Sequence[Note]:
        """Everything left out so far, with the reason.

        Includes remarks about new definitions unless servers may change at runtime; then see `list_remarks`.
        """
        notes = [*self.plan.notes, *self.fleet.notes, *self.enrolment.notes, *self._store.notes]
        if not self.options.reloadable:
            servers = (endpoint.config.id for endpoint in self.fleet.endpoints())
            remarks = [note for server in servers for note in self.list_remarks(server)]
            notes += [note for note in remarks if isinstance(note, DefinitionNote)]
        return tuple(dict.fromkeys(notes))

    def list_remarks(self, server: str) -> Sequence[Note]:
        """List the notes about a server's listing, skipping definitions the store already knew."""
        endpoint = self.fleet.endpoint(server)
        return tuple(
            note
            for note in (() if endpoint is None else endpoint.status().notes)
            if not (isinstance(note, DefinitionNote) and note.tool in self._known_refs)
        )

    def missing(self) -> Sequence[str]:
        """List the required servers that aren't ready."""
        required = {row.id: self.fleet.status_of(row.id) for row in self.plan.rows if row.required}
        return tuple(server for server, status in required.items() if status is None or status.phase != "ready")

    def unknown_servers(self) -> Sequence[str]:
        """List the startable servers whose tools the store didn't know."""
        return tuple(server for server in self.plan.configs if server not in self.from_store)

    def awaited_servers(self) -> Sequence[str]:
        """List the unknown servers worth waiting for: they didn't fail to come up last time."""
        return tuple(server for server in self.unknown_servers() if server not in self._down_before)

    def record_late(self, servers: Iterable[str]) -> None:
        """Record servers still starting when a first list or prompt went ahead, so the next one won't wait for them."""
        for server in servers:
            if self.fleet.is_starting(server):
                self.journal.record_event("connect", server, LATE, "it was still starting when it was needed")

    def find_starting(self, name: str) -> str | None:
        """Find the server a qualified name starts with, if it's starting and its tools aren't known yet."""
        for server in self.unknown_servers():
            endpoint = self.fleet.endpoint(server) if name.startswith(f"{server}{QUALIFIER}") else None
            if endpoint is not None and endpoint.known_tools is None and self.fleet.is_starting(server):
                return server
        return None

    async def wait_starting(self, name: str) -> None:
        """Wait until the server `find_starting` returns has listed everything or failed."""
        server = self.find_starting(name)
        if server is not None:
            with suppress(ProtocolFault):  # removed in the meantime
                await self.fleet.wake(server)
                await self.wait_listed(server)

    def eager_servers(self) -> Sequence[str]:
        """List the servers that start without a call."""
        return tuple(row.id for row in self.plan.rows if row.start != "lazy" and row.id in self.plan.configs)

    # -- starting -----------------------------------------------------------------------------

    async def wake(
        self, servers: Iterable[str], limit_s: float | None = None, *, until_listed: bool = False
    ) -> Sequence[str]:
        """Start servers and wait up to `limit_s` until each is up (and has listed everything) or has failed.

        Returns the servers that aren't done by then.
        """
        pending = dict.fromkeys(servers)

        async def wake(server: str) -> None:
            with suppress(ProtocolFault):  # removed in the meantime
                await self.fleet.wake(server, urgent=False)
                if until_listed:
                    await self.wait_listed(server)
            pending.pop(server, None)

        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
                for server in [*pending]:
                    tasks.create_task(wake(server))
        return tuple(pending)

    async def list_content(self, limit_s: float | None = None) -> Sequence[str]:
        """Start the servers with unknown prompts, resources etc. and wait up to `limit_s` for their lists.

        Returns the servers that haven't listed everything by then.
        """
        servers = [server for server in self._unlisted if server in self.plan.configs]
        late = await self.wake(servers, limit_s, until_listed=True)
        self._unlisted.clear()
        return late

    async def wait_listed(self, server: str) -> None:
        """Wait until a started server has listed everything or failed; raises `ProtocolFault` if the id is unknown."""
        await self.fleet.wait_listed(server)
        self.enrolment.finish_listings(server, ("tool", *self.options.kinds))

    async def wait_for_required(self) -> None:
        """Wait until every required server is up or has failed."""
        await self.wake(row.id for row in self.plan.rows if row.required and row.id in self.plan.configs)

    async def wait_started(self) -> None:
        """Wait up to `wait_s` until every server started at boot is up or has failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.wait_s):
                await self._startup.wait()

    async def boot(self) -> None:
        """Enrol the tools the store knows and start servers in the background."""
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
        """Read the servers' known and disabled tools from the store.

        Until the store answers, nothing from these servers counts as approved.
        """
        self.journal.add_servers(servers)
        self._pins.locked, self._pins.growing = plan.locked, plan.growing
        self.enrolment.reviewer.modes, self.enrolment.reviewer.default = plan.reviews, plan.review
        self._neighbours = [*plan.neighbours.values()]
        self._pins.forget([config.id for config in servers], unread=True)
        known: Mapping[str, Sequence[RemoteTool]] = {}
        disabled: Mapping[str, Sequence[DisabledTool]] = {}
        with suppress(SilentStoreError):  # the store has a note about it
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
        """Enrol the prompts, resources etc. the store knows, for servers that haven't listed them yet."""
        sandboxed = [
            config for config in servers if isinstance(config, StdioServerConfig) and config.sandbox is not None
        ]
        with suppress(SilentStoreError):  # the store has a note about it
            for server, asked in (await read_asked(self._store, sandboxed)).items() if sandboxed else ():
                self.enrolment.check_behaviour(server, parse_behaviour(asked))
        for kind in self.options.kinds:
            try:
                known, _ = await read_known_tools(self._store, servers, kind)
                disabled = await read_disabled_tools(self._store, servers, kind)
            except SilentStoreError:  # the store has a note about it
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
        """Drop past events from the in-memory ledger whenever it's long and the store has them."""
        while True:
            await self.enrolment.wait_until_long()
            end = self.enrolment.ledger.next_seq
            # A store without a file keeps the rest of this run in memory.
            if await self._store.flush() or self._store.path is None:
                self.enrolment.compact(end)

    # -- changing -----------------------------------------------------------------------------

    async def change(self, plan: ServerPlan) -> ServerChanges:
        """Switch to the servers of a new plan. Unchanged and leased servers keep running.

        New servers stay asleep until the caller wakes the ones in `to_start`. Not safe for concurrent callers.
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

    @property
    def behaviours(self) -> Sequence[BridgeCapability]:
        """The learned behaviours of the servers, as items for the lock file."""
        refs = (build_behaviour(server).ref for server in self._configs)
        learned = ((ref.server, self._pins.find_approved(ref)) for ref in refs)
        items = [build_behaviour(server, parse_behaviour(raw)) for server, raw in learned if raw is not None]
        return [BridgeCapability.from_definition(item.descriptor, item.ref, item.raw) for item in items]

    async def allow(self, drift: Drift) -> None:
        """Write what a drift of behaviour asks for into the row of its server, before it's approved.

        Raises `BridgeFault` if the row isn't in a file of ours, or has changed.
        """
        row = next((row for row in self.plan.rows if row.id == drift.ref.server), None)
        if drift.ref.kind != "behaviour" or row is None or drift.after is None:
            return
        from induscode.servers.learning import allow_behaviour  # noqa: PLC0415 — for a changed behaviour

        await to_thread.run_sync(allow_behaviour, row, parse_behaviour(drift.after))
        await to_thread.run_sync(lock_behaviour, row, drift.after)

    async def reread_approvals(self) -> None:
        """Apply approvals from other processes (`indus mcp approve`)."""
        servers = {tool.ref.server for tool in self.enrolment.disabled}
        configs = [self._configs[server][0] for server in servers if server in self._configs]
        if configs:
            with suppress(SilentStoreError):  # the store has a note about it; nothing changes until it answers
                await load_pins(self._pins, self._store, configs)
            for config in configs:
                self.enrolment.sync_server(config.id)
                self.enrolment.check_behaviour(config.id)

    async def _reread_first(self, server: str, kind: ItemKind) -> None:
        """Reread the pins before approving a first listing: another process may have listed the server since.

        Otherwise a server could fail here until a user has reviewed it elsewhere, then list something else.
        """
        is_first = server in self._configs and self._pins.is_first(server, kind)
        if is_first or server in self._pins.growing:
            await self.learn_neighbours()
        if not is_first:
            return
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        async with self._rereading:  # one read serves all servers that wait for it
            if asked_at - self._pins_read_at.get(server, 0.0) < _PINS_MAX_AGE_S:
                return
            read_at = loop.time()
            firsts = [config for config, _ in self._configs.values() if self._pins.is_first(config.id, kind)]
            try:
                await load_pins(self._pins, self._store, firsts)
            except SilentStoreError:  # the store has a note about it
                self._pins.forget([server], unread=True)
            else:
                self._pins_read_at.update((config.id, read_at) for config in firsts)

    async def learn_neighbours(self) -> None:
        """Let the review compare with servers that the plan has left out."""
        configs, self._neighbours = self._neighbours, ()
        with suppress(SilentStoreError):  # the store has a note about it
            await self.enrolment.reviewer.learn_stored(self._store, configs, ("tool", *self.options.kinds))

    async def aclose(self) -> None:
        """Close the servers and flush the journal, and the store if the bridge owns it."""
        if self._journal is not None:
            for server, status in self.status().items():
                if status.fault is not None and status.fault.detail.stderr:
                    text = "\n".join(status.fault.detail.stderr)[-_MAX_STDERR_CHARS:]
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
    """Boot the servers of a plan (see `BootedBridge.boot`)."""
    node = "" if options is None else options.node
    journal = journal or Journal(store, plan.configs.values(), node=node)
    bridge = BootedBridge(store, plan, options, ledger=ledger, journal=journal)
    await bridge.boot()
    return bridge
