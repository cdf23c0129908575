"""The gateway: native cards and server tools in one toolbox that changes while it's served."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from indusagi.capabilities.budget import UNLIMITED
from indusagi.core.records import record
from indusagi.core.text import clean_text, format_count
from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.contract import RemoteToolRef, ServerConfig, needs_sign_in
from indusagi.interop.protocol_bridge.host.identity import CALL_SCOPE, current_identity
from indusagi.interop.protocol_bridge.uris import convert_meta
from indusagi.runtime.calls import CallEntry, current_entry
from indusagi.runtime.contract import TextContentBlock, ToolOutcome
from induscode.boot.plans import BrokenConfigError, ConfigFiles, ConsentedRows, reread_plan
from induscode.boot.session import Session, graft_addon_cards
from induscode.calls.record import find_tool_ref
from induscode.cli.terminal import print_status
from induscode.code_mode.contract import RUN_CODE
from induscode.deck.mcp.content import build_content_card
from induscode.deck.mcp.enrolment import DisabledTool, refuse_disabled
from induscode.deck.provision import DeckToolBox, ToolDeck
from induscode.gateway.content import GatewayContent, choose_plain_names, convert_outcome
from induscode.gateway.recursion import GatewayInfo, ListenAddress, drop_own_address
from induscode.gateway.status_lines import describe_phases
from induscode.search.options import SEARCH_CARDS

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.fleet import FleetEvent
    from indusagi.interop.protocol_bridge.host import ProviderHost
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
    from indusagi.runtime.contract import ProgressSink, ToolCall, ToolDescriptor, ToolResult
    from induscode.cli.process import SignalState
    from induscode.cluster.node import ClusterNode
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.boot import BootOptions
    from induscode.deck.mcp.capability import BridgeCapability
    from induscode.deck.mcp.ledger import BridgeLedger
    from induscode.deck.mcp.store import LedgerStore
    from induscode.gateway.approvals.queue import ApprovalQueue
    from induscode.gateway.options import Schemas, ServeOptions
    from induscode.gateway.sign_in import GatewaySignIns, UserSignIns
    from induscode.gateway.status_lines import StatusLines
    from induscode.gateway.token_book import Grant, TokenBook
    from induscode.launch.invocation import Invocation
    from induscode.permissions import CardChecks
    from induscode.permissions.call_facts import CallFacts
    from induscode.search.cards import SearchReport
    from induscode.servers.config.trust import TrustStore
    from induscode.servers.plan import ServerPlan

FIRST_S = 5.0
"""How long the first client waits for servers whose tools aren't known yet."""
_FIRST_LIST_S = 1.0
"""How long servers with known tools wait for the first `tools/list` before they start."""
_APPROVAL_POLL_S = 2.0
"""Poll interval for approvals and sign-ins from other processes, while a tool or a server waits for one."""
_DEBOUNCE_S = 0.05
"""Debounce window for announcing changes. After a long announcement, it's ten times its CPU time."""


@record(kw_only=True)
class NodeHooks:
    """Hooks of a gateway that is a cluster node; they do nothing by default."""

    share_store: Callable[[LedgerStore], AbstractAsyncContextManager[None]] | None = None
    """Shares the ledger."""
    trust: TrustStore | None = None
    """Consents of this user and of the other nodes."""
    limit_checks: Callable[[CardChecks], CardChecks] = lambda checks: checks
    """Adds the cluster's rules to the permission checks."""
    table: Any = None
    on_follow: Callable[[Any, TaskGroup], None] = lambda gateway, tasks: None
    """Called with the gateway when it starts to follow its servers."""
    grant: Grant | None = None  # takes calls of a budget that all nodes share


@record(kw_only=True)
class GatewayContext:
    """What a gateway is built from, and reads its configuration again with."""

    invocation: Invocation
    options: ServeOptions
    plan: ServerPlan
    """The servers to start with."""
    info: GatewayInfo
    boot: BootOptions
    address: ListenAddress | None
    consented: ConsentedRows
    watch: ConfigFiles | None
    """`None` without configuration files (`--no-mcp`)."""
    files: Sequence[str]
    node: ClusterNode | None = None
    """This gateway as a cluster node."""
    hooks: NodeHooks = field(default_factory=NodeHooks)
    """State shared with the other nodes."""


