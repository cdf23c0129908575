"""Canonical forms of a tool definition, which ignore order.

Many servers build parts of a definition from unordered sets, so the order changes with every start. Three forms, from
strict to loose, tell such differences apart:

- `Form.DEFINITION`: the complete definition, ignoring the order of set members (`required`, `enum`, …), list items in
  a text and object keys, and whitespace. Equal forms: no change.
- `Form.READING`: the same, with texts as bags of words. Equal forms: the same words.
- `Form.VALIDATION`: only validation keywords. Equal forms: the same arguments are valid.

Forms are compared and digested, never sent. Unlike RFC 8785 (canonical JSON), they ignore array order. Keywords:
https://json-schema.org/draft/2020-12/json-schema-core and
https://json-schema.org/draft/2020-12/json-schema-validation.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.core.json import JsonObject, JsonValue

_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_SCHEMAS = frozenset(
    {
        "items", "prefixItems", "additionalItems", "contains", "unevaluatedItems",
        "additionalProperties", "propertyNames", "unevaluatedProperties", "contentSchema",
        "not", "if", "then", "else",
    }
)  # fmt: skip
_SCHEMA_SETS = frozenset({"anyOf", "oneOf", "allOf"})
_VALUE_SETS = frozenset({"required", "enum", "type", "examples"})
_DEPENDENCIES = frozenset({"dependentRequired", "dependencies"})
_TEXTS = frozenset({"description", "title", "$comment"})
_ANNOTATIONS = frozenset({"default", "examples", "deprecated", "readOnly", "writeOnly"})
"""Annotations validate nothing: https://json-schema.org/draft/2020-12/json-schema-validation#section-9."""

STEERING = frozenset(
    {
        "not", "never", "no", "nor", "none", "cannot", "can't", "don't", "doesn't", "won't",
        "isn't", "mustn't", "without", "except", "unless", "only", "always", "instead",
    }
)  # fmt: skip
"""Words that change the meaning of the next word, so their position matters."""
_SEQUENCE = frozenset({"if", "then", "else", "otherwise", "when", "before", "after", "first", "until", "because"})
"""Words of conditions and sequences: commas between such clauses don't separate set members."""
_NEVER_IN_ITEMS = STEERING | _SEQUENCE
_MAX_ITEM_WORDS = 4
"""Maximum words per list item. Longer ones are prose, whose commas don't separate items."""
_CLAUSE_ENDS = re.compile(r"([\n:;()\[\]{}<>]|[.!?](?=\s|$))")
_ITEM_ENDS = re.compile(r"\s*[,|]\s*(?:(and|or)\s+)?|\s+(and|or)\s+")
_WORD_ENDS = re.compile(r"[\s,;|]+")
_EDGES = ".:!?()[]{}<>\"'`"
_MARKS = frozenset(f"{_EDGES},;|")
_MAX_DEPTH = 64
"""Deeper levels stay as they are. Python's recursion limit depends on the caller, and a digest must not."""
_EXACT_FLOATS = 2.0**53


class Form(StrEnum):
    """How much of a definition to keep in a canonical form."""

    DEFINITION = "definition"
    READING = "reading"
    VALIDATION = "validation"


def canonical_definition(raw: JsonObject, form: Form = Form.DEFINITION) -> JsonObject:
    """Return the canonical form of a tool definition."""
    found: JsonObject = {}
    for name, value in raw.items():
        if name in {"inputSchema", "outputSchema"}:
            found[name] = canonical_schema(value, form)
        elif name in _TEXTS and isinstance(value, str):
            found[name] = _text(value, form)
        elif name == "annotations" and is_json_object(value):
            found[name] = {
                key: (_text(one, form) if key == "title" and isinstance(one, str) else _value(one))
                for key, one in value.items()
            }
        else:
            found[name] = _value(value)
    return found


def canonical_schema(schema: JsonValue, form: Form = Form.DEFINITION) -> JsonValue:
    """Return the canonical form of a JSON Schema."""
    return _schema(schema, form, 0)


