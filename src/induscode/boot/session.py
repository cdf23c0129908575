"""The session of a run: opens the deck, servers and ledger, and closes them in reverse order."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from anyio import to_thread

from indusagi.capabilities.ports import WebSettings
from indusagi.core.faults import Note
from indusagi.runtime.contract import CallsByName, ToolDescriptor
from induscode.addons.chain import LoadedAddon
from induscode.addons.loader import AddonSet, load_addons
from induscode.boot.plans import canon_tool_name, select_tools
from induscode.boot.runners import attach_servers, load_mcp_capabilities
from induscode.calls.record import CallOrigin
from induscode.calls.recorder import CallObservers, open_observers
from induscode.code_mode.contract import RUN_CODE
from induscode.connectors.live import SAAS_CARD, LiveConnectors, web_settings
from induscode.deck.cards.memory import MEMORY_NAME, FileMemory
from induscode.deck.catalog import capability_ids, cards_for_profile, find_missing_backend
from induscode.deck.contract import BackendFault, Capability, DeckContext, DeckFramework, Profile
from induscode.deck.mcp.boot import BootedBridge, BootOptions
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.mcp.store import LedgerStore, open_store
from induscode.deck.provision import DeckRunner, DeckToolBox, ToolDeck, base_context, provision_deck
from induscode.launch.invocation import Invocation
from induscode.launch.settings import ADDONS_REQUIRED, CODE_ENABLED
from induscode.servers.plan import ServerPlan


class FitsDecks(Protocol):
    """Drops or hides cards that don't fit a small context window."""

    revision: int
    """Changes when decks have to be fitted again."""

    def fit(self, deck: ToolDeck, /) -> ToolDeck:
        """Return the deck with the cards that fit, and notes about the others."""
        ...


@dataclass(slots=True)
class KeptServers:
    """The servers and ledger of a session, for later ones in the same directory. `stack` closes them."""

    stack: AsyncExitStack
    store: LedgerStore | None = None
    mcp: BootedBridge | None = None

    async def open_store(self) -> LedgerStore:
        """Open the ledger, unless it's open."""
        if self.store is None:
            self.store = await open_store()
            self.stack.push_async_callback(self.store.aclose)
        return self.store

    async def attach(
        self, invocation: Invocation, plan: ServerPlan | None, options: BootOptions | None, *, wait: bool
    ) -> BootedBridge:
        """Attach the servers of an invocation or a plan, unless there are some."""
        if self.mcp is None:
            store = await self.open_store()
            if plan is None:
                self.mcp = await load_mcp_capabilities(invocation, store, options, wait=wait)
            else:
                lazy = replace(options or BootOptions(), lazy=tuple(plan.configs))
                self.mcp = await attach_servers(plan, store, lazy, wait=wait)
            self.stack.push_async_callback(self.mcp.aclose)
        return self.mcp


