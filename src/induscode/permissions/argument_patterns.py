"""Conditions of rules on arguments: `github__create_issue(repo=acme/*, labels.name=bug)`.

A dot leads into an object, and a list stands for its elements. A value that's JSON other than an object (`5`, `true`,
`"a, b=c"`, `["x"]`) is compared as JSON; any other is a text in which `*` stands for any characters. A condition on a
missing argument doesn't match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from indusagi.core.json import NotJson, compact_json, content_hash, is_json_object
from indusagi.core.records import record

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

_NAME = r"[A-Za-z_$][\w$-]*(?:\.[\w$-]+)*"
_CONDITION = re.compile(rf"\s*({_NAME})\s*=\s*", re.ASCII)
_END = re.compile(rf"\s*(?:$|,(?=\s*{_NAME}\s*=))", re.ASCII)
_MISSING: Final = object()


@record
class ArgumentPattern:
    """One condition of a rule."""

    path: tuple[str, ...]
    text: str
    """The pattern, or a JSON string's content."""
    is_json: bool
    digest: str = ""
    """Hash of the JSON value, which decides equality."""

    def matches(self, arguments: JsonValue, *, loosely: bool) -> bool:
        """Return whether the arguments meet the condition.

        To allow, every value there must match, with its type. To deny or ask (`loosely`), one is enough, in any case
        and as any type.
        """
        found = [*_find_values(arguments, self.path, whole=self.is_json and self.text.startswith("["))]
        if loosely:
            return any(value is not _MISSING and self._resembles(value) for value in found)
        return bool(found) and all(value is not _MISSING and self._equals(value) for value in found)

    def _equals(self, value: JsonValue) -> bool:
        if self.is_json:
            return content_hash(value) == self.digest
        return self.text == "*" or (isinstance(value, str) and match_text(self.text, value))

    def _resembles(self, value: JsonValue) -> bool:
        shown = value if isinstance(value, str) else compact_json(value)
        if self.is_json and (shown.casefold() == self.text.casefold() or content_hash(value) == self.digest):
            return True
        return not self.is_json and match_text(self.text, shown, fold=True)


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


def find_unknown_argument(specifier: str, known: Collection[str] | None, arguments: Collection[str]) -> str | None:
    """Find an argument that a specifier names although neither the definition (`known`) nor the call has it."""
    patterns = parse_argument_patterns(specifier) or ()
    names = (pattern.path[0] for pattern in patterns)
    return None if known is None else next((name for name in names if name not in {*known, *arguments}), None)


def _parse_json(path: tuple[str, ...], specifier: str, start: int) -> tuple[ArgumentPattern, int] | None:
    try:
        value, stop = json.JSONDecoder().raw_decode(specifier, start)
        end = _END.match(specifier, stop)
        if end is None or is_json_object(value):
            return None
        text = value if isinstance(value, str) else compact_json(value)
        return ArgumentPattern(path, text, is_json=True, digest=content_hash(value)), end.end()
    except (ValueError, RecursionError, NotJson):
        return None


def _parse_text(path: tuple[str, ...], specifier: str, start: int) -> tuple[ArgumentPattern, int]:
    end = _END.search(specifier, start)
    assert end is not None  # it matches the end of the text
    return ArgumentPattern(path, specifier[start : end.start()], is_json=False), end.end()


def _find_values(value: JsonValue, path: tuple[str, ...], *, whole: bool) -> Iterator[JsonValue]:
    """Yield the values at a path through all elements of lists, and a marker for each place without one."""
    if isinstance(value, list) and not (whole and not path):
        for item in value:
            yield from _find_values(item, path, whole=whole)
    elif not path:
        yield value
    elif is_json_object(value) and path[0] in value:
        yield from _find_values(value[path[0]], path[1:], whole=whole)
    else:
        yield _MISSING  # type: ignore[misc]  # pyright: a marker
