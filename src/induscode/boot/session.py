"""One run: everything it opens, in one place, closed in reverse whatever happens."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.ports import WebSettings
from indusagi.core.records import record
from induscode.boot.runners import attach_servers, canon_tool_name, load_mcp_capabilities, select_tools
from induscode.deck.catalog import cards_for_profile, find_missing_backend
from induscode.deck.contract import BackendFault, DeckContext, DeckFramework, Profile
from induscode.deck.mcp.boot import BootOptions
from induscode.deck.provision import ToolDeck, base_context, provision_deck
from induscode.launch.settings import (
    SEARCH_SEARXNG_URL,
    WEB_ALLOW_PRIVATE,
    WEB_MAX_BYTES,
    WEB_PORTS,
    WEB_TIMEOUT_S,
    Settings,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from indusagi.core.notes import Note
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.boot import BootedBridge, ServerPlan
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.provision import DeckToolBox
    from induscode.launch.invocation import Invocation


@record
class Session:
    """What a run has: its deck, its servers, and where its books are kept."""

    invocation: Invocation
    native: ToolDeck
    """The cards of this machine, as far as they were asked for."""
    mcp: BootedBridge
    store: LedgerStore
    wrap: Callable[[Capability], Capability] | None = None
    """Put around every card, if there is something between a call and its card."""
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Native cards that can do nothing in this run, and what each of them would need."""

    @property
    def notes(self) -> Sequence[Note]:
        """Everything that was left out, and why."""
        return tuple(dict.fromkeys((*self.mcp.notes, *self.store.notes, *self.deck().notes)))

    def deck(self) -> ToolDeck:
        """Give the deck as it is now: what servers have listed since is in it."""
        deck = self.native.graft(self.mcp.capabilities)
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
    options: BootOptions | None = None,
    plan_mode: bool = False,
) -> AsyncGenerator[Session]:
    """Open all that a run needs, and close it at the end.

    With a `plan` of its own the run has these servers and no others; those that are known wait
    until one of their tools is called, or somebody wakes them. Without a profile there are no
    native cards. Notes are kept in the project unless the framework brings a store of its own. A
    card that can do nothing here is left out; `plan_mode` says that the caller acts upon the marks
    of the plan cards.

    Raises:
        BackendFault: A native tool that was asked for can do nothing here.
        UnknownCapability: A native tool that was asked for is none.
        ConfigPathError: A path after `--mcp` leads nowhere.
    """
    from induscode.deck.mcp.store import open_store  # noqa: PLC0415 — for those who open one

    async with AsyncExitStack() as stack:
        handles = _with_notes(framework or DeckFramework(), invocation.cwd)
        if handles.web is None:
            handles = replace(handles, web=web_settings(invocation.settings))
        context = DeckContext(invocation.cwd, handles, invocation.sandbox)
        # In a thread: it looks for a package on the disk.
        left_out = await to_thread.run_sync(_left_out, profile, handles, plan_mode)
        native = None
        if invocation.tools:  # a name that is none is told before anything is started
            native = _native(invocation, profile, context, left_out)
            stack.push_async_callback(native.context.aclose)
        store = await open_store()
        stack.push_async_callback(store.aclose)
        if plan is None:
            mcp = await load_mcp_capabilities(invocation, store, options, wait=wait)
        else:
            lazy = replace(options or BootOptions(), lazy=tuple(plan.configs))
            mcp = await attach_servers(plan, store, lazy, wait=wait)
        stack.push_async_callback(mcp.aclose)
        if native is None:
            # In a thread: servers that are not waited for start while cards are loaded.
            native = await to_thread.run_sync(_native, invocation, profile, context, left_out)
            stack.push_async_callback(native.context.aclose)
        yield Session(invocation, native, mcp, store, wrap, left_out)


def web_settings(settings: Settings) -> WebSettings:
    """Give the settings of the web tools."""
    return WebSettings(
        allow_private=settings.get(WEB_ALLOW_PRIVATE),
        ports=settings.get(WEB_PORTS),
        hard_bytes=settings.get(WEB_MAX_BYTES),
        default_bytes=min(WebSettings().default_bytes, settings.get(WEB_MAX_BYTES)),
        total_s=settings.get(WEB_TIMEOUT_S),
        searxng_url=settings.get(SEARCH_SEARXNG_URL),
    )


def _with_notes(framework: DeckFramework, cwd: str) -> DeckFramework:
    """Give the memory card the notes of the project, the same ones in every command."""
    if framework.memory is not None:
        return framework
    from induscode.deck.stores.memory_file import MEMORY_NAME, FileMemory  # noqa: PLC0415 — as above

    return replace(framework, memory=FileMemory(os.path.join(cwd, MEMORY_NAME)))


def _left_out(profile: Profile | None, framework: DeckFramework, plan_mode: bool) -> Mapping[str, str]:
    cards = () if profile is None else cards_for_profile(profile)
    found = {str(card.id): find_missing_backend(card.id, framework, plan_mode=plan_mode) for card in cards}
    return {name: why for name, why in found.items() if why is not None}


def _native(
    invocation: Invocation, profile: Profile | None, context: DeckContext, left_out: Mapping[str, str]
) -> ToolDeck:
    if profile is None or invocation.no_tools:
        return ToolDeck((), base_context(context))
    wanted = {canon_tool_name(name) for name in invocation.tools or ()}
    for name, why in left_out.items():
        if canon_tool_name(name) in wanted:
            raise BackendFault(f"the tool {name!r} can do nothing here: {why}")
    deck = provision_deck(profile, context).retain(lambda card: card.name not in left_out)
    return select_tools(deck, invocation.tools)
