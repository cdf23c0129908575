"""The gateway behind the web page: the data it shows and the actions it offers."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import anyio
from anyio import to_thread

from indusagi.core.ids import new_ulid
from indusagi.core.records import record
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.protocol_bridge.contract import ITEM_KINDS, EndpointPhase, ItemKind, RemoteToolRef, needs_sign_in
from indusagi.runtime.contract import ToolCall, ToolOutcome
from induscode.calls.record import find_tool_ref
from induscode.core.consent import Consent, build_consent
from induscode.deck.contract import BridgeFault, Capability, describe
from induscode.deck.mcp.content import ServerContent
from induscode.deck.mcp.drift import DisabledTool
from induscode.deck.mcp.store import SilentStoreError
from induscode.deck.mcp.store.pins import read_disabled_tools
from induscode.gateway.sign_in import PagePrompt
from induscode.permissions.check import CheckedCard, Permissions
from induscode.permissions.confirm import ApprovalScope, Approver, InstantApprover, PermissionAnswer, PermissionRequest
from induscode.permissions.rules import RuleStore, load_startup_rules
from induscode.search.background import BackgroundIndex
from induscode.search.items import SearchItem, SearchKind, build_content_item, build_tool_item
from induscode.search.options import estimate_definition
from induscode.servers.config.trust import TrustStore
from induscode.servers.labels import LABELS, find_labels
from induscode.servers.plan import (
    STATE_REMEDIES,
    RowState,
    ServerPlan,
    find_switched_off,
    find_unset,
    list_secret_warnings,
    name_state,
    name_trust_command,
    name_way,
)
from induscode.servers.remedies import advise, format_server_command
from induscode.servers.sign_in import sign_in_to_server

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import EndpointStatus
    from induscode.deck.mcp.capability import BridgeCapability
    from induscode.deck.provision import ToolDeck
    from induscode.gateway.gateway import Gateway
    from induscode.gateway.page.drafts import Draft
    from induscode.gateway.page.redirects import BrowserSignIns
    from induscode.permissions import Wrap
    from induscode.servers.config.rows import ServerRow

_SIGN_IN_START_S: Final = 30.0
"""How long an issuer may take to provide the sign-in address."""
_MAX_FOUND: Final = 50
_ROWS_S: Final = 10.0
"""How long the gateway may take to read its files again."""
_POLL_S: Final = 0.1
_CONTENT_KINDS: Final[frozenset[Literal["prompt", "resource", "template"]]] = frozenset(
    ("prompt", "resource", "template")
)


ServerAction: TypeAlias = Literal["start", "stop", "restart", "sign-in", "trust"]


@record(kw_only=True)
class ServerSummary:
    """A configured server."""

    name: str
    transport: str
    state: str
    """In a word: `ready`, `starting`, `failed`, `sign in`, `not trusted`, `off`."""
    scope: str
    file: str
    tools: int
    tokens: int
    """Estimated tokens of its tool definitions."""
    answer_s: float | None
    restarts: int
    labels: str | None = None
    """What its tools read and send, with the number of tools."""
    message: str = ""
    """Its problem, if any."""
    remedy: str = ""
    variable: str = ""
    """The variable that it lacks, if that's its problem."""
    actions: tuple[ServerAction, ...] = ()
    disabled: int = 0
    is_on: bool = True
    """Whether its row is switched on."""


@record
class ActionReply:
    """Result of an action, for the user."""

    message: str
    url: str = ""
    """An address for the user to open: an issuer's sign-in page, checked."""


@record
class CallReply:
    """Answer to a call from the page: an outcome, or a question for the user."""

    outcome: ToolOutcome | None = None
    question: PermissionRequest | None = None
    key: str = ""
    """Identifies the question: a repeated call with this key runs if it raises the same question."""


class _PageApprover(InstantApprover):
    """Approves a call the user confirmed on the page; keeps any other question for the user."""

    def __init__(self, name: str, arguments: JsonObject, answer: str) -> None:
        self._name, self._arguments, self._answer = name, arguments, answer
        self.question: PermissionRequest | None = None
        self.key = ""

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        """Approve once if the user agreed to exactly this request; otherwise keep the question."""
        facts: list[JsonValue] = [self._arguments, request.title, [*request.lines], [*request.reasons]]
        self.key = build_consent(f"call of {self._name}", facts, request.lines).digest
        if self.key == self._answer:
            return PermissionAnswer(ApprovalScope.ONCE)
        self.question = request
        return PermissionAnswer(None, "it waits for an answer on the page")


