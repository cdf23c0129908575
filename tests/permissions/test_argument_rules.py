"""Rules on arguments: `github__create_issue(repo=acme/*)`, also for actions of connectors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.permissions.support import context, remote, rule, rules
from tests.permissions.test_actions import GET, build_shop, call_action

from indusagi.core.faults import Note
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.contract import ToolDescriptor, ToolResult
from induscode.deck.mcp.capability import BridgeCapability
from induscode.permissions.argument_patterns import ArgumentPattern, find_unknown_argument, parse_argument_patterns
from induscode.permissions.call_facts import identify_card
from induscode.permissions.check import Permissions, require_permission
from induscode.permissions.policy import PolicyContext, decide_call, find_total_denial, find_total_permission
from induscode.permissions.rules import Effect, Rule, RuleOrigin, parse_rule

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue

ISSUE: JsonObject = {
    "repo": "acme/site",
    "title": "a, b=c",
    "count": 5,
    "draft": False,
    "labels": ["bug", "ui"],
    "files": [{"path": "src/a"}, {"path": "src/b"}],
    "empty": [],
    "meta": {"owner": {"name": "Ada"}},
}


def _parse(specifier: str) -> ArgumentPattern:
    patterns = parse_argument_patterns(specifier)
    assert patterns is not None
    (pattern,) = patterns
    return pattern


def _matches(specifier: str, *, loosely: bool) -> bool:
    patterns = parse_argument_patterns(specifier)
    assert patterns is not None
    return all(pattern.matches(ISSUE, loosely=loosely) for pattern in patterns)


@pytest.mark.parametrize(
    ("specifier", "allows", "denies"),
    [
        ("repo=acme/*", True, True),
        ("repo = acme/*", True, True),
        ("repo=ACME/*", False, True),
        ("repo=other/*", False, False),
        ("repo=*", True, True),
        ("missing=*", False, False),
        ('title="a, b=c"', True, True),
        ("title=a*, repo=acme/*", True, True),
        ("title=a*, repo=other/*", False, False),
        ("count=5", True, True),
        ("count=5.0", True, True),
        ('count="5"', False, True),
        ("count=5*", False, True),
        ("draft=false", True, True),
        ("draft=0", False, True),
        ('draft="no"', False, False),
        ("labels=bug", False, True),
        ("labels=*", True, True),
        ('labels=["bug","ui"]', True, True),
        ("empty=*", False, False),
        ("files.path=src/*", True, True),
        ("files.path=src/a", False, True),
        ("meta.owner.name=Ada", True, True),
        ("meta.owner.age=*", False, False),
    ],
)
def test_condition_allows_only_what_it_matches_exactly_and_denies_what_resembles_it(
    specifier: str, *, allows: bool, denies: bool
) -> None:
    assert (_matches(specifier, loosely=False), _matches(specifier, loosely=True)) == (allows, denies)


@pytest.mark.parametrize(
    ("specifier", "value"),
    [
        ("a=5", "5.0"),
        ("a=5", " 5 "),
        ("a=5", "5e0"),
        ("a=5", "0x5"),
        ("a=1", True),
        ("a=true", 1),
        ("a=true", "Yes"),
        ("a=true", "on"),
        ("a=false", "0"),
        ("a=false", "off"),
        ("a.b=true", '{"b": true}'),
        ("a.b=true", '{"b": "\\u0074rue", "c": NaN}'),
        ("a.b.c=x", {"b": '{"c": ["x"]}'}),
        ("a=bug", '["ui", "bug"]'),
        ('a=["bug"]', '["bug"]'),
        ("a=acme/*", " acme/site"),
        ("a=acme/*", "\uff41cme/site"),
        ("a=note:alice", "note:%61lice"),
        ("a=caf\u00e9", "cafe\u0301"),
    ],
)
def test_what_a_server_may_take_for_a_denied_value_is_denied_and_never_allowed(
    specifier: str, value: JsonValue
) -> None:
    pattern = _parse(specifier)
    assert pattern.matches({"a": value}, loosely=True)
    assert not pattern.matches({"a": value}, loosely=False)


@pytest.mark.parametrize(
    ("specifier", "value", "allows"),
    [
        ("a=12345678901234567890", 12345678901234567890, True),
        ("a=12345678901234567890", 12345678901234567891, False),
        ("a=1", True, False),
        ("a=true", 1, False),
        ("a=[1,true]", [1.0, True], True),
        ("a=[1,true]", [1, 1], False),
        ('a="[x]"', ["[x]"], True),
        ("a.b=x", {"b": "x"}, True),
    ],
)
def test_an_allowed_value_is_exactly_this_json(specifier: str, value: JsonValue, *, allows: bool) -> None:
    pattern = _parse(specifier)
    assert pattern.matches({"a": value}, loosely=False) is allows


def test_a_name_may_have_dots_itself() -> None:
    pattern = _parse("a.b.c=x")
    assert pattern.matches({"a.b": {"c": "x"}}, loosely=False)
    assert pattern.matches({"a": {"b.c": "y"}, "a.b": {"c": "x"}}, loosely=True)
    assert not pattern.matches({"a": {"b.c": "y"}, "a.b": {"c": "x"}}, loosely=False)


@pytest.mark.parametrize(
    "value", ["[" * 100_000, '{"b":' * 900 + "1" + "}" * 900, "0x" + "f" * 1_000_000, "9" * 1_000_000]
)
def test_a_value_that_is_hard_to_read_is_compared_quickly(value: str) -> None:
    pattern = _parse("a=5")
    assert not pattern.matches({"a": value}, loosely=False)
    pattern.matches({"a": value}, loosely=True)


@pytest.mark.parametrize("specifier", ["", "x", "*", "=x", "a b=c", ".a=b", "domain:example.org", "slug:X"])
def test_other_specifiers_are_not_about_arguments(specifier: str) -> None:
    assert parse_argument_patterns(specifier) is None


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


@given(value=_VALUES, path=st.sampled_from(["a", "a.a", "a.b"]), text=st.text("ab*15\"'[]{}, =.ntrue", max_size=8))
def test_what_a_condition_allows_it_would_also_deny(value: JsonValue, path: str, text: str) -> None:
    for pattern in parse_argument_patterns(f"{path}={text}") or ():
        assert pattern.matches({"a": value}, loosely=True) or not pattern.matches({"a": value}, loosely=False)


# -- through the permissions ------------------------------------------------------------------


def _create_issue() -> BridgeCapability:
    async def run(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        return ToolResult.text("done")

    schema: JsonObject = {"type": "object", "properties": {"repo": {"type": "string"}, "title": {"type": "string"}}}
    descriptor = ToolDescriptor("github__create_issue", "", schema)
    raw: JsonObject = {"name": "create_issue", "inputSchema": schema}
    return BridgeCapability.from_definition(descriptor, RemoteToolRef("github", "create_issue"), raw, run)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("allow", "deny", "repo", "allowed"),
    [
        ("github__create_issue(repo=acme/*)", "", "acme/site", True),
        ("github__create_issue(repo=acme/*)", "", "other/site", False),
        ("github__*(repo=acme/*)", "", "acme/site", True),
        ("github__*", "github__*(repo=acme/secret*)", "ACME/Secret-plans", False),
        ("github__*", "github__*(repo=acme/secret*)", "acme/site", True),
        ("github__*", "github__*(repo=acme/*) @bob", "acme/site", True),
        ("github__create_issue(repo=acme/*)", "github__create_issue", "acme/site", False),
    ],
)
async def test_rules_on_arguments_decide_about_calls(
    tmp_path: Path, allow: str, deny: str, repo: str, *, allowed: bool
) -> None:
    permissions = Permissions(rules(allow=allow, deny=deny))
    result = await permissions.check(_create_issue(), {"repo": repo}, context(tmp_path))
    assert result.allowed is allowed
    if allowed:
        assert allow in result.by


@pytest.mark.anyio
async def test_a_denied_argument_that_the_tool_lacks_denies_every_call_and_names_those_it_has(tmp_path: Path) -> None:
    permissions = Permissions(rules(allow="github__*", deny="github__create_issue(repository=acme/*)"))
    # A model that reads the message can't get past the rule by adding the argument.
    calls: list[JsonObject] = [{"repo": "other/site"}, {"repo": "other/site", "repository": "x"}]
    for arguments in calls:
        result = await permissions.check(_create_issue(), arguments, context(tmp_path))
        assert not result.allowed
        assert (
            "names the argument 'repository', which github__create_issue doesn't have (it has repo, title)"
            in result.reason
        )


SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "x.y": {"type": "integer"},
        "o": {"type": "object", "properties": {"b": {"type": "boolean"}}},
        "any": {"type": "object"},
        "open": {"type": "object", "properties": {"b": {}}, "additionalProperties": True},
        "shut": {"type": "object", "properties": {"b": {}}, "additionalProperties": False},
        "list": {"type": "array", "items": {"type": "object", "properties": {"b": {}}}},
        "either": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
}


@pytest.mark.parametrize(
    ("specifier", "unknown"),
    [
        ("a=1, o.b=2", None),
        ("open.q=2", None),
        ("a=1, c=2", "c"),
        ("x.y=1", None),
        ("o.b=true", None),
        ("o.force=true", "o.force"),
        ("shut.q=2", "shut.q"),
        ("a.b=1", "a.b"),
        ("list.b=1", None),
        ("list.0=1", "list.0"),
        ("any.c=1", None),
        ("either.c=1", None),
    ],
)
def test_an_argument_is_unknown_if_the_definition_rules_it_out(specifier: str, unknown: str | None) -> None:
    assert find_unknown_argument(specifier, SCHEMA) == unknown
    assert find_unknown_argument(specifier, None) is None


@pytest.mark.anyio
async def test_a_rule_that_allows_an_argument_the_tool_lacks_says_so(tmp_path: Path) -> None:
    permissions = Permissions(rules(allow="github__create_issue(repository=acme/*)"))
    result = await permissions.check(_create_issue(), {"repo": "acme/site"}, context(tmp_path))
    assert not result.allowed
    assert "names the argument 'repository'" in result.reason


@pytest.mark.parametrize(("deny", "total"), [("github__create_issue(all)", True), ("github__*(repo=acme/*)", False)])
def test_a_rule_in_another_form_denies_a_server_tool_altogether(deny: str, *, total: bool) -> None:
    facts = identify_card(_create_issue(), "/work")
    assert (find_total_denial(facts, rules(deny=deny)) is not None) is total


def test_an_allow_rule_without_an_argument_name_is_a_mistake() -> None:
    found = parse_rule("github__create_issue(acme)", Effect.ALLOW)
    assert isinstance(found, Note)
    assert "write github__create_issue(name=pattern)" in str(found)
    assert not isinstance(parse_rule("github__create_issue(acme)", Effect.DENY), Note)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("allow", "deny", "allowed"),
    [
        ("saas-action(slug:SHOP_GET_*, id=7)", "", False),
        ('saas-action(slug:SHOP_GET_*, id="7")', "", True),
        ("saas-action(GET domain:api.shop.example, id=8)", "", False),
        ("saas-action", "saas-action(slug:SHOP_GET_*, id=7)", False),
        ("saas-action", "saas-action(slug:SHOP_GET_*, id=8)", True),
        ("saas-action", "saas-action(slug:SHOP_GET_*, idd=8)", False),
    ],
)
async def test_rules_on_arguments_decide_about_actions(tmp_path: Path, allow: str, deny: str, *, allowed: bool) -> None:
    permissions = Permissions(rules(allow=allow, deny=deny))
    result = await permissions.check(await build_shop(tmp_path), call_action(GET), context(tmp_path))
    assert result.allowed is allowed


# -- tools that no rule is about ----------------------------------------------------------------

_TOOLS = ("*", "github__*", "github__create_issue", "git*", "other__*", "github__c?eate_issue")
_TEXTS = [f"{tool}{clause}{who}" for tool in _TOOLS for clause in ("", "(repo=acme/*)") for who in ("", " @alice")]
_RULES = st.builds(rule, st.sampled_from(_TEXTS), st.sampled_from(Effect))


@given(rules=st.lists(_RULES, max_size=4), principal=st.sampled_from(["", "alice", "bob"]), repo=st.text(max_size=8))
def test_free_rule_allows_what_the_policy_allows(rules: list[Rule], principal: str, repo: str) -> None:
    everything = Rule(effect=Effect.ALLOW, tool="*", origin=RuleOrigin.SESSION)
    facts = replace(identify_card(remote(), "/work", {"repo": repo}), principal=principal)
    free = find_total_permission(facts, [*rules, everything])
    if free is not None:
        assert decide_call(facts, [*rules, everything], PolicyContext()).effect is Effect.ALLOW
    elif all(one.tool == "other__*" for one in rules):
        pytest.fail("a tool that no rule names is free")


async def test_new_rule_holds_for_the_next_call_of_a_free_tool(tmp_path: Path) -> None:
    permissions = Permissions([Rule(effect=Effect.ALLOW, tool="*")])
    card, ctx = require_permission(remote(), permissions), context(tmp_path)
    assert not (await card.run({"repo": "acme/site"}, ctx)).is_error
    permissions.restore_rules(rules(deny="github__*(repo=acme/*)"))
    assert (await card.run({"repo": "acme/site"}, ctx)).details["code"] == "denied"
    assert not (await card.run({"repo": "other/site"}, ctx)).is_error
