"""Server fleet: servers that start together, fail independently and restart on failure, and their tools.

Every endpoint is registered before the first one connects, so the status covers servers that never come up. Each id has
a `ServerOwner` that starts, restarts and ends its server. This changes the endpoint under an id, so look it up for each
use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.connect import OpenSession, open_client_session
from indusagi.interop.protocol_bridge.client.handlers import Handlers, current_caller
from indusagi.interop.protocol_bridge.client.start import (
    PROCESS_HISTORY,
    StartHistory,
    StartPacer,
    StartPolicy,
    Supervision,
)
from indusagi.interop.protocol_bridge.client.tools import ArgumentSpelling, find_output_mismatch
from indusagi.interop.protocol_bridge.contract import (
    BridgeConfig,
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
    to_tool_result,
)
from indusagi.interop.protocol_bridge.endpoint import BeforeList, EndpointEvent, ServerEndpointImpl
from indusagi.interop.protocol_bridge.owner import ServerLeases, ServerOwner, Waiting
from indusagi.interop.protocol_bridge.users import BuildAuth, FindSignedIn, ReportEvent, UserSessions, name_session
from indusagi.runtime.contract import ToolResult

_log = logging.getLogger(__name__)

T = TypeVar("T")

_MOVE_S = 60.0
"""How long calls wait while a server moves to another node."""
_MOVE_PAUSE_S = 0.05

CallCheck: TypeAlias = Callable[[RemoteToolRef, ServerEndpointImpl], ToolResult | None]
"""Runs before each call once its server is up; a returned result replaces the call."""


@record
class FleetEvent:
    """A change of one server."""

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
    """Connect to every configured server; return once each is up or has failed.

    Servers in `waiting` are registered but not started. `policy` limits the duration of starts, `history` knows which
    starts are first ones, and `on_event` receives the events of the starts, too.
    """
    fleet = ServerFleetImpl(supervision=supervision, handlers=handlers, policy=policy, history=history)
    if on_event is not None:
        fleet.subscribe(on_event)
    await fleet.start(config, waiting=waiting)
    return fleet


class ServerFleetImpl:
    """The implementation of `ServerFleet`; it starts empty. An unknown server id raises `ProtocolFault`."""

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
        before_list: BeforeList | None = None,
    ) -> None:
        self.history = PROCESS_HISTORY if history is None else history
        """Configurations that have been up before, whose starts get a short limit."""
        self._policy = policy or StartPolicy()
        self._pacer = pacer or StartPacer()
        self._kinds = tuple(kinds)
        """Kinds to list after the tools whenever a server comes up."""
        self._open_session = open_session
        self._before_list = before_list
        self._supervision = supervision or Supervision()
        self._handlers = handlers
        self._config: BridgeConfig | None = None
        self._waiting: dict[str, Waiting] = {}
        self._owners: dict[str, ServerOwner] = {}
        self._is_down = False
        """Whether the servers are closing or closed: nothing starts until the next `start`."""
        self._epoch = 0
        """Counts starts and ends, so that a start notices when a later one overtakes it."""
        self.notes: Sequence[Note] = ()
        """Problems of the configuration."""
        self.leases = ServerLeases()
        """Servers in use by sub-agents."""
        self.users: UserSessions | None = None
        """Sessions of a gateway's users with the servers that each of them signs in to; `None`: nobody has one."""
        self._listeners: list[Callable[[FleetEvent], None]] = []

    async def start(self, config: BridgeConfig, *, waiting: Mapping[str, Waiting] | None = None) -> None:
        """Connect to the configured servers, replacing the current ones.

        Servers in `waiting` are registered but not started. Invalid servers are left out; of a duplicate id, the last
        one counts. Notes report both.
        """
        self._epoch += 1
        epoch = self._epoch
        await self._close_owners()
        if epoch != self._epoch:
            return  # torn down or restarted while waiting
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
        self.notes = tuple(notes)
        self._owners = {
            identity: self._make_owner(server, self._waiting.get(identity)) for identity, server in by_id.items()
        }
        self._is_down = False
        starting = [owner for owner in self._owners.values() if owner.waiting is None]
        for owner in starting:
            owner.begin()
        try:
            for owner in starting:
                await owner.wait_up()
        except asyncio.CancelledError:
            await self.tear_down()
            raise

    def open_users(self, build_auth: BuildAuth, find_signed_in: FindSignedIn) -> UserSessions:
        """Call the servers that each user signs in to over a session of the user's own."""

        def make_owner(server: ServerConfig, user: str, report: ReportEvent) -> ServerOwner:
            return self._make_owner(server, "asleep", user, report)

        self.users = UserSessions(make_owner, build_auth, find_signed_in)
        return self.users

    def _make_owner(
        self, server: ServerConfig, waiting: Waiting | None, user: str = "", report: ReportEvent | None = None
    ) -> ServerOwner:
        def make_endpoint(config: ServerConfig) -> ServerEndpointImpl:
            return ServerEndpointImpl(
                config,
                handlers=self._handlers,
                on_event=lambda event: (report or self._report)(owner, event),
                policy=self._policy,
                history=self.history,
                open_session=self._open_session,
                before_list=None if user else self._before_list,
            )

        # A user's session lists only its tools, for their marks.
        kinds = () if user else self._kinds
        owner = ServerOwner(server, make_endpoint, self._supervision, self._pacer, waiting, kinds, user)
        return owner

    async def wake(self, server: str, *, urgent: bool = True) -> None:
        """Start a sleeping server and wait until it's up or has failed.

        If it's already starting, wait for that; if it waits for a sign-in, try once more; if it's untrusted, do
        nothing. Unless it's `urgent`, the start waits for a free core. Other servers aren't affected.
        """
        await self._require(server).start(urgent=urgent)

    def is_starting(self, server: str) -> bool:
        """Return whether a server has started but neither listed its tools nor failed yet."""
        return server in self._owners and self._owners[server].is_starting

    async def wait_listed(self, server: str) -> None:
        """Wait until a started server has listed everything or has failed."""
        await self._require(server).wait_listed()

    async def reach(self, server: str) -> ServerEndpointImpl | None:
        """Return the endpoint for a call of this task, after starting its server if necessary; `None` without one.

        Where each user signs in, that's the session of the task's user. Nobody else's is ever used for a call, so a
        task without a user gets a `ProtocolFault`.
        """
        owner = None
        for has_started in (False, True):
            owner = self._owners.get(server)
            if owner is not None and self.users is not None:
                owner = self.users.find(owner)
            if has_started or owner is None or owner.endpoint.known_tools is not None:
                break
            # The only place that starts a sleeping server for a call, or waits for its start.
            await owner.start(urgent=True)
        return None if owner is None else owner.endpoint

    def name_session(self, server: str) -> str:
        """Name the session that calls of this task go over: by the server and, where each user signs in, the user."""
        owner = self._owners.get(server)
        return server if owner is None or self.users is None else name_session(owner.config)

    def find_session(self, name: str) -> ServerEndpointImpl | None:
        """Return the endpoint of an open session by its name."""
        return self.endpoint(name) or (None if self.users is None else self.users.find_endpoint(name))

    async def add(self, server: ServerConfig, *, waiting: Waiting | None = None) -> None:
        """Add a server or replace the one with its id, and wait as `start` does; raise if the fleet was torn down."""
        if self.users is not None:
            await self.users.end(server=server.id)
        while (present := self._owners.get(server.id)) is not None:
            if await present.replace(server, waiting):
                return
            if self._is_down:
                break
            if self._owners.get(server.id) is present:  # removed
                del self._owners[server.id]
        if self._is_down:
            raise ProtocolFault("not_connected", f"server {server.id!r} was not added: the fleet was shut down")
        owner = self._owners[server.id] = self._make_owner(server, waiting)
        if waiting is None:
            owner.begin()
            await owner.wait_up()

    async def remove(self, server: str) -> None:
        """Close and forget a server."""
        owner = self._require(server)
        try:
            await owner.close()
        finally:
            if self._owners.get(server) is owner:
                del self._owners[server]
            if self.users is not None:
                await self.users.end(server=server)

    async def spin_up(self) -> None:
        """Start the last configuration again; raise `ProtocolFault` if there was none."""
        if self._config is None:
            raise ProtocolFault("not_connected", "the fleet was never started")
        await self.start(self._config, waiting=self._waiting)

    async def tear_down(self) -> None:
        """Close all servers concurrently, each within its limits; never raises."""
        self._epoch += 1
        await self._close_owners()

    async def _close_owners(self) -> None:
        self._is_down = True

        async def close() -> None:
            async with asyncio.TaskGroup() as tasks:
                if self.users is not None:
                    tasks.create_task(self.users.end())
                for owner in self._owners.values():
                    tasks.create_task(owner.close())

        closer = BackgroundTask("fleet tear-down")
        closer.start(close())
        await closer.join()

    def endpoint(self, server: str) -> ServerEndpointImpl | None:
        """Return a server's current endpoint."""
        owner = self._owners.get(server)
        return None if owner is None else owner.endpoint

    @property
    def servers(self) -> AbstractSet[str]:
        """The ids of the current servers, in configuration order."""
        return self._owners.keys()

    def endpoints(self) -> Sequence[ServerEndpointImpl]:
        """Return the current endpoints, in configuration order."""
        return tuple(owner.endpoint for owner in self._owners.values())

    def status(self) -> FleetStatus:
        """Return the state of every server, in configuration order."""
        return MappingProxyType({identity: owner.status() for identity, owner in self._owners.items()})

    def list_faults(self) -> Mapping[str, ProtocolFault]:
        """Return the fault of each server that has one, in configuration order."""
        return {server: fault for server, owner in self._owners.items() if (fault := owner.fault) is not None}

    def status_of(self, server: str) -> EndpointStatus | None:
        """Return the state of one server, or `None` for an unknown id."""
        owner = self._owners.get(server)
        return None if owner is None else owner.status()

    async def restart(self, server: str) -> None:
        """Restart a server at once and wait until it's up or has failed; raise `ProtocolFault` if it needs consent."""
        owner = self._require(server)
        if owner.waiting == "untrusted":
            detail = FaultDetail(server=server, reason="untrusted")
            message = f"server {server!r} is not started: it needs consent"
            raise ProtocolFault("not_connected", message, detail=detail)
        if not await owner.restart():
            self._require(server)
            message = f"server {server!r} was not restarted: it was shut down"
            raise ProtocolFault("not_connected", message, detail=FaultDetail(server=server))

    def read_log(self, server: str) -> Sequence[str]:
        """Return a server's standard error and log messages, including those from before its restarts."""
        return self._require(server).read_log()

    def measure_log(self, server: str) -> int:
        """Return a number that differs after a server's log has grown."""
        return self._require(server).endpoint.measure_log()

    async def rest(self, server: str) -> bool:
        """Stop an unused server until its next call; return whether it was unused.

        Calls that arrive while its process ends wait for that, then start it again.
        """
        owner = self._require(server)
        return not self.leases.find_holders(server) and await owner.rest()

    async def stop(self, server: str) -> None:
        """Close one server and leave it closed."""
        await self._require(server).stop()

    def subscribe(self, listener: Callable[[FleetEvent], None]) -> Callable[[], None]:
        """Call `listener` on every change, in the event loop; return a function to unsubscribe."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def _report(self, owner: ServerOwner, event: EndpointEvent) -> None:
        if not self._listeners:
            return
        fleet_event = FleetEvent(owner.config.id, event, owner.status())
        for listener in tuple(self._listeners):
            try:
                listener(fleet_event)
            except Exception:  # noqa: BLE001 — boundary: a broken listener isn't the server's fault
                _log.exception("a listener of the fleet failed")

    def _require(self, server: str) -> ServerOwner:
        owner = self._owners.get(server)
        if owner is None:
            detail = FaultDetail(server=server, reason="not_found")
            known = ", ".join(self._owners) or "none"
            message = f"there is no server {server!r}; there are: {known}"
            raise ProtocolFault("not_connected", message, detail=detail)
        return owner


async def send_past_move(send: Callable[[], Awaitable[T]]) -> T:
    """Send a request, retrying for up to a minute while its server moves to another node."""
    give_up_at = asyncio.get_running_loop().time() + _MOVE_S
    while True:
        try:
            return await send()
        except ProtocolFault as fault:
            await _wait_for_move(fault, give_up_at)


async def _wait_for_move(fault: ProtocolFault, give_up_at: float) -> None:
    """Pause before another attempt, or raise the fault of the last one."""
    if fault.detail.reason != "moved" or asyncio.get_running_loop().time() > give_up_at:
        raise fault
    await asyncio.sleep(_MOVE_PAUSE_S)


class MountedTool:
    """A remote tool that can be called like any other.

    It holds a reference (server, tool) and looks up the server's endpoint for each call, so it survives restarts.
    """

    def __init__(self, fleet: ServerFleetImpl, remote: RemoteTool, check: CallCheck | None = None) -> None:
        self.remote = remote
        self._fleet = fleet
        self._check = check
        # Models see this definition verbatim, so names aren't respelled.
        is_verbatim = remote.descriptor.definition is remote.raw
        self._spelling = None if is_verbatim else ArgumentSpelling(remote.raw.get("inputSchema"))

    @property
    def ref(self) -> RemoteToolRef:
        """The server's id and its name for the tool."""
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
            # The server checks arguments against its schema; the model has seen a wider view.
            check_arguments=False,
            foreign=True,
            definition=descriptor.definition,
        )
        return define_tool(spec)

    async def _invoke(self, arguments: JsonObject, ctx: ToolContext) -> RemoteCallResult | ToolResult:
        """Call the tool, after starting its server if necessary; retry like `send_past_move`."""
        ref, fleet = self.remote.ref, self._fleet
        sent = arguments if self._spelling is None else self._spelling.restore(arguments)
        give_up_at = asyncio.get_running_loop().time() + _MOVE_S
        while True:
            try:
                endpoint = await fleet.reach(ref.server)
                if endpoint is None:
                    return ToolResult.error(f"server {ref.server!r} is not there any more", code="not_connected")
                if self._check is not None and (refusal := self._check(ref, endpoint)) is not None:
                    return refusal
                return await endpoint.invoke(ref.name, sent, on_progress=ctx.on_progress)
            except ProtocolFault as fault:
                await _wait_for_move(fault, give_up_at)

    async def run(self, arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        """Call the tool, retrying while its server moves to another node; failures become error results."""
        prepared = arguments if is_json_object(arguments) else await self.tool.prepare_call(arguments)
        if isinstance(prepared, ToolResult):
            return prepared
        ref, name = self.remote.ref, self.remote.descriptor.name
        if ctx.cancel.cancelled:
            return ToolResult.stopped(name, ctx.cancel)
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
        return ToolResult.stopped(name, ctx.cancel)
