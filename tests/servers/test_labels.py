"""Labels of tools: what a row says, and what's proposed from definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities.sandbox.profile import ServerProfile
from indusagi.interop.protocol_bridge.contract import StdioServerConfig, StreamableHttpServerConfig
from induscode.servers.config.rows import Origin, parse_row
from induscode.servers.labels import (
    InvalidLabelsError,
    find_labels,
    format_labels,
    join_labels,
    parse_labels,
    propose_labels,
)

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import ServerConfig

HERE = StdioServerConfig("files", "x")
THERE = StreamableHttpServerConfig("service", "https://mcp.example")


def definition(*arguments: str, **hints: JsonValue) -> JsonObject:
    return {"inputSchema": {"properties": {name: {} for name in arguments}}, "annotations": {**hints}}


@pytest.mark.parametrize(
    ("name", "raw", "config", "labels"),
    [
        ("read_file", definition("path"), HERE, "private"),
        ("search_files", definition("query"), HERE, "private"),
        ("write_file", definition("path", "content"), HERE, ""),
        ("fetch", definition("url"), HERE, "untrusted outward"),
        ("fetch", definition("url", readOnlyHint=True), THERE, "untrusted outward"),
        ("get_issue", definition("number", openWorldHint=False), THERE, "untrusted"),
        ("lookUp", definition(openWorldHint=True), HERE, "untrusted"),
        ("create_pull_request", definition("title"), HERE, "outward"),
        ("createPage", definition("title"), THERE, "outward"),
        ("createPage", definition("title"), HERE, ""),
        ("read_email", definition("id"), HERE, "private untrusted"),
        ("send_email", definition("to"), HERE, "outward"),
        ("list_messages", definition(readOnlyHint=True), HERE, "private untrusted"),
        ("add_row", definition("recipients"), HERE, "outward"),
        ("run_command", definition("command"), HERE, "private outward"),
        ("add", definition("a", "b"), HERE, ""),
        ("query", {"inputSchema": None, "annotations": 1}, HERE, "private"),
        ("recent", {}, StdioServerConfig("my-slack", "x"), "private untrusted"),
    ],
)
def test_labels_are_proposed_from_the_definition(name: str, raw: JsonObject, config: ServerConfig, labels: str) -> None:
    assert [*propose_labels(name, raw, config)] == labels.split()


@pytest.mark.parametrize(
    ("profile", "sends"),
    [
        (ServerProfile(name="strict"), False),
        (ServerProfile(hosts=()), False),
        (ServerProfile(name="strict", hosts=("api.example:443",)), True),
        (ServerProfile(), True),
    ],
)
def test_a_sandbox_without_hosts_sends_nothing(profile: ServerProfile, *, sends: bool) -> None:
    config = StdioServerConfig("s", "x", sandbox=profile)
    assert ("outward" in propose_labels("send_email", {}, config)) is sends


def test_resources_and_prompts_may_be_private() -> None:
    assert [*propose_labels("x://y", {}, HERE, "resource")] == ["private"]


def test_what_the_user_says_replaces_proposals() -> None:
    raw = definition("url")
    given = parse_labels({"*": ["private"], "fetch": []})
    assert find_labels("fetch", raw, HERE, given).labels == {}
    assert find_labels("fetch", raw, HERE, given).is_confirmed
    assert [*find_labels("other", {}, HERE, given).labels] == ["private"]
    proposed = find_labels("fetch", raw, HERE, {})
    assert not proposed.is_confirmed
    assert proposed.labels["outward"] == "its argument 'url' chooses an address"


@pytest.mark.parametrize("value", ["private", ["privat"], {"a": "private"}, {"a": [1]}, [["private"]], 3])
def test_invalid_labels_are_left_out_with_a_remark(value: JsonValue) -> None:
    with pytest.raises(InvalidLabelsError):
        parse_labels(value)
    row = parse_row("s", {"command": "x", "labels": value}, Origin("f", "user", "indus"))
    assert row.labels == {}
    assert "its labels were left out" in row.remarks[0]


def test_labels_are_written_as_they_were_read() -> None:
    values: tuple[JsonValue, ...] = (["private", "outward"], {"*": ["private"], "a": []}, {"a": ["untrusted"]})
    for value in values:
        assert format_labels(parse_labels(value)) == value
    assert parse_labels(None) == {}


def test_joined_labels_are_at_least_as_strict_as_both() -> None:
    joined = join_labels(parse_labels({"*": ["private"], "a": []}), parse_labels({"a": ["outward"], "b": []}))
    assert joined == {"*": ("private",), "a": ("outward",), "b": ("private",)}