@dataclass(slots=True)
class Session:
    """The deck, the servers and the ledger of a run."""

    invocation: Invocation
    native: ToolDeck
    """The native cards."""
    mcp: BootedBridge
    store: LedgerStore
    wrap: Callable[[Capability], Capability] | None = None
    """Wraps every card with permission checks."""
    limit: FitsDecks | None = None
    lacking: Mapping[str, str] = field(default_factory=dict[str, str])
    """The missing backend of each unusable native card."""
    addons: AddonSet = field(default_factory=AddonSet)
    connectors: LiveConnectors | None = None
    """The user's connectors; `None` if the host brings its own gateway or the profile lacks the card."""
    calls: CallObservers = field(default_factory=CallObservers)
    """Records and traces calls."""
    code: Capability | None = None
    """The `run_code` card, with `--code`."""
    _deck: ToolDeck | None = field(default=None, init=False)
    _ledger: BridgeLedger | None = field(default=None, init=False)
    _revision: tuple[bool, int] = field(default=(False, 0), init=False)
    """What the deck was built from, with the ledger."""

    @property
    def notes(self) -> Sequence[Note]:
        """Notes about everything left out, without duplicates."""
        notes = (*self.mcp.notes, *self.store.notes, *self.addons.notes, *self.deck().notes, *self.calls.notes)
        return tuple(dict.fromkeys(notes))

    @property
    def left_out(self) -> Mapping[str, str]:
        """The missing backend of each native card that's currently hidden."""
        if self.connectors is None or not self.connectors.are_present:
            return self.lacking
        return {name: why for name, why in self.lacking.items() if name != SAAS_CARD}

    def native_deck(self) -> ToolDeck:
        """Build the native part of the deck, with `saas-action` only while there are connectors."""
        if self.connectors is None or self.connectors.are_present:
            return self.native
        return self.native.retain(lambda card: card.name != SAAS_CARD)

    async def refresh_connectors(self) -> Sequence[str]:
        """Pick up connectors that another process added, approved or removed, and describe the changes."""
        return [] if self.connectors is None else await to_thread.run_sync(self.connectors.refresh)

    def deck(self) -> ToolDeck:
        """Return the current deck, the same one until something it's built from changes."""
        has_connectors = self.connectors is not None and self.connectors.are_present
        revision = (has_connectors, 0 if self.limit is None else self.limit.revision)
        # Compare ledgers by identity: every change makes a new one.
        ledger = self.mcp.enrolment.ledger
        if self._deck is None or self._ledger is not ledger or self._revision != revision:
            self._deck, self._ledger, self._revision = self._build_deck(), ledger, revision
        return self._deck

    def _build_deck(self) -> ToolDeck:
        """Build the deck: native cards, server tools, addon cards.

        Permission checks wrap each card, and addon interceptors wrap those, so a check sees the final arguments.
        """
        deck = graft_addon_cards(self.native_deck().graft(self.mcp.capabilities), self.addons)
        if self.limit is not None:
            deck = self.limit.fit(deck)
        if self.code is not None:
            deck = deck.graft([self.code])
        if self.wrap is not None:
            deck = deck.map_capabilities(self.wrap)
        return deck.map_capabilities(self.addons.wrap) if self.addons.intercepts else deck

    def box(self) -> DeckToolBox:
        """Build the toolbox of the current deck."""
        return self.deck().into_tool_box()


def graft_addon_cards(deck: ToolDeck, addons: AddonSet) -> ToolDeck:
    """Append the addons' cards, skipping (with a note) names that the deck or the catalog already uses."""
    if not addons.has_cards:
        return deck
    # Native names are reserved in every run: permissions identify native tools by name.
    cards, notes = addons.select_cards((*capability_ids(), RUN_CODE, *(card.name for card in deck.tools())))
    return ToolDeck((*deck.tools(), *cards), deck.context, (*deck.notes, *notes))


@asynccontextmanager
async def open_session(
    invocation: Invocation,
    *,
    framework: DeckFramework | None = None,
    profile: Profile | None = Profile.ALL,
    wrap: Callable[[Capability], Capability] | None = None,
    limit: FitsDecks | None = None,
    plan: ServerPlan | None = None,
    wait: bool = True,
    options: BootOptions | None = None,
    plan_mode: bool = False,
    origin: CallOrigin | None = None,
    on_note: Callable[[Note], None] | None = None,
    share_store: Callable[[LedgerStore], AbstractAsyncContextManager[None]] | None = None,
    kept: KeptServers | None = None,
    also: Sequence[LoadedAddon] = (),
) -> AsyncGenerator[Session]:
    """Open the session of a run inside the block.

    A `plan` fixes the servers; known ones start on the first call of one of their tools, or when woken. Without a
    `profile` there are no native cards. The memory card uses the project's file and `saas-action` the user's
    connectors, unless `framework` provides a store or a gateway. Cards without a backend are dropped; `plan_mode` says
    that the caller implements the plan cards. `origin` labels the recorded calls. `on_note` receives notes about addons
    and records that fail later. Cluster nodes share their ledger with `share_store`. Servers stay open in `kept`, and
    a session with some there uses them. Addons in `also` come last.

    Raises:
        BackendFault: A tool in `--tools`, or code mode, lacks its backend.
        UnknownCapability: A tool in `--tools` is unknown.
        ConfigPathError: A path in `--mcp` doesn't exist.
    """
    async with AsyncExitStack() as stack:
        handles = framework or DeckFramework()
        if handles.memory is None:  # the project's file, the same one in every command
            handles = replace(handles, memory=FileMemory(os.path.join(invocation.cwd, MEMORY_NAME)))
        if handles.web is None:
            handles = replace(handles, web=web_settings(invocation.settings))
        connectors = None
        if handles.saas is None and profile is Profile.ALL:
            connectors = await to_thread.run_sync(LiveConnectors, handles.web or WebSettings())
            stack.push_async_callback(connectors.aclose)
            handles = replace(handles, saas=connectors)
        calls = await open_observers(stack, invocation.settings, origin or CallOrigin(), on_note)
        handles = replace(handles, observer=calls.combine(handles.observer))
        context = DeckContext(invocation.cwd, handles, invocation.sandbox)
        # In a thread, because it looks for a package on disk.
        own = replace(handles, saas=None if connectors is not None else handles.saas)
        left_out = await to_thread.run_sync(_find_left_out, profile, own, plan_mode)
        native = None
        if invocation.tools:  # report an unknown name before starting anything
            native = _build_native_deck(invocation, profile, context, left_out, connectors)
            stack.push_async_callback(native.context.aclose)
        kept = kept or KeptServers(stack)
        store = await kept.open_store()
        if share_store is not None:  # closes before the file, but after everything that writes to it
            await stack.enter_async_context(share_store(store))
        mcp = await kept.attach(invocation, plan, options, wait=wait)
        calls.attach_servers(mcp)
        if native is None:
            # In a thread, so that servers can start while we load the cards.
            native = await to_thread.run_sync(_build_native_deck, invocation, profile, context, left_out, connectors)
            stack.push_async_callback(native.context.aclose)
        addons = AddonSet()
        if not invocation.no_tools:
            addons = await load_addons(
                invocation.cwd,
                native.context.context_id,
                required=invocation.settings.get(ADDONS_REQUIRED),
                enabled=not invocation.no_addons,
                on_note=on_note or (lambda _: None),
                also=also,
            )
        stack.push_async_callback(addons.aclose)
        code = None
        if invocation.settings.get(CODE_ENABLED) and not invocation.no_tools:
            from induscode.code_mode.opening import open_code_card  # noqa: PLC0415 — for a run with code mode

            code = await open_code_card(stack, invocation.settings)
        yield Session(invocation, native, mcp, store, wrap, limit, left_out, addons, connectors, calls, code)


