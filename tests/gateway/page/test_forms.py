"""Forms of schemas, and the arguments that a filled form gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from indusagi.runtime.contract import JsonContentBlock, ToolOutcome, ToolResult
from induscode.gateway.page.html import render
from induscode.gateway.page.views.items import build_fields, read_arguments, show_outcome
from induscode.gateway.page.views.row import set_variable
from induscode.gateway.page.views.sessions import build_edit_diff
from induscode.servers.plan import parse_server_row

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "loud": {"type": "boolean"},
        "kind": {"enum": ["a", 1, None]},
        "names": {"type": "array", "items": {"type": "string"}},
        "extra": {"type": "object"},
        "anything": {},
    },
    "required": ["path"],
}


def test_every_kind_of_field_becomes_its_type() -> None:
    form = {
        "arg.path": "a b",
        "arg.count": "3",
        "arg.ratio": "0.5",
        "arg.loud": "true",
        "arg.kind": "1",
        "arg.names": "x\r\ny\r\n",
        "arg.extra": '{"a": [1]}',
        "arg.anything": "plain words",
    }
    assert read_arguments(SCHEMA, form) == {
        "path": "a b",
        "count": 3,
        "ratio": 0.5,
        "loud": True,
        "kind": 1,
        "names": ["x", "y"],
        "extra": {"a": [1]},
        "anything": "plain words",
    }


def test_empty_optional_fields_are_left_out_and_an_empty_required_text_is_sent() -> None:
    assert read_arguments(SCHEMA, {"arg.path": "", "arg.count": ""}) == {"path": ""}


def test_unknown_fields_are_ignored() -> None:
    assert read_arguments(SCHEMA, {"arg.path": "x", "arg.__proto__": "1", "form_key": "k"}) == {"path": "x"}


def test_invalid_json_names_its_field() -> None:
    with pytest.raises(ValueError, match=r"^extra is not valid JSON"):
        read_arguments(SCHEMA, {"arg.extra": "{"})
    with pytest.raises(ValueError, match=r"^extra is not valid JSON"):
        read_arguments(SCHEMA, {"arg.extra": "[" * 100_000})


def test_fields_have_labels_and_keep_what_was_sent() -> None:
    fields = "".join(build_fields(SCHEMA, {"arg.path": "sent", "arg.loud": "false"}))
    assert fields.count("<label") == len(SCHEMA["properties"])
    assert 'value="sent"' in fields
    assert '<option value="false" selected>' in fields


@pytest.mark.parametrize("schema", [{}, {"properties": None}, {"properties": {"a": True}}, {"required": "a"}])
def test_odd_schemas_give_a_form(schema: dict[str, Any]) -> None:
    build_fields(schema, {})
    read_arguments(schema, {})


@pytest.mark.parametrize("kind", [["integer", "null"], [], {}, 3])
def test_a_field_of_any_type_has_a_control(kind: JsonValue) -> None:
    assert build_fields({"type": "object", "properties": {"a": {"type": kind}}}, {})


def test_finding_f1_a_picture_of_an_unknown_type_is_shown_as_json() -> None:
    block = JsonContentBlock({"type": "image", "data": "aGk=", "mimeType": ["image/png"]})
    assert "<img" not in render(show_outcome(ToolOutcome("1", ToolResult((block,)))))


def test_a_value_with_quotation_marks_stays_one_value() -> None:
    row = parse_server_row("s", {"command": "x", "args": ["--key=${KEY}"]}, "mcp.json", "user")
    text = 'a"],"command":"y\\'
    assert set_variable(row, "KEY", text) == {"args": [f"--key={text}"]}
    assert set_variable(row, "OTHER", text) == {"env": {"OTHER": text}}


def test_an_edit_is_a_diff_only_if_its_texts_are_known() -> None:
    edit = build_edit_diff("edit", {"path": "a.py", "edits": [{"oldText": "old", "newText": "new"}]})
    assert edit is not None
    assert "old" in render(edit)
    assert "new" in render(edit)
    assert build_edit_diff("edit", {"path": "a.py", "old_text": "old", "new_text": "new"}) is None
    assert build_edit_diff("write", {"path": "a.py", "text": "new"}) is None
    assert build_edit_diff("bash", {"command": "ls"}) is None
