"""One run: everything it opens, in one place, closed in reverse whatever happens."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import create_task_group, to_thread

from induscode.boot.runners import (
    McpCapabilities,
    attach_servers,
    load_mcp_capabilities,
    select_tools,
)
from induscode.deck.contract import DeckContext, DeckFramework, Profile
from induscode.deck.provision import ToolDeck, base_context, provision_deck

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from indusagi.core.notes import Note
    from indusagi.interop.protocol_bridge.handlers import Handlers
    from induscode.boot.runners import Lasting, ServerPlan
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.toolbox import DeckToolBox
    from induscode.launch.invocation import Invocation


@dataclass(frozen=True, slots=True)
class Session:
    """What a run has: its deck, its servers, and where its books are kept."""

    invocation: Invocation
    native: ToolDeck
    """The cards of this machine, as far as they were asked for."""
    mcp: McpCapabilities
    store: LedgerStore
    wrap: Callable[[Capability], Capability] | None = None
    """Put around every card, if there is something between a call and its card."""

    @property
    def notes(self) -> Sequence[Note]:
        """Everything that was left out, and why."""
        return (*self.mcp.notes, *self.deck().notes)

    def deck(self) -> ToolDeck:
        """Give the deck as it is now: what servers have listed since is in it."""
        ledger = self.mcp.ledger
        remote = self.mcp.capabilities if ledger is None else ledger.live_capabilities()
        deck = self.native.graft(remote)
        return deck if self.wrap is None else deck.map_capabilities(self.wrap)

    def box(self) -> DeckToolBox:
        """Give the deck as a box."""
        return self.deck().into_tool_box()


@asynccontextmanager
async def open_session(
    invocation: Invocation,
    *,
    framework: DeckFramework | None = None,
    profile: Profile | None = Profile.ALL,
    wrap: Callable[[Capability], Capability] | None = None,
    plan: ServerPlan | None = None,
    wait: bool = True,
    lasting: Lasting | None = None,
    handlers: Handlers | None = None,
) -> AsyncGenerator[Session]:
    """Open all that a run needs, and close it at the end.

    With a `plan` of its own the run has these servers and no others; those that are known wait
    until one of their tools is called, or somebody wakes them. Without a profile there are no
    native cards.

    Raises:
        UnknownCapability: A native tool that was asked for is none.
        NoSuchConfig: A path after `--mcp` leads nowhere.
    """
    from induscode.deck.mcp.store import open_store  # noqa: PLC0415 — for those who open one

    async with AsyncExitStack() as stack:
        context = DeckContext(invocation.cwd, framework or DeckFramework(), invocation.sandbox)
        # A name that is none is told before anything is started.
        chosen = _native(invocation, profile, context) if invocation.tools else None
        store = await open_store()
        stack.push_async_callback(store.aclose)
        decks: list[ToolDeck] = [] if chosen is None else [chosen]

        async def load() -> None:
            decks.append(await to_thread.run_sync(_native, invocation, profile, context))

        mcp = McpCapabilities()
        async with create_task_group() as tasks:
            # Servers start while cards are loaded: both take a while, and neither needs the other.
            if not decks:
                tasks.start_soon(load)
            mcp = await _servers(invocation, store, plan, handlers, wait, lasting)
            stack.push_async_callback(mcp.aclose)
        (native,) = decks
        stack.push_async_callback(native.context.aclose)
        yield Session(invocation, native, mcp, store, wrap)


async def _servers(
    invocation: Invocation,
    store: LedgerStore,
    plan: ServerPlan | None,
    handlers: Handlers | None,
    wait: bool,
    lasting: Lasting | None,
) -> McpCapabilities:
    if plan is None:
        return await load_mcp_capabilities(invocation, store, handlers=handlers, wait=wait)
    return await attach_servers(
        plan, store, lazy=tuple(plan.configs), handlers=handlers, wait=wait, lasting=lasting
    )


def _native(invocation: Invocation, profile: Profile | None, context: DeckContext) -> ToolDeck:
    if profile is None or invocation.no_tools:
        return ToolDeck((), base_context(context))
    return select_tools(provision_deck(profile, context), invocation.tools)
