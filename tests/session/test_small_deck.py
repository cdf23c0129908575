"""The deck of a model with a small context window: what is kept, what is left out, and who is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities import ToolSpec, define_tool
from induscode.deck.contract import DeckContext, Profile
from induscode.deck.provision import ToolDeck, provision_deck
from induscode.session.prompt import SystemPrompt
from induscode.session.small_deck import ESSENTIAL_CARDS, SMALL_WINDOW, DeckLimit, estimate_card

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


async def _answer(*_: object) -> str:
    return ""


def build_deck(tmp_path: Path, *tools: tuple[str, int]) -> ToolDeck:
    """Build the deck of all native cards, with tools of a server of about so many tokens."""
    cards = [define_tool(ToolSpec(name, "x" * 4 * size, {"type": "object"}, _answer)) for name, size in tools]
    return provision_deck(Profile.ALL, DeckContext(str(tmp_path))).graft(cards)


def names_of(deck: ToolDeck) -> Sequence[str]:
    return [card.name for card in deck.tools()]


@pytest.mark.parametrize("window", [None, SMALL_WINDOW + 1, 16_384])
def test_a_window_with_room_leaves_the_deck_as_it_is(tmp_path: Path, window: int | None) -> None:
    deck = build_deck(tmp_path, ("s__a", 100))
    limit = DeckLimit("m", window)
    assert names_of(limit.fit(deck)) == names_of(deck)
    assert limit.left_out == ()


def test_essential_cards_and_servers_come_before_the_rest(tmp_path: Path) -> None:
    deck = build_deck(tmp_path, ("s__small", 50), ("s__large", 5_000), ("s__other", 50))
    limit = DeckLimit("m", 8_192)
    fitted = limit.fit(deck)
    assert {*names_of(fitted)} == {*ESSENTIAL_CARDS, "s__small", "s__other"}
    assert names_of(fitted) == [name for name in names_of(deck) if name in names_of(fitted)], "the order stays"
    assert sum(map(estimate_card, fitted.tools())) <= 8_192 // 4
    assert limit.left_out == tuple(name for name in names_of(deck) if name not in names_of(fitted))
    (note,) = fitted.notes
    assert "model m: reads 8,192 tokens, so these tools are left out: find, " in str(note)
    assert "s__large" in str(note)


def test_a_very_small_window_keeps_the_first_cards(tmp_path: Path) -> None:
    fitted = DeckLimit("m", 4_096).fit(build_deck(tmp_path, ("s__a", 2_000)))
    assert {"read", "grep", "edit"} <= {*names_of(fitted)}
    assert sum(map(estimate_card, fitted.tools())) <= 1_024


def test_named_tools_are_never_left_out(tmp_path: Path) -> None:
    limit = DeckLimit("m", 512, ["bash", "TODO_SET"])
    assert names_of(limit.fit(build_deck(tmp_path, ("s__a", 2_000)))) == ["bash", "todo_set"]


def test_another_model_has_another_deck(tmp_path: Path) -> None:
    deck = build_deck(tmp_path)
    limit = DeckLimit("m", 8_192)
    assert len(limit.fit(deck).tools()) < len(deck.tools())
    limit.window = 200_000
    assert names_of(limit.fit(deck)) == names_of(deck)
    assert limit.left_out == ()


def test_the_model_is_told_what_was_left_out() -> None:
    prompt = SystemPrompt("/work")
    assert "Left out" not in prompt.render(["read"], {})
    text = prompt.render(["read"], {}, ["webfetch", "s__a"])
    assert "Left out, for your context window is small: webfetch, s__a. Do without them." in text
    assert "Left out" not in prompt.render(["read", "webfetch"], {})
    assert " and 10 more." in prompt.render(["read"], {}, [f"tool{number}" for number in range(50)])
