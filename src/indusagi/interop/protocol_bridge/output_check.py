"""Whether a structured answer is what its tool promised.

The schema comes from a stranger, so one that could take for ever to check is not used at all: it
would stop everything, and without its keywords the schema would be another one.
"""

from __future__ import annotations

from indusagi.capabilities.arguments import load_validator
from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.model_schema import model_view
from indusagi.runtime.contract import JsonSchema

CHECKED_COST = 4_000_000
"""Bytes of the schema times bytes of the answer: beyond, it takes longer than it is worth."""
_SHOWN_CHARACTERS = 200
_DEAR = frozenset({"pattern", "patternProperties", "uniqueItems"})
"""Regular expressions may take for ever, and comparing each item with each other almost so."""


async def mismatch(schema: JsonSchema, value: JsonValue) -> str | None:
    """Say how a value does not fit its schema; None when it does, or cannot be checked."""
    if value is None:
        return "it declares an output schema and gave no structured content"
    if not isinstance(value, dict):
        is_wrong = schema.get("type") == "object"
        return "its structured content is no object, as it promised" if is_wrong else None
    # References are inlined in the view, within bounds, and it blames nobody who fits the schema.
    view = model_view(schema).schema
    if _is_dear(view) or not _is_cheap(view, value):
        return None
    await load_validator()
    return _first_problem(view, value)


def _is_cheap(view: JsonObject, value: JsonValue) -> bool:
    try:
        return len(compact_json(view)) * len(compact_json(value)) <= CHECKED_COST
    except NotJson:  # a number beyond what a float holds, say
        return False


def _first_problem(schema: JsonObject, value: JsonValue) -> str | None:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 — loaded by load_validator
    from referencing import Registry  # noqa: PLC0415 — loaded by load_validator

    try:
        checker = Draft202012Validator(schema, registry=Registry())
        problem = next(iter(checker.iter_errors(value)), None)  # pyright: ignore[reportUnknownMemberType] — its stub is half typed
    except Exception as exc:  # noqa: BLE001 — boundary: a schema that the validator chokes on
        return f"its output schema cannot be used: {type(exc).__name__}"
    if problem is None:
        return None
    said = cut_text(clean_text(str(problem.message))[0], _SHOWN_CHARACTERS)
    return f"its structured content does not fit its output schema: {said}"


def _is_dear(view: JsonObject) -> bool:
    """Tell whether a schema may hold such keywords anywhere; a property's name counts too."""
    pending: list[JsonValue] = [view]
    while pending:
        level = pending.pop()
        if isinstance(level, dict):
            if not _DEAR.isdisjoint(level):
                return True
            pending.extend(level.values())
        elif isinstance(level, list):
            pending.extend(level)
    return False
