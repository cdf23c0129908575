"""A tool is its server and its own name: whatever these join to, none is lost, none is mixed up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.commands.helpers import configured, row, told, user_file
from tests.commands.mcp.test_pins import SERVER_SCRIPT
from tests.permissions.support import context, rules
from tests.support.deck import AT, capability
from tests.support.scripts import run
from tests.support.strategies import examples

from indusagi.interop.protocol_bridge.client.tools import model_name
from indusagi.interop.protocol_bridge.contract import RemoteTool, RemoteToolRef
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
from indusagi.runtime.contract import ToolDescriptor
from induscode.deck.mcp.capability import BridgeCapability, bridge_content_key
from induscode.deck.mcp.enrolment import Enrolment
from induscode.deck.mcp.ledger import BridgeLedger, EnrollRequest
from induscode.permissions.check import Permissions
from induscode.permissions.patterns import may_name, names_exactly

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PARTS = st.lists(st.sampled_from(["a", "b", "_", "__"]), min_size=1, max_size=4).map("".join)
IDENTITIES = st.lists(st.tuples(PARTS, PARTS), min_size=1, max_size=6, unique=True)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def listed(server: str, tool: str) -> RemoteTool:
    ref = RemoteToolRef(server, tool)
    raw: dict[str, Any] = {"name": tool, "description": "A tool.", "inputSchema": SCHEMA}
    return RemoteTool(ref, ToolDescriptor(model_name(ref), "A tool.", SCHEMA), raw=raw)


def enrol(
    identities: Sequence[tuple[str, str]], configured: Sequence[str], come_up: Sequence[str] | None = None
) -> Enrolment:
    """Enrol tools of servers that come up in an order, by default as they are configured."""
    enrolment = Enrolment(ServerFleetImpl(), BridgeLedger.empty(), servers=configured)
    for server in configured if come_up is None else come_up:
        tools = [listed(*one) for one in identities if one[0] == server]
        enrolment.sync_tools(server, tools)
    return enrolment


def names_of(enrolment: Enrolment) -> dict[RemoteToolRef, str]:
    return {one.ref: one.name for one in enrolment.ledger.live_capabilities()}


def allowed_by(pattern: str, enrolment: Enrolment) -> set[RemoteToolRef]:
    return {
        one.ref
        for one in enrolment.ledger.live_capabilities()
        if names_exactly(pattern, one.ref, one.name, shared=one.shares_name)
    }


@examples(2)
@given(IDENTITIES, st.randoms(use_true_random=False))
def test_finding_d6_no_tool_is_lost_and_names_and_keys_do_not_depend_on_the_order(
    identities: list[tuple[str, str]], random: Any
) -> None:
    order = [*dict.fromkeys(server for server, _ in identities)]
    first = enrol(identities, order)
    names = names_of(first)
    assert names.keys() == {RemoteToolRef(*one) for one in identities}
    assert len(set(names.values())) == len(names)
    come_up = [*order]
    random.shuffle(come_up)
    again = enrol(identities, order, come_up)
    assert names_of(again) == names
    assert again.ledger.snapshot.live.keys() == first.ledger.snapshot.live.keys()


@examples(2)
@given(IDENTITIES)
def test_finding_d6_a_server_that_is_configured_later_leaves_the_names_of_a_fresh_start(
    identities: list[tuple[str, str]],
) -> None:
    order = [*dict.fromkeys(server for server, _ in identities)]
    enrolment = Enrolment(ServerFleetImpl(), BridgeLedger.empty())
    for count, server in enumerate(order, start=1):
        enrolment.set_configured_servers(order[:count])
        enrolment.sync_tools(server, [listed(*one) for one in identities if one[0] == server])
    enrolment.set_configured_servers(order)
    assert names_of(enrolment) == names_of(enrol(identities, order))


@examples(2)
@given(IDENTITIES, PARTS, st.sampled_from(["", "*", "?", "*a", "__*"]))
def test_finding_d6_a_rule_that_allows_names_tools_of_one_server(
    identities: list[tuple[str, str]], start: str, end: str
) -> None:
    pattern = start + end
    servers = [*dict.fromkeys(server for server, _ in identities)]
    enrolment = enrol(identities, servers)
    names, allowed = names_of(enrolment), allowed_by(pattern, enrolment)
    if pattern == "*":
        assert allowed == names.keys()
        return
    assert len({ref.server for ref in allowed}) <= 1
    for ref in allowed:
        # What allows a tool also counts for it where it denies.
        assert may_name(pattern, ref, names[ref])
        if names[ref] != pattern:
            # No server with a longer id is spelled out in the pattern.
            longer = [one for one in servers if len(one) > len(ref.server)]
            assert not any(start.startswith(f"{one}__") for one in longer)


@examples(2)
@given(IDENTITIES)
def test_finding_d6_a_rule_for_all_tools_of_a_server_allows_these_and_no_others(
    identities: list[tuple[str, str]],
) -> None:
    servers = [*dict.fromkeys(server for server, _ in identities)]
    enrolment = enrol(identities, servers)
    for server in servers:
        own = {RemoteToolRef(*one) for one in identities if one[0] == server}
        allowed = allowed_by(f"{server}__*", enrolment)
        assert allowed <= own
        # Less than all only where the pattern spells out a longer id: `a___*` with a server `a_`.
        assert allowed == own or any(
            len(other) > len(server) and f"{server}__".startswith(f"{other}__"[: len(server) + 2]) for other in servers
        )


def test_finding_d6_a_ledger_keeps_both_tools_that_join_to_one_name() -> None:
    one, other = capability("a", "b__c"), capability("a__b", "c")
    name = model_name(other.ref, {one.name})
    renamed = BridgeCapability.from_definition(ToolDescriptor(name, "A tool.", other.parameters), other.ref, other.raw)
    ledger = BridgeLedger.empty().enroll(EnrollRequest(one, "a"), AT).enroll(EnrollRequest(renamed, "a__b"), AT)
    assert [one.ref for one in ledger.live_capabilities()] == [one.ref, other.ref]
    assert ledger.find(one.ref) == (
        bridge_content_key("a", "b__c", dict(one.parameters)), one,
    )  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("pattern", "of_a", "of_a__b"),
    [
        ("a__b__*", False, True), ("a__b__c", True, False), ("a__*", True, False),
        ("*", True, True), ("a*", False, False), ("a__b_*", True, False), ("*__c", False, False),
        ("a__*__c", True, False), ("?__b*", True, False),
    ],
)  # fmt: skip
async def test_finding_d6_rules_match_the_identity_of_a_tool(
    tmp_path: Path, pattern: str, of_a: bool, of_a__b: bool
) -> None:
    enrolment = enrol([("a", "b__c"), ("a__b", "c")], ["a", "a__b"])
    cards = {one.ref.server: one for one in enrolment.ledger.live_capabilities()}
    permissions = Permissions(rules(allow=pattern))
    found = [await permissions.check(cards[one], {}, context(tmp_path)) for one in ("a", "a__b")]
    assert [one.allowed for one in found] == [of_a, of_a__b]
    # A whole name means the tool that is shown under it.
    literal = Permissions(rules(allow=cards["a"].name))
    found = [await literal.check(cards[one], {}, context(tmp_path)) for one in ("a", "a__b")]
    assert [one.allowed for one in found] == [True, False]


@pytest.mark.anyio
async def test_finding_d6_a_deny_rule_applies_to_every_reading_of_a_name(tmp_path: Path) -> None:
    enrolment = enrol([("a", "b__c"), ("a__b", "c"), ("bash", "run")], ["a", "a__b", "bash"])
    for pattern, denied in {
        "a__b__*": ["a", "a__b"], "a__b__c": ["a", "a__b"], "bash": [], "bash*": ["bash"],
    }.items():  # fmt: skip
        permissions = Permissions(rules(allow="*", deny=pattern))
        found = [
            one.ref.server
            for one in enrolment.ledger.live_capabilities()
            if not (await permissions.check(one, {}, context(tmp_path))).allowed
        ]
        assert found == denied, pattern


@pytest.mark.process
def test_finding_d6_both_tools_are_listed_and_called_under_stable_names(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER_SCRIPT.replace('text("done")', "text(sys.argv[1])"), encoding="utf-8")
    rows: dict[str, Any] = {}
    for server, tool in (("a", "b__c"), ("a__b", "c")):
        tools = tmp_path / f"{server}.json"
        tools.write_text(json.dumps({tool: {}}), encoding="utf-8")
        rows[server] = {"command": row()["command"], "args": [str(script), str(tools)]}
    seen: list[dict[str, str]] = []
    for order in (["a", "a__b"], ["a__b", "a"]):
        configured(user_file(), {server: rows[server] for server in order})
        for _ in range(2):
            found = told("tools", "--json", cwd=tmp_path)["tools"]
            seen.append({one["source"]: one["name"] for one in found if one["source"] in rows})
    assert seen == [seen[0], seen[0], seen[2], seen[2]]
    # The one that is configured first has the joined name.
    assert (seen[0]["a"], seen[2]["a__b"]) == ("a__b__c", "a__b__c")
    assert seen[0]["a__b"].startswith("a__b__c_")
    assert seen[2]["a"].startswith("a__b__c_")
    for server, name in seen[3].items():
        assert run("call", name, cwd=tmp_path).stdout == f"{tmp_path / server}.json\n"
    assert run("ledger", "verify", cwd=tmp_path).returncode == 0
