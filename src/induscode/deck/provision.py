"""Provisioning: a profile selects catalog rows, each row builds a card, and the deck becomes a toolbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, Self

from indusagi.capabilities.context import Framework, ReadState, ToolContext
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.registry import RegistryRunner
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.core.faults import Note
from indusagi.core.json import JsonValue
from indusagi.core.records import record
from indusagi.runtime.contract import CallsByName, ToolDescriptor, ToolResult, project_content
from induscode.deck.cards.checkpoint import maybe_wrap_checkpoint, maybe_wrap_commands
from induscode.deck.catalog import cards_for_profile
from induscode.deck.contract import (
    SECOND_NAMES,
    Capability,
    CapabilityCard,
    CardTraits,
    DeckContext,
    Profile,
    build_card,
)

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from indusagi.runtime.contract import ProgressSink, ToolCall, ToolOutcome
    from induscode.deck.mcp.drift import DisabledTool


def provision_deck(profile: Profile | str, ctx: DeckContext) -> ToolDeck:
    """Build the deck of a profile.

    Raises:
        DeckFault: The profile is unknown.
        BackendFault: A handle of the context is unusable.
        BuildFailed: A card couldn't be built.
    """
    cards = build_selected(cards_for_deck_profile(profile), ctx)
    return ToolDeck(cards, base_context(ctx))


def cards_for_deck_profile(profile: Profile | str) -> Sequence[CapabilityCard]:
    """List the rows `provision_deck` builds; raises `DeckFault` if the profile is unknown."""
    return cards_for_profile(profile)


def build_selected(cards: Iterable[CapabilityCard], ctx: DeckContext) -> Sequence[Capability]:
    """Build the cards of rows. With a checkpoint store, cards that change files or run commands use it.

    Raises `BackendFault` if a handle of the context is unusable, and `BuildFailed` if a card couldn't be built.
    """
    ctx.framework.check()
    ctx = replace(ctx, in_deck=True)
    return tuple(maybe_wrap_commands(maybe_wrap_checkpoint(build_card(card, ctx), ctx), ctx) for card in cards)


def base_context(ctx: DeckContext) -> ToolContext:
    """Build the context the cards of a deck run in."""
    handles = ctx.framework
    shell = LocalShell(ctx.cwd, sandbox=Sandbox(mode=ctx.sandbox), has_reaper=True)
    framework = Framework(
        read_state=handles.read_state or ReadState(),
        web=handles.web,
        search=tuple(handles.search),
        observer=handles.observer,
    )
    return make_local_context(ctx.cwd, None, shell, framework)


class ToolDeck:
    """An ordered set of cards. Every change returns a new deck that shares the context."""

    def __init__(
        self, cards: Iterable[Capability], context: ToolContext, notes: Iterable[Note] = (), hidden: Iterable[str] = ()
    ) -> None:
        self._cards = tuple(cards)
        self.notes = tuple(notes)
        """Skipped cards, with reasons."""
        self.context = context
        self.hidden = frozenset(hidden)
        """Names of cards missing from the model's list; it finds them by searching."""

    def __repr__(self) -> str:
        return f"ToolDeck({', '.join(card.name for card in self._cards)})"

    def tools(self) -> list[Capability]:
        """Return the cards as a new list."""
        return list(self._cards)

    def shown(self) -> list[Capability]:
        """Return the cards without aliases, as users and models can list or search them."""
        second = find_second_names({card.name for card in self._cards})
        return [card for card in self._cards if card.name not in second]

    def hide(self, names: Iterable[str]) -> ToolDeck:
        """Remove cards from the model's list; it can still find them by searching."""
        return ToolDeck(self._cards, self.context, self.notes, names)

    def graft(self, extra: Iterable[Capability]) -> ToolDeck:
        """Append cards, skipping ones with a taken name with a note."""
        names = {card.name for card in self._cards}
        added: list[Capability] = []
        notes = list(self.notes)
        for card in extra:
            if card.name in names:
                message = "left out: the deck has a card of this name already"
                notes.append(Note(f"tool {card.name!r}", message, "give it another name"))
                continue
            names.add(card.name)
            added.append(card)
        return ToolDeck((*self._cards, *added), self.context, notes, self.hidden)

    def map_capabilities(self, change: Callable[[Capability], Capability]) -> ToolDeck:
        """Replace every card with `change(card)`."""
        return ToolDeck((change(card) for card in self._cards), self.context, self.notes, self.hidden)

    def retain(self, keep: Callable[[Capability], bool]) -> ToolDeck:
        """Keep the cards for which `keep` returns True."""
        kept = [card for card in self._cards if keep(card)]
        names = {card.name for card in kept}
        return ToolDeck(kept, self.context, self.notes, self.hidden & names)

    def into_tool_box(self) -> DeckToolBox:
        """Return the deck as a toolbox, always the same one."""
        return self._box

    @cached_property
    def _box(self) -> DeckToolBox:
        return DeckToolBox(DeckRunner({card.name: card for card in self._cards}, self.context))


