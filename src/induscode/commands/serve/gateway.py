"""The gateway: native cards and tools of servers in one box, which changes while it is served."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio import to_thread

from indusagi.capabilities.budget import UNLIMITED
from indusagi.core.notes import Note
from indusagi.core.records import record
from indusagi.core.text import clean_text
from indusagi.interop.protocol_bridge.client.tools import ViewNote
from indusagi.interop.protocol_bridge.contract import EndpointPhase
from indusagi.runtime.contract import ToolOutcome
from induscode.boot.runners import ConfigPathError, plan_servers
from induscode.commands.serve.recursion import without_ourselves
from induscode.commands.serve.reload import troubles, unreadable
from induscode.commands.support.catalog import build_fault_note
from induscode.deck.mcp.enrolment import refuse_disabled
from induscode.deck.provision import ToolDeck
from induscode.terminal import print_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from anyio.abc import TaskGroup

    from indusagi.core.cancel import CancelToken
    from indusagi.interop.protocol_bridge.contract import EndpointStatus, ServerConfig
    from indusagi.interop.protocol_bridge.fleet import FleetEvent
    from indusagi.interop.protocol_bridge.host import ProviderHost
    from indusagi.runtime.contract import ProgressSink, ToolCall, ToolDescriptor, ToolResult
    from induscode.boot.session import Session
    from induscode.commands.serve import Schemas
    from induscode.commands.serve.permissions import ServingGate
    from induscode.commands.serve.recursion import GatewayInfo, Listening
    from induscode.commands.serve.reload import ConsentedRows, FileWatch
    from induscode.commands.serve.signals import SignalState
    from induscode.deck.mcp.boot import BootOptions, ServerChanges, ServerPlan
    from induscode.deck.mcp.ledger import BridgeLedger
    from induscode.deck.provision import DeckToolBox

FIRST_S = 5.0
"""How long servers that were never seen before may keep the first client waiting."""
_REMEMBERED = 1_000
_REMARKS = 20
"""On what one server lists: one that is hostile has thousands."""
_COUNT = re.compile(r"\d[\d,]*")
_LISTED_S = 1.0
"""How long servers that are known wait for a client that asks for the list before they start."""
_APPROVALS_S = 2.0
"""How often to look for approvals by other processes, while a tool is disabled."""
_TOGETHER_S = 0.05
"""Changes that come so close together are told as one."""


class DisabledTools(Protocol):
    """The tools of servers that may not be called until they are approved."""

    def is_disabled(self, name: str) -> bool:
        """Tell whether a tool is disabled, by the name that clients would call it by."""
        ...

    async def refuse(self, name: str) -> ToolResult | None:
        """Look once more whether it was approved, and if not, say why it cannot be called."""
        ...

    def box(self) -> GatewayBox:
        """Give the present box."""
        ...


@record
class GatewayBox:
    """Two boxes as one: what servers answer goes out whole, native cards keep to their budget."""

    native: DeckToolBox
    remote: DeckToolBox
    on_listed: Callable[[], None]
    disabled: DisabledTools
    schemas: Schemas = "raw"

    @property
    def runner(self) -> GatewayBox:
        """Itself: it finds the box that a call is for."""
        return self

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the native cards, then the tools of servers."""
        self.on_listed()
        remote = self.remote.descriptors()
        if self.schemas == "model":
            remote = [replace(descriptor, definition=None) for descriptor in remote]
        return (*self.native.descriptors(), *remote)

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call; an unknown tool and a disabled one are error outcomes."""
        if self.answers_unlisted(call.name):
            refusal = await self.disabled.refuse(call.name)
            if refusal is not None:
                return ToolOutcome(call.id, refusal)
            present = self.disabled.box()  # it was approved meanwhile
            return await present.run(call, cancel, on_progress=on_progress)
        box = self.remote if call.name in self.remote.runner.cards else self.native
        return await box.runner.run(call, cancel, on_progress=on_progress)

    def answers_unlisted(self, name: str) -> bool:
        """Tell whether a tool is disabled: a call of it is answered with the reason."""
        listed = name in self.remote.runner.cards or name in self.native.runner.cards
        return not listed and self.disabled.is_disabled(name)


@record(kw_only=True)
class GatewayContext:
    """What stays the same about a gateway, whatever becomes of its servers."""

    info: GatewayInfo
    options: BootOptions
    listening: Listening | None
    agreed: ConsentedRows
    watch: FileWatch | None
    """None where no files are looked at."""
    files: Sequence[str]
    schemas: Schemas = "raw"


class Gateway:
    """The deck that is served, and the servers behind it."""

    def __init__(self, session: Session, plan: ServerPlan, frame: GatewayContext, gate: ServingGate) -> None:
        self.session = session
        self.plan = plan
        self._frame = frame
        self._gate = gate
        self._native = session.native.map_capabilities(gate.native)
        self._ourselves: dict[str, ServerConfig] = {}
        self._moved = anyio.Event()
        self._listed = anyio.Event()
        self._said: set[str] = set()
        self._box: GatewayBox | None = None
        self._boxed: BridgeLedger | None = None
        self._bridge, self._fleet, self._enrolment = session.mcp, session.mcp.fleet, session.mcp.enrolment

    # -- what is served ---------------------------------------------------------------------

    def box(self) -> GatewayBox:
        """Give the present box; it is made anew when the ledger has moved."""
        ledger = self._enrolment.ledger
        if self._box is None or self._boxed is not ledger:
            self._box, self._boxed = self._made(ledger), ledger
        return self._box

    def _made(self, ledger: BridgeLedger) -> GatewayBox:
        # In the order of the configuration, whichever server came up first.
        rank = {row.id: at for at, row in enumerate(self.plan.rows)}
        live = [one for one in ledger.live_capabilities() if one.ref.server not in self._ourselves]
        live.sort(key=lambda one: rank.get(one.ref.server, len(rank)))
        deck = self._native.graft(live)
        self._mention(deck.notes)
        grafted = deck.tools()[len(self._native.tools()) :]
        # Structured content has to fit the output schema, from which they are removed as well.
        unlimited = replace(deck.context, budget=UNLIMITED, clean_foreign=clean_text)
        remote = ToolDeck(map(self._gate.remote, grafted), unlimited)
        native = self._native.into_tool_box()
        return GatewayBox(native, remote.into_tool_box(), self._listed.set, self, self._frame.schemas)

    def is_disabled(self, name: str) -> bool:
        """Tell whether a tool is disabled, by the name that clients would call it by."""
        return self._enrolment.find_disabled(name) is not None

    async def refuse(self, name: str) -> ToolResult | None:
        """Look once more whether a tool was approved, and if not, say why it cannot be called."""
        disabled = self._enrolment.find_disabled(name)
        endpoint = None if disabled is None else self._fleet.endpoint(disabled.ref.server)
        if endpoint is not None and endpoint.known_tools is None:
            # What is remembered from the run before may be right again.
            await self._bridge.wake([endpoint.config.id])
        await self._take_approvals()
        disabled = self._enrolment.find_disabled(name)
        return None if disabled is None else refuse_disabled(disabled)

    async def _take_approvals(self) -> None:
        before = self._enrolment.ledger
        await self._bridge.reread_approvals()
        if self._enrolment.ledger is not before:
            self._moved.set()

    async def _notice_approvals(self) -> None:
        """Have tools back that `indus mcp approve` has approved while the gateway runs."""
        while True:
            await anyio.sleep(_APPROVALS_S)
            if self._enrolment.disabled:
                await self._take_approvals()

    def summary(self) -> str:
        """Say in one line what is served."""
        box = self.box()
        native, remote = len(box.native.runner.cards), len(box.remote.runner.cards)
        status = self.session.mcp.status()
        ready = sum(one.phase == EndpointPhase.READY for one in status.values())
        servers = f"servers: {len(self.plan.configs)}, of which {ready} ready"
        return f"native tools: {native}, tools of servers: {remote}, {servers}"

    # -- while it runs ----------------------------------------------------------------------

    async def first_servers(self) -> None:
        """Wait for servers that nothing is known of, but not long; and for those that must be."""
        with anyio.move_on_after(FIRST_S):
            await self._bridge.wake(self._bridge.unknown_servers())
        await self.required_servers()

    async def required_servers(self, limit_s: float | None = None) -> None:
        """Wait until servers that must be there have come up or failed."""
        required = [row.id for row in self.plan.rows if row.required and row.id in self.plan.configs]
        with anyio.move_on_after(limit_s):
            await self._bridge.wake(required)

    async def follow(self, host: ProviderHost, told: SignalState) -> None:
        """Keep what clients are told in step with the servers, and these with their files."""
        async with anyio.create_task_group() as tasks:
            leave = self._fleet.follow(lambda event: self._heard(event, tasks))
            try:
                for server in self._fleet.status():
                    self._look_at(server, tasks)
                tasks.start_soon(self._announce, host)
                tasks.start_soon(self._start_known)
                tasks.start_soon(self._notice_approvals)
                if self._frame.watch is not None:
                    await self._reread(self._frame.watch, told, tasks)
                await anyio.sleep_forever()
            finally:
                leave()

    async def _start_known(self) -> None:
        """Start servers that were seen before; the first list needs none, and comes first."""
        with anyio.move_on_after(_LISTED_S):
            await self._listed.wait()
        await self._bridge.wake(self._bridge.eager_servers())

    def _heard(self, event: FleetEvent, tasks: TaskGroup) -> None:
        if event.event == "phase":
            self._mention_fault(event.server, event.status)
            self._look_at(event.server, tasks)
        elif event.event == "tools":
            self._moved.set()

    def _look_at(self, server: str, tasks: TaskGroup) -> None:
        """Close a server that turns out to be this very gateway."""
        endpoint, config = self._fleet.endpoint(server), self.plan.configs.get(server)
        if endpoint is None or config is None or server in self._ourselves:
            return
        if self._frame.info.is_behind(endpoint.facts):
            self._ourselves[server] = config
            self._box = None
            self._moved.set()
            print_status(f"server {server!r} is this gateway itself, and was closed")
            tasks.start_soon(self._fleet.stop, server)

    async def _announce(self, host: ProviderHost) -> None:
        while True:
            await self._moved.wait()
            await anyio.sleep(_TOGETHER_S)
            self._moved = anyio.Event()
            host.refresh_tools()
            self._mention(self._enrolment.notes)
            self._mention_remarks()

    # -- when files change ------------------------------------------------------------------

    async def _reread(self, watch: FileWatch, told: SignalState, tasks: TaskGroup) -> None:
        while True:
            forced = await watch.changed(told)
            plan = await self._planned(forced=forced)
            if plan is not None:
                await self._change(plan, tasks)

    async def _planned(self, *, forced: bool) -> ServerPlan | None:
        """Read the files; None if one of them is broken, and nothing is to change."""
        if self._are_broken(await to_thread.run_sync(troubles, self._frame.files)):
            return None
        try:
            plan = await to_thread.run_sync(plan_servers, self.session.invocation)
        except ConfigPathError as exc:
            print_status(f"{exc}; the servers stay as they were")
            return None
        if self._are_broken(unreadable(self.plan, plan)):
            return None
        if forced:
            self._frame.agreed.renew(plan)
        return without_ourselves(self._frame.agreed.applied(plan), self._frame.listening)

    def _are_broken(self, notes: Sequence[Note]) -> bool:
        """Tell of files that are broken, each time anew."""
        self._said -= set(map(str, notes))
        self._mention(notes)
        return bool(notes)

    async def _change(self, plan: ServerPlan, tasks: TaskGroup) -> None:
        ours = [one for one, config in self._ourselves.items() if plan.configs.get(one) == config]
        self._ourselves = {one: self._ourselves[one] for one in ours}
        if ours:
            plan = plan.narrow([row.id for row in plan.rows if row.id not in ours])
        order = [row.id for row in self.plan.rows]
        self.plan = plan
        changed = await self._bridge.change(plan)
        self._mention(plan.notes)
        if changed or order != [row.id for row in plan.rows]:
            self._box = None
            self._moved.set()
        if changed:
            print_status(f"the configuration has changed: {_told(changed, plan)}")
        tasks.start_soon(self._bridge.wake, changed.to_start)

    # -- telling ----------------------------------------------------------------------------

    def mention_all(self) -> None:
        """Tell everything that was left out, and why servers are not there."""
        self._mention((*self._gate.notes, *self.session.notes))
        self._mention(self._enrolment.notes)
        for server, status in self.session.mcp.status().items():
            self._mention_fault(server, status)
        self._mention_remarks()

    def _mention_remarks(self) -> None:
        """Tell what servers have listed that was left out; of each server the first few."""
        whole = self._frame.schemas == "raw"
        for server in self._fleet.status():
            remarks = self._bridge.list_remarks(server)
            notes = [one for one in remarks if not (whole and isinstance(one, ViewNote))]
            self._mention(notes[:_REMARKS], _uncounted)
            left = len(notes) - _REMARKS
            if left > 0:
                owner, remedy = f"server {server!r}", f"all of them: indus mcp doctor {server}"
                self._mention([Note(owner, f"{left:,} further remarks", remedy)], _uncounted)

    def _mention_fault(self, server: str, status: EndpointStatus) -> None:
        if status.fault is not None:
            self._mention([build_fault_note(server, status.fault)])

    def _mention(self, notes: Iterable[Note], key: Callable[[Note], str] = str) -> None:
        """Put notes on standard error, each once."""
        if len(self._said) > _REMEMBERED:
            self._said.clear()
        for note in notes:
            if key(note) not in self._said:
                self._said.add(key(note))
                print_status(str(note))


def _uncounted(note: Note) -> str:
    """Know a remark again whose numbers change all the time."""
    return f"{note.owner}: {_COUNT.sub('#', note.message)}"


def _told(changed: ServerChanges, plan: ServerPlan) -> str:
    held = [one for one in (*changed.replaced, *changed.added) if one not in plan.configs]
    parts = {
        "removed": changed.removed,
        "replaced": [one for one in changed.replaced if one not in held],
        "added": [one for one in changed.added if one not in held],
        "held back": held,
    }
    return "; ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names)
