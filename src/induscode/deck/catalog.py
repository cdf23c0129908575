"""The catalog: built-ins, then app cards, in one tuple."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import cast

from indusagi.capabilities.ports import WebSettings
from induscode.deck.builtin import builtin_cards
from induscode.deck.cards import app_novel_cards
from induscode.deck.contract import CapabilityCard, CapabilityId, DeckFramework, Profile, parse_member

SEARXNG_VARIABLE = "INDUS_SEARXNG_URL"
_PLAN_CARDS = frozenset({"enter_plan_mode", "exit_plan_mode"})


@cache
def capability_cards() -> tuple[CapabilityCard, ...]:
    """Return the catalog, always the same tuple."""
    return (*builtin_cards(), *app_novel_cards())


@cache
def capability_index() -> Mapping[CapabilityId, int]:
    """Map each id to its index in the catalog. The first row of an id wins."""
    indexes: dict[CapabilityId, int] = {}
    for index, card in enumerate(capability_cards()):
        indexes.setdefault(card.id, index)
    return MappingProxyType(indexes)


def capability_ids() -> Sequence[CapabilityId]:
    """List the ids in catalog order."""
    return tuple(card.id for card in capability_cards())


def has_capability(identity: str) -> bool:
    """Tell whether the catalog has a row with this id."""
    return find_card(identity) is not None


def find_card(identity: str) -> CapabilityCard | None:
    """Find a row by its id."""
    index = capability_index().get(cast("CapabilityId", identity))
    return None if index is None else capability_cards()[index]


def card_profiles() -> Mapping[CapabilityId, tuple[Profile, ...]]:
    """Return the profiles of every row."""
    return {card.id: card.profiles for card in capability_cards()}


def cards_for_profile(profile: Profile | str) -> Sequence[CapabilityCard]:
    """List the rows of a profile (none for `none`); raises `DeckFault` if it's unknown."""
    if profile == "none":
        return ()
    profile = parse_member(Profile, profile)
    return tuple(card for card in capability_cards() if card.in_profile(profile))


def find_missing_backend(name: str, framework: DeckFramework, *, plan_mode: bool = False) -> str | None:
    """Return why a card can't work in this run, or `None` if it can.

    A run only shows usable cards to a model: one that fails every call still costs tokens in every request.
    `plan_mode` tells whether the run acts on the plan cards' marks.
    """
    if name == "saas-action" and framework.saas is None:
        return "no connector is configured; add one with: indus connectors add NAME SPEC"
    if name == "task" and framework.delegate is None:
        return "there is no model in this run that could do the work; use it in a session, or serve with --model NAME"
    if name in _PLAN_CARDS and not plan_mode:
        return "this run has no plan mode; use it in a session"
    if name == "websearch" and not framework.search:
        address = (framework.web or WebSettings()).searxng_url or os.environ.get(SEARXNG_VARIABLE)
        if not address and find_spec("ddgs") is None:
            return (
                "no search provider is configured; name a SearXNG server in the setting "
                f"search.searxng_url or in {SEARXNG_VARIABLE}, or install 'indus-deck[search]'"
            )
    return None
