"""Schemas to try a law on, and arguments that have a good chance to fit them.

They are made with a random generator that hypothesis seeds. Drawing each keyword by itself would
let hypothesis make a failing schema smaller, at a hundredth of the number of schemas tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from indusagi.core.json import JsonObject, JsonValue

randoms = st.randoms(use_true_random=True)
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
NAMES = ("a", "b", "c", "default")
"""Few, so that properties, patterns and arguments meet."""
CONSTANTS: tuple[JsonValue, ...] = ("", "a", "bb", 0, 1, 2, 1.0, 2.5, -3, True, False, None)
OF_TYPE: dict[str, JsonObject] = {
    "string": {"minLength": 1, "maxLength": 2, "pattern": "^a", "format": "date"},
    "number": {"minimum": 0, "exclusiveMinimum": -2, "maximum": 2, "multipleOf": 0.5},
    "integer": {"minimum": 0, "maximum": 2, "multipleOf": 1},
    "array": {"minItems": 1, "maxItems": 2, "uniqueItems": True},
    "object": {"minProperties": 1, "maxProperties": 2, "dependentRequired": {"a": ["b"]}},
    "boolean": {},
    "null": {},
}
REMARKS: JsonObject = {
    "title": "T",
    "description": "für Ü",
    "$comment": "c",
    "default": {"type": 1},
    "examples": [1],
    "deprecated": True,
    "readOnly": True,
    "writeOnly": False,
    "contentEncoding": "base64",
    "contentMediaType": "text/plain",
}
REFERENCES = (
    "#/$defs/one",
    "#/$defs/two",
    "#/definitions/old",
    "#/properties/a",
    "#/properties/b",
    "#named",
    "#",
    "#/$defs/missing",
)
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
COMBINATORS = (
    *("$ref", "anyOf", "oneOf", "allOf") * 2,
    "const",
    "enum",
    "not",
    "if",
    "patternProperties",
    "propertyNames",
    "dependentSchemas",
    "unevaluatedProperties",
    "$dynamicRef",
    "$anchor",
)


anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*TYPES, *REMARKS, b"x", object(), (1, 2), {1}]),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "required", "additionalProperties"])
            | st.text(max_size=3)
            | st.integers()
            | st.none(),
            children,
            max_size=5,
        )
    ),
    max_leaves=25,
)
"""What Python may hold, often in the form of a schema."""


def plain_value(rng: Random, depth: int = 2) -> JsonValue:
    """Make any small value."""
    form = rng.randrange(6) if depth else 0
    if form == 1:
        return [plain_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    if form == 2:
        return {name: plain_value(rng, depth - 1) for name in some(rng, NAMES, 3)}
    return rng.choice(CONSTANTS)


def some(rng: Random, choices: tuple[str, ...], most: int) -> list[str]:
    return rng.sample(choices, rng.randrange(min(most, len(choices)) + 1))


def some_of(rng: Random, keywords: JsonObject, most: int) -> JsonObject:
    return {key: keywords[key] for key in some(rng, tuple(keywords), most)}


def shuffled(rng: Random, level: JsonObject) -> JsonObject:
    """Put keywords in any order: nothing may depend on what comes first."""
    return {key: level[key] for key in rng.sample(tuple(level), len(level))}


def object_parts(rng: Random, child: Callable[[], JsonValue]) -> JsonObject:
    properties = {name: child() for name in some(rng, NAMES, 3)}
    parts: JsonObject = {"properties": properties}
    if rng.randrange(2):
        names = tuple(properties) if properties and rng.randrange(3) else NAMES
        parts["required"] = cast("JsonValue", some(rng, names, 2))
    form = rng.randrange(6)
    if form < 3:
        parts["additionalProperties"] = child() if form == 0 else form == 1
    return parts


def subset_level(rng: Random, depth: int = 3, kind: str | None = None) -> JsonObject:
    """Make a level with one known type, like all those below it, without anything to look up."""
    kind = kind or rng.choice(TYPES if depth else TYPES[2:])
    level: JsonObject = {"type": kind, **some_of(rng, REMARKS, 3), **some_of(rng, OF_TYPE[kind], 2)}
    level.update(some_of(rng, {"x-vendor": plain_value(rng), "const": plain_value(rng)}, 1))
    level.update(some_of(rng, {"$defs": {"unused": {"type": "string"}}, "$id": "urn:x"}, 1))
    if kind == "object":
        level.update(object_parts(rng, lambda: subset_level(rng, depth - 1)))
        if isinstance(level.get("additionalProperties"), dict) and rng.randrange(2):
            level["additionalProperties"] = bool(rng.randrange(2))
    elif kind == "array":
        level["items"] = subset_level(rng, depth - 1)
    else:
        whole: JsonObject = {
            "anyOf": [{"minLength": 1, "default": 1}, {"type": "null"}],
            "not": {"const": "zz", "default": 1},
            "properties": {"a": {"default": 1}},
            "required": ["nothing"],
        }
        level.update(some_of(rng, whole, 1))
    return shuffled(rng, level)


def subset_schema(rng: Random) -> JsonObject:
    """Make a schema of which `normalize_schema` and the view for a model say the same."""
    return subset_level(rng, kind="object")


def rich_level(rng: Random, depth: int) -> JsonValue:
    """Make a level that may hold anything JSON Schema 2020-12 has."""
    if depth <= 0 or rng.randrange(12) == 0:
        simple: list[JsonValue] = [{}, {"type": "string"}, {"type": "null"}, {"type": "integer"}]
        return rng.choice([True, *simple, *simple, False])

    def child() -> JsonValue:
        return rich_level(rng, depth - 1)

    kind = rng.choice((*TYPES, "several", "none", "none"))
    types = rng.sample(TYPES, rng.randrange(1, 4)) if kind == "several" else [kind]
    level: JsonObject = {}
    if kind != "none":
        level["type"] = cast("JsonValue", types) if kind == "several" else kind
    if rng.randrange(3) == 0:
        level.update(some_of(rng, OF_TYPE[rng.choice(TYPES) if kind == "none" else types[0]], 1))
    if not {"object", "none"}.isdisjoint(types):
        level.update(object_parts(rng, child))
    if not {"array", "none"}.isdisjoint(types):
        level.update(array_parts(rng, child))
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        level.update(combinator(rng, child))
    level.update(some_of(rng, REMARKS, 1))
    if rng.randrange(50) == 0:
        level.update(some_of(rng, {"$schema": DRAFT_7, "$id": "urn:inner"}, 1))
    return shuffled(rng, level)


def array_parts(rng: Random, child: Callable[[], JsonValue]) -> JsonObject:
    parts: JsonObject = {}
    if rng.randrange(2):
        parts["items"] = child()
    if rng.randrange(3) == 0:
        parts["prefixItems"] = [child() for _ in range(rng.randrange(1, 3))]
    if rng.randrange(5) == 0:
        parts["contains"] = child()
        parts.update(some_of(rng, {"minContains": rng.randrange(2), "maxContains": 1}, 2))
    if rng.randrange(7) == 0:
        parts["unevaluatedItems"] = False if rng.randrange(2) else child()
    return parts


def combinator(rng: Random, child: Callable[[], JsonValue]) -> JsonObject:
    key = rng.choice(COMBINATORS)
    if key in {"$ref", "$dynamicRef"}:
        return {key: rng.choice(REFERENCES)}
    if key in {"anyOf", "oneOf", "allOf"}:
        return {key: [child() for _ in range(rng.randrange(1, 4))]}
    if key == "const":
        return {"const": plain_value(rng)}
    if key == "enum":
        return {"enum": [plain_value(rng) for _ in range(rng.randrange(1, 5))]}
    if key == "if":
        return {part: child() for part in ("if", "then", "else") if rng.randrange(5)}
    if key in {"patternProperties", "dependentSchemas"}:
        return {key: {rng.choice(("a", "b", "^c")): child()}}
    if key == "unevaluatedProperties":
        return {key: False if rng.randrange(2) else child()}
    return {key: "other" if key == "$anchor" else child()}


def rich_schema(rng: Random) -> JsonObject:
    """Make the schema of a tool, with definitions to refer to, that a validator can use."""
    while True:
        raw = _top(rng)
        raw["$defs"] = {
            "one": rich_level(rng, 2),
            "two": rich_level(rng, 1),
            "three": {"$anchor": "named", "type": "array", "items": rich_level(rng, 1)},
        }
        raw["definitions"] = {"old": rich_level(rng, 1)}
        raw.update(some_of(rng, {"$schema": rng.choice((DRAFT_7, DRAFT_2020))}, 1))
        if not is_endless(raw):
            return raw


def _top(rng: Random) -> JsonObject:
    """Make a small top level, most often: much of what is large is fitted by nothing."""
    raw: JsonObject = {"properties": {"a": rich_level(rng, 2)}, "required": ["a"]}
    form = rng.randrange(4)
    if form == 0:
        raw = object_parts(rng, lambda: rich_level(rng, 3))
    elif form == 1:
        raw = object_parts(rng, lambda: rich_level(rng, 1))
        raw.update(combinator(rng, lambda: object_parts(rng, lambda: rich_level(rng, 1))))
    if rng.randrange(4):
        raw["type"] = rng.choice(["object", "object", ["object", "null"]])
    return raw


def is_endless(root: JsonObject) -> bool:
    """Tell whether some level asks for itself, of the same value: no validator comes to an end."""
    pending: list[tuple[JsonValue, tuple[int, ...]]] = [(level, ()) for level in levels(root)]
    while pending:
        level, above = pending.pop()
        if id(level) in above:
            return True
        if isinstance(level, dict):
            pending.extend((part, (*above, id(level))) for part in in_place(root, level))
    return False


def in_place(root: JsonObject, level: JsonObject) -> list[JsonValue]:
    """List the schemas that the value a level is about must fit, or may."""
    parts: list[JsonValue] = [level[key] for key in ("not", "if", "then", "else") if key in level]
    parts += [target(root, level[key]) for key in ("$ref", "$dynamicRef") if key in level]
    for key in ("allOf", "anyOf", "oneOf", "dependentSchemas"):
        group = level.get(key, [])
        parts += group.values() if isinstance(group, dict) else cast("list[JsonValue]", group)
    return parts


def levels(schema: JsonValue) -> list[JsonObject]:
    """List every dict in a schema; more than its levels, and never less."""
    found: list[JsonObject] = []
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            found.append(value)
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return found


def target(root: JsonObject, reference: JsonValue) -> JsonValue:
    """Look up one of the references that are made here."""
    if reference == "#named":
        reference = "#/$defs/three"
    found: JsonValue = root
    for step in str(reference).split("/")[1:]:
        found = found.get(step) if isinstance(found, dict) else None
    return found


def likely_value(rng: Random, root: JsonObject, level: JsonValue, depth: int = 6) -> JsonValue:
    """Make a value with a level in mind. It need not fit."""
    if not isinstance(level, dict) or depth <= 0 or rng.randrange(10) == 0:
        return plain_value(rng)
    choices: list[JsonValue] = []
    for key in ("anyOf", "oneOf", "allOf", "$ref"):
        parts = target(root, level[key]) if key == "$ref" and key in level else level.get(key, [])
        choices += parts if isinstance(parts, list) else [parts]
    if "const" in level or "enum" in level:
        return rng.choice(cast("list[JsonValue]", level.get("enum", [level.get("const")])))
    if choices and rng.randrange(4):
        return likely_value(rng, root, rng.choice(choices), depth - 1)
    declared = level.get("type", ["object", "array", "string", "number"])
    kind = rng.choice(declared) if isinstance(declared, list) else declared
    return _value_of_type(rng, root, level, kind, depth)


def _value_of_type(rng: Random, root: JsonObject, level: JsonObject, kind: JsonValue, depth: int) -> JsonValue:
    if kind == "object":
        return likely_object(rng, root, level, depth)
    if kind == "array":
        prefix = level.get("prefixItems")
        sources = list(prefix) if isinstance(prefix, list) else []
        sources += [level.get("items", True)] * rng.randrange(3)
        return [likely_value(rng, root, source, depth - 1) for source in sources]
    by_type: dict[str, list[JsonValue]] = {
        "string": ["", "a", "bb", "ab"],
        "number": [0, 1, 2.5, -1, 1.0],
        "integer": [0, 1, 2, 1.0, -1],
        "boolean": [True, False],
        "null": [None],
    }
    return rng.choice(by_type.get(str(kind), ["a", 1, None]))


def likely_object(rng: Random, root: JsonObject, level: JsonValue, depth: int = 6) -> JsonObject:
    """Make an object with a level, and all its branches, in mind."""
    found: dict[str, JsonValue] = {}
    needed: set[str] = set()
    pending = [(level, 3)]
    while pending:
        part, left = pending.pop()
        if isinstance(part, dict) and left:
            found.update(cast("JsonObject", part.get("properties", {})))
            needed.update(cast("list[str]", part.get("required", [])))
            pending.extend((inner, left - 1) for inner in in_place(root, part))
    chosen = [name for name in found if name in needed or rng.randrange(2)]
    extra = some(rng, NAMES, 1) if rng.randrange(3) == 0 else []
    return {
        name: likely_value(rng, root, found.get(name, True), depth - 1) for name in dict.fromkeys([*chosen, *extra])
    }


def neighbour(rng: Random, argument: JsonObject) -> JsonObject:
    """Change one thing about an argument: what fits it may still, and says more than others."""
    near = dict(argument)
    name = rng.choice([*near, *NAMES])
    form = rng.randrange(3)
    if form == 0:
        near.pop(name, None)
    elif form == 1:
        near[name] = plain_value(rng)
    else:
        near[name] = _near_value(rng, near.get(name))
    return near


def _near_value(rng: Random, value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return neighbour(rng, value)
    if isinstance(value, list):
        return [*value[: rng.randrange(3)], *[plain_value(rng)] * rng.randrange(2)]
    return rng.choice(CONSTANTS)
