"""Keys: a pure function of what a tool is, or of the moment."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.contract import ToolDescriptor, ToolResult
from induscode.deck.mcp.capability import (
    BridgeCapability,
    BridgeKey,
    bridge_content_key,
    bridge_ulid_key,
    qualify_bridge_name,
    server_of_qualified,
    unqualified_tool,
)


def test_a_content_key_is_a_prefix_and_32_hexadecimal_digits() -> None:
    key = bridge_content_key("github", "create_issue", {"type": "object"})
    assert isinstance(key, BridgeKey)
    assert re.fullmatch(r"bk_[0-9a-f]{32}", key)


def test_the_order_of_keys_makes_no_difference_that_of_arrays_does() -> None:
    one = bridge_content_key("s", "t", {"a": 1, "b": {"c": 1, "d": [1, 2]}})
    assert one == bridge_content_key("s", "t", {"b": {"d": [1, 2], "c": 1}, "a": 1})
    assert one != bridge_content_key("s", "t", {"a": 1, "b": {"c": 1, "d": [2, 1]}})


def test_no_schema_is_not_an_empty_schema() -> None:
    assert bridge_content_key("s", "t") != bridge_content_key("s", "t", {})
    assert bridge_content_key("s", "t") == bridge_content_key("s", "t", None)


def test_ulid_keys_are_all_different_and_rise() -> None:
    keys = [bridge_ulid_key() for _ in range(1_000)]
    assert keys == sorted(set(keys))
    assert all(re.fullmatch(r"bk_[0-9A-HJKMNP-TV-Z]{26}", key) for key in keys)


@pytest.mark.parametrize(
    ("name", "server", "tool"),
    [
        ("github__create_issue", "github", "create_issue"),
        ("a__b__c", "a", "b__c"),
        ("plain", "", "plain"),
        ("__leading", "", "__leading"),
        ("", "", ""),
        ("a__", "a", ""),
    ],
)
def test_a_qualified_name_is_taken_apart_at_its_first_qualifier(name: str, server: str, tool: str) -> None:
    assert (server_of_qualified(name), unqualified_tool(name)) == (server, tool)


@given(st.text(alphabet="ab", min_size=1), st.text())
def test_qualifying_and_splitting_a_name_are_inverse_without_a_qualifier_in_the_server(server: str, tool: str) -> None:
    name = qualify_bridge_name(server, tool)
    assert (server_of_qualified(name), unqualified_tool(name)) == (server, tool)


def test_cards_are_equal_by_their_definition_alone() -> None:
    async def run(*_: object) -> ToolResult:
        return ToolResult(())

    descriptor, ref = ToolDescriptor("s__t", "Says it.", {}), RemoteToolRef("s", "t")
    card = BridgeCapability.from_definition(descriptor, ref)
    assert card == BridgeCapability.from_definition(descriptor, ref, {}, run, shares_name=True)
    assert card != BridgeCapability.from_definition(descriptor, ref, {"name": "t"})
