"""Keeps a ledger in step with a fleet: enrols tools as servers list them, retires the ones they drop.

A failed server keeps its tools, since it comes back under the same names; until then, calls return its fault. A tool
with an unapproved definition stays disabled until a user approves it. A cosmetic change leaves the approved definition
enrolled, so a model never reads unapproved text.

Servers can change their tools at any time, and every change is an event. Once events far outnumber tools, an owner
that has stored them can compact the ledger.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from indusagi.capabilities.sandbox.behaviour import Behaviour, RefusedUse, parse_behaviour
from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, NotJson
from indusagi.core.time import iso_utc
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
from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
from indusagi.interop.protocol_bridge.fleet import FleetEvent, MountedTool, ServerFleetImpl
from indusagi.runtime.contract import ToolResult
from induscode.deck.mcp.capability import BridgeCapability, build_behaviour, definition_pin, read_definitions
from induscode.deck.mcp.drift import DisabledTool, Drift, DriftGrade, PinVerdict, differ_in_order_alone, grade_drift
from induscode.deck.mcp.ledger import BridgeKey, BridgeLedger, EnrollRequest
from induscode.deck.mcp.review import Finding
from induscode.deck.mcp.reviewer import Reviewer
from induscode.deck.mcp.store.journal import Journal
from induscode.deck.mcp.store.pins import StorePins

MOST_SWITCHES = 3
"""How often a definition may switch per run. Past that, a disabled tool stays disabled and harmless changes are
ignored, so an alternating server can't make the list flap."""
_OTHER_KINDS: tuple[ItemKind, ...] = (*LISTED_KINDS, "instructions")
LONGEST_LOG = 200
"""A ledger with more events than this, and more than two per live tool, is due for compaction."""


