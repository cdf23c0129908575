"""Enrolment: a ledger that follows a fleet. Listed tools are enrolled, tools no longer listed are retired.

A server that fails keeps its tools enrolled, since it comes back under the same names; calls return its fault
meanwhile. A tool whose definition is not approved is disabled until it is approved. While a change is cosmetic, the
approved definition stays enrolled: a model never reads text that nobody approved.

A server may change its tools for as long as it runs, and every change is an event. When the events are many more than
the tools, an owner that has stored them can compact the ledger.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol, TypeAlias

from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, NotJson
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.client.tools import model_name, spells_longer_server
from indusagi.interop.protocol_bridge.contract import (
    LISTED_KINDS,
    EndpointStatus,
    FleetStatus,
    ItemKind,
    RemoteTool,
    RemoteToolRef,
    StdioServerConfig,
    is_usable_phase,
)
from indusagi.interop.protocol_bridge.fleet import FleetEvent, MountedTool, ServerFleetImpl
from indusagi.runtime.contract import ToolResult
from induscode.deck.mcp.capability import BridgeCapability, definition_pin, read_definitions
from induscode.deck.mcp.drift import DisabledTool, Drift, DriftGrade, PinVerdict, differ_in_order_alone, grade_drift
from induscode.deck.mcp.ledger import BridgeEntry, BridgeKey, BridgeLedger, EnrollRequest

JournalOp: TypeAlias = Literal["connect", "ready", "fault", "drift", "approve"]
MOST_SWITCHES = 3
"""How often a definition may switch in one run. After that a disabled tool stays disabled and harmless changes are
ignored: a server that alternates must not make the list alternate."""
_OTHER_KINDS: tuple[ItemKind, ...] = (*LISTED_KINDS, "instructions")
LONGEST_LOG = 200
"""The number of events above which a ledger counts as long, if it is also more than two for each live tool."""


class PinChecker(Protocol):
    """Compares definitions with those of the first listing, or approved since."""

    def judge(self, ref: RemoteToolRef, raw: JsonObject) -> PinVerdict:
        """Compare a definition with the approved ones; one of the first listing becomes approved."""
        ...

    def finish_listing(self, server: str, kind: ItemKind) -> None:
        """End the first listing of a kind: what comes later is an addition."""
        ...

    def approve(self, ref: RemoteToolRef, raw: JsonObject) -> None:
        """Approve this definition too."""
        ...


class EventSink(Protocol):
    """Records events."""

    def record_entries(self, entries: Sequence[BridgeEntry]) -> None:
        """Record events of the ledger."""
        ...

    def record_event(self, op: JournalOp, server: str, subject: str, detail: str) -> None:
        """Record another event of a server."""
        ...

    def record_listing(
        self, server: str, tools: Sequence[RemoteTool], disabled: Sequence[DisabledTool], kind: ItemKind = "tool"
    ) -> None:
        """Record which tools of a server may be called, in its order; called after every listing of a kind."""
        ...


def iso_now() -> str:
    """Return the present time in ISO 8601 and UTC, as the ledger stores it."""
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
        """Follow a fleet; `servers` are the ids of all configured servers, in order."""
        self.fleet = fleet
        self._servers = tuple(servers)
        self._ledger = ledger
        self._pins = pins
        self._sink = sink
        self._now = now
        self._waiting: dict[RemoteToolRef, RemoteTool] = {}
        """The listed definitions that are not approved, including cosmetic changes."""
        self._drifts: dict[RemoteToolRef, Drift] = {}
        self._disabled: dict[RemoteToolRef, DisabledTool] = {}
        self._switches: Counter[RemoteToolRef] = Counter()
        self._recorded_drifts: set[tuple[RemoteToolRef, DriftGrade]] = set()
        self._former_keys: dict[RemoteToolRef, BridgeKey] = {}
        self._listed: dict[tuple[str, ItemKind], Sequence[RemoteTool]] = {}
        self._invalid: dict[RemoteToolRef, str] = {}
        self._mounted: set[RemoteToolRef] = set()
        """The tools that this fleet runs; the ledger may hold tools of a fleet that was torn down."""
        self._is_held = True
        self._long = asyncio.Event()
        self._unsubscribe = fleet.subscribe(self._handle_event)

    @property
    def ledger(self) -> BridgeLedger:
        """The ledger as it is now."""
        return self._ledger

    @property
    def quarantined(self) -> Sequence[RemoteTool]:
        """The disabled tools whose definitions wait for approval."""
        return tuple(remote for ref, remote in self._waiting.items() if ref in self._disabled)

    @property
    def disabled(self) -> Sequence[DisabledTool]:
        """The tools that may not be called until they are approved.

        For a server that has not listed its tools in this run, those of the run before.
        """
        return tuple(self._disabled.values())

    @property
    def drifts(self) -> Sequence[Drift]:
        """Every listed definition that is not approved, including cosmetic changes."""
        return tuple(self._drifts.values())

    def find_disabled(self, name: str, kind: ItemKind = "tool") -> DisabledTool | None:
        """Find a disabled tool, or item of another kind, by the name that a model would call it by."""
        return next((tool for tool in self._disabled.values() if (tool.ref.kind, tool.name) == (kind, name)), None)

    @property
    def notes(self) -> Sequence[Note]:
        """The tools that are left out of the deck, with reasons and remedies."""
        disabled = [tool.note for tool in self._disabled.values()]
        invalid = [
            Note(f"server {ref.server!r}, {ref.kind} {ref.name!r}", f"left out: {reason}")
            for ref, reason in self._invalid.items()
        ]
        return (*disabled, *invalid)

    def status(self) -> FleetStatus:
        """Return the status of every server, with a note for each disabled tool."""
        status = dict(self.fleet.status())
        notes: dict[str, list[Note]] = {}
        for ref, tool in self._disabled.items():
            notes.setdefault(ref.server, []).append(tool.note)
        for server in notes.keys() & status.keys():
            status[server] = replace(status[server], notes=(*status[server].notes, *notes[server]))
        return status

    def status_of(self, server: str) -> EndpointStatus | None:
        """Return the status of one server, with a note for each of its disabled tools; None: there's no such server."""
        status = self.fleet.status_of(server)
        notes = [tool.note for ref, tool in self._disabled.items() if ref.server == server]
        return replace(status, notes=(*status.notes, *notes)) if status is not None and notes else status

    def close(self) -> None:
        """Stop following the fleet; the ledger stays as it is."""
        self._unsubscribe()

    # -- following --------------------------------------------------------------------------

    async def sync_all(
        self,
        known: Mapping[str, Sequence[RemoteTool]] | None = None,
        disabled: Mapping[str, Sequence[DisabledTool]] | None = None,
    ) -> None:
        """Enrol what the servers have listed already, or are known to list once they start.

        Earlier listings are held back until then: tools are enrolled in the order of the configuration, and not in the
        order in which servers come up.
        """
        self._is_held = False
        for endpoint in self.fleet.endpoints():
            # The tools of one server are enrolled without a pause; between servers other tasks run.
            await asyncio.sleep(0)
            server = endpoint.config.id
            if known is not None and server in known:
                self.sync_tools(server, known[server], (disabled or {}).get(server, ()))
            else:
                self.sync_server(server)

    def _handle_event(self, event: FleetEvent) -> None:
        if event.event in {"tools", "items"}:
            if not self._is_held:
                # An event of the other lists does not say which of them has changed.
                kinds = ("tool",) if event.event == "tools" else self._find_changed(event.server)
                self.sync_server(event.server, kinds)
        elif self._sink is not None and event.event == "phase":
            phase, fault = event.status.phase, event.status.fault
            # While it connects, its fault is that of the attempt before.
            if phase == "connecting":
                self._sink.record_event("connect", event.server, "", "")
            elif fault is not None:
                self._sink.record_event("fault", event.server, fault.kind, str(fault))
            elif phase == "ready":
                self._sink.record_event("ready", event.server, "", "")

    def sync_server(self, server: str, kinds: Iterable[ItemKind] = ("tool", *_OTHER_KINDS)) -> None:
        """Bring the ledger in step with what a server has listed."""
        endpoint = self.fleet.endpoint(server)
        for kind in kinds:
            listed = None if endpoint is None else endpoint.known_items(kind)
            if listed is not None:
                self.sync_tools(server, listed, kind=kind)

    def _find_changed(self, server: str) -> Sequence[ItemKind]:
        endpoint = self.fleet.endpoint(server)
        if endpoint is None:
            return ()
        return [kind for kind in _OTHER_KINDS if endpoint.known_items(kind) is not self._listed.get((server, kind))]

    def sync_tools(
        self,
        server: str,
        listed: Sequence[RemoteTool],
        disabled: Sequence[DisabledTool] = (),
        *,
        kind: ItemKind = "tool",
    ) -> None:
        """Bring the ledger in step with a list of a server's tools, or items of another kind.

        `disabled` are tools outside the list that the store remembers from the run before.
        """
        before = self._ledger
        refs = {remote.ref for remote in listed}

        def is_gone(ref: RemoteToolRef) -> bool:
            return (ref.server, ref.kind) == (server, kind) and ref not in refs

        self._invalid = {
            ref: reason for ref, reason in self._invalid.items() if (ref.server, ref.kind) != (server, kind)
        }
        for ref in [*filter(is_gone, self._disabled)]:
            del self._disabled[ref]
        self._disabled.update((tool.ref, tool) for tool in disabled if tool.ref not in refs)
        for capability in before.live_capabilities_for_server(server, kind):
            if capability.ref not in refs:
                self._retire(capability.ref, server)
        for remote in listed:
            try:
                self._sync_tool(server, remote)
            except NotJson as exc:  # an infinite number, for example: it has no digest
                self._invalid[remote.ref] = str(exc)
                self._forget_drift(remote.ref)
                self._retire(remote.ref, server)
        for known in (self._waiting, self._drifts, self._former_keys):
            for ref in [*filter(is_gone, known)]:
                del known[ref]
        if self._pins is not None:
            self._pins.finish_listing(server, kind)
        self._record_since(before)
        self._listed[server, kind] = listed
        self._record_listing(server, kind)

    def _record_listing(self, server: str, kind: ItemKind) -> None:
        if self._sink is not None and (server, kind) in self._listed:
            disabled = [tool for tool in self._disabled.values() if (tool.ref.server, tool.ref.kind) == (server, kind)]
            if any(tool.cause == "unread" for tool in disabled):
                return  # the listing in the store is better than this one
            left_out = {tool.ref for tool in disabled} | self._invalid.keys()
            usable = [tool for tool in self._listed[server, kind] if tool.ref not in left_out]
            # A sink that is older than the other kinds takes no kind.
            self._sink.record_listing(server, usable, disabled, *(() if kind == "tool" else (kind,)))

    def finish_listings(self, server: str, kinds: Iterable[ItemKind]) -> None:
        """End the first listing of a server that was asked for these kinds, also of those it failed to list.

        Otherwise a server could fail at first, and add later what nobody looks at.
        """
        endpoint = self.fleet.endpoint(server)
        if self._pins is not None and endpoint is not None and is_usable_phase(endpoint.phase):
            for kind in kinds:
                self._pins.finish_listing(server, kind)

    def check_content(self, content: RemoteTool) -> DisabledTool | None:
        """Compare the content of a resource with its pin; the first one becomes the pin. None: it may be used."""
        verdict = self._judge(content)
        if verdict.served is None:
            self._disable(content.ref.server, content, verdict.drift)
            return self._disabled[content.ref]
        self._forget_drift(content.ref)
        return None

    def _judge(self, remote: RemoteTool) -> PinVerdict:
        return PinVerdict(served=remote.raw) if self._pins is None else self._pins.judge(remote.ref, remote.raw)

    def _sync_tool(self, server: str, remote: RemoteTool) -> None:
        ref = remote.ref
        verdict = self._judge(remote)
        if verdict.served is None:
            self._disable(server, remote, verdict.drift)
            return
        if self._stays_disabled(ref):
            return
        switched = ref in self._disabled
        self._forget_drift(ref)
        if verdict.drift is not None:
            self._waiting[ref], self._drifts[ref] = remote, verdict.drift
            self._record_drift(verdict.drift)
        served = self._restore(remote, verdict.served)
        live = self._ledger.find(ref)
        if live is not None:
            shares = spells_longer_server(ref, self.list_servers())
            name = self._name_tool(served).descriptor.name
            if (live[1].name, live[1].shares_name) != (name, shares):
                # The present configuration gives it another name.
                self._enroll(server, served, None)
                return
        if live is not None and ref in self._mounted:
            if self._represents(ref, live[1].raw, served.raw):
                return
            switched = True
        if switched:
            self._switches[ref] += 1
        self._enroll(server, served, self._former_keys.pop(ref, None))

    def _restore(self, remote: RemoteTool, approved: JsonObject) -> RemoteTool:
        """Return the item as its approved definition describes it.

        Raises:
            NotJson: The approved definition can't be shown any more.
        """
        if approved == remote.raw and [*approved] == [*remote.raw]:
            return remote
        endpoint = self.fleet.endpoint(remote.ref.server)
        config = StdioServerConfig(remote.ref.server, "") if endpoint is None else endpoint.config
        items, _ = read_definitions(remote.ref.kind, [approved], config)
        if not items:
            raise NotJson("its approved definition can't be shown")
        return items[0]

    def _stays_disabled(self, ref: RemoteToolRef) -> bool:
        """Tell whether a tool that is back in an approved form has switched too often to be enabled."""
        other = self._waiting.get(ref)
        if other is None or ref not in self._disabled or self._switches[ref] < MOST_SWITCHES:
            return False
        return self._judge(other).served is None

    def _represents(self, ref: RemoteToolRef, enrolled: JsonObject, raw: JsonObject) -> bool:
        """Tell whether the enrolled definition still represents what a server lists."""
        if enrolled == raw or differ_in_order_alone(enrolled, raw):
            return True
        if self._pins is None or self._switches[ref] < MOST_SWITCHES:
            return False
        return grade_drift(enrolled, raw, ref.kind) is not DriftGrade.BREAKING

    def _disable(self, server: str, remote: RemoteTool, drift: Drift | None) -> None:
        """Retire an item and disable it; without a drift the pins could not be read."""
        ref = remote.ref
        live = self._ledger.find(ref)
        if ref not in self._disabled:
            self._switches[ref] += 1
        if live is not None:
            self._former_keys[ref] = live[0]
            self._retire(ref, server)
        name = self._name_tool(remote).descriptor.name if live is None else live[1].name
        self._forget_drift(ref)
        if drift is None:
            self._disabled[ref] = DisabledTool(ref, name, DriftGrade.ROUTING, cause="unread")
            return
        unsettled = self._switches[ref] >= MOST_SWITCHES
        cause = "added" if drift.is_added else "changed"
        self._waiting[ref], self._drifts[ref] = remote, drift
        self._disabled[ref] = DisabledTool(ref, name, drift.grade, drift.fields, unsettled, cause)
        self._record_drift(drift)

    def _forget_drift(self, ref: RemoteToolRef) -> None:
        for known in (self._waiting, self._drifts, self._disabled):
            known.pop(ref, None)

    def _record_drift(self, drift: Drift) -> None:
        """Record a change, once in a run for each grade."""
        key = drift.ref, drift.grade
        if self._sink is not None and key not in self._recorded_drifts:
            self._recorded_drifts.add(key)
            detail = f"{'added' if drift.is_added else drift.grade}: {', '.join(drift.fields)}"
            self._sink.record_event("drift", drift.ref.server, drift.ref.name, detail)

    def _retire(self, ref: RemoteToolRef, server: str) -> None:
        live = self._ledger.find(ref)
        if live is not None:
            self._ledger = self._ledger.retire(live[0], server, self._now())

    def _enroll(self, server: str, remote: RemoteTool, place: BridgeKey | None) -> None:
        named = self._name_tool(remote)
        shares = spells_longer_server(remote.ref, self.list_servers())

        # The check runs once the server is up: it may start because of this call, or have returned with other tools.
        mounted = MountedTool(self.fleet, named, None if self._pins is None else self._find_refusal)
        capability = BridgeCapability.from_definition(
            named.descriptor,
            named.ref,
            named.raw,
            mounted.run if remote.ref.kind == "tool" else None,
            shares_name=shares,
        )
        request = EnrollRequest(capability, server, supersedes=place)
        self._ledger = self._ledger.enroll(request, self._now())
        self._mounted.add(remote.ref)

    def _find_refusal(self, ref: RemoteToolRef) -> ToolResult | None:
        if ref in self._disabled:
            return refuse_disabled(self._disabled[ref])
        endpoint = self.fleet.endpoint(ref.server)
        if endpoint is not None and endpoint.known_tools is None and is_usable_phase(endpoint.phase):
            return ToolResult.error(
                f"server {ref.server!r} has not listed its tools yet: try again in a moment",
                code="not_connected",
                server=ref.server,
            )
        return None

    def set_configured_servers(self, servers: Iterable[str]) -> None:
        """Set the ids of the configured servers; tools are renamed where needed."""
        self._servers = tuple(servers)
        for (server, kind), listed in [*self._listed.items()]:
            disabled = [tool for tool in self._disabled.values() if (tool.ref.server, tool.ref.kind) == (server, kind)]
            self.sync_tools(server, listed, disabled, kind=kind)

    def list_servers(self) -> Sequence[str]:
        """List the ids of the configured servers in order, then those of the running ones."""
        running = [endpoint.config.id for endpoint in self.fleet.endpoints()]
        return tuple(dict.fromkeys((*self._servers, *running)))

    def _name_tool(self, remote: RemoteTool) -> RemoteTool:
        """Return the tool under a name that no other tool of the ledger has; URIs are distinct by themselves."""
        if remote.ref.kind not in {"tool", "prompt"}:
            return remote
        name = model_name(remote.ref, _NamesInUse(self._ledger, remote.ref), self.list_servers())
        if name == remote.descriptor.name:
            return remote
        return replace(remote, descriptor=replace(remote.descriptor, name=name))

    # -- on request -------------------------------------------------------------------------

    def approve(self, ref: RemoteToolRef, digest: str) -> bool:
        """Approve the definition that a user was shown, and enrol it in its former place.

        Returns:
            Whether the item waits for approval with a definition of this digest.
        """
        remote = self._waiting.get(ref)
        if remote is None or definition_pin(remote.raw) != digest:
            return False
        before = self._ledger
        if self._pins is not None:
            self._pins.approve(ref, remote.raw)
        self._forget_drift(ref)
        del self._switches[ref]
        self._recorded_drifts = {key for key in self._recorded_drifts if key[0] != ref}
        if ref.kind != "content":
            # A tool that alternates may be back in another approved form.
            present = next((tool for tool in self._listed.get((ref.server, ref.kind), ()) if tool.ref == ref), remote)
            served = self._restore(present, self._judge(present).served or remote.raw)
            self._enroll(ref.server, served, self._former_keys.pop(ref, None))
        if self._sink is not None:
            self._sink.record_event("approve", ref.server, ref.name, digest)
        self._record_since(before)
        self._record_listing(ref.server, ref.kind)
        return True

    def withdraw(self, server: str) -> None:
        """Retire all tools of a server."""
        before = self._ledger
        self._ledger = before.withdraw_server(server, self._now())
        self._record_since(before)

    def remove_server(self, server: str) -> None:
        """Retire all tools of a server and drop its state: another server may take its id."""
        self.withdraw(server)
        self._listed = {key: listed for key, listed in self._listed.items() if key[0] != server}
        self._recorded_drifts = {key for key in self._recorded_drifts if key[0].server != server}
        for known in (
            self._waiting, self._drifts, self._disabled, self._switches, self._former_keys,
            self._invalid,
        ):  # fmt: skip
            for ref in [ref for ref in known if ref.server == server]:
                del known[ref]

    # -- compaction -------------------------------------------------------------------------

    async def wait_until_long(self) -> None:
        """Wait until the ledger has many more events than tools, and the sink has them."""
        await self._long.wait()

    def compact(self, before: int) -> None:
        """Drop the events before a number, which the caller has stored."""
        places = self._former_keys.values()
        self._ledger = self._ledger.compact(before, places_of=places)
        self._long.clear()
        self._check_length()

    def _record_since(self, before: BridgeLedger) -> None:
        if self._sink is not None and self._ledger is not before:
            self._sink.record_entries(self._ledger.since(before.next_seq))
            self._check_length()

    def _check_length(self) -> None:
        events = self._ledger.events
        if events > LONGEST_LOG and events > 2 * len(self._ledger.snapshot.live):
            self._long.set()


def refuse_disabled(tool: DisabledTool) -> ToolResult:
    """Build the result of a call of a disabled tool: the reason, and what a person can do."""
    ref = tool.ref
    return ToolResult.error(
        f"{ref.kind} {ref.name!r} of server {ref.server!r} is {tool.reason}. A person can {tool.remedy}",
        code="drift",
        server=ref.server,
        tool=ref.name,
        grade=str(tool.grade),
        approve=tool.approve_command,
    )


class _NamesInUse:
    """The names that other tools of a ledger have."""

    def __init__(self, ledger: BridgeLedger, ref: RemoteToolRef) -> None:
        self._ledger = ledger
        self._ref = ref

    def __contains__(self, name: object) -> bool:
        holder = self._ledger.holder_of(name, self._ref.kind) if isinstance(name, str) else None
        return holder is not None and holder != self._ref
