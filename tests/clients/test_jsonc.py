"""Edits of JSON with comments: one member changes, and every other byte stays."""

from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.core.config_file import parse_json
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from induscode.servers.clients.install import JsoncError, append_item, remove_item, remove_member, set_member

_ROW: JsonObject = {"command": "indus", "args": ["serve"]}


def _read(text: str) -> JsonObject:
    found = parse_json(text)
    assert found.trouble is None, (found.trouble, text)
    assert is_json_object(found.document)
    return found.document


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "s": {\n    "a": 1\n  }\n}\n'),
        ("{}", '{\n  "s": {\n    "a": 1\n  }\n}'),
        ('{"x": 2}', '{"x": 2,\n  "s": {\n    "a": 1\n  }\n}'),
        (
            '{\n\t// why\n\t"s": {\n\t\t"b": 2 // last\n\t}\n}\n',
            '{\n\t// why\n\t"s": {\n\t\t"b": 2, // last\n\t\t"a": 1\n\t}\n}\n',
        ),
        (
            '{\n  "s": {\n    "b": 2, /* c */\n    // end\n  },\n}\n',
            '{\n  "s": {\n    "b": 2, /* c */\n    // end\n    "a": 1\n  },\n}\n',
        ),
        ('{\r\n    "s": {}\r\n}', '{\r\n    "s": {\r\n        "a": 1\r\n    }\r\n}'),
        ('{"s": {"a": {"old": [1]}, "b": 2}}', '{"s": {"a": 1, "b": 2}}'),
    ],
)
def test_a_member_is_set_and_the_rest_stays(before: str, after: str) -> None:
    assert set_member(before, ["s", "a"], 1) == after
    servers = _read(before or "{}").get("s", {})
    assert is_json_object(servers)
    assert _read(after)["s"] == {**servers, "a": 1}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"s": {"a": 1}}', '{"s": {}}'),
        ('{"s": {"a": 1, "b": 2}}', '{"s": { "b": 2}}'),
        ('{\n  "s": {\n    "b": 2,\n    "a": 1\n  }\n}', '{\n  "s": {\n    "b": 2\n  }\n}'),
        ('{\n  "s": {\n    "b": 2, // two\n    "a": 1\n  }\n}', '{\n  "s": {\n    "b": 2 // two\n  }\n}'),
        (
            '{\n  "s": {\n    // one\n    "a": 1, // mine\n    "b": 2\n  }\n}',
            '{\n  "s": {\n    // one\n     // mine\n    "b": 2\n  }\n}',
        ),
        ('{"s": {// x\n"a": 1}}', '{"s": {// x\n}}'),
        ('{"s": 1}', '{"s": 1}'),
        ("{}", "{}"),
    ],
)
def test_a_member_is_removed_and_the_rest_stays(before: str, after: str) -> None:
    assert remove_member(before, ["s", "a"]) == after
    _read(after)


def test_items_are_appended_and_removed() -> None:
    text = '{\n  "inputs": [\n    {"id": "x"} // x\n  ]\n}'
    more = append_item(text, "inputs", {"id": "y"})
    assert _read(more) == {"inputs": [{"id": "x"}, {"id": "y"}]}
    assert "// x" in more
    assert remove_item(more, "inputs", 1) == text
    assert _read(append_item("{}", "inputs", 1)) == {"inputs": [1]}
    assert remove_item("{}", "inputs", 0) == "{}"
    with pytest.raises(JsoncError, match="not a list"):
        append_item('{"inputs": {}}', "inputs", 1)


@pytest.mark.parametrize(
    "text", ["{", '{"a"', '{"a" 1}', '{"a": 1 "b": 2}', "{} x", '{"a": /* }', '{"a": }', "{1: 2}", '"x']
)
def test_what_is_invalid_is_refused(text: str) -> None:
    with pytest.raises(JsoncError, match="line 1 column"):
        set_member(text, ["s"], 1)


def test_what_cannot_be_edited_is_refused() -> None:
    for text in ('{"s": 3}', "[]"):
        with pytest.raises(JsoncError, match="is not an object"):
            set_member(text, ["s", "a"], 1)
    with pytest.raises(JsoncError, match="twice"):
        set_member('{"s": {}, "s": {}}', ["s", "a"], 1)
    with pytest.raises(JsoncError, match="nested too deeply"):
        set_member("[" * 300 + "]" * 300, ["s"], 1)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
_COMMENTS = st.sampled_from(["", " ", "\n", "// c {\n", "/* , */", "\t", "\r\n"])


@st.composite
def _commented(draw: st.DrawFn) -> str:
    """Write a document with comments, spaces and trailing commas wherever these may stand."""

    def gap() -> str:
        return draw(_COMMENTS)

    def write(value: JsonValue) -> str:
        if is_json_object(value):
            return block("{", "}", [f"{json.dumps(k)}{gap()}:{gap()}{write(v)}" for k, v in value.items()])
        if isinstance(value, list):
            return block("[", "]", [write(one) for one in value])
        return json.dumps(value)

    def block(start: str, end: str, parts: list[str]) -> str:
        tail = "," if parts and draw(st.booleans()) else ""
        return start + ",".join(f"{gap()}{part}{gap()}" for part in parts) + tail + gap() + end

    servers = draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), _VALUES))
    document = cast("JsonObject", {"x": draw(_VALUES), "s": servers, "y": draw(_VALUES)})
    return gap() + write(document) + gap()


@given(_commented(), st.sampled_from(["a", "b", "new"]))
def test_setting_and_removing_change_one_member_of_any_document(text: str, name: str) -> None:
    before = _read(text)
    servers = before["s"]
    assert is_json_object(servers)
    done = set_member(text, ["s", name], _ROW)
    assert _read(done) == {**before, "s": {**servers, name: _ROW}}
    gone = remove_member(done, ["s", name])
    assert _read(gone) == {**before, "s": {k: v for k, v in servers.items() if k != name}}
    for word in ("// c {", "/* , */"):
        if name not in servers:
            assert gone.count(word) == text.count(word)
