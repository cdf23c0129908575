"""Conditions of rules on arguments: `github__create_issue(repo=acme/*, labels.name=bug)`.

A dot leads into an object, and a list stands for its elements. A value that's JSON other than an object (`5`, `true`,
`"a, b=c"`, `["x"]`) is compared as JSON; any other is a text in which `*` stands for any characters. A condition on a
missing argument doesn't match.

Servers convert what they get: `"5.0"` to 5, `"yes"` to true, a text with JSON to its object, `%61` to `a`. So what's
denied is compared in every such form, and what's allowed in none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Final
from unicodedata import normalize
from urllib.parse import unquote

from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json, is_json_object
from indusagi.core.records import record

_NAME = r"[A-Za-z_$][\w$-]*(?:\.[\w$-]+)*"
_CONDITION = re.compile(rf"\s*({_NAME})\s*=\s*", re.ASCII)
_END = re.compile(rf"\s*(?:$|,(?=\s*{_NAME}\s*=))", re.ASCII)
_MISSING: Final = object()
_SPELLINGS: Final = {
    True: frozenset({"true", "1", "1.0", "t", "y", "yes", "on"}),
    False: frozenset({"false", "0", "0.0", "f", "n", "no", "off"}),
}
_MOST_DIGITS: Final = 400
"""A longer text is too much work for a number."""
_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Also writes NaN, which texts with JSON may have."""
_UNREADABLE: Final = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "additionalProperties", "if")
"""Parts of a schema that may describe more arguments."""


@record
class ArgumentPattern:
    """One condition of a rule."""

    path: tuple[str, ...]
    text: str
    """The pattern, or a JSON string's content."""
    is_json: bool
    value: JsonValue = None
    """The JSON value."""

    def matches(self, arguments: JsonValue, *, loosely: bool) -> bool:
        """Return whether the arguments meet the condition.

        To allow, every value there must match, with its type. To deny or ask (`loosely`), one is enough, in any case
        and as any type.
        """
        whole = self.is_json and isinstance(self.value, list)
        try:
            found = [*_find_values(arguments, self.path, whole=whole, loosely=loosely)]
        except RecursionError:
            return loosely
        if loosely:
            return any(value is not _MISSING and self._resembles(value) for value in found)
        return bool(found) and all(value is not _MISSING and self._equals(value) for value in found)

    def _equals(self, value: JsonValue) -> bool:
        if self.is_json:
            return _is_same(value, self.value)
        return self.text == "*" or (isinstance(value, str) and match_text(self.text, value))

    def _resembles(self, value: JsonValue) -> bool:
        if self.is_json and _is_same(value, self.value):
            return True
        spelled = _spell(value if isinstance(value, str) else _COMPACT.encode(value))
        if not self.is_json:
            return any(match_text(text, one) for text in _spell(self.text) for one in spelled)
        if isinstance(self.value, bool) and not spelled.isdisjoint(_SPELLINGS[self.value]):
            return True
        number = None if isinstance(self.value, str) else _parse_number(self.value)
        return not spelled.isdisjoint(_spell(self.text)) or (number is not None and number == _parse_number(value))


def _spell(text: str) -> frozenset[str]:
    """Return a text in the forms that a server may take for the same."""
    plain = text.casefold()
    return frozenset({plain, normalize("NFKC", unquote(plain)).casefold().strip()})


def _parse_number(value: JsonValue) -> Decimal | None:
    """Return the number that a server may take a value for."""
    text = value.strip() if isinstance(value, str) else str(int(value) if isinstance(value, bool) else value)
    if len(text) > _MOST_DIGITS:
        return None
    try:
        number = Decimal(int(text, 16) if text[:2].lower() == "0x" else text)
    except (InvalidOperation, ValueError):
        return None
    return number if number.is_finite() else None


