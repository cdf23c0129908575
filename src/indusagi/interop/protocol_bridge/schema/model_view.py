"""The schema of a remote tool as a model receives it: the model view.

`model_schema` accepts any value and returns an object schema that the large providers accept. Any arguments that fit
the original fit the view: the view may allow more, but never forbids more. Where it allows more, it leaves a note.

Levels (a schema, and the schemas below it) are visited breadth first. Each level is written into its *slot*, which
holds a minimal schema until then, so the size and depth limits can stop the work at any point and leave a valid schema.
For each level,

1. references and single-part `allOf`s are replaced by their targets (`_inline_references`);
2. the level is rewritten into a form that providers accept (`_rewrite_root`, `_rewrite_level`);
3. each keyword is copied, written level by level, or dropped (`_choose_action`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Literal, TypeAlias, cast

from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.schema.document import (
    ANNOTATIONS,
    ANY_SHAPE,
    REFERENCES,
    SCHEMA_KEYWORDS,
    Fitness,
    ObjectShape,
    SchemaDocument,
    find_types,
    intersect_shapes,
    shape_of_level,
    unite_shapes,
    with_one_type,
    with_part,
    with_union,
)
from indusagi.interop.protocol_bridge.schema.normalize import (
    KNOWN_TYPES,
    NOT_SHOWN,
    AnyObject,
    copy_json,
    find_fault,
    find_type,
    has_patterns,
    is_dict,
    is_list,
    new_object_schema,
)

MAX_DEPTH = 32
"""Nested levels, the root included."""
MAX_BYTES = 64 * 1024
"""Size of a view as compact JSON."""

_MAX_QUOTE_CHARS = 60
"""How much of the server's text a note quotes."""
_MAX_NOTES = 16
_MAX_PASSES = 8
"""How many times to rebuild a view from a view until it no longer changes."""
_MIN_ELEMENT, _MIN_MEMBER = 2, 6
"""Minimum size of a list element (`1,`) and an object member (`"":{},`)."""
_COUNTED = (SCHEMA_KEYWORDS | {"enum", "required"}) - NOT_SHOWN
_MAX_TOO_LARGE = 16
"""Give up after this many levels that didn't fit: each attempt costs time, and little space is left."""
_MAX_TRAIL = 2 * MAX_DEPTH
"""Maximum number of levels and references on the way to a level."""
_BRANCH_BUDGET, _BRANCH_COST = 16_384, 64
"""Limit of properties to examine in branches of the root; each branch costs this much extra."""
_MAX_BRANCH_DEPTH = 16

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ANCHORS = frozenset({"$anchor", "$dynamicAnchor"})
"""Must be unique, and nothing in a view refers to them."""
_SIMPLE_KEYWORDS = frozenset({"type", "title", "description"})
_NOT_SIMPLE_TYPES = frozenset({None, "object", "array"})
_COMBINATORS = ("allOf", "anyOf", "oneOf")
_SCHEMA_LISTS = frozenset({*_COMBINATORS, "prefixItems"})
_NOT_AT_ROOT = frozenset({*_COMBINATORS, "not", "enum"})
"""Two large providers refuse all tools of a request if one has these at its root."""
_WRITTEN_FOR_TYPE = {"properties": "object", "required": "object", "additionalProperties": "object", "items": "array"}
"""Keywords that are written level by level for this type, as in `normalize_schema`."""
_HOLDERS = {"properties": dict, "required": list}
"""Keywords whose invalid members are dropped or widened, keeping the others."""
_UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_DEPENDS_ON = {
    "additionalProperties": frozenset({"patternProperties", "properties"}),
    "items": frozenset({"prefixItems"}),
    "contains": frozenset({"minContains", "maxContains"}),
    "then": frozenset({"if"}),
    "else": frozenset({"if"}),
}
"""If one of the values is dropped, the key would forbid more than before, or nothing."""

_Holder: TypeAlias = "JsonObject | list[JsonValue]"
_Action: TypeAlias = Literal["copy", "write", "drop"]


