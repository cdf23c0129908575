"""A JSON Schema as the server sent it: resolves references and decides which parts can be copied unchanged.

Results are cached by part, so each part is examined once, however many references lead to it. The total work is
bounded, because the schema comes from an untrusted server.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from indusagi.core.json import NotJson, compact_json
from indusagi.interop.protocol_bridge.schema.normalize import find_type, has_faults, is_dict, is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from indusagi.core.json import JsonLike
    from indusagi.interop.protocol_bridge.schema.normalize import AnyObject

_HOLD_SCHEMAS = frozenset(
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
_HOLD_MAPS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
SCHEMA_KEYWORDS = _HOLD_SCHEMAS | _HOLD_MAPS
"""Keywords whose value is a schema, or a list or map of schemas: the applicators of
https://json-schema.org/draft/2020-12/json-schema-core#section-10 and earlier drafts."""
REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

_MAX_REFERENCE_CHARS = 1_000
_MAX_PART_DEPTH = 64
"""Maximum nesting of a part that is copied unchanged."""
_WORK_FACTOR = 16
"""How many times the size limit of a part may be spent on parts that turn out to be unfit."""


class Fitness(IntEnum):
    """How well a part can be copied unchanged, from best to worst."""

    PLAIN = 0
    """Every provider accepts it."""
    UNUSUAL = 1
    """Some provider refuses this form."""
    HAS_REFERENCES = 2
    """Contains references, which are meaningless in another document."""
    FAULTY = 3
    """A keyword holds an invalid value."""
    UNFIT = 4
    """Too large, too deep, or not JSON."""


class SchemaDocument:
    """The schema of one tool; `root` is the schema verbatim."""

    def __init__(self, root: AnyObject, *, part_bytes: int) -> None:
        self.root = root
        self._part_bytes = part_bytes
        # By id of the part. Holds a reference to the part, so that its id can't be reused.
        self._encoded: dict[int, tuple[object, str | None]] = {}
        self._fitness: dict[tuple[str, int], tuple[object, Fitness]] = {}
        self._work_left = _WORK_FACTOR * part_bytes

    def encode(self, part: object) -> str | None:
        """Encode a part as JSON; `None` if it's not JSON, too large or too deep."""
        if id(part) not in self._encoded:
            text = None
            if self._fits(part):
                try:
                    text = compact_json(cast("JsonLike", part))
                except NotJson:
                    pass
            self._encoded[id(part)] = part, text
        return self._encoded[id(part)][1]

    def can_copy(self, part: object) -> bool:
        """Return whether a part can be copied unchanged; strings need no encoding."""
        if isinstance(part, str):
            return len(part) <= self._part_bytes
        return self.encode(part) is not None

    def _fits(self, part: object) -> bool:
        """Walk a part level by level, stopping at the first exceeded limit."""
        level, bytes_left, depth = [part], self._part_bytes, 0
        while level:
            depth += 1
            self._work_left -= len(level)
            bytes_left -= sum(len(value) if isinstance(value, str) else 1 for value in level)
            if bytes_left < 0 or self._work_left < 0 or depth > _MAX_PART_DEPTH:
                return False
            level = list(islice((child for value in level for child in _children(value)), bytes_left + 1))
        return True

    def assess(self, keyword: str, value: object) -> Fitness:
        """Assess all schemas inside a keyword's value, at any depth."""
        if self.encode(value) is None:
            return Fitness.UNFIT
        key = keyword, id(value)
        if key not in self._fitness:
            fitness = Fitness.PLAIN
            for schema in _iterate_objects(_subschemas({keyword: value}), _subschemas):
                kind = find_type(schema)
                if has_faults(schema) or not REFERENCES.isdisjoint(schema):
                    fitness = Fitness.FAULTY if has_faults(schema) else Fitness.HAS_REFERENCES
                    break
                if (
                    (kind is None and "type" in schema)
                    or (kind == "array" and "items" not in schema)
                    or is_list(schema.get("items"))
                ):
                    fitness = Fitness.UNUSUAL
            self._fitness[key] = value, fitness
        return self._fitness[key][1]

    def resolve(self, reference: object) -> AnyObject | bool | None:
        """Resolve a reference within this document (a JSON pointer, RFC 6901, or an anchor).

        `None` if it leads elsewhere or is ambiguous: an inner `$id` changes the base of references, and an anchor may
        be defined twice. https://json-schema.org/draft/2020-12/json-schema-core#section-8.2
        """
        if not isinstance(reference, str) or len(reference) > _MAX_REFERENCE_CHARS:
            return None
        if not reference.startswith("#") or self._anchors is None:
            return None
        target: object = self.root
        if reference.startswith("#/"):
            for step in unquote(reference[2:]).split("/"):
                if is_dict(target):
                    target = target.get(step.replace("~1", "/").replace("~0", "~"))  # RFC 6901 §4
                elif is_list(target) and step.isdecimal() and step.isascii() and len(step) < 9:
                    target = target[int(step)] if int(step) < len(target) else None
                else:
                    return None
        elif reference != "#":
            target = self._anchors.get(reference[1:])
        return target if isinstance(target, bool) or is_dict(target) else None

    @cached_property
    def _anchors(self) -> dict[str, AnyObject | None] | None:
        """Schemas by anchor, `None` for ambiguous anchors; `None` altogether if there's an inner `$id`."""
        for inner in _iterate_objects(_children(self.root), _children):
            if isinstance(inner.get("$id"), str):
                return None
        anchors: dict[str, AnyObject | None] = {}
        for schema in _iterate_objects([self.root], _subschemas):
            for name in (schema.get("$anchor"), schema.get("$dynamicAnchor")):
                if isinstance(name, str):
                    anchors[name] = None if name in anchors else schema
        return anchors


def _iterate_objects(
    values: Iterable[object], find_children: Callable[[object], Iterable[object]]
) -> Iterator[AnyObject]:
    """Yield every reachable dict once."""
    pending, visited = list(values), set[int]()
    while pending:
        value = pending.pop()
        if id(value) not in visited:
            visited.add(id(value))
            pending.extend(find_children(value))
            if is_dict(value):
                yield value


def _children(value: object) -> Iterable[object]:
    if is_dict(value):
        return value.values()
    return value if is_list(value) else ()


def _subschemas(schema: object) -> Iterator[object]:
    """Yield the values directly below a schema at positions for schemas."""
    for key, value in schema.items() if is_dict(schema) else ():
        if key in _HOLD_SCHEMAS:
            yield from value if is_list(value) else [value]
        elif key in _HOLD_MAPS:
            yield from _children(value)
