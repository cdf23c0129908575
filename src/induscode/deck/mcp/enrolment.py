"""Keeps a ledger in step with a fleet: what its servers list is enrolled, what they drop retired.

A server that dies keeps its tools enrolled, since it comes back under the same names; calls say
meanwhile that it is not there. A tool whose definition is not an approved one is disabled until
somebody approves it, unless the change is cosmetic.

A server may change its tools for as long as it runs, and every change is an event. Once these are
many more than the tools, whoever keeps them elsewhere can have the ledger go on without them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol, TypeAlias

from indusagi.capabilities.context import ToolContext
from indusagi.core.clock import iso_utc, now_ms
from indusagi.core.json import JsonObject, JsonValue, NotJson
from indusagi.core.notes import Note
from indusagi.interop.protocol_bridge.bridge import MountedTool, mount_tool
from indusagi.interop.protocol_bridge.client.tools import model_name, spells_longer_server
from indusagi.interop.protocol_bridge.contract import FleetStatus, RemoteTool, RemoteToolRef, is_usable_phase
from indusagi.interop.protocol_bridge.fleet import FleetEvent, ServerFleetImpl
from indusagi.runtime.contract import ToolResult
from induscode.deck.mcp.capability import BridgeCapability
from induscode.deck.mcp.drift import DisabledTool, Drift, DriftGrade, differ_in_order_alone, grade_drift
from induscode.deck.mcp.ledger import BridgeEntry, BridgeKey, BridgeLedger, EnrollRequest

JournalOp: TypeAlias = Literal["connect", "ready", "fault", "drift", "approve"]
MOST_SWITCHES = 3
"""So often a definition may switch in one run. After that a tool that was disabled stays so, and
harmless changes are not followed: a server that alternates must not make the list alternate."""
LONGEST_LOG = 200
"""So many events a ledger has before anybody is told that it is long; or two for each live tool."""


class PinChecker(Protocol):
    """Remembers the definitions that were seen first, or approved since."""

    def check(self, ref: RemoteToolRef, raw: JsonObject) -> Drift | None:
        """Compare a definition with those approved; a first one becomes one. None: approved."""
        ...

    def approve(self, ref: RemoteToolRef, raw: JsonObject) -> None:
        """Approve this definition too."""
        ...


class EventSink(Protocol):
    """Keeps what happens, for later."""

    def record_entries(self, entries: Sequence[BridgeEntry]) -> None:
        """Keep events of the ledger."""
        ...

    def record_event(self, op: JournalOp, server: str, subject: str, detail: str) -> None:
        """Keep something else that happened at a server."""
        ...

    def record_listing(self, server: str, tools: Sequence[RemoteTool], disabled: Sequence[DisabledTool]) -> None:
        """Keep which tools of a server may be called, in its order; told after every listing."""
        ...


def mounted_capability(mounted: MountedTool, *, shares_name: bool = False) -> BridgeCapability:
    """Make the card of a tool that was mounted; it reaches its server at every call anew."""
    remote = mounted.remote
    return BridgeCapability.from_definition(
        remote.descriptor, remote.ref, remote.raw, mounted.tool.run, shares_name=shares_name
    )


def iso_now() -> str:
    """Give the present moment as the ledger writes it down."""
    return iso_utc(now_ms())


class Enrolment:
    """A ledger that follows a fleet."""

    def __init__(
        self,
        fleet: ServerFleetImpl,
        ledger: BridgeLedger,
        *,
        pins: PinChecker | None = None,
        sink: EventSink | None = None,
        now: Callable[[], str] = iso_now,
        servers: Sequence[str] = (),
    ) -> None:
        """Follow a fleet; `servers` are the ids of all that are configured, in their order."""
        self.fleet = fleet
        self._servers = tuple(servers)
        self._ledger = ledger
        self._pins = pins
        self._sink = sink
        self._now = now
        self._drifted: dict[RemoteToolRef, RemoteTool] = {}
        self._drifts: dict[RemoteToolRef, Drift] = {}
        self._disabled: dict[RemoteToolRef, DisabledTool] = {}
        self._switches: Counter[RemoteToolRef] = Counter()
        self._told: set[tuple[RemoteToolRef, DriftGrade]] = set()
        self._left_places: dict[RemoteToolRef, BridgeKey] = {}
        self._listed: dict[str, Sequence[RemoteTool]] = {}
        self._unfit: dict[RemoteToolRef, str] = {}
        self._mounted: set[RemoteToolRef] = set()
        """What this fleet runs. The ledger may hold tools of a fleet that was torn down."""
        self._holding = True
        self._long = asyncio.Event()
        self._leave = fleet.follow(self._heard)

    @property
    def ledger(self) -> BridgeLedger:
        """What is enrolled at this moment."""
        return self._ledger

    @property
    def quarantined(self) -> Sequence[RemoteTool]:
        """The tools whose definition changed and waits for approval."""
        return tuple(self._drifted.values())

    @property
    def disabled(self) -> Sequence[DisabledTool]:
        """The tools that may not be called until they are approved.

        Of a server that has not listed its tools in this run, those of the run before.
        """
        return tuple(self._disabled.values())

    @property
    def drifts(self) -> Sequence[Drift]:
        """Every listed definition that is not an approved one, also those of cosmetic changes."""
        return tuple(self._drifts.values())

    def find_disabled(self, name: str) -> DisabledTool | None:
        """Find a disabled tool by the name that a model would call it by."""
        return next((one for one in self._disabled.values() if one.name == name), None)

    @property
    def notes(self) -> Sequence[Note]:
        """What is kept out of the deck, and how it gets in."""
        disabled = [one.note for one in self._disabled.values()]
        unfit = [Note(_owner(ref), f"left out: {why}") for ref, why in self._unfit.items()]
        return (*disabled, *unfit)

    def status(self) -> FleetStatus:
        """Tell how every server is, with a note for each tool of it that is disabled."""
        status = dict(self.fleet.status())
        for one in self._disabled.values():
            if (known := status.get(one.ref.server)) is not None:
                status[one.ref.server] = replace(known, notes=(*known.notes, one.note))
        return status

    def close(self) -> None:
        """Follow the fleet no longer; the ledger stays as it is."""
        self._leave()

    # -- following --------------------------------------------------------------------------

    async def sync_all(
        self,
        known: Mapping[str, Sequence[RemoteTool]] | None = None,
        disabled: Mapping[str, Sequence[DisabledTool]] | None = None,
    ) -> None:
        """Enrol what the servers have listed already, or are known to list once they start.

        Until then listings are only heard: the order is that of the configuration, and not that in
        which servers happen to come up.
        """
        self._holding = False
        for endpoint in self.fleet.endpoints():
            # The tools of one server are enrolled in one go; between servers others get a turn.
            await asyncio.sleep(0)
            server = endpoint.config.id
            if known is not None and server in known:
                self.sync_tools(server, known[server], (disabled or {}).get(server, ()))
            else:
                self.sync_server(server)

    def _heard(self, told: FleetEvent) -> None:
        if told.event == "tools":
            if not self._holding:
                self.sync_server(told.server)
        elif self._sink is not None and told.event == "phase":
            phase, fault = told.status.phase, told.status.fault
            # While it comes up again, its fault is still that of the attempt before.
            if phase == "connecting":
                self._sink.record_event("connect", told.server, "", "")
            elif fault is not None:
                self._sink.record_event("fault", told.server, fault.kind, str(fault))
            elif phase == "ready":
                self._sink.record_event("ready", told.server, "", "")

    def sync_server(self, server: str) -> None:
        """Bring the ledger in step with what a server lists."""
        endpoint = self.fleet.endpoint(server)
        listed = None if endpoint is None else endpoint.known_tools
        if listed is not None:
            self.sync_tools(server, listed)

    def sync_tools(self, server: str, listed: Sequence[RemoteTool], disabled: Sequence[DisabledTool] = ()) -> None:
        """Bring the ledger in step with a list of a server's tools.

        Tools that are `disabled` are not in the list: they are remembered from the run before.
        """
        before = self._ledger
        refs = {remote.ref for remote in listed}
        self._unfit = {ref: why for ref, why in self._unfit.items() if ref.server != server}
        for ref in [ref for ref in self._disabled if ref.server == server and ref not in refs]:
            del self._disabled[ref]
        self._disabled.update((one.ref, one) for one in disabled if one.ref not in refs)
        for capability in before.live_capabilities_for_server(server):
            if capability.ref not in refs:
                self._retire(capability.ref, server)
        for remote in listed:
            try:
                self._take_one(server, remote)
            except NotJson as exc:  # a number beyond all bounds, say: it has no digest
                self._unfit[remote.ref] = str(exc)
                self._forget_drift(remote.ref)
                self._retire(remote.ref, server)
        for known in (self._drifted, self._drifts, self._left_places):
            for ref in [ref for ref in known if ref.server == server and ref not in refs]:
                del known[ref]
        self._keep_since(before)
        self._listed[server] = listed
        self._tell_listed(server)

    def _tell_listed(self, server: str) -> None:
        if self._sink is not None:
            kept_out = self._drifted.keys() | self._unfit.keys()
            usable = [one for one in self._listed[server] if one.ref not in kept_out]
            disabled = [one for one in self._disabled.values() if one.ref.server == server]
            self._sink.record_listing(server, usable, disabled)

    def _take_one(self, server: str, remote: RemoteTool) -> None:
        ref = remote.ref
        drift = None if self._pins is None else self._pins.check(ref, remote.raw)
        if drift is not None and drift.disables:
            self._disable(server, remote, drift)
            return
        if self._stays_disabled(ref):
            return
        switched = ref in self._drifted
        self._forget_drift(ref)
        if drift is not None:
            self._drifts[ref] = drift
            self._tell_drift(drift)
        found = self._ledger.find(ref)
        if found is not None and not self._is_named_right(found[1], remote):
            self._enroll(server, remote, None)
            return
        if found is not None and ref in self._mounted:
            if self._shows(ref, found[1].raw, remote.raw):
                return
            switched = True
        if switched:
            self._switches[ref] += 1
        self._enroll(server, remote, self._left_places.pop(ref, None))

    def _stays_disabled(self, ref: RemoteToolRef) -> bool:
        """Tell whether a tool that is back in an approved form has switched too often for that."""
        other = self._drifted.get(ref)
        if other is None or self._pins is None or self._switches[ref] < MOST_SWITCHES:
            return False
        drift = self._pins.check(ref, other.raw)
        return drift is not None and drift.disables

    def _shows(self, ref: RemoteToolRef, enrolled: JsonObject, raw: JsonObject) -> bool:
        """Tell whether the enrolled definition still stands for what a server lists."""
        if enrolled == raw or differ_in_order_alone(enrolled, raw):
            return True
        if self._pins is None or self._switches[ref] < MOST_SWITCHES:
            return False
        return grade_drift(enrolled, raw) is not DriftGrade.BREAKING

    def _disable(self, server: str, remote: RemoteTool, drift: Drift) -> None:
        ref = remote.ref
        found = self._ledger.find(ref)
        if ref not in self._drifted:
            self._switches[ref] += 1
        if found is not None:
            self._left_places[ref] = found[0]
            self._retire(ref, server)
        name = self._name_tool(remote).descriptor.name if found is None else found[1].name
        unsettled = self._switches[ref] >= MOST_SWITCHES
        self._drifted[ref], self._drifts[ref] = remote, drift
        self._disabled[ref] = DisabledTool(ref, name, drift.grade, drift.fields, unsettled)
        self._tell_drift(drift)

    def _forget_drift(self, ref: RemoteToolRef) -> None:
        for known in (self._drifted, self._drifts, self._disabled):
            known.pop(ref, None)

    def _tell_drift(self, drift: Drift) -> None:
        """Write a change down, once in a run for each grade: what alternates is told once."""
        key = drift.ref, drift.grade
        if self._sink is not None and key not in self._told:
            self._told.add(key)
            detail = f"{drift.grade}: {', '.join(drift.fields)}"
            self._sink.record_event("drift", drift.ref.server, drift.ref.name, detail)

    def _retire(self, ref: RemoteToolRef, server: str) -> None:
        found = self._ledger.find(ref)
        if found is not None:
            self._ledger = self._ledger.retire(found[0], server, self._now())

    def _enroll(self, server: str, remote: RemoteTool, place: BridgeKey | None) -> None:
        named = self._name_tool(remote)
        shares = spells_longer_server(remote.ref, self._known_servers())
        mounted = mounted_capability(mount_tool(self.fleet, named), shares_name=shares)
        capability = self._guarded(mounted)
        request = EnrollRequest(capability, server, supersedes=place)
        self._ledger = self._ledger.enroll(request, self._now())
        self._mounted.add(remote.ref)

    def _guarded(self, capability: BridgeCapability) -> BridgeCapability:
        """Have a call look first whether the tool is still the one that was enrolled.

        Its server may start because of this very call, or have come back with other tools.
        """
        if self._pins is None or capability.runner is None:
            return capability
        ref = capability.ref

        async def guarded(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
            endpoint = self.fleet.endpoint(ref.server)
            # A tool that is known before its server is up may be called before it is, too.
            if endpoint is not None and endpoint.known_tools is None:
                await self.fleet.wake(ref.server)
            return self._refusal(ref) or await capability.run(arguments, ctx)

        return capability.with_runner(guarded)

    def _refusal(self, ref: RemoteToolRef) -> ToolResult | None:
        if ref in self._drifted:
            return refuse_disabled(self._disabled[ref])
        endpoint = self.fleet.endpoint(ref.server)
        if endpoint is not None and endpoint.known_tools is None and is_usable_phase(endpoint.phase):
            return ToolResult.error(
                f"server {ref.server!r} has not listed its tools yet: try again in a moment",
                code="not_connected",
                server=ref.server,
            )
        return None

    def _is_named_right(self, enrolled: BridgeCapability, remote: RemoteTool) -> bool:
        """Tell whether a tool has the name that it has with the servers that are configured now."""
        shares = spells_longer_server(remote.ref, self._known_servers())
        name = self._name_tool(remote).descriptor.name
        return (enrolled.name, enrolled.shares_name) == (name, shares)

    def set_configured_servers(self, servers: Iterable[str]) -> None:
        """Take the ids of the servers that are configured now; tools are renamed where needed."""
        self._servers = tuple(servers)
        for server, listed in [*self._listed.items()]:
            disabled = [one for one in self._disabled.values() if one.ref.server == server]
            self.sync_tools(server, listed, disabled)

    def _known_servers(self) -> Sequence[str]:
        running = [one.config.id for one in self.fleet.endpoints()]
        return tuple(dict.fromkeys((*self._servers, *running)))

    def _name_tool(self, remote: RemoteTool) -> RemoteTool:
        """Give the tool a name that no other tool of the ledger has."""
        name = model_name(remote.ref, _Taken(self._ledger, remote.ref), self._known_servers())
        if name == remote.descriptor.name:
            return remote
        return replace(remote, descriptor=replace(remote.descriptor, name=name))

    # -- by hand ----------------------------------------------------------------------------

    def approve(self, ref: RemoteToolRef) -> bool:
        """Approve the present definition of a disabled tool, and enrol it in the place it had."""
        remote = self._drifted.get(ref)
        if remote is None:
            return False
        before = self._ledger
        if self._pins is not None:
            self._pins.approve(ref, remote.raw)
        self._forget_drift(ref)
        del self._switches[ref]
        self._told = {key for key in self._told if key[0] != ref}
        present = next((one for one in self._listed[ref.server] if one.ref == ref), remote)
        self._enroll(ref.server, present, self._left_places.pop(ref, None))
        if self._sink is not None:
            self._sink.record_event("approve", ref.server, ref.name, "")
        self._keep_since(before)
        self._tell_listed(ref.server)
        return True

    def withdraw(self, server: str) -> None:
        """Retire all that a server has enrolled."""
        before = self._ledger
        self._ledger = before.withdraw_server(server, self._now())
        self._keep_since(before)

    def remove_server(self, server: str) -> None:
        """Retire all that a server has enrolled, and know nothing of it: another may follow it."""
        self.withdraw(server)
        self._listed.pop(server, None)
        self._told = {key for key in self._told if key[0].server != server}
        for known in (
            self._drifted, self._drifts, self._disabled, self._switches, self._left_places,
            self._unfit,
        ):  # fmt: skip
            for ref in [ref for ref in known if ref.server == server]:
                del known[ref]

    # -- keeping it short -------------------------------------------------------------------

    async def wait_until_long(self) -> None:
        """Wait until the ledger has many more events than tools, and somebody was told them."""
        await self._long.wait()

    def compact(self, before: int) -> None:
        """Have a ledger without the events before a number; for whoever has kept these."""
        places = self._left_places.values()
        self._ledger = self._ledger.compact(before, places_of=places)
        self._long.clear()
        self._look_at_length()

    def _keep_since(self, before: BridgeLedger) -> None:
        if self._sink is not None and self._ledger is not before:
            self._sink.record_entries(self._ledger.since(before.next_seq))
            self._look_at_length()

    def _look_at_length(self) -> None:
        events = self._ledger.events
        if events > LONGEST_LOG and events > 2 * len(self._ledger.snapshot.live):
            self._long.set()


def refuse_disabled(tool: DisabledTool) -> ToolResult:
    """Answer a call of a disabled tool: why it may not be called, and what a person can do."""
    ref = tool.ref
    return ToolResult.error(
        f"tool {ref.name!r} of server {ref.server!r} is {tool.reason}. A person can {tool.remedy}",
        code="drift",
        server=ref.server,
        tool=ref.name,
        grade=str(tool.grade),
        approve=tool.approve_command,
    )


def _owner(ref: RemoteToolRef) -> str:
    return f"server {ref.server!r}, tool {ref.name!r}"


class _Taken:
    """The names that other tools of a ledger have."""

    def __init__(self, ledger: BridgeLedger, ref: RemoteToolRef) -> None:
        self._ledger = ledger
        self._ref = ref

    def __contains__(self, name: object) -> bool:
        holder = self._ledger.holder_of(name) if isinstance(name, str) else None
        return holder is not None and holder != self._ref
