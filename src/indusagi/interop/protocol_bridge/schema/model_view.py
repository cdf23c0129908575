"""One level of the view while it is written, and the levels below it that come later."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard, cast

from indusagi.core.json import JsonObject, JsonValue
from indusagi.interop.protocol_bridge.schema.document import REFERENCES, SCHEMA_KEYWORDS, Look, SchemaDocument
from indusagi.interop.protocol_bridge.schema.normalize import (
    KNOWN_TYPES,
    NOT_SHOWN,
    AnyObject,
    closed_object,
    copy_json,
    is_dict,
    is_list,
    known_type,
)
from indusagi.interop.protocol_bridge.schema.rewrites import (
    ANNOTATIONS,
    ANY_SHAPE,
    Shape,
    both,
    declared_types,
    either,
    own_shape,
    with_one_type,
    with_part,
    with_union,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


_SHOWN_CHARACTERS = 60
"""How much of somebody else's text a place or a reason repeats."""

_Holder: TypeAlias = "JsonObject | list[JsonValue]"


def least(level: object) -> JsonObject:
    """Say the least that can be said of a level: its type."""
    kind = known_type(level)
    if kind is None:
        return {}
    if kind == "object":
        return closed_object()
    return {"type": "array", "items": {}} if kind == "array" else {"type": kind}


@dataclass(frozen=True, slots=True)
class Spot:
    """A level that waits for its turn, and the place that its view will take."""

    source: object
    holder: _Holder
    key: str | int
    place: str = "$"
    depth: int = 0
    trail: tuple[AnyObject, ...] = ()
    """The levels above, and what was referred to on the way: meeting one again is recursion."""

    @property
    def view(self) -> JsonObject:
        """What stands in the place now: the least, until something better is put there."""
        return cast("dict[object, JsonObject]", self.holder)[self.key]

    def settled(self, source: object, trail: tuple[AnyObject, ...]) -> Spot:
        """Give the same place for what its level turned out to be."""
        return Spot(source, self.holder, self.key, self.place, self.depth, trail)

    def put(self, view: JsonObject) -> None:
        """Put the view of the level in its place."""
        cast("dict[object, JsonObject]", self.holder)[self.key] = view


class Page:
    """The view of one level, in which each level below has a place with the least in it."""

    def __init__(self, spot: Spot, kind: str | None, out: JsonObject | None = None) -> None:
        self.out: JsonObject = {} if out is None else out
        self.below: list[Spot] = []
        self._spot = spot
        self._kind = kind

    def write(self, key: str, level: AnyObject) -> None:
        """Write a keyword that holds levels, or names them."""
        value = level[key]
        if key == "required":
            self._required(value, level.get("properties"))
        elif key in {"items", "additionalProperties"}:
            self._one(key, value, "[]" if key == "items" else ".*")
        elif key in {"properties", "patternProperties"}:
            self._named(key, value)
        else:
            self._several(key, cast("list[object]", value))

    def finish(self) -> None:
        """Add what some provider insists on, and what allows everything."""
        if self._kind == "object":
            self.out.setdefault("properties", {})
        elif self._kind == "array" and "unevaluatedItems" not in self.out:
            self.out.setdefault("items", {})

    def _required(self, names: object, declared: object) -> None:
        kept = [name for name in names if isinstance(name, str)] if is_list(names) else []
        if self._kind == "object":
            known = declared if is_dict(declared) else {}
            kept = [name for name in kept if known.get(name, False) is not False]
        if kept:
            self.out["required"] = cast("JsonValue", kept)

    def _one(self, key: str, value: object, step: str) -> None:
        if isinstance(value, bool):
            self.out[key] = value
        elif is_dict(value):
            self._leave(self.out, key, value, step)

    def _named(self, key: str, values: object) -> None:
        """Write a map of levels; a property that must not occur is not mentioned."""
        holder: JsonObject = {}
        self.out[key] = holder
        for name, source in values.items() if is_dict(values) else ():
            if isinstance(name, str) and (source is not False or key != "properties"):
                self._leave(holder, name, source, _step(name))

    def _several(self, key: str, values: Iterable[object]) -> None:
        """Write a list of levels, without the booleans that change nothing in it."""
        void = {"anyOf": [False], "allOf": [False, True]}.get(key, [])
        sources = [value for value in values if not (isinstance(value, bool) and value in void)]
        if sources:
            holder = cast("list[JsonValue]", [None] * len(sources))
            self.out[key] = holder
            for index, source in enumerate(sources):
                self._leave(holder, index, source, f".{key}[{index}]")

    def _leave(self, holder: _Holder, key: str | int, source: object, step: str) -> None:
        above = self._spot
        spot = Spot(source, holder, key, f"{above.place}{step}", above.depth + 1, above.trail)
        spot.put(least(source))
        self.below.append(spot)