@record
class GatewayBox:
    """Toolbox of a gateway. Server results pass through in full; native cards respect their budget."""

    native: DeckToolBox
    remote: DeckToolBox
    gateway: Gateway
    servers: Mapping[str, str]
    """Maps qualified tool names to servers."""
    schemas: Schemas = "raw"
    qualified: Mapping[str, str] = field(default_factory=dict[str, str])
    """Without prefixes: maps each unprefixed tool name (disabled tools included) to the qualified one."""

    @property
    def runner(self) -> GatewayBox:
        """This object: it runs its own calls."""
        return self

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List native cards first, then server tools."""
        self.gateway.listed.set()
        plain = {qualified: own for own, qualified in self.qualified.items()}
        remote = [
            self._describe(descriptor, plain.get(descriptor.name, descriptor.name))
            for descriptor in self.remote.descriptors()
        ]
        sign_ins = self.gateway.sign_ins.list_tools() if self.gateway.waits_for_sign_in() else ()
        return (*self.native.descriptors(), *remote, *sign_ins)

    def _describe(self, descriptor: ToolDescriptor, name: str) -> ToolDescriptor:
        """Return a server tool's descriptor as clients see it, with the gateway's name and URIs."""
        if self.schemas == "model" or descriptor.definition is None:
            return replace(descriptor, name=name, definition=None)
        definition = descriptor.definition
        if "_meta" in definition:
            meta = convert_meta(definition["_meta"], self.gateway.content.map_uris(self.servers[descriptor.name]))
            return replace(descriptor, name=name, definition={**definition, "_meta": meta})
        return descriptor if name == descriptor.name else replace(descriptor, name=name)

    def forwards_input(self, name: str) -> bool:
        """Return whether a tool belongs to a server, which may request input itself."""
        return self.qualified.get(name, name) in self.remote.runner.cards

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call within its client's budget. Unknown and disabled tools yield an error outcome."""
        book, run = self.gateway.book, partial(self.run_call, call, cancel, on_progress)
        return await (book.run(call, run) if book is not None and current_identity.get().principal else run())

    async def run_call(
        self, call: ToolCall, cancel: CancelToken | None, on_progress: ProgressSink | None
    ) -> ToolOutcome:
        """Run one call that its client's budget allows."""
        call = replace(call, name=self.qualified[call.name]) if call.name in self.qualified else call
        if call.name in self.remote.runner.cards:
            outcome = await self.remote.runner.run(call, cancel, on_progress=on_progress)
            server = self.servers[call.name]
            is_refused = outcome.result.details.get("reason") == "sign_in"
            if is_refused and await self.gateway.sign_ins.sign_in(server) is None:
                # The server rejected the request, so nothing ran yet.
                outcome = await self.remote.runner.run(call, cancel, on_progress=on_progress)
            result = outcome.result
            if "_meta" in result.details or not all(isinstance(block, TextContentBlock) for block in result.content):
                outcome = convert_outcome(outcome, self.gateway.content.map_uris(server))
            return outcome
        if self.gateway.waits_for_sign_in():
            server = self.gateway.sign_ins.find_server(call.name)
            if server is not None:
                return ToolOutcome(call.id, await self.gateway.sign_ins.run_tool(server))
        if self.answers_unlisted(call.name):
            refusal = await self.gateway.refuse(call.name)
            if refusal is not None:
                outcome = ToolOutcome(call.id, refusal)
                observer = self.native.context.framework.observer
                if observer is not None:
                    disabled = self.gateway.session.mcp.enrolment.find_disabled(call.name)
                    observer.start(call, disabled).finish(outcome)
                return outcome
            # Approved or listed in the meantime: the current box has it.
            return await self.gateway.box().run_call(call, cancel, on_progress)
        if call.name == RUN_CODE and current_entry.get() is None:  # a view would have set it
            current_entry.set(CallEntry(self, call.id, find_denied=self.find_denied))
        return await self.native.runner.run(call, cancel, on_progress=on_progress)

    @property
    def context(self) -> ToolContext:
        """Context of the native cards."""
        return self.native.context

    def find_ref(self, name: str) -> RemoteToolRef | None:
        """Return the server of a tool and the tool's name there, or `None` for a native card."""
        return find_tool_ref(self._find_card(name))

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        """Return the tools that a rule or a missing scope denies this task's caller for any arguments."""
        identity, checks = current_identity.get(), self.gateway.checks
        cards = {name: self._find_card(name) for name in names}
        denied = {name for name, card in cards.items() if card is not None and checks.is_denied(card)}
        if identity.scopes is not None:
            denied |= {name for name in names if identity.find_missing_scope(CALL_SCOPE, self.find_server(name))}
        return denied

    def list_disabled(self) -> Sequence[DisabledTool]:
        """List tools that can't be called until someone approves their definitions."""
        return [tool for tool in self.gateway.session.mcp.disabled if tool.ref.kind == "tool"]

    def _find_card(self, name: str) -> Capability | None:
        name = self.qualified.get(name, name)
        return self.remote.runner.cards.get(name) or self.native.runner.cards.get(name)

    def find_server(self, name: str) -> str | None:
        """Return the server of a (possibly disabled) tool, or `None` for native cards and unknown tools."""
        server = self.servers.get(self.qualified.get(name, name))
        is_unlisted = server is None and self.answers_unlisted(name)
        return self.gateway.find_unlisted(self.qualified.get(name, name)) if is_unlisted else server

    def answers_unlisted(self, name: str) -> bool:
        """Return whether calls wait or fail with a reason: the tool is disabled, or its server is still starting."""
        listed = self.forwards_input(name) or name in self.native.runner.cards
        return not listed and self.gateway.find_unlisted(self.qualified.get(name, name)) is not None