class Enrolment:
    """A ledger kept in step with a fleet."""

    def __init__(
        self,
        fleet: ServerFleetImpl,
        ledger: BridgeLedger,
        *,
        pins: StorePins | None = None,
        sink: Journal | None = None,
        now: Callable[[], str] = iso_utc,
        servers: Sequence[str] = (),
    ) -> None:
        """Follow a fleet. `servers` lists the ids of all configured servers, in order."""
        self.fleet = fleet
        self._servers, self._configured = tuple(servers), frozenset(servers)
        self.ledger = ledger
        """The current ledger: every change makes a new one."""
        self._pins = pins
        self.reviewer = Reviewer()
        self._sink = sink
        self._now = now
        self._waiting: dict[RemoteToolRef, RemoteTool] = {}
        """Listed but unapproved definitions, cosmetic changes included."""
        self._drifts: dict[RemoteToolRef, Drift] = {}
        self._disabled: dict[RemoteToolRef, DisabledTool] = {}
        self._switches: Counter[RemoteToolRef] = Counter()
        self._recorded_drifts: set[tuple[RemoteToolRef, str]] = set()
        self._former_keys: dict[RemoteToolRef, BridgeKey] = {}
        self._listed: dict[tuple[str, ItemKind], Sequence[RemoteTool]] = {}
        self._invalid: dict[RemoteToolRef, str] = {}
        self._mounted: set[RemoteToolRef] = set()
        """Tools of this fleet. The ledger may also hold tools of an earlier, torn-down fleet."""
        self._is_held = True
        self._long = asyncio.Event()
        self._unsubscribe = fleet.subscribe(self._handle_event)

    @property
    def quarantined(self) -> Sequence[RemoteTool]:
        """Disabled tools with definitions awaiting approval."""
        return tuple(remote for ref, remote in self._waiting.items() if ref in self._disabled)

    @property
    def disabled(self) -> Sequence[DisabledTool]:
        """Tools that can't be called until approved; from the previous run if their server hasn't listed tools yet."""
        return tuple(self._disabled.values())

    @property
    def drifts(self) -> Sequence[Drift]:
        """All listed but unapproved definitions, cosmetic changes included, with what the review finds in them."""
        return tuple(
            replace(drift, findings=self.reviewer.review(drift.ref, drift.after or {}))
            for drift in self._drifts.values()
        )

    def list_findings(self, server: str) -> Sequence[Finding]:
        """Review what a server lists, and what of it is enrolled."""
        items = {item.ref: item.raw for item in self.ledger.snapshot.live.values() if item.ref.server == server}
        items |= {ref: remote.raw for ref, remote in self._waiting.items() if ref.server == server}
        return self.reviewer.review_all(items.items())

    def find_disabled(self, name: str, kind: ItemKind = "tool") -> DisabledTool | None:
        """Find a disabled tool (or other item) by the name a model would use."""
        return next((tool for tool in self._disabled.values() if (tool.ref.kind, tool.name) == (kind, name)), None)

    @property
    def notes(self) -> Sequence[Note]:
        """Tools missing from the deck, with reasons and remedies."""
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
        """Return a server's status with a note for each disabled tool, or `None` if the id is unknown."""
        status = self.fleet.status_of(server)
        notes = [tool.note for ref, tool in self._disabled.items() if ref.server == server]
        return replace(status, notes=(*status.notes, *notes)) if status is not None and notes else status

    def close(self) -> None:
        """Stop following the fleet. The ledger stays as it is."""
        self._unsubscribe()

    # -- following --------------------------------------------------------------------------

    async def sync_all(
        self,
        known: Mapping[str, Sequence[RemoteTool]] | None = None,
        disabled: Mapping[str, Sequence[DisabledTool]] | None = None,
    ) -> None:
        """Enrol everything servers have listed so far, or (`known`) will list once they start.

        Listings that arrive before this call wait for it, so tools enrol in configuration order, not in start order.
        """
        self._is_held = False
        for endpoint in self.fleet.endpoints():
            # Let other tasks run between servers; each server's tools enrol in one go.
            await asyncio.sleep(0)
            server = endpoint.config.id
            if known is not None and server in known:
                self.sync_tools(server, known[server], (disabled or {}).get(server, ()))
            else:
                self.sync_server(server)

    def _handle_event(self, event: FleetEvent) -> None:
        if event.event in {"tools", "items"}:
            if not self._is_held:
                # An `items` event doesn't say which list changed.
                kinds = ("tool",) if event.event == "tools" else self._find_changed(event.server)
                self.sync_server(event.server, kinds)
        elif event.event == "refused":
            endpoint = self.fleet.endpoint(event.server)
            self._note_refused(event.server, () if endpoint is None else endpoint.refusals)
        elif self._sink is not None and event.event == "phase":
            phase, fault = event.status.phase, event.status.fault
            # While connecting, the fault is still the previous attempt's.
            if phase == "connecting":
                self._sink.record_event("connect", event.server, "", "")
            elif fault is not None:
                self._sink.record_event("fault", event.server, fault.kind, str(fault))
            elif phase == "ready":
                self._sink.record_event("ready", event.server, "", "")

    def sync_server(self, server: str, kinds: Iterable[ItemKind] = ("tool", *_OTHER_KINDS)) -> None:
        """Sync the ledger with everything a server has listed."""
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
        """Sync the ledger with a server's list of one kind.

        `disabled` holds tools outside the list that the store remembers from the previous run.
        """
        before = self.ledger
        self.reviewer.learn(server, kind, listed)
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
            except NotJson as exc:  # e.g. an infinite number: no digest possible
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
                return  # the stored listing is better than this one
            left_out = {tool.ref for tool in disabled} | self._invalid.keys()
            usable = [tool for tool in self._listed[server, kind] if tool.ref not in left_out]
            self._sink.record_listing(server, usable, disabled, kind)

    def finish_listings(self, server: str, kinds: Iterable[ItemKind]) -> None:
        """End a server's first listing of these kinds, even the ones it failed to list.

        Otherwise a server could fail first and slip in unreviewed items later.
        """
        endpoint = self.fleet.endpoint(server)
        if self._pins is not None and endpoint is not None and is_usable_phase(endpoint.phase):
            for kind in kinds:
                self._pins.finish_listing(server, kind)

    def check_content(self, content: RemoteTool) -> DisabledTool | None:
        """Compare a resource's content with its pin (the first content seen). `None` means it's fine to use."""
        verdict = self._judge(content)
        if verdict.served is None:
            self._disable(content.ref.server, content, verdict.drift)
            return self._disabled[content.ref]
        self._forget_drift(content.ref)
        return None

    def _note_refused(self, server: str, refusals: Sequence[RefusedUse]) -> None:
        """Remember what a server's sandbox refused: as drift of its behaviour if that was learned."""
        ref = build_behaviour(server).ref
        for one in refusals:
            if self._sink is not None and (ref, one.target) not in self._recorded_drifts:
                self._recorded_drifts.add((ref, one.target))
                self._sink.record_event("drift", server, "sandbox", f"the sandbox refused {one}")
        asked = {key: tuple(one.target for one in refusals if one.key == key) for key in ("hosts", "read", "write")}
        self.check_behaviour(server, Behaviour(**asked))
        self._record_behaviour(ref)

    def check_behaviour(self, server: str, asked: Behaviour = Behaviour()) -> None:  # noqa: B008 — frozen
        """Compare what a server was refused, now and before, with its learned behaviour, if it has one."""
        ref = build_behaviour(server).ref
        approved = None if self._pins is None else self._pins.find_approved(ref)
        if approved is not None:
            waiting = self._waiting.get(ref)
            before = asked if waiting is None else asked | parse_behaviour(waiting.raw)
            self.check_content(build_behaviour(server, parse_behaviour(approved) | before))

    def _record_behaviour(self, ref: RemoteToolRef) -> None:
        tool, waiting = self._disabled.get(ref), self._waiting.get(ref)
        if self._sink is not None:
            disabled = [] if tool is None else [tool]
            self._sink.record_listing(ref.server, (), disabled, ref.kind, None if waiting is None else waiting.raw)

    def _judge(self, remote: RemoteTool) -> PinVerdict:
        if self._pins is None:
            return PinVerdict(served=remote.raw)
        return self.reviewer.judge(self._pins, remote)

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
        live = self.ledger.find(ref)
        if live is not None:
            named, shares = self._name_tool(served)
            if (live[1].name, live[1].shares_name) != (named.descriptor.name, shares):
                # The configuration changed its name.
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
        """Return the item with its approved definition.

        Raises `NotJson` if the approved definition can't be shown any more.
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
        """Tell whether a tool back in an approved form has switched too often to enable again."""
        other = self._waiting.get(ref)
        if other is None or ref not in self._disabled or self._switches[ref] < MOST_SWITCHES:
            return False
        return self._judge(other).served is None

    def _represents(self, ref: RemoteToolRef, enrolled: JsonObject, raw: JsonObject) -> bool:
        """Tell whether the enrolled definition still represents the listed one."""
        if enrolled == raw or differ_in_order_alone(enrolled, raw):
            return True
        if self._pins is None or self._switches[ref] < MOST_SWITCHES:
            return False
        return grade_drift(enrolled, raw, ref.kind) is not DriftGrade.BREAKING

    def _disable(self, server: str, remote: RemoteTool, drift: Drift | None) -> None:
        """Retire and disable an item. No drift means its pins couldn't be read."""
        ref = remote.ref
        live = self.ledger.find(ref)
        if ref not in self._disabled:
            self._switches[ref] += 1
        if live is not None:
            self._former_keys[ref] = live[0]
            self._retire(ref, server)
        name = self._name_tool(remote)[0].descriptor.name if live is None else live[1].name
        self._forget_drift(ref)
        if drift is None:
            self._disabled[ref] = DisabledTool(ref, name, DriftGrade.ROUTING, cause="unread")
            return
        self._waiting[ref], self._drifts[ref] = remote, drift
        self._disabled[ref] = drift.disable(name, unsettled=self._switches[ref] >= MOST_SWITCHES)
        self._record_drift(drift)

    def _forget_drift(self, ref: RemoteToolRef) -> None:
        for known in (self._waiting, self._drifts, self._disabled):
            known.pop(ref, None)

    def _record_drift(self, drift: Drift) -> None:
        """Record a change, once per grade and run."""
        key = drift.ref, drift.grade
        if self._sink is not None and key not in self._recorded_drifts:
            self._recorded_drifts.add(key)
            what = str(drift.grade) if drift.cause == "changed" else drift.label
            found = f"; the review found: {', '.join(drift.checks)}" if drift.checks else ""
            detail = f"{what}: {', '.join(drift.fields)}{found}"
            self._sink.record_event("drift", drift.ref.server, drift.ref.name, detail)

    def _retire(self, ref: RemoteToolRef, server: str) -> None:
        live = self.ledger.find(ref)
        if live is not None:
            self.ledger = self.ledger.retire(live[0], server, self._now())

    def _enroll(self, server: str, remote: RemoteTool, place: BridgeKey | None) -> None:
        named, shares = self._name_tool(remote)
        # Checked once the server is up: this call may start it, or it may have come back with other tools.
        mounted = MountedTool(self.fleet, named, None if self._pins is None else self._find_refusal)
        runner = mounted.run if remote.ref.kind == "tool" else None
        capability = BridgeCapability.from_definition(
            named.descriptor, named.ref, named.raw, runner, shares_name=shares
        )
        self.ledger = self.ledger.enroll(EnrollRequest(capability, server, supersedes=place), self._now())
        self._mounted.add(remote.ref)

    def _find_refusal(self, ref: RemoteToolRef, endpoint: ServerEndpointImpl) -> ToolResult | None:
        if self._disabled and ref in self._disabled:
            return refuse_disabled(self._disabled[ref])
        if endpoint.known_tools is None and is_usable_phase(endpoint.phase):
            return ToolResult.error(
                f"server {ref.server!r} has not listed its tools yet: try again in a moment",
                code="not_connected",
                server=ref.server,
            )
        return None

    def set_configured_servers(self, servers: Iterable[str]) -> None:
        """Set the ids of the configured servers, renaming tools where needed."""
        self._servers = tuple(servers)
        self._configured = frozenset(self._servers)
        for (server, kind), listed in [*self._listed.items()]:
            disabled = [tool for tool in self._disabled.values() if (tool.ref.server, tool.ref.kind) == (server, kind)]
            self.sync_tools(server, listed, disabled, kind=kind)

    def list_servers(self) -> Sequence[str]:
        """List the configured server ids in order, then any other running ones."""
        running = self.fleet.servers
        return self._servers if running <= self._configured else tuple(dict.fromkeys((*self._servers, *running)))

    def _name_tool(self, remote: RemoteTool) -> tuple[RemoteTool, bool]:
        """Return the tool under a name unique in the ledger (URIs are unique already), and whether it shares a name."""
        servers = self.list_servers()
        shares = spells_longer_server(remote.ref, servers)
        if remote.ref.kind not in {"tool", "prompt"}:
            return remote, shares
        name = model_name(remote.ref, _NamesInUse(self.ledger, remote.ref), servers)
        if name == remote.descriptor.name:
            return remote, shares
        return replace(remote, descriptor=replace(remote.descriptor, name=name)), shares

    # -- on request -------------------------------------------------------------------------

    def approve(self, ref: RemoteToolRef, digest: str) -> bool:
        """Approve the definition the user reviewed and enrol it in its former place.

        Returns `False` if no definition with this digest awaits approval.
        """
        remote = self._waiting.get(ref)
        if remote is None or definition_pin(remote.raw) != digest:
            return False
        before = self.ledger
        if self._pins is not None:
            self._pins.approve(ref, remote.raw)
        self._forget_drift(ref)
        del self._switches[ref]
        self._recorded_drifts = {key for key in self._recorded_drifts if key[0] != ref}
        if ref.kind not in {"content", "behaviour"}:
            # An alternating tool may be back in another approved form.
            present = next((tool for tool in self._listed.get((ref.server, ref.kind), ()) if tool.ref == ref), remote)
            served = self._restore(present, self._judge(present).served or remote.raw)
            self._enroll(ref.server, served, self._former_keys.pop(ref, None))
        if self._sink is not None:
            self._sink.record_event("approve", ref.server, ref.name, digest)
        self._record_since(before)
        self._record_listing(ref.server, ref.kind)
        if ref.kind == "behaviour":
            self._record_behaviour(ref)
        return True

    def withdraw(self, server: str) -> None:
        """Retire all tools of a server."""
        before = self.ledger
        self.ledger = before.withdraw_server(server, self._now())
        self._record_since(before)

    def remove_server(self, server: str) -> None:
        """Retire all tools of a server and drop its state, so another server can take its id."""
        self.withdraw(server)
        self.reviewer.forget(server)
        self._listed = {key: listed for key, listed in self._listed.items() if key[0] != server}
        self._recorded_drifts = {key for key in self._recorded_drifts if key[0].server != server}
        state = (self._waiting, self._drifts, self._disabled, self._switches, self._former_keys, self._invalid)
        for known in state:
            for ref in [ref for ref in known if ref.server == server]:
                del known[ref]

    # -- compaction -------------------------------------------------------------------------

    async def wait_until_long(self) -> None:
        """Wait until recorded events far outnumber tools."""
        await self._long.wait()

    def compact(self, before: int) -> None:
        """Drop the events before a number. The caller has stored them."""
        self.ledger = self.ledger.compact(before, places_of=self._former_keys.values())
        self._long.clear()
        self._check_length()

    def _record_since(self, before: BridgeLedger) -> None:
        if self._sink is not None and self.ledger is not before:
            self._sink.record_entries(self.ledger.since(before.next_seq))
            self._check_length()

    def _check_length(self) -> None:
        events = self.ledger.events
        if events > LONGEST_LOG and events > 2 * len(self.ledger.snapshot.live):
            self._long.set()


def refuse_disabled(tool: DisabledTool) -> ToolResult:
    """Build the error result for a call to a disabled tool, with the reason and the remedy."""
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
    """The names other tools of a ledger use."""

    def __init__(self, ledger: BridgeLedger, ref: RemoteToolRef) -> None:
        self._ledger = ledger
        self._ref = ref

    def __contains__(self, name: object) -> bool:
        holder = self._ledger.holder_of(name, self._ref.kind) if isinstance(name, str) else None
        return holder is not None and holder != self._ref
