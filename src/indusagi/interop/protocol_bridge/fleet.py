"""Server fleet: several servers started together, each failing alone and restarted when it fails, and their tools.

Every endpoint is registered before the first one connects, so the status covers servers that never come up. Behind each
id a supervisor runs in a background task: it opens an endpoint, lists its tools, waits for its end, and opens the next
one when the rules of `Supervision` say so. The endpoint under an id therefore changes: look it up for each use.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.connect import OpenSession, open_client_session
from indusagi.interop.protocol_bridge.client.handlers import Handlers, current_caller
from indusagi.interop.protocol_bridge.client.start.policy import (
    PROCESS_HISTORY,
    RestartRecord,
    StartHistory,
    StartPacer,
    StartPolicy,
    Supervision,
)
from indusagi.interop.protocol_bridge.client.tools import ArgumentSpelling, find_output_mismatch
from indusagi.interop.protocol_bridge.contract import (
    BridgeConfig,
    EndpointPhase,
    EndpointStatus,
    FaultDetail,
    FleetStatus,
    ItemKind,
    ProtocolFault,
    RemoteCallResult,
    RemoteTool,
    RemoteToolRef,
    ServerConfig,
    find_config_problem,
    is_terminal_phase,
    is_usable_phase,
    needs_sign_in,
    to_tool_result,
)
from indusagi.interop.protocol_bridge.endpoint import EndpointEvent, ServerEndpointImpl
from indusagi.interop.protocol_bridge.lease import ServerLeases
from indusagi.runtime.contract import ToolResult

_log = logging.getLogger(__name__)

T = TypeVar("T")

_LOG_LINES = 200
_MOVE_S = 60.0
"""How long calls wait for a server that is moved to another node."""
_MOVE_PAUSE_S = 0.05

Waiting: TypeAlias = Literal["asleep", "sign_in", "untrusted"]
"""Why a server is not started: it starts at its first call, a person has to sign in, or it needs consent."""

CallCheck: TypeAlias = Callable[[RemoteToolRef], ToolResult | None]
"""Runs before each call, when its server is up; a result that it returns replaces the call."""


@record
class FleetEvent:
    """A change of one server: its phase, its tools, or that its start takes long."""

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
    """Connect to every server of a configuration, and return when each is up or has failed.

    Servers in `waiting` are registered and not started. The `policy` says how long a start may take, the `history`
    which starts are first ones; `on_event` receives the events meanwhile.
    """
    fleet = ServerFleetImpl(supervision=supervision, handlers=handlers, policy=policy, history=history)
    if on_event is not None:
        fleet.subscribe(on_event)
    await fleet.start(config, waiting=waiting)
    return fleet


class ServerFleetImpl:
    """The implementation of `ServerFleet`; it starts empty."""

    def __init__(
        self,
        *,
        supervision: Supervision | None = None,
        handlers: Handlers | None = None,
        policy: StartPolicy | None = None,
        history: StartHistory | None = None,
        pacer: StartPacer | None = None,
        kinds: Sequence[ItemKind] = (),
        open_session: OpenSession = open_client_session,
    ) -> None:
        self.history = PROCESS_HISTORY if history is None else history
        """Which configurations were up before: their starts have a short limit."""
        self._policy = policy or StartPolicy()
        self._pacer = pacer or StartPacer()
        self._kinds = tuple(kinds)
        """What is listed after the tools whenever a server comes up."""
        self._open_session = open_session
        self._supervision = supervision or Supervision()
        self._handlers = handlers
        self._config: BridgeConfig | None = None
        self._waiting: dict[str, Waiting] = {}
        self._supervisors: dict[str, _ServerSupervisor] = {}
        self._notes: tuple[Note, ...] = ()
        self.leases = ServerLeases()
        """The servers that sub-agents use."""
        self._listeners: list[Callable[[FleetEvent], None]] = []

    @property
    def notes(self) -> Sequence[Note]:
        """What was left out of the configuration."""
        return self._notes

    async def start(self, config: BridgeConfig, *, waiting: Mapping[str, Waiting] | None = None) -> None:
        """Connect to the servers of a configuration, in place of the present ones.

        Servers in `waiting` are registered and not started. Notes name invalid servers, and duplicate ids, of which
        the last counts.
        """
        await self.tear_down()
        self._config, self._waiting = config, dict(waiting or {})
        usable: list[ServerConfig] = []
        notes: list[Note] = []
        for number, server in enumerate(config.servers, start=1):
            problem = find_config_problem(server)
            if problem is None:
                usable.append(server)
            else:
                notes.append(Note(f"server {number} of the configuration", f"left out: {problem}"))
        by_id = {server.id: server for server in usable}
        message = "configured more than once; the last configuration is used"
        duplicates = [server.id for server in usable if by_id[server.id] is not server]
        notes.extend(Note(f"server {server!r}", message, "give one another id") for server in duplicates)
        self._notes = tuple(notes)
        self._supervisors = {
            identity: self._make_supervisor(server, self._waiting.get(identity)) for identity, server in by_id.items()
        }
        started = [supervisor for supervisor in self._supervisors.values() if supervisor.waiting is None]
        for supervisor in started:
            supervisor.start()
        try:
            for supervisor in started:
                await supervisor.settled.wait()
        except asyncio.CancelledError:
            await self.tear_down()
            raise

    def _make_supervisor(self, server: ServerConfig, waiting: Waiting | None) -> _ServerSupervisor:
        make_endpoint = partial(
            ServerEndpointImpl,
            server,
            handlers=self._handlers,
            on_event=lambda event: self._report(server.id, event),
            policy=self._policy,
            history=self.history,
            open_session=self._open_session,
        )
        return _ServerSupervisor(server, self._supervision, make_endpoint, self._pacer, waiting, self._kinds)

    async def wake(self, server: str, *, urgent: bool = True) -> None:
        """Start a sleeping server, and wait until it is up or has failed.

        A server that is already starting is waited for; an untrusted one stays as it is. One that waits for a sign-in
        is tried once more. Unless it is `urgent`, the start waits for a free core.

        Raises:
            ProtocolFault: The id is unknown.
        """
        supervisor = self._require(server)
        if urgent:
            supervisor.urgent.set()
        if supervisor.waiting in {"asleep", "sign_in"}:
            supervisor.start()
        if supervisor.waiting is None:
            await supervisor.settled.wait()

    async def wait_listed(self, server: str) -> None:
        """Wait until a server that was started has listed everything that is listed, or has failed.

        Raises:
            ProtocolFault: The id is unknown.
        """
        supervisor = self._require(server)
        if supervisor.waiting is None:
            await supervisor.listed.wait()

    async def add(self, server: ServerConfig, *, waiting: Waiting | None = None) -> None:
        """Add a server, in place of one with the same id, and wait as `start` does."""
        while (predecessor := self._supervisors.get(server.id)) is not None:
            await predecessor.close()
            if self._supervisors.get(server.id) is predecessor:  # not restarted meanwhile
                break
        supervisor = self._supervisors[server.id] = self._make_supervisor(server, waiting)
        if waiting is None:
            supervisor.start()
            await supervisor.settled.wait()

    async def remove(self, server: str) -> None:
        """Close a server and forget it.

        Raises:
            ProtocolFault: The id is unknown.
        """
        await self._require(server).close()
        self._supervisors.pop(server, None)

    async def spin_up(self) -> None:
        """Start the last configuration again.

        Raises:
            ProtocolFault: The fleet was never started.
        """
        if self._config is None:
            raise ProtocolFault("not_connected", "the fleet was never started")
        await self.start(self._config, waiting=self._waiting)

    async def tear_down(self) -> None:
        """Close all servers concurrently, within the limits of each; never raises."""
        closer = BackgroundTask("fleet tear-down")
        closer.start(_close_all(list(self._supervisors.values())))
        await closer.join()

    def endpoint(self, server: str) -> ServerEndpointImpl | None:
        """Return the present endpoint of a server."""
        supervisor = self._supervisors.get(server)
        return None if supervisor is None else supervisor.endpoint

    def endpoints(self) -> Sequence[ServerEndpointImpl]:
        """List the present endpoints, in the order of the configuration."""
        return tuple(supervisor.endpoint for supervisor in self._supervisors.values())

    def status(self) -> FleetStatus:
        """Return the state of every server, in the order of the configuration."""
        statuses = {identity: supervisor.status() for identity, supervisor in self._supervisors.items()}
        return MappingProxyType(statuses)

    async def restart(self, server: str) -> None:
        """Restart a server at once, whatever the rules of supervision say, and wait until it is up or has failed.

        Raises:
            ProtocolFault: The id is unknown, or the server needs consent.
        """
        supervisor = self._require(server)
        if supervisor.waiting == "untrusted":
            detail = FaultDetail(server=server, reason="untrusted")
            message = f"server {server!r} is not started: it needs consent"
            raise ProtocolFault("not_connected", message, detail=detail)
        await supervisor.close()
        present = self._require(server)
        if present is not supervisor:  # another restart was first: two would leave a process without an owner
            await present.settled.wait()
            return
        successor = self._make_supervisor(supervisor.config, None)
        successor.restarts = supervisor.restarts + 1
        successor.earlier_log = deque(supervisor.read_log(), maxlen=_LOG_LINES)
        successor.urgent.set()
        self._supervisors[server] = successor
        successor.start()
        await successor.settled.wait()

    def read_log(self, server: str) -> Sequence[str]:
        """Return what a server has written to standard error and sent as log messages, also before its restarts.

        Raises:
            ProtocolFault: The id is unknown.
        """
        return self._require(server).read_log()

    async def rest(self, server: str) -> bool:
        """Stop a server until its next call; return whether it was unused.

        Calls that come meanwhile wait for the end of its process, and start it again.

        Raises:
            ProtocolFault: The id is unknown.
        """
        supervisor = self._require(server)
        if not supervisor.endpoint.is_unused or self.leases.find_holders(server):
            return False
        successor = self._make_supervisor(supervisor.config, "asleep")
        successor.restarts = supervisor.restarts
        successor.earlier_log = deque(supervisor.read_log(), maxlen=_LOG_LINES)
        successor.predecessor = supervisor
        self._supervisors[server] = successor
        await supervisor.close()
        return True

    async def stop(self, server: str) -> None:
        """Close one server and leave it closed.

        Raises:
            ProtocolFault: The id is unknown.
        """
        await self._require(server).close()

    def subscribe(self, listener: Callable[[FleetEvent], None]) -> Callable[[], None]:
        """Call a listener at every change, in the event loop; returns a function that unsubscribes it."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def _report(self, server: str, event: EndpointEvent) -> None:
        if not self._listeners:
            return
        fleet_event = FleetEvent(server, event, self._supervisors[server].status())
        for listener in tuple(self._listeners):
            try:
                listener(fleet_event)
            except Exception:  # noqa: BLE001 — boundary: a listener's defect is not the server's
                _log.exception("a listener of the fleet failed")

    def _require(self, server: str) -> _ServerSupervisor:
        supervisor = self._supervisors.get(server)
        if supervisor is None:
            detail = FaultDetail(server=server, reason="not_found")
            known = ", ".join(self._supervisors) or "none"
            message = f"there is no server {server!r}; there are: {known}"
            raise ProtocolFault("not_connected", message, detail=detail)
        return supervisor