def canonical_digest(raw: JsonObject) -> str:
    """Digest a definition, ignoring order; raises `NotJson` if it holds a value JSON can't represent."""
    text = compact_json(canonical_definition(raw), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


# -- schemas ----------------------------------------------------------------------------------


def _schema(schema: JsonValue, form: Form, depth: int) -> JsonValue:
    if depth > _MAX_DEPTH:
        return schema
    if isinstance(schema, list):  # `prefixItems`, or `items` of an older draft: a tuple
        return [_schema(one, form, depth + 1) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: JsonObject = {}
    for name, value in schema.items():
        if form is Form.VALIDATION and (name in _ANNOTATIONS or (name in _TEXTS and (not is_json_object(value)))):
            continue
        if form is Form.READING and name == "default" and value is None:
            continue  # same as no default
        found[name] = _keyword(name, value, form, depth)
    return found


def _keyword(name: str, value: JsonValue, form: Form, depth: int) -> JsonValue:
    if name in _TEXTS and isinstance(value, str):
        return _text(value, form)
    if name in _SCHEMA_MAPS and isinstance(value, dict):
        return {key: _schema(one, form, depth + 1) for key, one in value.items()}
    if name in _SCHEMAS:
        return _schema(value, form, depth + 1)
    if name in _SCHEMA_SETS and isinstance(value, list):
        return _sort(_schema(one, form, depth + 1) for one in value)
    if name in _VALUE_SETS and isinstance(value, list):
        return _sort(value)
    if name in _DEPENDENCIES and isinstance(value, dict):
        return {
            key: _sort(one) if isinstance(one, list) else _schema(one, form, depth + 1) for key, one in value.items()
        }
    if name == "default" and isinstance(value, str):
        # Sort a comma-separated list of names; leave other values alone.
        items = [item.strip() for item in value.split(",")]
        is_list = len(items) > 1 and all(len(item.split()) == 1 for item in items)
        return ",".join(sorted(items)) if is_list else value
    return value if name == "const" else _value(value)


def _sort(members: Iterable[JsonValue]) -> JsonValue:
    return sorted(members, key=lambda one: compact_json(one, sort_keys=True))


def _value(value: JsonValue, depth: int = 0) -> JsonValue:
    """Return a value with lists of distinct scalars sorted, and `1.0` as `1`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOATS:
        return int(value)
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {name: _value(one, depth + 1) for name, one in value.items()}
    if not isinstance(value, list):
        return value
    found = [_value(one, depth + 1) for one in value]
    if any(isinstance(one, list | dict) for one in found):
        return found
    return _sort(found) if len({compact_json(one) for one in found}) == len(found) else found


# -- texts ------------------------------------------------------------------------------------


def _text(text: str, form: Form) -> str:
    """Sort the items of every list that is a complete clause, and collapse whitespace.

    For `READING`, sort all words and punctuation, and list steering words with their next word.
    """
    if form is not Form.READING:
        parts = _CLAUSE_ENDS.split(text)
        parts[::2] = [_sort_clause(part) for part in parts[::2]]
        return " ".join(" ".join(parts).split())
    stripped = (word.strip(_EDGES) for word in _WORD_ENDS.split(text))
    words = [word for word in stripped if word]
    steered = [
        f"{word} {after}"
        for word, after in zip(words, [*words[1:], ""], strict=False)
        if word.lower().replace("\u2019", "'") in STEERING
    ]
    marks = "".join(sorted(mark for mark in text if mark in _MARKS))
    return "\n".join([*sorted(words), marks, *sorted(steered)])


def _sort_clause(clause: str) -> str:
    pieces = _ITEM_ENDS.split(clause.strip())
    items = [" ".join(item.split()) for item in pieces[::3]]
    for item in items:
        words = [word.strip(_EDGES).lower() for word in item.split()]
        if not 0 < len(words) <= _MAX_ITEM_WORDS or not _NEVER_IN_ITEMS.isdisjoint(words):
            return clause
    joints = sorted(joint for joint in (*pieces[1::3], *pieces[2::3]) if joint)
    return " ".join([", ".join(sorted(items)), *joints]) if len(items) > 1 else clause