def _is_same(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two JSON values are equal; `1` and `1.0` are, `1` and `true` aren't."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if is_json_object(one) and is_json_object(other):
        return one.keys() == other.keys() and all(_is_same(inner, other[name]) for name, inner in one.items())
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def match_text(pattern: str, text: str, *, fold: bool = False) -> bool:
    """Match a text against a pattern with `*` wildcards, without backtracking."""
    if fold:
        pattern, text = pattern.casefold(), text.casefold()
    first, *others = pattern.split("*")
    if not others:
        return first == text
    if not text.startswith(first):
        return False
    position = len(first)
    for part in others[:-1]:
        index = text.find(part, position)
        if index < 0:
            return False
        position = index + len(part)
    return len(text) - position >= len(others[-1]) and text.endswith(others[-1])


@lru_cache(maxsize=1024)
def parse_argument_patterns(specifier: str) -> Sequence[ArgumentPattern] | None:
    """Parse the conditions of a specifier, or return `None` if it isn't about arguments."""
    patterns: list[ArgumentPattern] = []
    position = 0
    while (name := _CONDITION.match(specifier, position)) is not None:
        path, start = tuple(name[1].split(".")), name.end()
        pattern, position = _parse_json(path, specifier, start) or _parse_text(path, specifier, start)
        patterns.append(pattern)
        if position >= len(specifier):
            return tuple(patterns)
    return None


def find_unknown_argument(specifier: str, schema: JsonObject | None) -> str | None:
    """Find an argument that a specifier names although the definition (`schema`) doesn't have it.

    That a call has it changes nothing: whoever makes the call could add it to get past the rule.
    """
    patterns = (parse_argument_patterns(specifier) or ()) if schema else ()
    return next((".".join(one.path) for one in patterns if _lacks(schema, one.path)), None)


def _lacks(schema: JsonValue, path: tuple[str, ...]) -> bool:
    """Return whether a definition says that there's nothing at a path."""
    if not path or not is_json_object(schema) or any(schema.get(name) for name in _UNREADABLE):
        return False
    kind, properties = schema.get("type"), schema.get("properties")
    if kind == "array":
        return _lacks(schema.get("items"), path)
    if not is_json_object(properties) or not properties:
        return isinstance(kind, str) and kind != "object"
    return all(_lacks(inner, rest) for inner, rest in _take_steps(properties, path))


def _take_steps(value: JsonObject, path: tuple[str, ...]) -> Iterator[tuple[JsonValue, tuple[str, ...]]]:
    """Yield what the next names of a path lead to, and the rest of it. A name may have dots itself."""
    for count in range(1, len(path) + 1):
        if (name := ".".join(path[:count])) in value:
            yield value[name], path[count:]


def _parse_json(path: tuple[str, ...], specifier: str, start: int) -> tuple[ArgumentPattern, int] | None:
    try:
        value, stop = json.JSONDecoder().raw_decode(specifier, start)
        end = _END.match(specifier, stop)
        if end is None or is_json_object(value):
            return None
        text = value if isinstance(value, str) else compact_json(value)
        return ArgumentPattern(path, text, is_json=True, value=value), end.end()
    except (ValueError, RecursionError, NotJson):
        return None


def _parse_text(path: tuple[str, ...], specifier: str, start: int) -> tuple[ArgumentPattern, int]:
    end = _END.search(specifier, start)
    assert end is not None  # it matches the end of the text
    return ArgumentPattern(path, specifier[start : end.start()], is_json=False), end.end()


def _find_values(value: JsonValue, path: tuple[str, ...], *, whole: bool, loosely: bool) -> Iterator[JsonValue]:
    """Yield the values at a path through all elements of lists, and a marker for each place without one.

    `loosely` also looks into texts with JSON.
    """
    if loosely and isinstance(value, str) and value.lstrip()[:1] in {"{", "[", '"'}:
        if not path:
            yield value
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            if path:
                yield _MISSING  # type: ignore[misc]  # pyright: a marker
            return
        yield from _find_values(value, path, whole=whole, loosely=True)
    elif isinstance(value, list) and not (whole and not path):
        for item in value:
            yield from _find_values(item, path, whole=whole, loosely=loosely)
    elif not path:
        yield value
    elif is_json_object(value) and (steps := [*_take_steps(value, path)]):
        for inner, rest in steps:
            yield from _find_values(inner, rest, whole=whole, loosely=loosely)
    else:
        yield _MISSING  # type: ignore[misc]  # pyright: a marker
