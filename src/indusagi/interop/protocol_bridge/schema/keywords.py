"""The metaschema of JSON Schema 2020-12 as a table: which values each keyword takes.

Servers write `required: true` on a property, `exclusiveMinimum: true` of draft 4, `description: null`. A provider
refuses the whole request for one such keyword, so a model view leaves it out. A validator of the metaschema finds the
same faults, and takes about ten times as long as the view itself: https://json-schema.org/draft/2020-12/schema.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from indusagi.interop.protocol_bridge.schema.normalize import KNOWN_TYPES, is_dict, is_list

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.interop.protocol_bridge.schema.normalize import AnyObject

_ANCHOR = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_MAX_PATTERN = 4_096
"""Longer patterns aren't compiled, and so not shown: compiling takes time, and a model can't use them."""
_NOT_ECMASCRIPT = re.compile(r"\(\?(?:P|#|[aiLmsux]+\))")
"""Groups that Python knows and ECMA-262, the language of patterns, doesn't."""


def find_fault(keyword: str, value: object) -> str | None:
    """Return what a keyword takes if it doesn't take `value`; schemas below it aren't looked at."""
    rule = _RULES.get(keyword)
    return None if rule is None or rule[0](value) else rule[1]


def has_faults(schema: AnyObject) -> bool:
    """Tell whether a keyword of a schema holds a value that it doesn't take."""
    for key, value in schema.items():
        rule = _RULES.get(cast("str", key))
        if rule is not None and not rule[0](value):
            return True
    return False


@lru_cache(maxsize=1_024)
def is_pattern(text: str) -> bool:
    """Tell whether a text is a regular expression; lookups are cached, since tools share patterns."""
    if len(text) > _MAX_PATTERN or _NOT_ECMASCRIPT.search(text):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):  # Python warns of what a later version may read otherwise
            re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _is_schema(value: object) -> bool:
    return isinstance(value, (dict, bool))


def _is_schema_list(value: object) -> bool:
    return is_list(value) and bool(value) and all(isinstance(one, (dict, bool)) for one in value)


def _is_schema_map(value: object) -> bool:
    return is_dict(value) and all(isinstance(one, (dict, bool)) for one in value.values())


def has_patterns(value: object) -> bool:
    """Tell whether the keys of an object are regular expressions."""
    return is_dict(value) and all(is_pattern(key) for key in value if isinstance(key, str))


def _is_pattern_map(value: object) -> bool:
    return _is_schema_map(value) and has_patterns(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _is_names(value: object) -> bool:
    return is_list(value) and all(isinstance(one, str) for one in value) and len({*value}) == len(value)


def _is_type(value: object) -> bool:
    names = value if is_list(value) and _is_names(value) else [value]
    return bool(names) and all(isinstance(name, str) and name in KNOWN_TYPES for name in names)


_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "type": (_is_type, "a type, or a list of types"),
    "enum": (lambda value: is_list(value) and bool(value), "a list of values"),
    "multipleOf": (
        lambda value: isinstance(value, (int, float)) and _is_number(value) and value > 0,
        "a number above 0",
    ),
    "pattern": (lambda value: isinstance(value, str) and is_pattern(value), "a regular expression"),
    "patternProperties": (_is_pattern_map, "schemas by regular expression"),
    "dependentRequired": (
        lambda value: is_dict(value) and all(_is_names(one) for one in value.values()),
        "lists of names",
    ),
    "dependencies": (
        lambda value: is_dict(value) and all(_is_schema(one) or _is_names(one) for one in value.values()),
        "schemas or lists of names",
    ),
    "$vocabulary": (
        lambda value: is_dict(value) and all(isinstance(one, bool) for one in value.values()),
        "booleans by URI",
    ),
    "$id": (lambda value: isinstance(value, str) and "#" not in value.removesuffix("#"), "a URI without fragment"),
    "required": (_is_names, "a list of different names"),
    "examples": (is_list, "a list of values"),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), (_is_number, "a number")),
    **dict.fromkeys(
        (
            *("maxLength", "minLength", "maxItems", "minItems"),
            *("maxContains", "minContains", "maxProperties", "minProperties"),
        ),
        (_is_count, "an integer from 0"),
    ),
    **dict.fromkeys(
        ("uniqueItems", "deprecated", "readOnly", "writeOnly"), (lambda value: isinstance(value, bool), "a boolean")
    ),
    **dict.fromkeys(
        (
            *("title", "description", "format", "contentEncoding", "contentMediaType", "$comment", "$schema"),
            *("$ref", "$dynamicRef", "$recursiveRef"),
        ),
        (_is_text, "a string"),
    ),
    **dict.fromkeys(
        ("$anchor", "$dynamicAnchor", "$recursiveAnchor"),
        (lambda value: isinstance(value, str) and _ANCHOR.fullmatch(value) is not None, "an anchor"),
    ),
    **dict.fromkeys(
        (
            *("items", "contains", "additionalProperties", "propertyNames", "if", "then", "else", "not"),
            *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
        ),
        (_is_schema, "a schema"),
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), (_is_schema_list, "a list of schemas")),
    **dict.fromkeys(("properties", "dependentSchemas", "$defs", "definitions"), (_is_schema_map, "schemas by name")),
}