async def build_session_tools_with_addons(
    invocation: Invocation, *, wrap: Callable[[Capability], Capability] | None = None
) -> SessionToolBox | None:
    """Build the toolbox of a run: native cards, server tools, and addon cards and interceptors.

    Close it in the task that built it. Returns `None` with `--no-tools`.

    Raises:
        BackendFault: A tool in `--tools` lacks its backend.
        UnknownCapability: A tool in `--tools` is unknown.
        ConfigPathError: A path in `--mcp` doesn't exist.
    """
    if invocation.no_tools:
        return None
    stack = AsyncExitStack()
    return SessionToolBox(await stack.enter_async_context(open_session(invocation, wrap=wrap)), stack)


class SessionToolBox(CallsByName):
    """The toolbox of an open session; always reflects its current deck. Closing it closes servers and ledger."""

    def __init__(self, session: Session, stack: AsyncExitStack) -> None:
        self.session = session
        self._stack = stack

    async def __aenter__(self) -> SessionToolBox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def runner(self) -> DeckRunner:
        """The runner of the current deck."""
        return self.session.box().runner

    @property
    def is_gated(self) -> bool:
        """Whether permissions check every call."""
        return self.session.wrap is not None

    @property
    def notes(self) -> Sequence[Note]:
        """Notes about everything left out."""
        return self.session.notes

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the cards in deck order."""
        return self.session.box().descriptors()

    async def aclose(self) -> None:
        """Close the servers, the ledger and the addons. Safe to call twice."""
        await self._stack.aclose()


def _find_left_out(profile: Profile | None, framework: DeckFramework, plan_mode: bool) -> Mapping[str, str]:
    cards = () if profile is None else cards_for_profile(profile)
    found = {str(card.id): find_missing_backend(card.id, framework, plan_mode=plan_mode) for card in cards}
    return {name: why for name, why in found.items() if why is not None}


def _build_native_deck(
    invocation: Invocation,
    profile: Profile | None,
    context: DeckContext,
    left_out: Mapping[str, str],
    connectors: LiveConnectors | None,
) -> ToolDeck:
    if profile is None or invocation.no_tools:
        return ToolDeck((), base_context(context))
    if connectors is not None:  # keep its card; it's only shown while there are connectors
        left_out = {name: why for name, why in left_out.items() if name != SAAS_CARD or not connectors.are_present}
    wanted = {canon_tool_name(name) for name in invocation.tools or ()}
    for name, why in left_out.items():
        if canon_tool_name(name) in wanted:
            raise BackendFault(f"the tool {name!r} can do nothing here: {why}")
    deck = provision_deck(profile, context).retain(
        lambda card: card.name not in left_out or (card.name == SAAS_CARD and connectors is not None)
    )
    return select_tools(deck, invocation.tools)
