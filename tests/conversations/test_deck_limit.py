"""The deck of a model with a small context window, or with many tools: what is listed, found, or left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from indusagi.capabilities import ToolSpec, define_tool
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.contract import ToolCall
from induscode.conversations.deck_limit import (
    ESSENTIAL_CARDS,
    LEAST_SEARCHED,
    SMALL_WINDOW,
    DeckLimit,
    DeckSearch,
    list_shown_names,
    resolve_deck_call,
)
from induscode.conversations.prompt import SystemPrompt
from induscode.deck.contract import DeckContext, Profile, describe
from induscode.deck.mcp.drift import DisabledTool, DriftGrade
from induscode.deck.provision import ToolDeck, provision_deck
from induscode.search.options import SearchOptions, estimate_definition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


async def _answer(*_: object) -> str:
    return ""


def build_deck(tmp_path: Path, *tools: tuple[str, int]) -> ToolDeck:
    """Build the deck of all native cards, with tools of a server of about so many tokens."""
    cards = [define_tool(ToolSpec(name, "x" * 4 * size, {"type": "object"}, _answer)) for name, size in tools]
    return provision_deck(Profile.ALL, DeckContext(str(tmp_path))).graft(cards)


OFF = SearchOptions(mode="off")


def measure(deck: ToolDeck) -> int:
    return sum(estimate_definition(describe(card)) for card in deck.shown() if card.name not in deck.hidden)


def names_of(deck: ToolDeck) -> Sequence[str]:
    return [card.name for card in deck.shown()]


@pytest.mark.parametrize("window", [None, SMALL_WINDOW + 1, 16_384])
def test_a_window_with_room_leaves_the_deck_as_it_is(tmp_path: Path, window: int | None) -> None:
    deck = build_deck(tmp_path, ("s__a", 100))
    limit = DeckLimit("m", window)
    assert names_of(limit.fit(deck)) == names_of(deck)
    assert limit.left_out == ()


def test_essential_cards_and_servers_come_before_the_rest(tmp_path: Path) -> None:
    deck = build_deck(tmp_path, ("s__small", 50), ("s__large", 5_000), ("s__other", 50))
    limit = DeckLimit("m", 8_192, search=OFF)
    fitted = limit.fit(deck)
    assert {*names_of(fitted)} == {*ESSENTIAL_CARDS, "s__small", "s__other"}
    assert names_of(fitted) == [name for name in names_of(deck) if name in names_of(fitted)], "the order stays"
    assert measure(fitted) <= 8_192 // 4
    assert limit.left_out == tuple(name for name in names_of(deck) if name not in names_of(fitted))
    (note,) = fitted.notes
    assert "model m: reads 8,192 tokens, so these tools are left out: find, " in str(note)
    assert "s__large" in str(note)


@pytest.mark.parametrize(("window", "count"), [(SMALL_WINDOW, 2), (8_192, 2), (SMALL_WINDOW + 1, 6), (None, 6)])
def test_a_small_window_shows_cards_in_their_lean_form(tmp_path: Path, window: int | None, count: int) -> None:
    fitted = DeckLimit("m", window).fit(build_deck(tmp_path))
    (task,) = [card for card in fitted.tools() if card.name == "task"]
    properties = task.parameters["properties"]
    assert isinstance(properties, dict)
    assert len(properties) == count


def test_a_very_small_window_keeps_the_first_cards(tmp_path: Path) -> None:
    fitted = DeckLimit("m", 4_096, search=OFF).fit(build_deck(tmp_path, ("s__a", 2_000)))
    assert {"read", "grep", "edit"} <= {*names_of(fitted)}
    assert measure(fitted) <= 1_024


def test_named_tools_are_never_left_out(tmp_path: Path) -> None:
    limit = DeckLimit("m", 512, ["bash", "TODO_SET"])
    assert names_of(limit.fit(build_deck(tmp_path, ("s__a", 2_000)))) == ["bash", "todo_set"]


def test_another_model_has_another_deck(tmp_path: Path) -> None:
    deck = build_deck(tmp_path)
    limit = DeckLimit("m", 8_192)
    assert limit.fit(deck).hidden
    limit.set_model("n", 200_000)
    assert not limit.fit(deck).hidden


def test_what_a_small_window_has_no_room_for_is_found(tmp_path: Path) -> None:
    deck = build_deck(tmp_path, ("s__small", 50), ("s__large", 5_000))
    limit = DeckLimit("m", 8_192)
    fitted = limit.fit(deck)
    assert names_of(fitted) == names_of(deck), "all stay callable"
    assert {*list_shown_names(fitted)} == {*ESSENTIAL_CARDS}, "of a part a model would choose instead of searching"
    few = limit.fit(build_deck(tmp_path, ("s__small", 50)))
    assert {*list_shown_names(few)} == {*ESSENTIAL_CARDS, "s__small"}
    assert measure(fitted) <= 8_192 // 4
    assert (limit.left_out, fitted.notes) == ((), ())
    assert DeckLimit("m", LEAST_SEARCHED - 1).fit(deck).hidden == frozenset()


@pytest.mark.parametrize("window", [None, 200_000])
def test_a_large_deck_lists_native_cards_and_favourites(tmp_path: Path, window: int | None) -> None:
    native = names_of(build_deck(tmp_path))
    deck = build_deck(tmp_path, *((f"s__{number}", 150) for number in range(150)))
    limit = DeckLimit("m", window, search=SearchOptions(always_list=("s__7",)))
    assert list_shown_names(limit.fit(deck)) == [*native, "s__7"]
    few = build_deck(tmp_path, ("s__1", 150))
    assert list_shown_names(limit.fit(few)) == native, "the list stays the same while servers come and go"
    assert limit.fit(deck).retain(lambda card: card.name == "s__1").hidden == {"s__1"}
    scripts = build_deck(tmp_path, ("run_code", 150), *((f"s__{number}", 150) for number in range(150)))
    assert list_shown_names(limit.fit(scripts)) == [*native, "run_code", "s__7"]
    assert not DeckLimit("m", window, search=OFF).fit(deck).hidden


@pytest.mark.anyio
async def test_a_disabled_tool_and_call_tool_in_another_spelling_mean_no_other_tool(tmp_path: Path) -> None:
    deck = DeckLimit("m", 8_192).fit(build_deck(tmp_path, ("s__getUser", 50), ("s__large", 5_000)))
    disabled = DisabledTool(RemoteToolRef("s", "get_user"), "s__get_user", DriftGrade.BREAKING, ("description",))
    search = DeckSearch(cast("Any", SimpleNamespace(disabled=[disabled])))
    box = search.open_box(deck)
    await search.aclose()
    for name in ("s__get_user", "s__Get_User", "Call-Tool"):
        call = ToolCall("1", "call_tool", {"name": name, "arguments": {"name": "s__getUser"}})
        assert resolve_deck_call(box, call) == call
    answer = await box.runner.run(ToolCall("1", "call_tool", {"name": "s__get_user"}))
    assert str(answer.output).endswith("approve it: indus mcp approve s get_user")
    meant = resolve_deck_call(box, ToolCall("1", "call_tool", {"name": "s__Large"}))
    assert meant == ToolCall("1", "s__large", {})


def test_the_model_is_told_what_was_left_out() -> None:
    prompt = SystemPrompt("/work")
    assert "Left out" not in prompt.render(["read"], {})
    text = prompt.render(["read"], {}, ["webfetch", "s__a"])
    assert "Left out, for your context window is small: webfetch, s__a. Do without them." in text
    assert "Left out" not in prompt.render(["read", "webfetch"], {})
    assert "More tools are not listed (find, ls): search" in prompt.render(["read"], {}, hidden=["ls", "find"])
    assert "of the MCP servers s among them" in prompt.render(["read"], {"s__a": "s"}, hidden=["s__a"])
    assert " and 10 more." in prompt.render(["read"], {}, [f"tool{number}" for number in range(50)])
