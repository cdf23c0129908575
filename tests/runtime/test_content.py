from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import json_values

from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, project_content

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolContentBlock

blocks = st.builds(TextContentBlock, st.text()) | st.builds(JsonContentBlock, json_values)
IMAGE: JsonValue = {"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {"x": None}}


def test_single_text_block_is_its_string() -> None:
    assert project_content([TextContentBlock("hello")]) == "hello"


def test_single_json_block_is_its_value() -> None:
    assert project_content([JsonContentBlock({"a": [1, None]})]) == {"a": [1, None]}


def test_empty_content_is_an_empty_array() -> None:
    assert project_content([]) == []


def test_several_blocks_are_tagged_objects() -> None:
    assert project_content([TextContentBlock("look"), JsonContentBlock(IMAGE)]) == [
        {"type": "text", "text": "look"},
        {"type": "json", "value": IMAGE},
    ]


@given(st.lists(blocks, min_size=2, max_size=6))
def test_several_blocks_are_kept_completely(content: list[ToolContentBlock]) -> None:
    projected = project_content(content)
    assert isinstance(projected, list)
    back = [
        TextContentBlock(f["text"]) if f["type"] == "text" else JsonContentBlock(f["value"])  # type: ignore[index, call-overload, arg-type]
        for f in projected
    ]
    assert back == content
