"""Several servers at once: connected together, each failing alone, and brought back when they die.

Every endpoint is registered before any of them connects, so a server that never comes up is still
there to be asked about. Behind each id stands a keeper with a task of its own: it opens an
endpoint, lists its tools, waits for its end, and opens the next one when the rules of supervision
say so. The endpoint under an id therefore changes; ask for it when you need it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, TypeAlias

from indusagi.core.notes import Note
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.start.policy import PROCESS_HISTORY, StartHistory, StartPacer, StartPolicy
from indusagi.interop.protocol_bridge.client.supervision import RestartRecord, Supervision
from indusagi.interop.protocol_bridge.contract import (
    BridgeConfig,
    EndpointPhase,
    EndpointStatus,
    FaultDetail,
    FleetStatus,
    ProtocolFault,
    ServerConfig,
    find_config_problem,
    is_usable_phase,
)
from indusagi.interop.protocol_bridge.endpoint import EndpointEvent, ServerEndpointImpl

_log = logging.getLogger(__name__)

Waiting: TypeAlias = Literal["asleep", "untrusted"]
"""Why a server is not started: it starts when it is needed, or nobody has consented to it."""


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """Something changed at a server: its phase, its tools, or that its start takes long."""

    server: str
    event: EndpointEvent
    status: EndpointStatus


async def start_server_fleet(
    config: BridgeConfig,
    *,
    supervision: Supervision | None = None,
    handlers: Handlers | None = None,
    waiting: Mapping[str, Waiting] | None = None,
    policy: StartPolicy | None = None,
    history: StartHistory | None = None,
    on_event: Callable[[FleetEvent], None] | None = None,
) -> ServerFleetImpl:
    """Connect to every server of a configuration, and return when each has come up or failed.

    Those that are `waiting` are there, but not started. The `policy` says how long a start may
    take, and the `history` which starts are first ones; `on_event` hears what happens meanwhile.
    """
    fleet = ServerFleetImpl(supervision=supervision, handlers=handlers, policy=policy, history=history)
    if on_event is not None:
        fleet.follow(on_event)
    await fleet.start(config, waiting=waiting)
    return fleet


class ServerFleetImpl:
    """The one kind of fleet there is; it starts empty."""

    def __init__(
        self,
        *,
        supervision: Supervision | None = None,
        handlers: Handlers | None = None,
        policy: StartPolicy | None = None,
        history: StartHistory | None = None,
        pacer: StartPacer | None = None,
    ) -> None:
        self.history = PROCESS_HISTORY if history is None else history
        """Which configurations were seen up: their starts have a short limit."""
        self._policy = policy or StartPolicy()
        self._pacer = pacer or StartPacer()
        self._supervision = supervision or Supervision()
        self._handlers = handlers
        self._config: BridgeConfig | None = None
        self._waiting: dict[str, Waiting] = {}
        self._keepers: dict[str, _Keeper] = {}
        self._notes: tuple[Note, ...] = ()
        self._listeners: list[Callable[[FleetEvent], None]] = []

    @property
    def notes(self) -> Sequence[Note]:
        """What was left out of the configuration."""
        return self._notes

    async def start(self, config: BridgeConfig, *, waiting: Mapping[str, Waiting] | None = None) -> None:
        """Connect to the servers of a configuration, in place of those there were.

        Those that are `waiting` are registered and not started.
        """
        await self.tear_down()
        self._config, self._waiting = config, dict(waiting or {})
        usable, unusable = _split_servers(config)
        wanted = {server.id: server for server in usable}
        self._notes = (*unusable, *_duplicates(usable))
        self._keepers = {
            identity: self._keeper(server, self._waiting.get(identity)) for identity, server in wanted.items()
        }
        started = [keeper for keeper in self._keepers.values() if keeper.waiting is None]
        for keeper in started:
            keeper.start()
        try:
            for keeper in started:
                await keeper.settled.wait()
        except asyncio.CancelledError:
            await self.tear_down()
            raise

    def _keeper(self, server: ServerConfig, waiting: Waiting | None) -> _Keeper:
        fresh = partial(
            ServerEndpointImpl,
            server,
            handlers=self._handlers,
            on_event=lambda event: self._tell(server.id, event),
            policy=self._policy,
            history=self.history,
        )
        return _Keeper(server, self._supervision, fresh, self._pacer, waiting)

    async def wake(self, server: str, *, urgent: bool = True) -> None:
        """Start a server that is asleep, and wait until it has come up or failed.

        One that is started already is waited for only while it comes up. One that nobody has
        consented to stays as it is. One that is not `urgent` starts when the machine has a core
        for it.

        Raises:
            ProtocolFault: There is no server of this id.
        """
        keeper = self._require(server)
        if urgent:
            keeper.urgent.set()
        if keeper.waiting == "asleep":
            keeper.start()
        if keeper.waiting is None:
            await keeper.settled.wait()

    async def add(self, server: ServerConfig, *, waiting: Waiting | None = None) -> None:
        """Take in another server, in place of one of the same id, and wait as `start` does."""
        former = self._keepers.get(server.id)
        if former is not None:
            await former.close()
        keeper = self._keepers[server.id] = self._keeper(server, waiting)
        if waiting is None:
            keeper.start()
            await keeper.settled.wait()

    async def remove(self, server: str) -> None:
        """Close a server and forget it; the others go on.

        Raises:
            ProtocolFault: There is no server of this id.
        """
        await self._require(server).close()
        self._keepers.pop(server, None)

    async def spin_up(self) -> None:
        """Start the last configuration anew.

        Raises:
            ProtocolFault: There was none yet.
        """
        if self._config is None:
            raise ProtocolFault("not_connected", "the fleet was never started")
        await self.start(self._config, waiting=self._waiting)

    async def tear_down(self) -> None:
        """Close every server, all at once; never raises, and keeps to the limits of each."""
        closer = BackgroundTask("fleet tear-down")
        closer.start(_close_all(list(self._keepers.values())))
        await closer.join()

    def endpoint(self, server: str) -> ServerEndpointImpl | None:
        """Find the present endpoint of a server."""
        keeper = self._keepers.get(server)
        return None if keeper is None else keeper.endpoint

    def endpoints(self) -> Sequence[ServerEndpointImpl]:
        """List the endpoints there are now, in the order of the configuration."""
        return tuple(keeper.endpoint for keeper in self._keepers.values())

    def status(self) -> FleetStatus:
        """Tell how every server is, in the order of the configuration."""
        statuses = {identity: keeper.status() for identity, keeper in self._keepers.items()}
        return MappingProxyType(statuses)

    async def restart(self, server: str) -> None:
        """Start a server anew, whatever the rules say, and wait until it has come up or failed.

        Raises:
            ProtocolFault: There is no server of this id, or nobody has consented to it.
        """
        keeper = self._require(server)
        if keeper.waiting == "untrusted":
            detail = FaultDetail(server=server, reason="untrusted")
            message = f"server {server!r} is not started: nobody has consented to it"
            raise ProtocolFault("not_connected", message, detail=detail)
        await keeper.close()
        fresh = self._keeper(keeper.config, None)
        fresh.restarts = keeper.restarts + 1
        fresh.urgent.set()
        self._keepers[server] = fresh
        fresh.start()
        await fresh.settled.wait()

    async def stop(self, server: str) -> None:
        """Close one server and leave it closed; the others go on.

        Raises:
            ProtocolFault: There is no server of this id.
        """
        await self._require(server).close()

    def follow(self, listener: Callable[[FleetEvent], None]) -> Callable[[], None]:
        """Tell a listener of every change, in the event loop; returns the way out."""
        self._listeners.append(listener)

        def leave() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return leave

    def _tell(self, server: str, event: EndpointEvent) -> None:
        if not self._listeners:
            return
        told = FleetEvent(server, event, self._keepers[server].status())
        for listener in tuple(self._listeners):
            try:
                listener(told)
            except Exception:  # noqa: BLE001 — boundary: a listener's defect is not the server's
                _log.exception("a listener of the fleet failed")

    def _require(self, server: str) -> _Keeper:
        keeper = self._keepers.get(server)
        if keeper is None:
            detail = FaultDetail(server=server, reason="not_found")
            known = ", ".join(self._keepers) or "none"
            message = f"there is no server {server!r}; there are: {known}"
            raise ProtocolFault("not_connected", message, detail=detail)
        return keeper


class _Keeper:
    """Keeps one server up."""

    def __init__(
        self,
        config: ServerConfig,
        supervision: Supervision,
        fresh: Callable[[], ServerEndpointImpl],
        pacer: StartPacer,
        waiting: Waiting | None = None,
    ) -> None:
        self.config = config
        self.waiting = waiting
        self.settled = asyncio.Event()
        self.urgent = asyncio.Event()
        """Set when a caller waits for it: it starts out of its turn."""
        self.restarts = 0
        self._fresh = fresh
        self._pacer = pacer
        self._record = RestartRecord(supervision)
        self._next_try_at: float | None = None
        self._last_fault: ProtocolFault | None = None
        self._owner = BackgroundTask(f"keeper {config.id}")
        self.endpoint = self._fresh()

    def start(self) -> None:
        self.waiting = None
        self._owner.start(self._keep())

    async def close(self) -> None:
        self._owner.cancel()
        await self._owner.join()
        await self.endpoint.close()

    def status(self) -> EndpointStatus:
        next_try_s = None
        if self._next_try_at is not None:
            next_try_s = max(0.0, self._next_try_at - asyncio.get_running_loop().time())
        status = self.endpoint.status()
        coming_up = status.phase in {EndpointPhase.IDLE, EndpointPhase.CONNECTING}
        return replace(
            status,
            # Why it is not up: what the last attempt met, until another one has ended.
            fault=status.fault or (self._last_fault if coming_up else None),
            restarts=self.restarts,
            next_try_s=next_try_s,
            trust="untrusted" if self.waiting == "untrusted" else "trusted",
        )

    async def _keep(self) -> None:
        """Bring the server up again and again, until it is closed or there is no hope."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                begun = loop.time()
                await self._bring_up()
                self.settled.set()
                await self.endpoint.ended()
                status, up_s = self.endpoint.status(), loop.time() - begun
                self._last_fault = status.fault
                wait_s = self._record.delay(status.fault, up_s, loop.time())
                if status.phase is EndpointPhase.CLOSED or wait_s is None:
                    return
                self._next_try_at = loop.time() + wait_s
                await asyncio.sleep(wait_s)
                self._next_try_at = None
                self.restarts += 1
                self.endpoint = self._fresh()
        finally:
            self._next_try_at = None
            self.settled.set()
            await self.endpoint.close()

    async def _bring_up(self) -> None:
        """Open the endpoint and list its tools; a failed listing is tried again while it lives."""
        rules = self._record.rules
        wait_s = rules.first_s
        try:
            if self.config.kind == "stdio":
                async with self._pacer.turn(self.endpoint.cpu_seconds, self.urgent):
                    await self.endpoint.open()
            else:
                await self.endpoint.open()
        except ProtocolFault:
            return
        while is_usable_phase(self.endpoint.phase):
            try:
                await self.endpoint.list_tools()
            except ProtocolFault:
                self.settled.set()
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * rules.factor, rules.longest_s)
            else:
                return


async def _close_all(keepers: Sequence[_Keeper]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for keeper in keepers:
            tasks.create_task(keeper.close())


def _split_servers(config: BridgeConfig) -> tuple[Sequence[ServerConfig], Sequence[Note]]:
    """Part the servers that can be connected to from those that cannot; a note names the latter."""
    usable: list[ServerConfig] = []
    notes: list[Note] = []
    for number, server in enumerate(config.servers, start=1):
        problem = find_config_problem(server)
        if problem is None:
            usable.append(server)
        else:
            notes.append(Note(f"server {number} of the configuration", f"left out: {problem}"))
    return usable, notes


def _duplicates(servers: Sequence[ServerConfig]) -> tuple[Note, ...]:
    last = {server.id: server for server in servers}
    said = "configured more than once; the last configuration is used"
    return tuple(
        Note(f"server {server.id!r}", said, "give one another id")
        for server in servers
        if last[server.id] is not server
    )
