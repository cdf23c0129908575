"""Puts a deck together: a profile selects rows of the catalog, and each row builds its card."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from indusagi.capabilities.context import Framework, ToolContext
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.read_state import ReadState
from indusagi.capabilities.registry import RegistryRunner
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.core.json import JsonValue
from indusagi.core.notes import Note
from indusagi.core.records import record
from indusagi.runtime.content import project_content
from indusagi.runtime.contract import ToolDescriptor, ToolResult
from induscode.deck.cards.checkpoint import maybe_wrap_checkpoint
from induscode.deck.catalog import cards_for_profile
from induscode.deck.contract import Capability, CapabilityCard, DeckContext, Profile, build_card, describe, is_foreign


def provision_deck(profile: Profile | str, ctx: DeckContext) -> ToolDeck:
    """Build the deck of a profile, given as a member or by its value.

    Raises:
        DeckFault: There is no such profile.
        BackendFault: A handle of the context cannot be used.
        BuildFailed: A card could not be built.
    """
    cards = build_selected(cards_for_deck_profile(profile), ctx)
    return ToolDeck(cards, base_context(ctx))


def cards_for_deck_profile(profile: Profile | str) -> Sequence[CapabilityCard]:
    """List the rows that `provision_deck` builds.

    Raises:
        DeckFault: There is no such profile.
    """
    return cards_for_profile(profile)


def build_selected(cards: Iterable[CapabilityCard], ctx: DeckContext) -> Sequence[Capability]:
    """Build the cards of rows; those that change files keep checkpoints if there is a store.

    Raises:
        BackendFault: A handle of the context cannot be used.
        BuildFailed: A card could not be built.
    """
    ctx.framework.check()
    return tuple(maybe_wrap_checkpoint(build_card(card, ctx), ctx) for card in cards)


def base_context(ctx: DeckContext) -> ToolContext:
    """Make the context that the cards of a deck run in, all their life."""
    read_state = ctx.framework.read_state or ReadState()
    shell = LocalShell(ctx.cwd, sandbox=Sandbox(mode=ctx.sandbox))
    handles = ctx.framework
    framework = Framework(read_state=read_state, web=handles.web, search=tuple(handles.search))
    return make_local_context(ctx.cwd, None, shell, framework)


class ToolDeck:
    """Cards in order. Whatever changes a deck gives a new one; the context is shared."""

    def __init__(self, cards: Iterable[Capability], context: ToolContext, notes: Iterable[Note] = ()) -> None:
        self._cards = tuple(cards)
        self._notes = tuple(notes)
        self.context = context

    def __repr__(self) -> str:
        return f"ToolDeck({', '.join(card.name for card in self._cards)})"

    @property
    def notes(self) -> Sequence[Note]:
        """What was left out, and why."""
        return self._notes

    def tools(self) -> list[Capability]:
        """Give the cards, as a list of the caller's own."""
        return list(self._cards)

    def graft(self, extra: Iterable[Capability]) -> ToolDeck:
        """Add cards at the end; one whose name is taken is left out, and a note says so."""
        names = {card.name for card in self._cards}
        added: list[Capability] = []
        notes = list(self._notes)
        for card in extra:
            if card.name in names:
                message = "left out: the deck has a card of this name already"
                notes.append(Note(f"tool {card.name!r}", message, "give it another name"))
                continue
            names.add(card.name)
            added.append(card)
        return ToolDeck((*self._cards, *added), self.context, notes)

    def map_capabilities(self, change: Callable[[Capability], Capability]) -> ToolDeck:
        """Put `change(card)` in the place of every card."""
        return ToolDeck((change(card) for card in self._cards), self.context, self._notes)

    def retain(self, keep: Callable[[Capability], bool]) -> ToolDeck:
        """Keep only the cards that `keep` says yes to."""
        kept = (card for card in self._cards if keep(card))
        return ToolDeck(kept, self.context, self._notes)

    def into_tool_box(self) -> DeckToolBox:
        """Give the deck as a box."""
        return DeckToolBox(DeckRunner({card.name: card for card in self._cards}, self.context))


class DeckRunner(RegistryRunner):
    """Runs the card that a call names, in the deck's one context."""

    def __init__(self, cards: Mapping[str, Capability], context: ToolContext) -> None:
        super().__init__(cards, context, frozenset(name for name, card in cards.items() if is_foreign(card)))
        self.cards = cards


@record
class DeckToolBox:
    """The cards of a deck, as they were when the box was made."""

    runner: DeckRunner

    @property
    def context(self) -> ToolContext:
        """What every card runs in; close it when the session ends."""
        return self.runner.context

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the cards in the order of the deck."""
        return tuple(describe(card) for card in self.runner.cards.values())


def project_result(result: ToolResult) -> JsonValue:
    """Fold a result into one value: a lone text or JSON block itself, everything else a list."""
    return project_content(result.content)
