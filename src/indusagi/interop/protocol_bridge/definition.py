"""A tool's definition without invisible characters, and calls back to the server's own spelling.

A server may put characters that cannot be seen into any string of a definition: descriptions,
names of properties, values of an enum, defaults, URLs of icons. Models and clients get the
definition with all of them removed. A call names properties and enum values as they were shown;
`ArgumentSpelling` turns them back into what the server wrote. A definition in which two names, or
two values of one enum, differ in invisible characters only cannot be called without guessing: it
is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from indusagi.core.cleaning import clean_json, clean_names
from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.text import clean_text, cut_text, show_unseen
from indusagi.interop.protocol_bridge.model_schema import model_view

_BRANCHES = ("anyOf", "oneOf", "allOf")
_SHOWN_CHARACTERS = 120


class AmbiguousDefinition(CoreError):
    """Two names or values of a definition are equal once their invisible characters are removed."""


def clean_definition(row: JsonObject) -> tuple[JsonObject, int]:
    r"""Remove the invisible characters of a definition, and count them.

    Regular expressions keep their meaning: there each such character becomes its escape (`\u200b`,
    ECMA-262 22.2.1), since JSON Schema takes ECMA-262 patterns.

    Raises:
        AmbiguousDefinition: Names or enum values would become equal.
    """
    found = clean_json(row)[1]
    if not found:
        return row, 0
    for level in _objects_of(row):
        _refuse_equal(level)
        enum = level.get("enum")
        if isinstance(enum, list):
            _refuse_equal([value for value in enum if isinstance(value, str)])
    escaped = _escape_patterns(row)
    return cast("JsonObject", clean_json(escaped)[0]), found


def _refuse_equal(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        shown = clean_text(name)[0]
        other = seen.setdefault(shown, name)
        if other != name or (name and not shown):
            said = cut_text(show_unseen(name)[0], _SHOWN_CHARACTERS)
            raise AmbiguousDefinition(
                f"{said!r} cannot be told from another name or value, or from nothing, "
                "without its invisible characters"
            )


def _objects_of(value: JsonValue) -> Iterator[JsonObject]:
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, dict):
            yield inner
            pending.extend(inner.values())
        elif isinstance(inner, list):
            pending.extend(inner)


def _escape_patterns(row: JsonObject) -> JsonObject:
    """Copy a definition with the regular expressions in it written in visible characters."""
    copy = cast("JsonObject", clean_json(row, lambda text: (text, 1))[0])
    for level in _objects_of(copy):
        pattern, patterns = level.get("pattern"), level.get("patternProperties")
        if isinstance(pattern, str):
            level["pattern"] = _escape_unseen(pattern)
        if isinstance(patterns, dict):
            level["patternProperties"] = {
                _escape_unseen(key): value for key, value in patterns.items()
            }
    return copy


def _escape_unseen(pattern: str) -> str:
    def write(letter: str) -> str:
        if not clean_text(f"a{letter}a")[1]:
            return letter
        code = ord(letter)
        return f"\\u{code:04x}" if code < 0x10000 else f"\\u{{{code:x}}}"

    return "".join(map(write, pattern))


class ArgumentSpelling:
    """How a server spells what a call names: its properties and the values of its enums."""

    def __init__(self, schema: JsonValue) -> None:
        is_dirty = clean_json(schema)[1] > 0
        # References are inlined in the view, and its depth is bounded.
        self._view = model_view(schema).schema if is_dirty else None

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Spell arguments as the server does; what it does not name stays as it is."""
        if self._view is None:
            return arguments
        return cast("JsonObject", _restore([self._view], arguments))


def _restore(schemas: Sequence[JsonObject], value: JsonValue) -> JsonValue:
    if not schemas:  # beyond what the server describes
        return value
    levels = _with_branches(schemas)
    if isinstance(value, str):
        return _restore_text(levels, value)
    if isinstance(value, list):
        return [_restore(_levels_at(levels, at), inner) for at, inner in enumerate(value)]
    if isinstance(value, dict):
        return _restore_object(levels, value)
    return value


def _restore_object(levels: Sequence[JsonObject], value: JsonObject) -> JsonObject:
    spelled: dict[str, str] = {}
    for level in levels:
        properties = level.get("properties")
        if isinstance(properties, dict):
            spelled |= {shown: name for name, shown in clean_names(properties).items()}
    restored: JsonObject = {}
    for name, inner in value.items():
        own = spelled.get(name, name)
        restored[own] = _restore(_levels_of(levels, own), inner)
    return restored


def _restore_text(levels: Sequence[JsonObject], value: str) -> str:
    named: list[str] = []
    for level in levels:
        enum = level.get("enum")
        values = [*enum] if isinstance(enum, list) else []
        named += [one for one in (*values, level.get("const")) if isinstance(one, str)]
    if value in named:
        return value
    return next((one for one in named if clean_text(one)[0] == value), value)


def _with_branches(schemas: Sequence[JsonObject]) -> list[JsonObject]:
    levels = [*schemas]
    for level in levels:  # grows while it is walked
        for keyword in _BRANCHES:
            branches = level.get(keyword)
            if isinstance(branches, list):
                levels.extend(branch for branch in branches if isinstance(branch, dict))
    return levels


def _levels_of(levels: Sequence[JsonObject], name: str) -> list[JsonObject]:
    """Give the schemas that hold for a property."""
    found: list[JsonValue] = []
    for level in levels:
        properties = level.get("properties")
        if isinstance(properties, dict) and name in properties:
            found.append(properties[name])
        else:
            found.append(level.get("additionalProperties"))
    return [one for one in found if isinstance(one, dict)]


def _levels_at(levels: Sequence[JsonObject], at: int) -> list[JsonObject]:
    """Give the schemas that hold for an element of a list."""
    found: list[JsonValue] = []
    for level in levels:
        first = level.get("prefixItems")
        inside = isinstance(first, list) and at < len(first)
        found.append(cast("list[JsonValue]", first)[at] if inside else level.get("items"))
    return [one for one in found if isinstance(one, dict)]