@record
class ModelView:
    """The schema for models, and the places where it allows more than the original."""

    schema: JsonObject
    widened: tuple[str, ...] = ()
    """Notes for the user, each with place and reason; only the first few."""


def model_schema(raw: object) -> JsonObject:
    """Build the schema for models: an object schema, whatever `raw` is."""
    return model_view(raw).schema


def model_view(raw: object) -> ModelView:
    """Build the schema for models, with notes where it allows more than the original."""
    if not is_dict(raw):
        return ModelView(new_object_schema(), () if raw is True else ("$: no schema",))
    view = _ViewBuilder(raw).build()
    passes = _MAX_PASSES if view.widened else 0
    while passes:  # with keywords dropped, a level may have a simpler form
        passes -= 1
        again = _ViewBuilder(cast("AnyObject", view.schema)).build()
        if again.schema == view.schema:
            break
        view = ModelView(again.schema, tuple(dict.fromkeys((*view.widened, *again.widened))))
    return view


# -- slots and levels ---------------------------------------------------------------------------


def minimal_schema(level: object) -> JsonObject:
    """Return the shortest schema that allows everything a level allows: its type."""
    kind = find_type(level)
    if kind is None:
        return {}
    if kind == "object":
        return new_object_schema()
    return {"type": "array", "items": {}} if kind == "array" else {"type": kind}


@record
class SchemaSlot:
    """A level to visit, and the place it fills in the view."""

    source: object
    holder: _Holder
    key: str | int
    place: str = "$"
    """The path for notes."""
    depth: int = 0
    trail: tuple[AnyObject, ...] = ()
    """The levels above and the references followed; meeting one again means recursion."""

    @property
    def schema(self) -> JsonObject:
        """The schema currently in the slot; minimal until `put`."""
        return cast("dict[object, JsonObject]", self.holder)[self.key]

    def read_as(self, source: object, trail: tuple[AnyObject, ...] | None = None) -> SchemaSlot:
        """Return the same slot for another source."""
        # Not `dataclasses.replace`, which takes four times as long, for every level.
        return SchemaSlot(source, self.holder, self.key, self.place, self.depth, self.trail if trail is None else trail)

    def put(self, schema: JsonObject) -> None:
        """Replace the schema in the slot."""
        cast("dict[object, JsonObject]", self.holder)[self.key] = schema


class SchemaLevel:
    """The view of one level, with a slot for each level below."""

    def __init__(self, slot: SchemaSlot, kind: str | None, schema: JsonObject | None = None) -> None:
        self.schema: JsonObject = {} if schema is None else schema
        self.slots: list[SchemaSlot] = []
        """The levels below."""
        self._slot = slot
        self._kind = kind

    def write(self, key: str, level: AnyObject) -> None:
        """Write a keyword that contains or names schemas."""
        value = level[key]
        if key == "required":
            properties, listed = level.get("properties"), value if is_list(value) else []
            declared = properties if is_dict(properties) else {}
            names = [*dict.fromkeys(name for name in listed if isinstance(name, str))]
            if self._kind == "object":
                names = [name for name in names if declared.get(name, False) is not False]
            if names:
                self.schema[key] = cast("JsonValue", names)
        elif key in {"items", "additionalProperties"}:
            if isinstance(value, bool):
                self.schema[key] = value
            elif is_dict(value):
                self._add_slot(self.schema, key, value, "[]" if key == "items" else ".*")
        elif key in {"properties", "patternProperties"}:
            holder: JsonObject = {}
            self.schema[key] = holder
            for name, source in value.items() if is_dict(value) else ():
                # Omit properties that must not occur.
                if isinstance(name, str) and (source is not False or key != "properties"):
                    is_plain = name.isidentifier() and name.isascii()
                    self._add_slot(holder, name, source, f".{name}" if is_plain else f"[{_quote(name)}]")
        else:
            self._write_list(key, cast("list[object]", value))

    def finish(self) -> None:
        """Add keywords that some providers require; they allow everything."""
        if self._kind == "object":
            self.schema.setdefault("properties", {})
        elif self._kind == "array" and "unevaluatedItems" not in self.schema:
            self.schema.setdefault("items", {})

    def _write_list(self, key: str, schemas: Iterable[object]) -> None:
        """Write a list of schemas, without booleans that don't affect it."""
        neutral = {"anyOf": [False], "allOf": [False, True]}.get(key, [])
        sources = [schema for schema in schemas if not (isinstance(schema, bool) and schema in neutral)]
        if sources:
            holder = cast("list[JsonValue]", [None] * len(sources))
            self.schema[key] = holder
            for index, source in enumerate(sources):
                self._add_slot(holder, index, source, f".{key}[{index}]")

    def _add_slot(self, holder: _Holder, key: str | int, source: object, step: str) -> None:
        above = self._slot
        slot = SchemaSlot(source, holder, key, f"{above.place}{step}", above.depth + 1, above.trail)
        slot.put(minimal_schema(source))
        self.slots.append(slot)