def shown(value: object) -> str:
    """Give the beginning of a text, or the type of anything else."""
    return repr(value[:_SHOWN_CHARACTERS]) if isinstance(value, str) else type(value).__name__


def _step(name: str) -> str:
    return f".{name}" if name.isidentifier() and name.isascii() else f"[{shown(name)}]"


MAX_DEPTH = 32
"""Levels within each other, the top included."""
MAX_BYTES = 64 * 1024
"""Of compact JSON."""

_LEAST_ELEMENT, _LEAST_MEMBER = 2, 6
"""What one more takes: `1,` in a list, `"":{},` in an object."""
_COUNTED = (SCHEMA_KEYWORDS | {"enum", "required"}) - NOT_SHOWN
_REFUSALS = 16
"""After so many levels that did not fit no other is tried: each try costs, and little is left."""
_TRAIL = 2 * MAX_DEPTH
"""Levels and references on the way to a level; a longer chain of references is not followed."""
_BRANCH_ROOM, _BRANCH_COST = 16_384, 64
"""Properties in branches of the top level that are looked at; a branch counts as so many more."""
_BRANCH_DEPTH = 16
_NOTES = 16

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAMES = frozenset({"$anchor", "$dynamicAnchor"})
"""They must not stand in two places, and nothing refers to them any more."""
_SIMPLE = frozenset({"type", "title", "description"})
_NOT_SIMPLE = frozenset({None, "object", "array"})
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_LISTS = frozenset({*_IN_PLACE, "prefixItems"})
_NOT_AT_TOP = frozenset({*_IN_PLACE, "not", "enum"})
"""Two large providers refuse every tool of a request if one has these at the top."""
_WRITTEN_BESIDE = {"properties": "object", "required": "object", "additionalProperties": "object", "items": "array"}
"""What is reshaped beside which type, by `normalize_schema` too."""
_UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_LEANS_ON = {
    "additionalProperties": frozenset({"patternProperties"}),
    "items": frozenset({"prefixItems"}),
    "contains": frozenset({"minContains", "maxContains"}),
    "then": frozenset({"if"}),
    "else": frozenset({"if"}),
}
"""Without the second the first would forbid more than it did, or nothing."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """What a model is shown of a schema, and where that is less than was known."""

    schema: JsonObject
    widened: tuple[str, ...] = ()
    """Places and reasons, for a person; the first few of them."""


def model_schema(raw: object) -> JsonObject:
    """Make the schema that a model is shown: an object schema, whatever the argument is."""
    return model_view(raw).schema


def model_view(raw: object) -> ModelView:
    """Make the schema that a model is shown, and say where it is wider than the original."""
    if not is_dict(raw):
        return ModelView(closed_object(), () if raw is True else ("$: no schema",))
    return _Viewer(raw).view()


_Way: TypeAlias = Literal["copy", "write", "drop"]


class _Viewer:
    """Makes one view."""

    def __init__(self, raw: AnyObject) -> None:
        self._document = SchemaDocument(raw, part_bytes=MAX_BYTES)
        self._left = MAX_BYTES
        self._refused = 0
        self._room_for_branches = _BRANCH_ROOM
        self._widened: dict[str, None] = {}

    def view(self) -> ModelView:
        frame: JsonObject = {"$": closed_object()}
        self._left -= _LEAST_SIZES["object"]
        waiting = deque([Spot(self._document.root, frame, "$")])
        while waiting:
            waiting.extend(self._visit(waiting.popleft()))
        notes = [*self._widened]
        if len(notes) > _NOTES:
            notes = [*notes[:_NOTES], f"and {len(notes) - _NOTES:,} more"]
        return ModelView(cast("JsonObject", frame["$"]), tuple(notes))

    def _note(self, spot: Spot, what: str) -> None:
        self._widened[f"{spot.place}: {what}"] = None

    def _visit(self, spot: Spot) -> list[Spot]:
        """Write the view of a level in its place if there is room; give the levels below it."""
        if spot.depth == MAX_DEPTH:
            self._note(spot, f"deeper than {MAX_DEPTH} levels")
            return []
        if self._refused < _REFUSALS:
            page = self._page(spot)
            cost = _size(page.out) - _LEAST_SIZES[known_type(spot.view)] if page else 0
            if page and cost <= self._left:
                self._left -= cost
                spot.put(page.out)
                return page.below
            self._refused += 1
        self._note(spot, f"past {MAX_BYTES // 1024} KiB in all")
        return []

    def _page(self, spot: Spot) -> Page | None:
        """Write the view of a level; None when there is no room for it."""
        if spot.depth and _is_simple(spot.source):
            return Page(spot, None, cast("JsonObject", {**spot.source}))
        spot = self._settled(spot)
        level = cast("AnyObject", spot.source)
        return self._written(level, spot) if _least_size(level) <= self._left else None

    def _settled(self, spot: Spot) -> Spot:
        """Put what a level refers to in its place."""
        source, trail = spot.source, spot.trail
        if not is_dict(source) or _among(source, trail):
            if source is not True:
                self._note(spot, "inside itself" if is_dict(source) else "no schema")
            return replace(spot, source=least(source))
        level, trail = self._read(source, spot), (*trail, source)
        while True:
            rest = {key: value for key, value in level.items() if key not in NOT_SHOWN}
            if "$ref" in level:
                inner = self._target(level["$ref"], spot, trail)
                if not inner:
                    # What it would have evaluated is not known.
                    level = {key: value for key, value in rest.items() if key not in _UNEVALUATED}
                    continue
                if not rest.keys() <= ANNOTATIONS:
                    level = with_part(rest, {"$ref": level["$ref"]})
                    continue
            else:
                alone = _only_part(rest)
                if alone is None or _among(alone, trail) or len(trail) >= _TRAIL:
                    return spot.settled(level, trail)
                inner = alone
                del rest["allOf"]
            unnamed = {k: v for k, v in self._read(inner, spot).items() if k not in _NAMES}
            level, trail = {**unnamed, **rest}, (*trail, inner)

    def _target(self, reference: object, spot: Spot, trail: tuple[AnyObject, ...]) -> AnyObject:
        found = self._document.find(reference)
        if is_dict(found) and _among(found, trail):
            self._note(spot, f"{shown(reference)} is recursive")
            return cast("AnyObject", least(found))
        if found is None or found is False or len(trail) >= _TRAIL:
            self._note(spot, f"{shown(reference)} is not followed")
            return {}
        return {} if found is True else found

    def _read(self, level: AnyObject, spot: Spot) -> AnyObject:
        """Take a level in another dialect for no more than its type: its keywords differ."""
        dialect = level.get("$schema", _DIALECT)
        if dialect == _DIALECT or level is self._document.root:
            return level
        self._note(spot, f"written in {shown(dialect)}")
        remarks = {key: value for key, value in level.items() if key in ANNOTATIONS}
        return {**least(level), **remarks}

    def _inside(self, source: AnyObject, spot: Spot) -> AnyObject:
        if "type" in source and not declared_types(source):
            self._note(spot, f"of unknown type {shown(source['type'])}")
        level = with_one_type(source)
        branches = level.get("oneOf")
        if is_list(branches) and self._way(known_type(level), "oneOf", branches) == "write":
            # A branch that allows more than before could match beside another one.
            return with_union(level, "oneOf", branches)
        return level

    def _at_top(self, level: AnyObject, spot: Spot) -> AnyObject:
        """Make the top level an object without combinators; arguments are always an object."""
        types = declared_types(level)
        if "type" in level and "object" not in types:
            self._note(spot, f"of type {shown(level['type'])}, while arguments are an object")
            if types:
                return cast("AnyObject", closed_object())
        level = {**level, "type": "object"} if "type" in level else {"type": "object", **level}
        banned = [key for key in level if key in _NOT_AT_TOP]
        if not banned:
            return level
        self._note(spot, f"without {', '.join(str(key) for key in banned)} at the top")
        shape = self._shape(spot) or own_shape(level)
        out = {k: v for k, v in level.items() if k not in _NOT_AT_TOP | _UNEVALUATED}
        if shape.allowed is not None:
            out.setdefault("additionalProperties", False)
        return {**out, "properties": shape.properties, "required": list(shape.required)}

    def _shape(self, spot: Spot) -> Shape | None:
        """Summarise a level and its branches; None when no object fits."""
        level = cast("AnyObject", spot.source)
        if "object" not in (declared_types(level) or ("object",)):
            return None
        shape = own_shape(level)
        self._room_for_branches -= _BRANCH_COST + len(shape.properties)
        for keyword in _IN_PLACE:
            parts = level.get(keyword)
            if not is_list(parts):
                continue
            shapes = self._branches(parts, spot)
            fitting = [found for found in shapes if found is not None]
            if not fitting or (keyword == "allOf" and len(fitting) < len(shapes)):
                return None
            for other in fitting if keyword == "allOf" else [either(fitting, self._document.text)]:
                shape = both(shape, other)
        return shape

    def _branches(self, parts: list[object], spot: Spot) -> list[Shape | None]:
        shapes: list[Shape | None] = []
        for part in parts:
            if self._room_for_branches < 0 or len(spot.trail) > _BRANCH_DEPTH:
                return [*shapes, ANY_SHAPE]
            settled = self._settled(replace(spot, source=part)) if part is not False else None
            shapes.append(self._shape(settled) if settled else None)
        return shapes

    def _way(self, kind: str | None, key: str, value: object) -> _Way:
        """Decide what is done with a keyword: copied whole, written anew, or left out."""
        if key in REFERENCES:
            return "drop"
        if key in _WRITTEN_BESIDE and kind in {None, _WRITTEN_BESIDE[key]}:
            return "write"
        if key not in SCHEMA_KEYWORDS:
            return "copy" if self._document.carries(value) else "drop"
        look = self._document.look(key, value)
        if (key in _LISTS and is_list(value)) or (key == "patternProperties" and is_dict(value)):
            return "copy" if kind is not None and look is Look.PLAIN else "write"
        return "copy" if look < Look.REFERS else "drop"

    def _written(self, level: AnyObject, spot: Spot) -> Page:
        level = self._inside(level, spot) if spot.depth else self._at_top(level, spot)
        kind = known_type(level)
        page = Page(spot, kind)
        ways: dict[str, _Way] = {
            key: self._way(kind, key, value)
            for key, value in level.items()
            if isinstance(key, str) and key not in NOT_SHOWN
        }
        lost = self._lost(ways, spot)
        for key, way in ways.items():
            if way == "copy" and key not in lost:
                page.out[key] = copy_json(level[key])
            elif key not in lost:
                page.write(key, level)
        page.finish()
        return page

    def _lost(self, ways: dict[str, _Way], spot: Spot) -> set[str]:
        """Name the keywords that are left out, with those that mean something else without them."""
        lost = {key for key, way in ways.items() if way == "drop"}
        lost |= {key for key, others in _LEANS_ON.items() if key in ways and others & lost}
        rewritten = any(ways.get(key) == "write" for key in _IN_PLACE)
        if lost or rewritten:
            lost |= _UNEVALUATED & ways.keys()
        for key in sorted(lost):
            self._note(spot, f"without {key}")
        if rewritten:
            lost.add("discriminator")  # it names the branches by references
        return lost


def _is_simple(source: object) -> TypeGuard[AnyObject]:
    """Tell whether a level is its own view, as most are: a scalar type, and words about it."""
    if not is_dict(source) or known_type(source) in _NOT_SIMPLE:
        return False
    words = [value for key, value in source.items() if key in _SIMPLE]
    return len(words) == len(source) and all(isinstance(text, str) and len(text) <= MAX_BYTES for text in words)


def _only_part(rest: AnyObject) -> AnyObject | None:
    """Give the one part of `allOf` that a level consists of, if that is all there is."""
    parts = rest.get("allOf")
    if not is_list(parts) or len(parts) != 1 or not rest.keys() <= ANNOTATIONS | {"allOf"}:
        return None
    return parts[0] if is_dict(parts[0]) else None


def _among(level: AnyObject, trail: tuple[AnyObject, ...]) -> bool:
    return any(level is other for other in trail)


def _size(value: JsonValue) -> int:
    # What is written here is JSON for certain; compact_json would read it back to make sure.
    return len(_ENCODER.encode(value).encode("utf-8", "backslashreplace"))


_LEAST_SIZES = {kind: _size(least({"type": kind})) for kind in (None, *KNOWN_TYPES)}
"""What stands in a place until the view of its level is put there, by its type."""


def _least_size(level: AnyObject) -> int:
    """Tell how much room a level takes at least, without looking at what it holds."""
    held = [value for key, value in level.items() if key in _COUNTED]
    members = sum(_LEAST_MEMBER * len(value) for value in held if is_dict(value))
    elements = sum(_LEAST_ELEMENT * len(value) for value in held if is_list(value))
    return members + elements + _LEAST_ELEMENT * len(level)