class GatewayOpening:
    """The gateway, once it's open. Everything that's served earlier asks this object for it."""

    def __init__(self) -> None:
        self.opened = anyio.Event()
        self._gateway: Gateway | None = None
        self._early: list[ClientIdentity] = []

    def open(self, gateway: Gateway) -> None:
        """Serve a gateway, and record the clients that connected before."""
        self._gateway = gateway
        for identity in self._early:
            self.record_client(identity)
        self._early.clear()
        self.opened.set()

    def box(self) -> GatewayBox | None:
        """Return the current toolbox."""
        return None if self._gateway is None else self._gateway.box()

    def record_client(self, identity: ClientIdentity) -> None:
        """Record the first request from a principal and client in the ledger."""
        if self._gateway is None:
            self._early.append(identity)
            return
        journal = self._gateway.session.mcp.journal
        journal.record_client(identity.principal, identity.client_id, sorted(identity.scopes or ()))

    def record_search(self, report: SearchReport) -> None:
        """Record a search in the ledger."""
        if self._gateway is not None:
            journal = self._gateway.session.mcp.journal
            journal.record_search(report.queries, report.server, report.found, report.left_out)

    def intercepts_results(self) -> bool:
        """Return whether addons have to see every result."""
        return self._gateway is not None and self._gateway.session.addons.intercepts

    def count_dropped(self) -> int:
        """Return the number of calls that couldn't be recorded."""
        recorder = None if self._gateway is None else self._gateway.session.calls.recorder
        return 0 if recorder is None else recorder.dropped