def _quote(value: object) -> str:
    """Return the beginning of a string, or the type of any other value."""
    return repr(value[:_MAX_QUOTE_CHARS]) if isinstance(value, str) else type(value).__name__


class _ViewBuilder:
    """Builds one view."""

    def __init__(self, raw: AnyObject) -> None:
        self._document = SchemaDocument(raw, part_bytes=MAX_BYTES)
        self._bytes_left = MAX_BYTES
        self._too_large = 0
        self._branch_budget = _BRANCH_BUDGET
        self._notes: dict[str, None] = {}

    def build(self) -> ModelView:
        holder: JsonObject = {"$": new_object_schema()}
        self._bytes_left -= _MINIMAL_SIZES["object"]
        waiting = deque([SchemaSlot(self._document.root, holder, "$")])
        while waiting:
            slot = waiting.popleft()
            if slot.depth == MAX_DEPTH:
                self._note(slot, f"deeper than {MAX_DEPTH} levels")
                continue
            if self._too_large < _MAX_TOO_LARGE:
                level = self._view_level(slot)
                cost = _measure(level.schema) - _MINIMAL_SIZES[find_type(slot.schema)] if level else 0
                if level and cost <= self._bytes_left:
                    self._bytes_left -= cost
                    slot.put(level.schema)
                    waiting.extend(level.slots)
                    continue
                self._too_large += 1
            self._note(slot, f"past {MAX_BYTES // 1024} KiB in all")
        notes = [*self._notes]
        if len(notes) > _MAX_NOTES:
            notes = [*notes[:_MAX_NOTES], f"and {len(notes) - _MAX_NOTES:,} more"]
        return ModelView(cast("JsonObject", holder["$"]), tuple(notes))

    def _note(self, slot: SchemaSlot, reason: str) -> None:
        self._notes[f"{slot.place}: {reason}"] = None

    def _view_level(self, slot: SchemaSlot) -> SchemaLevel | None:
        """Build the view of a level; `None` if it can't fit."""
        source = slot.source
        if slot.depth and is_dict(source) and find_type(source) not in _NOT_SIMPLE_TYPES:
            # Most levels are their own view: a scalar type with a title and a description.
            texts = [value for key, value in source.items() if key in _SIMPLE_KEYWORDS]
            if len(texts) == len(source) and all(isinstance(text, str) and len(text) <= MAX_BYTES for text in texts):
                return SchemaLevel(slot, None, cast("JsonObject", {**source}))
        slot = self._inline_references(slot)
        level = cast("AnyObject", slot.source)
        # Lower bound for the size of the view, without looking into the members.
        counted = [value for key, value in level.items() if key in _COUNTED]
        members = sum(len(value) for value in counted if is_dict(value))
        elements = sum(len(value) for value in counted if is_list(value)) + len(level)
        if _MIN_MEMBER * members + _MIN_ELEMENT * elements > self._bytes_left:
            return None
        level = self._rewrite_level(level, slot) if slot.depth else self._rewrite_root(level, slot)
        kind = find_type(level)
        view = SchemaLevel(slot, kind)
        actions: dict[str, _Action] = {
            key: self._choose_action(kind, key, value)
            for key, value in level.items()
            if isinstance(key, str) and key not in NOT_SHOWN
        }
        # Also drop keywords that would forbid more without a dropped one.
        dropped = {key for key, action in actions.items() if action == "drop"}
        dropped |= {key for key, others in _DEPENDS_ON.items() if key in actions and others & dropped}
        is_rewritten = any(actions.get(key) == "write" for key in _COMBINATORS)
        if dropped or is_rewritten:
            dropped |= _UNEVALUATED & actions.keys()
        for key in sorted(dropped):
            wanted = find_fault(key, level[key])
            self._note(slot, f"without {key}{f', which is not {wanted}' if wanted else ''}")
        if is_rewritten:
            dropped.add("discriminator")  # it names the branches by references
        for key, action in actions.items():
            if action == "copy" and key not in dropped:
                view.schema[key] = copy_json(level[key])
            elif key not in dropped:
                view.write(key, level)
        view.finish()
        return view

    # -- step 1: references ---------------------------------------------------------------------

    def _inline_references(self, slot: SchemaSlot) -> SchemaSlot:
        """Replace `$ref` and single-part `allOf`s by their targets, keeping adjacent keywords."""
        source, trail = slot.source, slot.trail
        if not is_dict(source) or _contains(trail, source):
            if source is not True:
                self._note(slot, "inside itself" if is_dict(source) else "no schema")
            return slot.read_as(minimal_schema(source))
        level, trail = self._read_dialect(source, slot), (*trail, source)
        while True:
            rest = {key: value for key, value in level.items() if key not in NOT_SHOWN}
            if "$ref" in level:
                target = self._resolve(level["$ref"], slot, trail)
                if not target:
                    # It's unknown which properties and items it would have evaluated.
                    level = {key: value for key, value in rest.items() if key not in _UNEVALUATED}
                    continue
                if not rest.keys() <= ANNOTATIONS:
                    level = with_part(rest, {"$ref": level["$ref"]})
                    continue
            else:
                listed = rest.get("allOf")
                parts = [part for part in listed if not isinstance(part, bool)] if is_list(listed) else []
                is_alone = rest.keys() <= ANNOTATIONS | {"allOf"}
                part = parts[0] if len(parts) == 1 and is_alone else None
                if not is_dict(part) or _contains(trail, part) or len(trail) >= _MAX_TRAIL:
                    return slot.read_as(level, trail)
                target = part
                del rest["allOf"]
            unnamed = {key: value for key, value in self._read_dialect(target, slot).items() if key not in _ANCHORS}
            level, trail = {**unnamed, **rest}, (*trail, target)

    def _resolve(self, reference: object, slot: SchemaSlot, trail: tuple[AnyObject, ...]) -> AnyObject:
        """Resolve a reference, or return an empty schema if it can't be followed."""
        target = self._document.resolve(reference)
        if is_dict(target) and _contains(trail, target):
            self._note(slot, f"{_quote(reference)} is recursive")
            return cast("AnyObject", minimal_schema(target))
        if target is None or target is False or len(trail) >= _MAX_TRAIL:
            self._note(slot, f"{_quote(reference)} is not followed")
            return {}
        return {} if target is True else target

    def _read_dialect(self, level: AnyObject, slot: SchemaSlot) -> AnyObject:
        """Reduce a level in another dialect to type and annotations, because its keywords may mean something else."""
        dialect = level.get("$schema", _DIALECT)
        if dialect == _DIALECT or level is self._document.root:
            return level
        self._note(slot, f"written in {_quote(dialect)}")
        annotations = {key: value for key, value in level.items() if key in ANNOTATIONS}
        return {**minimal_schema(level), **annotations}

    # -- step 2: accepted forms -----------------------------------------------------------------

    def _rewrite_level(self, source: AnyObject, slot: SchemaSlot) -> AnyObject:
        """Give a level a single type or a union, and turn a `oneOf` that can't be copied into `anyOf`."""
        if "type" in source and not find_types(source):
            self._note(slot, f"of unknown type {_quote(source['type'])}")
        level = with_one_type(source)
        branches = level.get("oneOf")
        if is_list(branches) and self._choose_action(find_type(level), "oneOf", branches) == "write":
            # A branch that allows more than before could match in addition to another one.
            return with_union(level, "oneOf", branches)
        return level

    def _rewrite_root(self, level: AnyObject, slot: SchemaSlot) -> AnyObject:
        """Make the root an object schema without combinators: arguments always are an object."""
        types = find_types(level)
        if "type" in level and "object" not in types:
            self._note(slot, f"of type {_quote(level['type'])}, while arguments are an object")
            if types:
                return cast("AnyObject", new_object_schema())
        level = {**level, "type": "object"} if "type" in level else {"type": "object", **level}
        banned = [key for key in level if key in _NOT_AT_ROOT]
        if not banned:
            return level
        self._note(slot, f"without {', '.join(str(key) for key in banned)} at the top")
        shape = self._summarize(slot) or shape_of_level(level)
        rest = {key: value for key, value in level.items() if key not in _NOT_AT_ROOT | _UNEVALUATED}
        if shape.allowed is not None:
            rest.setdefault("additionalProperties", False)
        return {**rest, "properties": shape.properties, "required": list(shape.required)}

    def _summarize(self, slot: SchemaSlot) -> ObjectShape | None:
        """Summarize the objects that a level and its branches allow; `None` if they allow none."""
        level = cast("AnyObject", slot.source)
        if "object" not in (find_types(level) or ("object",)):
            return None
        shape = shape_of_level(level)
        self._branch_budget -= _BRANCH_COST + len(shape.properties)
        for keyword in _COMBINATORS:
            branches = level.get(keyword)
            if not is_list(branches):
                continue
            shapes: list[ObjectShape | None] = []
            for branch in branches:
                if self._branch_budget < 0 or len(slot.trail) > _MAX_BRANCH_DEPTH:
                    shapes.append(ANY_SHAPE)
                    break
                inlined = self._inline_references(slot.read_as(branch)) if branch is not False else None
                shapes.append(self._summarize(inlined) if inlined else None)
            possible = [branch for branch in shapes if branch is not None]
            if not possible or (keyword == "allOf" and len(possible) < len(shapes)):
                return None
            for other in possible if keyword == "allOf" else [unite_shapes(possible, self._document.encode)]:
                shape = intersect_shapes(shape, other)
        return shape

    # -- step 3: keywords -----------------------------------------------------------------------

    def _choose_action(self, kind: str | None, key: str, value: object) -> _Action:
        """Decide whether to copy a keyword, write it level by level, or drop it."""
        if key in REFERENCES:
            return "drop"
        if key in _WRITTEN_FOR_TYPE and kind in {None, _WRITTEN_FOR_TYPE[key]}:
            return "write" if isinstance(value, _HOLDERS.get(key, (dict, bool))) else "drop"
        has_fault = find_fault(key, value) is not None
        if key not in SCHEMA_KEYWORDS:
            return "copy" if not has_fault and self._document.can_copy(value) else "drop"
        fitness = self._document.assess(key, value)
        if (key in _SCHEMA_LISTS and is_list(value) and value) or (key == "patternProperties" and has_patterns(value)):
            return "copy" if kind is not None and not has_fault and fitness is Fitness.PLAIN else "write"
        return "copy" if not has_fault and fitness < Fitness.HAS_REFERENCES else "drop"


def _contains(trail: tuple[AnyObject, ...], level: AnyObject) -> bool:
    return any(level is other for other in trail)


def _measure(value: JsonValue) -> int:
    # The value is known to be JSON; `compact_json` would check it again.
    return len(_ENCODER.encode(value).encode("utf-8", "backslashreplace"))


_MINIMAL_SIZES = {kind: _measure(minimal_schema({"type": kind})) for kind in (None, *KNOWN_TYPES)}
"""Size of the minimal schema by type."""
