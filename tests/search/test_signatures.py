"""Signatures of found items."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from indusagi.runtime.contract import JsonSchema, ToolDescriptor
from induscode.search.items import LONGEST_SIGNATURE, build_content_item, build_tool_item, format_signature

NAME_LETTERS = string.ascii_letters + string.digits + "_-"
ISSUE = {
    "type": "object",
    "required": ["owner", "repo"],
    "properties": {
        "labels": {"type": "array", "items": {"type": "string"}},
        "owner": {"type": "string", "description": "The owner"},
        "state": {"enum": ["open", "closed"]},
        "repo": {"type": "string"},
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "deep": {"type": ["number", "boolean"]},
        "odd": True,
    },
}


def test_required_parameters_come_first_with_short_types() -> None:
    item = build_tool_item(ToolDescriptor("github__create_issue", "Create an issue.  It is\nopen. More.", ISSUE))
    assert format_signature(item) == (
        'github__create_issue(owner: str, repo: str, labels?: list[str], state?: "open"|"closed", count?: int|None, '
        "deep?: float|bool, odd?: any) — Create an issue"
    )


def test_what_has_no_room_is_left_out_and_counted() -> None:
    item = build_tool_item(ToolDescriptor("github__create_issue", "Create an issue " * 20, ISSUE))
    text = format_signature(item, 120)
    assert text.startswith("github__create_issue(owner: str, repo: str, … +5) — Create an issue")
    assert text.endswith("…")
    assert len(text) <= 120
    many: JsonSchema = {
        "required": [f"parameter{n}" for n in range(40)],
        "properties": {f"parameter{n}": {} for n in range(40)},
    }
    text = format_signature(build_tool_item(ToolDescriptor("many", "About.", many)))
    assert text.startswith("many(parameter0, parameter1, ")
    assert "… +" in text
    hundreds: JsonSchema = {"properties": {f"parameter{n}": {} for n in range(300)}}
    text = format_signature(build_tool_item(ToolDescriptor("hundreds", "About.", hundreds)))
    shown, _, left = text.partition(", … +")
    assert shown.count("parameter") + int(left.partition(")")[0]) == 300


def test_prompts_resources_and_invisible_characters() -> None:
    prompt: JsonSchema = {
        "name": "triage",
        "description": "Sort.",
        "arguments": [{"name": "label", "required": True}, {"name": "x"}],
    }
    assert format_signature(build_content_item("prompt", "s", "/s:triage", prompt)) == (
        "prompt /s:triage(label: str, x?: str) — Sort."
    )
    resource = {"uri": "file:///a", "name": "a", "description": "A\u202efile"}
    assert format_signature(build_content_item("resource", "s", "@s:file:///a", resource)) == (
        "resource @s:file:///a — A<U+202E>file"
    )


@given(
    st.text(NAME_LETTERS, min_size=1, max_size=64),
    st.text(max_size=500),
    st.dictionaries(st.text(max_size=40), st.sampled_from([{"type": "string"}, {"enum": ["a" * 30]}, True, {}])),
)
def test_a_signature_has_its_length(
    name: str, description: str, properties: dict[str, bool | dict[str, str | list[str]]]
) -> None:
    item = build_tool_item(ToolDescriptor(name, description, {"properties": properties}))
    assert len(format_signature(item)) <= LONGEST_SIGNATURE
