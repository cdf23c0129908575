"""Permissions and the actions of connectors: method, host and slug in rules and questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.permissions.support import Person, context, rules
from tests.support.openapi import add_connector, build_document, build_gateway

from indusagi.core.faults import Note
from induscode.deck.cards import saas_card
from induscode.deck.contract import DeckContext, DeckFramework
from induscode.permissions.check import Permissions
from induscode.permissions.confirm import ApprovalScope
from induscode.permissions.plan_mode import PlanMode
from induscode.permissions.rules import Effect, parse_rule

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonValue
    from induscode.deck.contract import Capability
    from induscode.permissions.check import CheckResult
    from induscode.permissions.rules import Rule

pytestmark = pytest.mark.anyio


async def build_shop(folder: Path, base_url: str = "https://api.shop.example/v1") -> Capability:
    gateway = build_gateway(await add_connector(folder, build_document(), base_url))
    return saas_card().build(DeckContext(str(folder), DeckFramework(saas=gateway)))


async def _check(folder: Path, given: list[Rule], slug: str, person: Person | None = None) -> CheckResult:
    permissions = Permissions(given, approver=person)
    return await permissions.check(await build_shop(folder), call_action(slug), context(folder))


def call_action(slug: str, **arguments: JsonValue) -> dict[str, JsonValue]:
    return {"action": "execute", "slug": slug, "arguments": {"id": "7", **arguments}}


GET, DELETE = "SHOP_GET_CUSTOMER", "SHOP_DELETE_CUSTOMER"


@pytest.mark.parametrize(
    ("allow", "deny", "slug", "allowed"),
    [
        ("saas-action", "", DELETE, True),
        ("saas-action(GET domain:api.shop.example)", "", GET, True),
        ("saas-action(GET domain:api.shop.example)", "", DELETE, False),
        ("saas-action(domain:*.shop.example)", "", DELETE, True),
        ("saas-action(domain:shop.example)", "", GET, False),
        ("saas-action(slug:SHOP_GET_*)", "", GET, True),
        ("saas-action(slug:SHOP_GET_*)", "", DELETE, False),
        ("webfetch(domain:api.shop.example)", "", GET, False),
        ("saas-action", "saas-action(DELETE domain:*)", DELETE, False),
        ("saas-action", "saas-action(DELETE domain:*)", GET, True),
        ("saas-action", "saas-action(domain:shop.example)", GET, False),
        ("saas-action", "saas-action(slug:shop_delete_*)", DELETE, False),
        ("saas-action", "webfetch(domain:shop.example)", GET, False),
        ("saas-action", "webfetch(domain:other.example)", GET, True),
        ("saas-action", "webfetch", GET, True),
        ("", "", GET, False),
    ],
)
async def test_rules_name_method_host_and_slug(
    tmp_path: Path, allow: str, deny: str, slug: str, *, allowed: bool
) -> None:
    result = await _check(tmp_path, rules(allow=allow, deny=deny), slug)
    assert result.allowed is allowed, result.reason


async def test_a_question_shows_method_host_and_address(tmp_path: Path) -> None:
    person = Person([None])
    await _check(tmp_path, [], DELETE, person)
    (question,) = person.questions
    assert question.title == "SHOP_DELETE_CUSTOMER: DELETE api.shop.example"
    assert 'request: DELETE "https://api.shop.example/v1/customers/7"' in question.lines
    assert 'host: "api.shop.example"' in question.lines
    assert question.reasons == ("SHOP_DELETE_CUSTOMER sends DELETE to api.shop.example",)
    assert question.saves == ("saas-action(slug:SHOP_DELETE_CUSTOMER)",)


async def test_a_yes_for_the_session_holds_for_the_slug_at_its_host(tmp_path: Path) -> None:
    person = Person([ApprovalScope.SESSION])
    permissions = Permissions(approver=person)
    here = await build_shop(tmp_path)
    assert (await permissions.check(here, call_action(DELETE), context(tmp_path))).allowed
    assert (await permissions.check(here, call_action(DELETE, limit=1), context(tmp_path))).allowed
    assert len(person.questions) == 1
    assert not (await permissions.check(here, call_action(GET), context(tmp_path))).allowed
    elsewhere = await build_shop(tmp_path, "https://evil.example")
    assert not (await permissions.check(elsewhere, call_action(DELETE), context(tmp_path))).allowed


async def test_finding_actions_needs_no_permission(tmp_path: Path) -> None:
    card = await build_shop(tmp_path)
    permissions = Permissions(rules(deny="saas-action(DELETE domain:*)"))
    assert (await permissions.check(card, {"action": "discover", "query": "x"}, context(tmp_path))).allowed
    denied = Permissions(rules(deny="saas-action"))
    assert not (await denied.check(card, {"action": "discover", "query": "x"}, context(tmp_path))).allowed


async def test_plan_mode_reads_and_does_not_write(tmp_path: Path) -> None:
    plan = PlanMode(approves=False)
    plan.active = True
    card = await build_shop(tmp_path)
    permissions = Permissions(rules(allow="saas-action"), plan=plan)
    assert (await permissions.check(card, call_action(GET), context(tmp_path))).allowed
    assert not (await permissions.check(card, call_action(DELETE), context(tmp_path))).allowed


async def test_an_unknown_slug_is_no_reading_action(tmp_path: Path) -> None:
    result = await _check(tmp_path, rules(allow="saas-action(GET domain:*)"), "SHOP_NOTHING")
    assert not result.allowed


async def test_a_rule_of_another_form_is_a_mistake() -> None:
    for text in ("saas-action(DELETE)", "saas-action(delete domain:x)", "saas-action(slug:)"):
        assert isinstance(parse_rule(text, Effect.ALLOW), Note)
