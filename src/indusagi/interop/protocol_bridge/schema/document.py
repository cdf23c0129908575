"""A schema as a server sent it, to look things up in.

It answers what a reference points to, whether a part can be taken as it is, and how much room it
takes. A part is looked at once, however many references lead to it, and the work that goes into
looking is bounded: a stranger wrote the schema, and others wait meanwhile.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from indusagi.core.json import NotJson, compact_json
from indusagi.interop.protocol_bridge.schema.normalize import is_dict, is_list, known_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from indusagi.core.json import JsonLike
    from indusagi.interop.protocol_bridge.schema.normalize import AnyObject

_SCHEMAS = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "oneOf",
        "prefixItems",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_MAPS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
SCHEMA_KEYWORDS = _SCHEMAS | _MAPS
"""Keywords whose value is a schema, or a list or a map of schemas."""
REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

_REFERENCE_CHARS = 1_000
_DEEPEST_PART = 64
"""How many containers within each other a part may be that is taken as it is."""


_PATIENCE = 16
"""How often the size of one part may be spent on looking at parts that turn out to be unfit."""


class Look(IntEnum):
    """How a part looks, from good to bad."""

    PLAIN = 0
    """Good as it is."""
    ODD = 1
    """Of a form that some provider refuses."""
    REFERS = 2
    """With references in it, which mean nothing elsewhere."""
    UNFIT = 3
    """Too large or too deep to be taken as it is, or not JSON."""


class SchemaDocument:
    """A schema as it was sent, to look things up in; what was found once is remembered."""

    def __init__(self, root: AnyObject, *, part_bytes: int) -> None:
        self.root = root
        self._part_bytes = part_bytes
        # The parts are kept beside what was found, so that no other value can get their id.
        self._texts: dict[int, tuple[object, str | None]] = {}
        self._looks: dict[tuple[str, int], tuple[object, Look]] = {}
        self._patience = _PATIENCE * part_bytes

    def text(self, part: object) -> str | None:
        """Write a part down; None when JSON cannot carry it, or when it is too large or deep."""
        if id(part) not in self._texts:
            self._texts[id(part)] = part, self._written(part)
        return self._texts[id(part)][1]

    def carries(self, part: object) -> bool:
        """Tell whether a part can be taken as it is; most are short texts, and need no look."""
        if isinstance(part, str):
            return len(part) <= self._part_bytes
        return self.text(part) is not None

    def _written(self, part: object) -> str | None:
        layer, room, depth = [part], self._part_bytes, 0
        while layer:
            depth += 1
            self._patience -= len(layer)
            room -= sum(len(p) if isinstance(p, str) else 1 for p in layer)
            if room < 0 or self._patience < 0 or depth > _DEEPEST_PART:
                return None
            layer = list(islice((child for p in layer for child in _children(p)), room + 1))
        try:
            return compact_json(cast("JsonLike", part))
        except NotJson:
            return None

    def look(self, keyword: str, part: object) -> Look:
        """Look at the schemas that the value of a keyword holds, down to the last."""
        if self.text(part) is None:
            return Look.UNFIT
        key = keyword, id(part)
        if key not in self._looks:
            found = {_look(level) for level in _walk(_below({keyword: part}), _below)}
            self._looks[key] = part, max(found, default=Look.PLAIN)
        return self._looks[key][1]

    def find(self, reference: object) -> AnyObject | bool | None:
        """Find what a reference within this document points to.

        None when it leads elsewhere, and when that is not certain: an `$id` further down changes
        what references mean, and a name may have been given twice.
        """
        if not isinstance(reference, str) or len(reference) > _REFERENCE_CHARS:
            return None
        if not reference.startswith("#") or self._names is None:
            return None
        found: object = self.root
        if reference.startswith("#/"):
            for step in unquote(reference[2:]).split("/"):
                found = _step(found, step)
        elif reference != "#":
            found = self._names.get(reference[1:])
        return found if isinstance(found, bool) or is_dict(found) else None

    @cached_property
    def _names(self) -> dict[str, AnyObject | None] | None:
        """The levels that have a name; None instead of those whose name is not theirs alone."""
        for inner in _walk(_children(self.root), _children):
            if isinstance(inner.get("$id"), str):
                return None
        names: dict[str, AnyObject | None] = {}
        for level in _walk([self.root], _below):
            for name in (level.get("$anchor"), level.get("$dynamicAnchor")):
                if isinstance(name, str):
                    names[name] = None if name in names else level
        return names


def _walk(values: Iterable[object], below: Callable[[object], Iterable[object]]) -> Iterator[AnyObject]:
    """Visit every dict that can be reached, each once."""
    pending, seen = list(values), set[int]()
    while pending:
        value = pending.pop()
        if id(value) not in seen:
            seen.add(id(value))
            pending.extend(below(value))
            if is_dict(value):
                yield value


def _children(value: object) -> Iterable[object]:
    if is_dict(value):
        return value.values()
    return value if is_list(value) else ()


def _below(level: object) -> Iterator[object]:
    """Give the values right below a level that are schemas, or should be."""
    for key, value in level.items() if is_dict(level) else ():
        if key in _SCHEMAS:
            yield from value if is_list(value) else [value]
        elif key in _MAPS:
            yield from _children(value)


def _look(level: AnyObject) -> Look:
    if not REFERENCES.isdisjoint(level):
        return Look.REFERS
    kind = known_type(level)
    if (kind is None and "type" in level) or (kind == "array" and "items" not in level):
        return Look.ODD
    return Look.ODD if is_list(level.get("items")) else Look.PLAIN


def _step(value: object, step: str) -> object:
    """Go one step of a JSON pointer; None when there is nothing."""
    if is_dict(value):
        return value.get(step.replace("~1", "/").replace("~0", "~"))
    if is_list(value) and step.isdecimal() and step.isascii() and len(step) < 9:
        return value[int(step)] if int(step) < len(value) else None
    return None