class _PressedButton(InstantApprover):
    """Approves anything once, unless a rule asks about it."""

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        """Approve once, unless a rule asks."""
        if request.asked_by_rule:
            return PermissionAnswer(None, "a rule asks about it, which the page cannot do here")
        return PermissionAnswer(ApprovalScope.ONCE)


class SignInStart:
    """A sign-in started on the page: the address for the user to open, or the problem."""

    def __init__(self) -> None:
        self.url = ""
        self.problem = ""
        self.known = anyio.Event()
        """Set once either is known or the sign-in is complete."""

    async def show(self, url: str, message: str) -> None:
        """Set the address."""
        self.url = url
        self.known.set()


class GatewayPage:
    """The running gateway behind the page."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self.session, self.node = gateway, gateway.session, gateway.node
        self.approvals = gateway.approvals
        self.user_sign_ins = gateway.user_sign_ins
        self.browser_sign_ins: BrowserSignIns | None = None
        """Set by the site, with access tokens."""
        self.drafts: dict[str, Draft] = {}
        """Servers that were shown and aren't added yet, by their digests."""
        self._sign_ins: dict[str, BackgroundTask] = {}
        self._searching = Lock()
        self._index = BackgroundIndex()

    async def aclose(self) -> None:
        """Cancel pending sign-ins."""
        for task in self._sign_ins.values():
            task.cancel()
            await task.join()
        await self._index.aclose()

    @property
    def plan(self) -> ServerPlan:
        """The servers as currently configured."""
        return self._gateway.plan

    async def wait_for_rows(self, names: Collection[str], gone: Collection[str] = ()) -> None:
        """Wait until the gateway has read that servers were added or are gone, for a while."""

        def is_read() -> bool:
            present = {row.id for row in self.plan.rows}
            return {*names} <= present and not present & {*gone}

        await self._wait_until(is_read)

    async def wait_for_change(self, before: ServerPlan) -> None:
        """Wait until the gateway has read a change after the plan `before`, for a while."""
        await self._wait_until(lambda: self.plan is not before)

    async def _wait_until(self, is_read: Callable[[], bool]) -> None:
        with anyio.move_on_after(_ROWS_S):
            while not is_read():  # noqa: ASYNC110 — read from files, by another task
                await anyio.sleep(_POLL_S)

    async def list_waiting(self) -> Sequence[str]:
        """List the calls that wait for a person."""
        try:
            return [one.id for one in await to_thread.run_sync(self.approvals.store.list_waiting)]
        except (OSError, sqlite3.Error):
            return ()  # their view says why

    def find_tools(self, query: str, server: str) -> Sequence[Capability]:
        """Find tools by purpose, best match first. Blocks."""
        cards = {card.name: card for card in self.deck().shown()}
        found = self._search(query, ["tool"], cards, server or None)
        return [cards[item.qualified_name] for item in found]

    def find_items(self, query: str, kinds: Sequence[ItemKind]) -> Sequence[BridgeCapability]:
        """Find resources, templates or prompts by topic, best match first. Blocks."""
        found = self._search(query, [*_CONTENT_KINDS & {*kinds}], {card.name: card for card in self.deck().shown()})
        live_items = self.session.mcp.ledger.live_items
        cards = {(card.ref.server, card.ref.name): card for kind in kinds for card in live_items(kind)}
        return [cards[item.server, item.name] for item in found if (item.server, item.name) in cards]

    def _search(
        self, query: str, kinds: Collection[SearchKind], tools: Mapping[str, Capability], server: str | None = None
    ) -> Sequence[SearchItem]:
        """Update the index of tools and content, and search it."""
        content = [
            build_content_item(kind, card.ref.server, f"{card.ref.server}/{card.ref.name}", card.raw)
            for kind in sorted(_CONTENT_KINDS)
            for card in self.session.mcp.ledger.live_items(kind)
        ]
        with self._searching:
            index = self._index.open()
            refs = {card.name: find_tool_ref(card) for card in tools.values()}
            named = {name: () if ref is None else (ref.server, ref.name) for name, ref in refs.items()}
            index.update([*(build_tool_item(describe(card), *named[card.name]) for card in tools.values()), *content])
            return [hit.item for hit in index.search([query], server=server, kinds=kinds, limit=_MAX_FOUND).hits]

    def deck(self) -> ToolDeck:
        """Build the deck clients see, without permission checks."""
        return self._gateway.build_unchecked_deck()

    # -- servers ----------------------------------------------------------------------------

    async def list_servers(self) -> Sequence[ServerSummary]:
        """Describe the configured servers."""
        cards: dict[str, list[BridgeCapability]] = {}
        for card in self.session.mcp.capabilities:
            cards.setdefault(card.ref.server, []).append(card)
        off = await to_thread.run_sync(find_switched_off, self.session.invocation)
        present = {row.id for row in self.plan.rows}
        return [
            *[await self._describe(row, cards.get(row.id, ())) for row in self.plan.rows],
            *[
                ServerSummary(
                    name=one.name, transport="", state="off", scope=one.scope, file=one.file, tools=0, tokens=0,
                    answer_s=None, restarts=0, is_on=False,
                )
                for one in off
                if one.name not in present
            ],
        ]  # fmt: skip

    def _describe_labels(self, row: ServerRow, cards: Sequence[BridgeCapability]) -> str | None:
        config, given = self.plan.configs.get(row.id), self.plan.find_labels(row.id)
        found = [find_labels(card.ref.name, card.raw, config, given) for card in cards]
        texts = [
            f"{label} ({'yours' if any(one.is_confirmed for one in having) else 'proposed'}, {len(having)})"
            for label in LABELS
            if (having := [one for one in found if label in one.labels])
        ]
        return ", ".join(texts) or None

    async def _describe(self, row: ServerRow, cards: Sequence[BridgeCapability]) -> ServerSummary:
        mcp = self.session.mcp
        state, status = self.plan.state_of(row), mcp.status_of(row.id)
        facts = ServerSummary(
            name=row.id,
            transport=name_way(row),
            state=_name_state(state, status),
            scope=row.origin.scope,
            file=row.origin.file,
            tools=len(cards),
            tokens=sum(estimate_definition(card.descriptor) for card in cards),
            answer_s=None if status is None else status.answer_s,
            restarts=0 if status is None else status.restarts,
            disabled=sum(tool.ref.server == row.id for tool in mcp.disabled),
            labels=self._describe_labels(row, cards),
        )
        if state != "startable" or status is None:
            message, _, remedy = STATE_REMEDIES.get(state, "").format(row.id).partition(": ")
            remedy = name_trust_command(row) if state in {"untrusted", "changed"} else remedy
            warnings = (f"WARNING: {warning}" for warning in list_secret_warnings(row))
            actions: tuple[ServerAction, ...] = ("trust",) if state in {"untrusted", "changed"} else ()
            lacking = find_unset(row, os.environ) if state == "unresolved" else ""
            message = f"{lacking} has no value" if lacking else message
            return replace(
                facts, message=". ".join([message, *warnings]), remedy=remedy, actions=actions, variable=lacking
            )
        running = status.phase is EndpointPhase.READY
        actions = ("stop", "restart") if running else ("start",)
        if needs_sign_in(status.fault):
            actions = ("sign-in",)
        if status.fault is None:
            return replace(facts, actions=actions)
        message = " ".join(str(status.fault).removeprefix(f"server {row.id!r}: ").split())
        if status.next_try_s is not None:
            message += f" (next try in {status.next_try_s:.0f} s)"
        # In a thread, as it looks for lock files of package managers.
        looking = partial(advise, row.id, self.plan.configs[row.id], status.fault, os.environ, connected=running)
        advice = await to_thread.run_sync(looking)
        return replace(facts, message=message, remedy=advice.remedy, actions=actions, variable=advice.variable)

    def ask_consent(self, server: str) -> Consent:
        """Describe a server's row in full, without secret values. Blocks."""
        return TrustStore().question(self.find_row(server))

    def find_row(self, server: str) -> ServerRow:
        """Find a server's row."""
        row = next((row for row in self.plan.rows if row.id == server), None)
        if row is None:
            raise BridgeFault(f"there is no server {server!r}")
        return row

    async def act(self, server: str, action: ServerAction, digest: str = "") -> ActionReply:
        """Start, stop, restart, trust or sign in to a server; `CoreError` if that fails."""
        row = self.find_row(server)
        fleet, state = self.session.mcp.fleet, self.plan.state_of(row)
        if action == "trust":
            if state not in {"untrusted", "changed"}:
                raise BridgeFault(f"server {server!r} needs no consent")
            # The gateway watches the trust store and starts the server.
            await to_thread.run_sync(TrustStore().approve, row, digest)
            return ActionReply(f"{server}: trusted as it is. It starts in a moment.")
        if state != "startable":
            raise BridgeFault(f"server {server!r} cannot be started: {STATE_REMEDIES[state].format(server)}")
        if action == "stop":
            await fleet.stop(server)
            return ActionReply(f"{server}: stopped. Calls of its tools fail until you start it.")
        if action == "sign-in":
            return await self._sign_in(server)
        status = self.session.mcp.status_of(server)
        is_over = status is not None and status.phase in {EndpointPhase.CLOSED, EndpointPhase.FAULTED}
        await (fleet.restart(server) if action == "restart" or is_over else self.session.mcp.wake([server]))
        status = self.session.mcp.require_status(server)
        return ActionReply(f"{server}: {status.phase}" + ("" if status.fault is None else f": {status.fault}"))

    async def _sign_in(self, server: str) -> ActionReply:
        if not self._gateway.sign_ins.is_personal:
            # The redirect arrives on this machine's loopback address, and the sign-in belongs to its user.
            raise BridgeFault(f"sign in on the machine of the gateway: {format_server_command('login', server)}")
        if server in self._sign_ins:
            self._sign_ins[server].cancel()
            await self._sign_ins[server].join()
        started, task = SignInStart(), BackgroundTask(f"sign-in to {server!r}")
        self._sign_ins[server] = task
        task.start(self._finish_sign_in(server, started))
        with anyio.move_on_after(_SIGN_IN_START_S):
            await started.known.wait()
        if started.problem:
            raise BridgeFault(f"not signed in to {server!r}: {started.problem}")
        if started.url:
            return ActionReply(f"Sign in to {server!r} at this address. The server starts afterwards.", started.url)
        return ActionReply(
            f"{server}: signed in" if started.known.is_set() else f"{server}: its issuer does not answer yet"
        )

    async def _finish_sign_in(self, server: str, started: SignInStart) -> None:
        try:
            await sign_in_to_server(self.plan.configs[server], PagePrompt(server, started.show))
            await self.session.mcp.wake([server])
        except AuthFault as exc:
            started.problem = str(exc)
        finally:
            started.known.set()

    async def list_blocked(self) -> Sequence[DisabledTool]:
        """List the disabled items: those of this gateway, then those that only other processes have seen."""
        own = self.session.mcp.disabled
        known, found = {tool.ref for tool in own}, dict[str, Sequence[DisabledTool]]()
        with suppress(SilentStoreError):  # the store has a note about it
            found = await read_disabled_tools(self.session.store, self.plan.configs.values(), *ITEM_KINDS)
        return [*own, *(tool for tools in found.values() for tool in tools if tool.ref not in known)]

    # -- items ------------------------------------------------------------------------------

    def approve(self, ref: RemoteToolRef, digest: str) -> bool:
        """Approve the current definition of a disabled item and notify clients."""
        return self._gateway.approve(ref, digest)

    async def call(self, name: str, arguments: JsonObject, answer: str) -> CallReply:
        """Call a tool on behalf of the page's user."""
        approver = _PageApprover(name, arguments, answer)
        deck = self.deck().map_capabilities(await self._build_wrap(approver))
        outcome = await deck.into_tool_box().runner.run(ToolCall(f"page_{new_ulid()}", name, arguments))
        if approver.question is not None:
            return CallReply(question=approver.question, key=approver.key)
        return CallReply(outcome)

    async def _build_wrap(self, approver: Approver) -> Wrap:
        """Build the wrapper of each card: the user's rules, answered on the page, inside addon interceptors."""
        store = RuleStore()
        rules, _ = await to_thread.run_sync(load_startup_rules, store, self.session.invocation.cwd)
        permissions, addons = Permissions(rules, approver=approver, store=store), self.session.addons

        def wrap(card: Capability) -> Capability:
            checked = CheckedCard(card, permissions)
            return addons.wrap(checked) if addons.intercepts else checked

        return wrap

    async def _open_content(self) -> ServerContent:
        # Pressing the button is the approval, but rules can still deny it.
        wrap = await self._build_wrap(_PressedButton())
        return ServerContent(self.session.mcp, wrap, self.session.native.context)

    async def read_resource(self, server: str, uri: str) -> JsonObject:
        """Read a resource."""
        return await (await self._open_content()).read_resource(server, uri)

    async def get_prompt(self, server: str, name: str, arguments: JsonObject) -> JsonObject:
        """Get the messages of a prompt."""
        return await (await self._open_content()).get_prompt(server, name, arguments)


def _name_state(state: RowState, status: EndpointStatus | None) -> str:
    if state != "startable" or status is None:
        return name_state(state)
    return name_state(str(status.phase), None if status.fault is None else status.fault.detail.reason or "fault")
