"""Things to measure with, of the size and shape that sessions see."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indusagi.core import JsonObject

SEARCH_SCHEMA: JsonObject = {
    "name": "search_issues",
    "description": (
        "Search the issues and pull requests of one or more repositories. Returns at most `limit` "
        "matches with their number, title, state, labels and the first lines of their text; pass "
        "the `cursor` of an answer to get the next page. Quote words that must stand together."
    ),
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": 256,
                "description": "Words to look for in the title and the text.",
            },
            "repositories": {
                "type": "array",
                "items": {"type": "string", "pattern": "^[^/]+/[^/]+$"},
                "minItems": 1,
                "maxItems": 20,
                "description": "Where to look, each as owner/name.",
            },
            "state": {
                "type": "string",
                "enum": ["open", "closed", "merged", "any"],
                "default": "any",
                "description": "Only those in this state.",
            },
            "labels": {
                "type": "array",
                "items": {"type": "string"},
                "uniqueItems": True,
                "description": "Only those that carry all of these labels.",
            },
            "author": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "default": None,
                "description": "Only those opened by this account.",
            },
            "updated": {
                "type": "object",
                "properties": {
                    "after": {"type": "string", "format": "date-time"},
                    "before": {"type": "string", "format": "date-time"},
                },
                "additionalProperties": False,
                "description": "Only those last touched in this span of time.",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 30},
            "cursor": {"type": "string", "description": "Where the last answer ended."},
        },
        "required": ["query", "repositories"],
        "additionalProperties": False,
    },
    "outputSchema": {
        "type": "object",
        "properties": {
            "total": {"type": "integer", "minimum": 0},
            "cursor": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "matches": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "repository": {"type": "string"},
                        "number": {"type": "integer"},
                        "title": {"type": "string"},
                        "state": {"type": "string"},
                        "labels": {"type": "array", "items": {"type": "string"}},
                        "excerpt": {"type": "string"},
                    },
                    "required": ["repository", "number", "title", "state"],
                },
            },
        },
        "required": ["total", "matches"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": True, "title": "Search issues"},
}
"""A tool as a server lists it: about 2 kB of JSON, most of it schemas."""