class _ServerSupervisor:
    """Keeps one server running."""

    def __init__(
        self,
        config: ServerConfig,
        supervision: Supervision,
        make_endpoint: Callable[[], ServerEndpointImpl],
        pacer: StartPacer,
        waiting: Waiting | None = None,
        kinds: Sequence[ItemKind] = (),
    ) -> None:
        self.config = config
        self.waiting = waiting
        self.settled = asyncio.Event()
        self.listed = asyncio.Event()
        """Set after `settled`, when the lists beside the tools have come too."""
        self.urgent = asyncio.Event()
        """Set when a caller waits for the server: it starts out of turn."""
        self.restarts = 0
        self.predecessor: _ServerSupervisor | None = None
        """Ends before this one begins."""
        self.earlier_log: deque[str] = deque(maxlen=_LOG_LINES)
        """The log of the endpoints before the present one."""
        self._make_endpoint = make_endpoint
        self._pacer = pacer
        self._kinds = kinds
        self._record = RestartRecord(supervision)
        self._next_try_at: float | None = None
        self._last_fault: ProtocolFault | None = None
        self._task = BackgroundTask(f"supervisor {config.id}")
        self.endpoint = self._make_endpoint()

    def start(self) -> None:
        if self.waiting == "sign_in":
            self.settled = asyncio.Event()
            self.endpoint = self._make_endpoint()
        self.waiting = None
        self._task.start(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await self._task.join()
        await self.endpoint.close()
        if self.predecessor is not None:
            await self.predecessor.close()
            self.predecessor = None

    def read_log(self) -> Sequence[str]:
        return (*self.earlier_log, *self.endpoint.read_log())

    def status(self) -> EndpointStatus:
        next_try_s = None
        if self._next_try_at is not None:
            next_try_s = max(0.0, self._next_try_at - asyncio.get_running_loop().time())
        status = self.endpoint.status()
        if needs_sign_in(status.fault) and is_terminal_phase(status.phase):
            status = replace(status, phase=EndpointPhase.IDLE)
        is_starting = status.phase in {EndpointPhase.IDLE, EndpointPhase.CONNECTING}
        return replace(
            status,
            # While it is not up: the fault of the last attempt.
            fault=status.fault or (self._last_fault if is_starting else None),
            restarts=self.restarts,
            next_try_s=next_try_s,
            trust="untrusted" if self.waiting == "untrusted" else "trusted",
        )

    async def _run(self) -> None:
        """Start the server again and again, until it is closed or its fault is permanent."""
        loop = asyncio.get_running_loop()
        try:
            if self.predecessor is not None:
                await self.predecessor.close()
                self.predecessor = None
            while True:
                started_at = loop.time()
                await self._open()
                if not needs_sign_in(self.endpoint.status().fault):
                    self.settled.set()
                for kind in self._kinds:
                    with suppress(ProtocolFault):  # the others may be listed all the same
                        await self.endpoint.list_items(kind)
                self.listed.set()
                await self.endpoint.wait_closed()
                status, up_s = self.endpoint.status(), loop.time() - started_at
                self._last_fault = status.fault
                if needs_sign_in(status.fault):
                    self.waiting = "sign_in"
                    return
                wait_s = self._record.delay(status.fault, up_s, loop.time())
                if status.phase is EndpointPhase.CLOSED or wait_s is None:
                    return
                self._next_try_at = loop.time() + wait_s
                await asyncio.sleep(wait_s)
                self._next_try_at = None
                self.restarts += 1
                self.earlier_log.extend(self.endpoint.read_log())
                self.endpoint = self._make_endpoint()
                self.settled.clear()
        finally:
            self._next_try_at = None
            self.settled.set()
            self.listed.set()
            await self.endpoint.close()

    async def _open(self) -> None:
        """Open the endpoint and list its tools; a failed listing is repeated while the endpoint is ready."""
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
            except ProtocolFault as fault:
                if needs_sign_in(fault):  # it answers the handshake of every client
                    await self.endpoint.close()
                    return
                self.settled.set()
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * rules.factor, rules.longest_s)
            else:
                return


