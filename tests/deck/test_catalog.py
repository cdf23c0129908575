"""The catalog: twelve built-ins, seven app cards, one table, and every look-up derived from it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from jsonschema import Draft202012Validator

from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.tools import MUTATING_NAMES, READ_ONLY_NAMES, native_tools
from induscode.deck import DeckContext, DeckFault, Profile, capability_id
from induscode.deck.builtin import (
    MUTATING,
    READ_ONLY,
    BuiltinCard,
    build_builtin,
    build_builtins_for_profile,
    builtin_bridge,
    builtin_cards,
    builtin_descriptors,
    builtin_ids,
    builtin_profiles,
)
from induscode.deck.cards import app_novel_cards
from induscode.deck.catalog import (
    capability_cards,
    capability_ids,
    capability_index,
    card_profiles,
    cards_for_profile,
    find_card,
    has_capability,
)
from induscode.deck.contract import UnknownCapability
from induscode.deck.provision import cards_for_deck_profile

if TYPE_CHECKING:
    from pathlib import Path

    from induscode.deck import CapabilityCard

BUILTINS = (
    "read", "ls", "grep", "find", "websearch", "webfetch", "todo_read",
    "write", "edit", "bash", "process", "todo_set",
)  # fmt: skip
APP_CARDS = (
    "todo", "bg-process", "task", "saas-action", "memory", "enter_plan_mode", "exit_plan_mode",
)  # fmt: skip


def test_the_catalog_has_twelve_built_ins_and_then_seven_app_cards() -> None:
    assert capability_ids() == (*BUILTINS, *APP_CARDS)
    assert builtin_ids() == BUILTINS
    assert tuple(card.id for card in app_novel_cards()) == APP_CARDS


def test_the_catalog_is_built_once() -> None:
    assert capability_cards() is capability_cards()


def test_built_in_names_are_those_of_the_framework(tmp_path: Path) -> None:
    assert (*READ_ONLY_NAMES, *MUTATING_NAMES) == BUILTINS
    made = {tool.name: tool.read_only for tool in native_tools()}
    assert made == {name: name in READ_ONLY_NAMES for name in BUILTINS}
    deck = DeckContext(str(tmp_path))
    assert tuple(row.build(deck).name for row in builtin_descriptors()) == BUILTINS


def test_every_view_of_the_table_agrees_with_it() -> None:
    rows = builtin_descriptors()
    assert tuple(builtin_bridge().values()) == rows
    assert tuple(builtin_profiles().items()) == tuple((row.id, row.profiles) for row in rows)
    assert tuple(card.id for card in builtin_cards()) == builtin_ids()
    assert tuple(capability_index().items()) == tuple((card.id, place) for place, card in enumerate(capability_cards()))
    assert dict(card_profiles()) == {card.id: card.profiles for card in capability_cards()}


def test_a_card_is_found_by_its_id() -> None:
    assert has_capability("bash")
    card = find_card("bash")
    assert card is not None
    assert (card.id, card.title) == ("bash", "Run shell command")
    assert not has_capability("bsh")
    assert find_card("bsh") is None
    assert capability_id("bash") == "bash"


@pytest.mark.parametrize(
    ("profile", "ids"),
    [(Profile.AUTHORING, BUILTINS[:7]), (Profile.SURVEY, BUILTINS), (Profile.ALL, (*BUILTINS, *APP_CARDS))],
)
def test_a_profile_selects_by_tag_with_the_old_inversion(profile: Profile, ids: tuple[str, ...]) -> None:
    assert tuple(card.id for card in cards_for_profile(profile)) == ids
    assert tuple(card.id for card in cards_for_deck_profile(profile)) == ids


def test_tags_are_those_of_the_table() -> None:
    assert READ_ONLY == (Profile.AUTHORING, Profile.SURVEY)
    assert MUTATING == (Profile.SURVEY,)
    profiles = builtin_profiles()
    assert {profiles[capability_id(name)] for name in BUILTINS[:7]} == {READ_ONLY}
    assert {profiles[capability_id(name)] for name in BUILTINS[7:]} == {MUTATING}
    assert {card.profiles for card in app_novel_cards()} == {(Profile.ALL,)}


def test_read_only_follows_the_tag_and_the_framework_agrees(tmp_path: Path) -> None:
    for name in BUILTINS:
        card = build_builtin(name, DeckContext(str(tmp_path)))
        assert isinstance(card, BuiltinCard)
        assert card.read_only == (name in READ_ONLY_NAMES)
        assert card.descriptor.annotations is not None
        assert card.descriptor.annotations["readOnlyHint"] is card.read_only


def test_the_title_is_the_decks_and_the_rest_is_the_frameworks(tmp_path: Path) -> None:
    card = build_builtin("grep", DeckContext(str(tmp_path)))
    assert card.label == "Search file contents"
    assert repr(card) == "BuiltinCard('grep')"
    assert card.parameters["type"] == "object"
    assert card.description


def test_an_unknown_built_in_is_a_fault_that_names_the_near_one(tmp_path: Path) -> None:
    with pytest.raises(UnknownCapability, match="did you mean 'bash'") as caught:
        build_builtin("bsh", DeckContext(str(tmp_path)))
    assert isinstance(caught.value, DeckFault)
    assert caught.value.id == "bsh"


def test_built_ins_can_be_built_for_a_profile_alone(tmp_path: Path) -> None:
    deck = DeckContext(str(tmp_path))
    assert [c.name for c in build_builtins_for_profile(Profile.AUTHORING, deck)] == list(BUILTINS[:7])
    assert len(build_builtins_for_profile(Profile.ALL, deck)) == 12


@pytest.mark.parametrize("card", capability_cards(), ids=lambda card: card.id)
def test_every_schema_is_one(card: CapabilityCard, tmp_path: Path) -> None:
    built = card.build(DeckContext(str(tmp_path)))
    schema = dict(built.parameters)
    Draft202012Validator.check_schema(schema)
    # Told with every request: what the check explains when it is broken is left out.
    assert "additionalProperties" not in schema
    assert built.description.strip() == built.description
    assert len(built.description) < 2_048


@pytest.mark.parametrize("card", capability_cards(), ids=lambda card: card.id)
async def test_finding_c9_arguments_that_the_short_schemas_do_not_forbid_are_still_refused(
    card: CapabilityCard, tmp_path: Path
) -> None:
    built = card.build(DeckContext(str(tmp_path)))
    result = await built.run({"no_such_argument": 1}, make_local_context(str(tmp_path)))
    assert result.is_error
    assert result.details["code"] == "invalid_arguments"
    assert "no_such_argument" in str(result.content)


@pytest.mark.process
def test_a_list_of_the_catalog_loads_no_tool() -> None:
    code = (
        "import sys; from induscode.deck.catalog import capability_cards; capability_cards();"
        "print([m for m in sys.modules if m.startswith('indusagi.capabilities.tools')"
        " or m in ('mcp', 'pydantic', 'httpx2', 'jsonschema')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
