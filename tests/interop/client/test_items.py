"""Items of a server beside its tools: what a row becomes, and what is left out with which note."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from indusagi.interop.protocol_bridge.client.skills import (
    INSTRUCTIONS,
    INSTRUCTIONS_CHARS,
    ITEM_LISTS,
    read_content,
    read_instructions,
    read_items,
)
from indusagi.interop.protocol_bridge.contract import RemoteToolRef, ServerLimits, StreamableHttpServerConfig

CONFIG = StreamableHttpServerConfig("s", "http://host/")
HIDDEN = "\u200b"


def read(kind: Any, *rows: Any, config: StreamableHttpServerConfig = CONFIG) -> tuple[list[Any], list[str]]:
    """Read rows; return the items and the notes as text."""
    items, notes = read_items(kind, rows, config)
    return list(items), [str(note) for note in notes]


def test_each_kind_is_listed_by_its_own_request() -> None:
    assert {kind: (one.capability, one.method, one.key, one.identity) for kind, one in ITEM_LISTS.items()} == {
        "tool": ("tools", "tools/list", "tools", "name"),
        "resource": ("resources", "resources/list", "resources", "uri"),
        "template": ("resources", "resources/templates/list", "resourceTemplates", "uriTemplate"),
        "prompt": ("prompts", "prompts/list", "prompts", "name"),
        "skill": ("io.modelcontextprotocol/skills", "skills/list", "skills", "uri"),
    }


@pytest.mark.parametrize(
    ("kind", "row", "seen"),
    [
        ("resource", {"uri": "a:/b"}, "indus://s/a:/b"),
        ("template", {"uriTemplate": "a:/{b}"}, "indus://s/a:/{b}"),
        ("prompt", {"name": "p"}, "s__p"),
    ],
)
def test_a_row_becomes_an_item_under_the_name_that_clients_see(kind: Any, row: dict[str, Any], seen: str) -> None:
    row = {**row, "title": "T", "description": "D"}
    ((item,), notes) = read(kind, row)
    assert (item.ref, notes) == (RemoteToolRef("s", next(iter(row.values())), kind), [])
    assert (item.descriptor.name, item.descriptor.title, item.descriptor.description) == (seen, "T", "D")
    assert (item.descriptor.definition, item.raw) == (row, row)
    ((bare,), _) = read(kind, {**row, "title": 1, "description": 2})
    assert (bare.descriptor.title, bare.descriptor.description) == (None, "")


def test_a_skill_is_described_by_its_front_matter() -> None:
    row = {"uri": "skill://a", "title": "no", "frontmatter": {"title": "T", "description": "D"}}
    ((skill,), _) = read("skill", row)
    assert (skill.descriptor.title, skill.descriptor.description) == ("T", "D")
    ((bare,), _) = read("skill", {**row, "frontmatter": "x"})
    assert bare.descriptor.title == "no"
    ((other,), _) = read("resource", row)
    assert other.descriptor.title == "no"


@pytest.mark.parametrize("row", [7, {}, {"uri": ""}, {"uri": 1}, {"name": "a"}])
def test_a_row_without_identity_is_left_out(row: Any) -> None:
    items, notes = read("resource", {"uri": "a:"}, row, {"uri": "b:"})
    assert [item.ref.name for item in items] == ["a:", "b:"]
    assert notes == ["server 's', row 2 of its resources: it has no uri, and was left out"]


def test_rows_beyond_the_limit_are_counted() -> None:
    config = StreamableHttpServerConfig("s", "http://host/", limits=ServerLimits(tools=2))
    rows = [{"uri": f"a:{number}"} for number in range(5)]
    items, notes = read("resource", *rows, config=config)
    assert [item.ref.name for item in items] == ["a:0", "a:1"]
    assert notes == ["server 's', its resources: more than 2; 3 were left out"]
    assert read("resource", *rows[:2], config=config)[1] == []


def test_the_last_of_two_rows_of_one_identity_counts() -> None:
    ((item,), notes) = read("prompt", {"name": "a", "title": "1"}, {"name": "a", "title": "2"})
    assert item.descriptor.title == "2"
    assert notes == ["server 's', prompt 'a': listed more than once; the last definition is used"]


def test_invisible_characters_are_removed_from_what_is_shown_alone() -> None:
    ((item,), notes) = read("resource", {"uri": "a:", "title": f"T{HIDDEN}"})
    assert (item.descriptor.title, item.raw["title"]) == ("T", f"T{HIDDEN}")
    assert len(notes) == 1
    ((prompt,), _) = read("prompt", {"name": f"a{HIDDEN}"})
    assert prompt.ref.name == f"a{HIDDEN}"
    for kind, row in (
        ("resource", {"uri": f"a:{HIDDEN}"}),
        ("prompt", {"name": "a", "arguments": [{"name": f"x{HIDDEN}"}, 7]}),
    ):
        items, notes = read(kind, row)
        assert items == []
        assert "its address or arguments hold invisible characters, and it was left out" in notes[0]
    ((kept,), _) = read("prompt", {"name": "a", "arguments": [{"name": "x", "description": f"d{HIDDEN}"}]})
    assert kept.descriptor.definition["arguments"] == [{"name": "x", "description": "d"}]


@pytest.mark.parametrize(
    ("row", "raw"),
    [
        ({"size": 1}, {}),
        ({"annotations": {"lastModified": "x"}}, {}),
        ({"annotations": {"lastModified": "x", "priority": 1}}, {"annotations": {"priority": 1}}),
        ({"size": 1, "annotations": {"priority": 1}}, {"annotations": {"priority": 1}}),
        ({"annotations": {"priority": 1}}, {"annotations": {"priority": 1}}),
        ({"annotations": {}}, {"annotations": {}}),
        ({"size": 1, "annotations": 7}, {}),
    ],
)
def test_what_changes_with_the_content_is_not_compared(row: dict[str, Any], raw: dict[str, Any]) -> None:
    ((item,), _) = read("resource", {"uri": "a:", **row})
    assert item.raw == {"uri": "a:", **raw}
    assert item.descriptor.definition == {"uri": "a:", **row}


def test_content_is_described_by_the_digests_of_its_parts() -> None:
    def digest(text: str) -> str:
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()

    found = read_content("s", "a:", [{"text": "t"}, {"blob": "b"}, {"text": "\ud800", "blob": "x"}, {}, 7])
    assert found.raw == {"uri": "a:", "sha256": [digest(part) for part in ("t", "b", "\ud800", "None", "None")]}
    assert found.descriptor.definition == found.raw
    assert (found.ref, found.descriptor.name) == (RemoteToolRef("s", "a:", "content"), "indus://s/a:")
    assert read_content("s", "a:", None).raw == {"uri": "a:", "sha256": []}


def test_instructions_are_one_item_or_none() -> None:
    assert read_instructions(None, CONFIG) == ()
    (found,) = read_instructions(f" do{HIDDEN} this ", CONFIG)
    assert found.ref == RemoteToolRef("s", INSTRUCTIONS, "instructions")
    assert found.raw == {"instructions": f" do{HIDDEN} this "}
    assert found.descriptor.definition == {"instructions": "do this"}
    assert (found.descriptor.name, found.descriptor.description) == ("s", "do this")
    (long,) = read_instructions("x" * 9_000, CONFIG)
    assert long.descriptor.description == "x" * INSTRUCTIONS_CHARS + "… [1,000 more characters]"
