"""The catalog: the built-ins, then the app cards. One tuple, and every look-up derived from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import cast

from induscode.deck.builtin import builtin_cards
from induscode.deck.cards import app_novel_cards
from induscode.deck.contract import CapabilityCard, CapabilityId, Profile, parse_member


@cache
def capability_cards() -> tuple[CapabilityCard, ...]:
    """Give the catalog; every call gives the same one."""
    return (*builtin_cards(), *app_novel_cards())


@cache
def capability_index() -> Mapping[CapabilityId, int]:
    """Give the place of every id in the catalog; of two rows of one id the first counts."""
    places: dict[CapabilityId, int] = {}
    for place, card in enumerate(capability_cards()):
        places.setdefault(card.id, place)
    return MappingProxyType(places)


def capability_ids() -> Sequence[CapabilityId]:
    """List the ids, in the order of the catalog."""
    return tuple(card.id for card in capability_cards())


def has_capability(identity: str) -> bool:
    """Tell whether the catalog has a row of this id."""
    return find_card(identity) is not None


def find_card(identity: str) -> CapabilityCard | None:
    """Find a row by its id."""
    place = capability_index().get(cast("CapabilityId", identity))
    return None if place is None else capability_cards()[place]


def card_profiles() -> Mapping[CapabilityId, tuple[Profile, ...]]:
    """Give the profiles of every row."""
    return {card.id: card.profiles for card in capability_cards()}


def cards_for_profile(profile: Profile | str) -> Sequence[CapabilityCard]:
    """List the rows that a profile selects.

    Raises:
        DeckFault: There is no such profile.
    """
    profile = parse_member(Profile, profile)
    return tuple(card for card in capability_cards() if card.in_profile(profile))
