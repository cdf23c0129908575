"""The rows of lists: each field of the protocol is kept with values of its type, and dropped with others."""

from __future__ import annotations

from typing import Any

import pytest

from indusagi.interop.protocol_bridge.host.content import CONTENT_FIELDS, TOOL_FIELDS, keep_fields

GOOD_ICON = {"src": "a:", "mimeType": "image/png", "sizes": ["1x1"], "theme": "light"}


def keep(fields: Any, name: str, value: Any) -> Any:
    """Return what is kept of a value; the field is missing if that is nothing."""
    row = keep_fields({"own": None, name: value}, fields)
    assert row.pop("own") is None
    return row.get(name, "dropped")


@pytest.mark.parametrize("fields", [TOOL_FIELDS, CONTENT_FIELDS])
@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("title", "t", "t"),
        ("title", 1, "dropped"),
        ("title", None, "dropped"),
        ("description", "", ""),
        ("description", ["d"], "dropped"),
        ("_meta", {}, {}),
        ("_meta", [], "dropped"),
        ("icons", [GOOD_ICON], [GOOD_ICON]),
        ("icons", GOOD_ICON, "dropped"),
        ("icons", ["a:", {"mimeType": "x"}, {"src": 1}, {"src": "b:"}], [{"src": "b:"}]),
        ("icons", [{"src": "a:", "theme": "dark", "x": 1}], [{"src": "a:", "theme": "dark", "x": 1}]),
        ("icons", [{"src": "a:", "theme": "red", "mimeType": 1, "sizes": "any"}], [{"src": "a:"}]),
        ("icons", [{"src": "a:", "sizes": ["1x1", 2]}], [{"src": "a:", "sizes": ["1x1"]}]),
    ],
)
def test_fields_of_every_row(fields: Any, name: str, value: Any, kept: Any) -> None:
    assert keep(fields, name, value) == kept


HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("annotations", {"title": "t", "other": 1}, {"title": "t", "other": 1}),
        ("annotations", {"title": 1}, {}),
        ("annotations", "x", "dropped"),
        *[("annotations", {hint: True}, {hint: True}) for hint in HINTS],
        *[("annotations", {hint: 1}, {}) for hint in HINTS],
        *[
            ("execution", {"taskSupport": word}, {"taskSupport": word})
            for word in ("forbidden", "optional", "required")
        ],
        ("execution", {"taskSupport": "maybe"}, {}),
        ("execution", {"taskSupport": True}, {}),
        ("execution", None, "dropped"),
        *[(schema, "x", "dropped") for schema in ("inputSchema", "outputSchema")],
        *[
            (
                schema,
                {"type": "object", "properties": {"a": {"b": 1}, "c": True, "d": False, "e": 7}, "required": ["a", 1]},
                {
                    "type": "object",
                    "properties": {"a": {"b": 1}, "c": {}, "d": {"not": {}}, "e": {}},
                    "required": ["a"],
                },
            )
            for schema in ("inputSchema", "outputSchema")
        ],
        ("inputSchema", {"properties": [], "required": "a"}, {}),
    ],
)
def test_fields_of_a_tool(name: str, value: Any, kept: Any) -> None:
    assert keep(TOOL_FIELDS, name, value) == kept


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("name", "n", "n"),
        ("name", 1, "dropped"),
        ("mimeType", "a/b", "a/b"),
        ("mimeType", {}, "dropped"),
        ("size", 3, 3),
        ("size", True, "dropped"),
        ("size", 3.5, "dropped"),
        ("size", "3", "dropped"),
        ("annotations", {"audience": ["user", "assistant", "nobody", 1]}, {"audience": ["user", "assistant"]}),
        ("annotations", {"audience": "user"}, {}),
        *[("annotations", {"priority": share}, {"priority": share}) for share in (0, 0.5, 1)],
        *[("annotations", {"priority": share}, {}) for share in (-0.1, 1.1, True, "1")],
        *[
            ("annotations", {"lastModified": moment}, {"lastModified": moment})
            for moment in ("2025-01-31T10:00:00Z", "2025-01-31T10:00:00.25+02:00", "2025-01-31T10:00Z")
        ],
        *[
            ("annotations", {"lastModified": moment}, {})
            for moment in (
                "2025-02-30T10:00:00Z",
                "2025-01-31T10:00:00",
                "2025-01-31",
                " 2025-01-31T10:00:00Z",
                1,
                None,
            )
        ],
        ("arguments", [{"name": "a", "required": True, "title": "t"}], [{"name": "a", "required": True, "title": "t"}]),
        ("arguments", [{"name": "a", "required": "yes", "title": 1, "description": 2}], [{"name": "a"}]),
        ("arguments", [{"title": "a"}, {"name": 1}, 3, {"name": "b"}], [{"name": "b"}]),
        ("arguments", {"name": "a"}, "dropped"),
    ],
)
def test_fields_of_a_resource_or_prompt(name: str, value: Any, kept: Any) -> None:
    assert keep(CONTENT_FIELDS, name, value) == kept