async def _close_all(supervisors: Sequence[_ServerSupervisor]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for supervisor in supervisors:
            tasks.create_task(supervisor.close())


async def send_past_move(send: Callable[[], Awaitable[T]]) -> T:
    """Send a request; one that was refused because its server moves to another node is sent again, within a minute."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _MOVE_S
    while True:
        try:
            return await send()
        except ProtocolFault as fault:
            if fault.detail.reason != "moved" or loop.time() > give_up_at:
                raise
        await asyncio.sleep(_MOVE_PAUSE_S)


class MountedTool:
    """A remote tool that can be called like any other.

    It carries its reference (server, tool). Each call looks up the endpoint that the fleet has for that server at the
    moment, so the tool works again after its server was restarted.
    """

    def __init__(self, fleet: ServerFleetImpl, remote: RemoteTool, check: CallCheck | None = None) -> None:
        self.remote = remote
        self._fleet = fleet
        self._check = check
        # A definition that models see as it came has no other spelling.
        is_verbatim = remote.descriptor.definition is remote.raw
        self._spelling = None if is_verbatim else ArgumentSpelling(remote.raw.get("inputSchema"))

    @property
    def ref(self) -> RemoteToolRef:
        """The server's id and the tool's own name."""
        return self.remote.ref

    @cached_property
    def tool(self) -> DefinedTool:
        """The tool for a registry."""
        descriptor = self.remote.descriptor
        spec = ToolSpec(
            descriptor.name,
            descriptor.description,
            descriptor.parameters,
            self.run,
            title=descriptor.title,
            annotations=descriptor.annotations or {},
            output_schema=descriptor.output_schema,
            # The server checks them against its own schema; the model has seen a wider view.
            check_arguments=False,
            foreign=True,
            definition=descriptor.definition,
        )
        return define_tool(spec)

    async def _invoke(self, arguments: JsonObject, ctx: ToolContext) -> RemoteCallResult | ToolResult:
        """Call the tool once; a call that was refused because its server moves to another node is sent again."""
        ref, fleet = self.remote.ref, self._fleet

        async def send() -> RemoteCallResult | ToolResult:
            endpoint = fleet.endpoint(ref.server)
            if endpoint is not None and endpoint.known_tools is None:
                # The one place that starts a sleeping server for a call, or waits while it starts.
                await fleet.wake(ref.server)
                endpoint = fleet.endpoint(ref.server)
            if endpoint is None:
                return ToolResult.error(f"server {ref.server!r} is not there any more", code="not_connected")
            if self._check is not None and (refusal := self._check(ref)) is not None:
                return refusal
            sent = arguments if self._spelling is None else self._spelling.restore(arguments)
            return await endpoint.invoke(ref.name, sent, on_progress=ctx.on_progress)

        return await send_past_move(send)

    async def run(self, arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        """Call the tool on its server, which is started first if it is asleep; a failure is an error result."""
        prepared = arguments if is_json_object(arguments) else await self.tool.prepare_call(arguments)
        if isinstance(prepared, ToolResult):
            return prepared
        ref = self.remote.ref
        with ctx.cancel.guard():
            try:
                result = await self._invoke(prepared, ctx)
                if isinstance(result, ToolResult):
                    return result
            except ProtocolFault as fault:
                detail = fault.detail
                return ToolResult.error(
                    str(fault),
                    code=fault.kind,
                    server=detail.server,
                    reason=detail.reason,
                    httpStatus=detail.http_status,
                    rpcCode=detail.rpc_code,
                )
            schema = self.remote.raw.get("outputSchema")
            caller = current_caller.get()
            is_complete = caller is None or caller.exchange is None or caller.exchange.wanted is None
            is_complete = is_complete and (caller is None or caller.tasks is None or caller.tasks.created is None)
            if is_json_object(schema) and not result.is_error and is_complete:
                problem = await find_output_mismatch(schema, result.structured)
                if problem is not None:
                    note = Note(f"server {ref.server!r}, tool {ref.name!r}", problem)
                    result = replace(result, notes=(*result.notes, note))
            return to_tool_result(result)
        return ToolResult.error(f"{self.remote.descriptor.name} was stopped: {ctx.cancel.reason}", code="cancelled")