class Gateway:
    """A served deck and the servers behind it."""

    def __init__(
        self,
        session: Session,
        context: GatewayContext,
        checks: CardChecks,
        content: GatewayContent,
        lines: StatusLines,
        approvals: ApprovalQueue,
        book: TokenBook | None = None,
    ) -> None:
        self.session = session
        self.plan = context.plan
        self.content = content
        self.listed = anyio.Event()
        """Set by the first `tools/list`."""
        self._context, self.node = context, context.node
        self._started_ms, self.checks = now_ms(), checks
        self._bridge, self._fleet, self._enrolment = session.mcp, session.mcp.fleet, session.mcp.enrolment
        self._ourselves: dict[str, ServerConfig] = {}
        """Servers that turned out to be this gateway itself."""
        self._changed = anyio.Event()
        self._changing = anyio.Lock()
        self._lines = lines
        self.approvals, self.book = approvals, book
        self.user_sign_ins: UserSignIns | None = None
        self._box: GatewayBox | None = None
        self._boxed: BridgeLedger | None = None

    @cached_property
    def sign_ins(self) -> GatewaySignIns:
        """Sign-ins to servers. Clients may start one only if the gateway serves a single user on this machine."""
        from induscode.gateway.sign_in import GatewaySignIns  # noqa: PLC0415 — only for servers with a sign-in

        address, users = self._context.address, self.user_sign_ins  # with access tokens, several share the gateway
        is_personal = users is None and (address is None or address.host in {"127.0.0.1", "::1", "localhost"})
        return GatewaySignIns(self._bridge, self._started_ms, users, is_personal=is_personal)

    def waits_for_sign_in(self) -> bool:
        """Return whether any server needs a sign-in."""
        return any(map(needs_sign_in, self._fleet.list_faults().values()))

    # -- toolbox ----------------------------------------------------------------------------

    def box(self) -> GatewayBox:
        """Return the current toolbox, rebuilding it if the ledger changed."""
        ledger = self._enrolment.ledger
        if self._box is not None and self._boxed is ledger:
            return self._box
        # Configuration order, regardless of which server came up first.
        rank = {row.id: index for index, row in enumerate(self.plan.rows)}
        live = self._list_live()
        live.sort(key=lambda tool: rank.get(tool.ref.server, len(rank)))
        native, addons = self.session.native_deck().map_capabilities(self.checks.native), self.session.addons
        deck = native.graft(live)
        grafted = deck.tools()[len(native.tools()) :]
        if addons.has_cards:
            added = graft_addon_cards(deck, addons)
            cards = map(self.checks.native, added.tools()[len(deck.tools()) :])
            native, deck = native.graft(cards), added
        if self.session.code is not None:
            native = native.graft([self.checks.native(self.session.code)])
        self._lines.print_notes(deck.notes)
        # Strip invisible characters from text and from structured content, which has to match its schema.
        unlimited = replace(deck.context, budget=UNLIMITED, clean_foreign=clean_text)
        remote = ToolDeck(map(self.checks.remote, grafted), unlimited)
        if addons.intercepts:
            native, remote = native.map_capabilities(addons.wrap), remote.map_capabilities(addons.wrap)
        servers = {tool.name: tool.ref.server for tool in reversed(live)}
        qualified: dict[str, str] = {}
        if self.content.plain_names:
            taken = {*SEARCH_CARDS, *(card.name for card in native.tools())}
            # A disabled tool keeps its name so that calls to it can't reach another server's tool.
            named = [*live, *(tool for tool in self._enrolment.disabled if tool.ref.kind == "tool")]
            named.sort(key=lambda tool: rank.get(tool.ref.server, len(rank)))
            qualified = choose_plain_names([(tool.ref.name, tool.name) for tool in named], taken)
        self._box = GatewayBox(
            native.into_tool_box(), remote.into_tool_box(), self, servers, self._context.options.schemas, qualified
        )
        self._boxed = ledger
        return self._box

    def is_ourselves(self, server: str) -> bool:
        """Return whether a server turned out to be this gateway."""
        return server in self._ourselves

    def wrap_content(self, card: Capability) -> Capability:
        """Apply the checks on a server's tools, and addon interceptors, to its other requests."""
        card = self.checks.remote(card)
        return self.session.addons.wrap(card) if self.session.addons.intercepts else card

    def denies_item(self, ref: RemoteToolRef) -> bool:
        """Return whether the current caller may never use a resource or prompt."""
        if current_identity.get().find_missing_scope(CALL_SCOPE, ref.server) is not None:
            return True
        card = build_content_card(ref)
        arguments: JsonObject | None = {"uri": ref.name} if ref.kind == "resource" else None
        return self.checks.checks_remote and self.checks.is_denied(self.checks.remote(card), arguments)

    def build_unchecked_deck(self) -> ToolDeck:
        """Build the deck of native cards, server tools and addon cards, without checks or interceptors."""
        return graft_addon_cards(self.session.native_deck().graft(self._list_live()), self.session.addons)

    def _list_live(self) -> list[BridgeCapability]:
        return [tool for tool in self._enrolment.ledger.live_capabilities() if tool.ref.server not in self._ourselves]

    def approve(self, ref: RemoteToolRef, digest: str) -> bool:
        """Approve the definition with this digest and notify clients. Return False if it changed since."""
        if is_approved := self._enrolment.approve(ref, digest):
            self._changed.set()
        return is_approved

    async def look_at(self, facts: CallFacts) -> object:
        """Return a call's present server, definition and decisions, to notice a change."""
        from induscode.permissions.check import preview_card  # noqa: PLC0415 — for a call that needs approval

        box, ref = self.box(), facts.remote
        remote = box.remote.runner.cards.get(facts.tool)
        if ref is not None and ref.kind != "tool" and facts.card is not None:
            remote = self.checks.remote(facts.card)  # a resource or prompt
        card = remote or box.native.runner.cards.get(facts.tool)
        if card is None:
            return None
        live = None if ref is None else self._enrolment.ledger.find(ref)
        context = (box.native if remote is None else box.remote).context
        endpoint = None if ref is None else self._fleet.endpoint(ref.server)
        return endpoint and endpoint.config, live and live[1].pin, await preview_card(card, facts.arguments, context)

    def change_checks(self, checks: CardChecks) -> None:
        """Replace the permission checks."""
        self.checks = checks
        self._discard_box()

    def _discard_box(self) -> None:
        self._box = None
        self._changed.set()

    def find_unlisted(self, name: str) -> str | None:
        """Return the server of an unlisted tool: one that's disabled, or whose server hasn't listed its tools yet."""
        disabled = self._enrolment.find_disabled(name)
        return self._bridge.find_starting(name) if disabled is None else disabled.ref.server

    async def refuse(self, name: str) -> ToolResult | None:
        """Wait for a starting server, reread approvals, and return an error if the tool still can't be called."""
        await self._bridge.wait_starting(name)
        disabled = self._enrolment.find_disabled(name)
        endpoint = None if disabled is None else self._fleet.endpoint(disabled.ref.server)
        if endpoint is not None and endpoint.known_tools is None:
            # The definition remembered from an earlier run may match again.
            await self._bridge.wake([endpoint.config.id])
        await self.read_approvals()
        disabled = self._enrolment.find_disabled(name)
        return None if disabled is None else refuse_disabled(disabled)

    async def read_approvals(self) -> None:
        """Apply approvals made by other processes."""
        before = self._enrolment.ledger
        await self._bridge.reread_approvals()
        if self._enrolment.ledger is not before:
            self._changed.set()

    def summarize(self) -> str:
        """Summarize the served tools and servers in one line. Native tools only count if there are clients."""
        box = self.box()
        native, remote = len(box.native.runner.cards), len(box.remote.runner.cards)
        states = describe_phases(self._bridge.status().values())
        remotes = f"{format_count(remote, 'tool')} from {format_count(len(self.plan.configs), 'server')}{states}"
        return f"{remotes}, {format_count(native, 'native tool')}" if self._context.options.has_clients else remotes

    # -- servers ----------------------------------------------------------------------------

    async def wait_for_first(self) -> None:
        """Wait briefly for servers whose tools aren't known yet, and until the required ones have come up or failed."""
        awaited = self._bridge.awaited_servers()
        with anyio.move_on_after(FIRST_S):
            await self._bridge.wake(awaited)
            for server in awaited:
                await self._bridge.wait_listed(server)
        self._bridge.record_late(awaited)
        await self._bridge.wait_for_required()
        self.content.refresh()

    async def follow(self, host: ProviderHost, signals: SignalState) -> None:
        """Announce tool changes to clients, and apply configuration changes to servers."""
        async with anyio.create_task_group() as tasks:
            unsubscribe = self._fleet.subscribe(lambda event: self._handle_event(event, tasks))
            self.content.follow(tasks)
            tasks.start_soon(self._list_content)
            try:
                for endpoint in self._fleet.endpoints():
                    self._close_if_ourselves(endpoint.config.id, tasks)
                tasks.start_soon(self._announce_changes, host)
                tasks.start_soon(self._start_known)
                tasks.start_soon(self._poll_approvals)
                tasks.start_soon(self.approvals.run)
                self._context.hooks.on_follow(self, tasks)
                watch = self._context.watch
                while watch is not None:
                    await watch.wait_for_change(signals)
                    plan = await self._read_plan()
                    if plan is not None:
                        await self._apply_plan(plan, tasks)
                await anyio.sleep_forever()
            finally:
                unsubscribe()
                self.content.follow(None)

    async def _start_known(self) -> None:
        """Start servers with known tools after the first `tools/list`, which doesn't need them."""
        if self.node is not None and self.node.broker.settings.idle_s:
            return  # the cluster stops idle servers, so they start on their first call
        with anyio.move_on_after(_FIRST_LIST_S):
            await self.listed.wait()
        await self._bridge.wake(self._bridge.eager_servers())
        self._lines.print_counts(self.summarize())

    async def _list_content(self) -> None:
        """List the other content of servers whose tools are known, if no earlier run listed it."""
        with anyio.move_on_after(FIRST_S):
            await self._bridge.list_content()
        self.content.refresh()
        self.content.listed.set()
        self._changed.set()

    async def _poll_approvals(self) -> None:
        """Poll for tool approvals, connector changes and sign-ins made by other processes."""
        while True:
            await anyio.sleep(_APPROVAL_POLL_S)
            if self._enrolment.disabled:
                await self.read_approvals()
            changes = await self.session.refresh_connectors()
            for change in changes:
                print_status(change)
            if changes:
                self._discard_box()
            if self.waits_for_sign_in():
                await self.sign_ins.wake_signed_in()

    def _handle_event(self, event: FleetEvent, tasks: TaskGroup) -> None:
        if event.event == "phase":
            self._lines.print_fault(event.server, event.status)
            if needs_sign_in(event.status.fault):
                self._discard_box()  # adds a sign-in tool
            self._close_if_ourselves(event.server, tasks)
        elif event.event in {"tools", "items"}:
            self._lines.listed[event.server] = None
            self._changed.set()
        self.content.handle_event(event)

    def _close_if_ourselves(self, server: str, tasks: TaskGroup) -> None:
        endpoint, config = self._fleet.endpoint(server), self.plan.configs.get(server)
        if endpoint is None or config is None or server in self._ourselves:
            return
        if self._context.info.is_reported_by(endpoint.facts):
            self._ourselves[server] = config
            self._discard_box()
            print_status(f"server {server!r} is this gateway itself, and was closed")
            tasks.start_soon(self._fleet.stop, server)

    async def _announce_changes(self, host: ProviderHost) -> None:
        began_s = time.thread_time()
        while True:
            pause_s = max(_DEBOUNCE_S, 10 * (time.thread_time() - began_s))
            await self._changed.wait()
            await anyio.sleep(pause_s)
            self._changed, began_s = anyio.Event(), time.thread_time()
            host.refresh_tools()
            host.refresh_content()
            self._lines.print_notes(self._enrolment.notes)
            self._lines.print_remarks(self._bridge)

    # -- reload -----------------------------------------------------------------------------

    async def _read_plan(self) -> ServerPlan | None:
        """Read the files, or return `None` (keeping the servers) if one of them is broken."""
        context = self._context
        try:
            plan = await to_thread.run_sync(
                reread_plan, context.invocation, context.files, self.plan, context.hooks.trust
            )
        except BrokenConfigError as exc:
            for line in str(exc).splitlines():
                print_status(line)
            return None
        plan = await to_thread.run_sync(context.consented.hold_back, plan)
        return drop_own_address(plan, context.address)

    async def _apply_plan(self, plan: ServerPlan, tasks: TaskGroup) -> None:
        self._ourselves = {one: config for one, config in self._ourselves.items() if plan.configs.get(one) == config}
        if self._ourselves:
            plan = plan.narrow([row.id for row in plan.rows if row.id not in self._ourselves])
        order = [row.id for row in self.plan.rows]
        self.plan = plan
        async with self._changing:
            changes = await self._bridge.change(plan)
        if changes.leased:
            names = ", ".join(changes.leased)
            print_status(f"the change of {names} waits for the end of the tasks that use it")

            async def apply_when_free() -> None:
                await self._fleet.leases.wait_until_free(changes.leased)
                await self._apply_plan(self.plan, tasks)

            tasks.start_soon(apply_when_free)
        self._lines.print_notes(plan.notes)
        if changes or order != [row.id for row in plan.rows]:
            self._discard_box()
        if changes:
            texts = (f"{what} {names}" for what, names in changes.group(plan, "replaced").items())
            print_status(f"the configuration has changed: {'; '.join(texts)}")
        tasks.start_soon(self._bridge.wake, changes.to_start)

    # -- status lines -----------------------------------------------------------------------

    def print_all_notes(self) -> None:
        """Print everything left out, and why servers are missing."""
        self._lines.print_notes((*self.checks.notes, *self.session.notes, *self._enrolment.notes))
        self._lines.print_servers(self._bridge)