def find_second_names(names: Collection[str]) -> Collection[str]:
    """Find the names that are aliases of other names in the collection."""
    return {second for second, first in SECOND_NAMES.items() if second in names and first in names}


class DeckRunner(RegistryRunner):
    """Runs the card a call names, in the deck's context."""

    def __init__(self, cards: Mapping[str, Capability], context: ToolContext) -> None:
        self.traits = {name: CardTraits(card) for name, card in cards.items()}
        super().__init__(cards, context, frozenset(name for name, traits in self.traits.items() if traits.foreign))
        self.cards = cards
        self.second_names = find_second_names(cards)
        """Aliases: callable, but neither listed nor searchable."""


@record
class DeckToolBox(CallsByName):
    """A snapshot of a deck's cards."""

    runner: DeckRunner
    hidden: frozenset[str] = frozenset()
    """Names of callable but unlisted cards."""
    find: Callable[[Sequence[str]], Awaitable[Sequence[str]]] | None = None
    """Finds cards by queries, if some are hidden."""
    disabled: Collection[str] = ()
    """Names of tools that can't be called until approved, if some cards are hidden."""

    @property
    def context(self) -> ToolContext:
        """The context of all cards. Close it when the session ends."""
        return self.runner.context

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the cards that aren't hidden, in deck order."""
        unlisted = {*self.hidden, *self.runner.second_names}
        return tuple(traits.descriptor for name, traits in self.runner.traits.items() if name not in unlisted)


def project_result(result: ToolResult) -> JsonValue:
    """Fold a result into one value: a single text or JSON block as is, anything else as a list."""
    return project_content(result.content)


# -- toolboxes in front of toolboxes ----------------------------------------------------------
#
# A layer forwards everything that it doesn't change.


class ToolSource(Protocol):
    """Tools that a finder can search."""

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List every callable tool, by the caller's names."""
        ...

    def find_ref(self, name: str) -> RemoteToolRef | None:
        """Find a tool's server and its own name there; `None` for a native tool."""
        ...

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        """Return the tools that a rule denies to this task's caller."""
        ...

    def list_disabled(self) -> Sequence[DisabledTool]:
        """List the tools that can't be called until their definitions are approved."""
        ...


class ServedBox(ToolSource, Protocol):
    """A toolbox that runs its calls itself and knows the servers of its tools."""

    @property
    def runner(self) -> ServedBox:
        """This object."""
        ...

    @property
    def context(self) -> ToolContext:
        """The context of native cards."""
        ...

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call."""
        ...

    def answers_unlisted(self, name: str) -> bool:
        """Return whether calls of an unlisted tool get an answer, such as the reason it's disabled."""
        ...

    def find_server(self, name: str) -> str | None:
        """Return the server of a tool, even of a disabled one; `None` for native and unknown tools."""
        ...

    def forwards_input(self, name: str) -> bool:
        """Return whether a tool belongs to a server, which may request input itself."""
        ...


class ToolBoxLayer:
    """A toolbox in front of another one, `box`. Subclasses override what they change."""

    def __init__(self, box: ServedBox) -> None:
        self.box = box

    @property
    def runner(self) -> Self:
        """This object: it runs its own calls."""
        return self

    @property
    def context(self) -> ToolContext:
        """The context of native cards."""
        return self.box.context

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the tools."""
        return self.box.descriptors()

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call."""
        return await self.box.run(call, cancel, on_progress=on_progress)

    def answers_unlisted(self, name: str) -> bool:
        """Return whether calls of an unlisted tool get an answer."""
        return self.box.answers_unlisted(name)

    def find_server(self, name: str) -> str | None:
        """Return the server of a tool."""
        return self.box.find_server(name)

    def forwards_input(self, name: str) -> bool:
        """Return whether a tool belongs to a server."""
        return self.box.forwards_input(name)

    def find_ref(self, name: str) -> RemoteToolRef | None:
        """Return the server of a tool and the tool's name there."""
        return self.box.find_ref(name)

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        """Return the tools that a rule denies."""
        return self.box.find_denied(names)

    def list_disabled(self) -> Sequence[DisabledTool]:
        """List the disabled tools."""
        return self.box.list_disabled()
