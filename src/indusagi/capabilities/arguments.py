"""Check the arguments of a call against the tool's schema, and say what is wrong to a model.

A model that reads what it gave, what is accepted and which key it probably meant gets the next
call right. A tool never sees arguments that do not fit.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.text import format_count
from indusagi.runtime.contract import JsonSchema

if TYPE_CHECKING:  # in no public signature; loaded when the first arguments are checked
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

_SHOWN_PROBLEMS = 8
_EXAMINED_ERRORS = 200
"""How many failures of the validator are looked at: it can find as many as there are values."""
_COMPARED_NAMES = 50
"""With how many names a misspelt one is compared."""
_QUICK_BYTES = 16 * 1024
"""Larger arguments are checked in a thread."""
_LIGHTENED_DEPTH = 4
_LIGHTENED_ITEMS = 256
_UNIONS = frozenset({"anyOf", "oneOf"})
_IN_A_WORD = frozenset({"type", "enum", "const"})
_SIZES = {
    "minLength": ("at least", "character"),
    "maxLength": ("at most", "character"),
    "minItems": ("at least", "item"),
    "maxItems": ("at most", "item"),
}
_SHOWN_CHARACTERS = 80
"""How much of a value, or of somebody else's sentence, an error repeats."""


class ArgumentChecker:
    """Checks arguments against one schema; the validator is made when the first call comes.

    Without a schema, any object is accepted.
    """

    def __init__(self, schema: JsonSchema | None) -> None:
        self.schema = schema
        self._validator: Draft202012Validator | None = None

    async def check(self, arguments: JsonValue) -> list[str]:
        """List what does not fit, as `problems` does, without holding up the event loop.

        Raises:
            NotJson: The arguments are no JSON.
            Exception: The schema itself is broken, in one of the validator's many ways.
        """
        light, weight = _lighten(arguments)
        size = weight + len(compact_json(light))
        if self.schema is not None:
            await load_validator()
        if size <= _QUICK_BYTES:
            return self.problems(arguments)
        return await to_thread.run_sync(self.problems, arguments)

    def problems(self, arguments: JsonValue) -> list[str]:
        """List what does not fit, a sentence each; an empty list means that everything does.

        Raises:
            Exception: The schema itself is broken, in one of the validator's many ways.
        """
        if not is_json_object(arguments):
            return [f"the arguments must be an object, got {_shown(arguments)}"]
        if self.schema is None:
            return []
        found = cast("Iterator[ValidationError]", self._check(self.schema).iter_errors(arguments))  # pyright: ignore[reportUnknownMemberType] — its stub is half typed
        errors = sorted(_distinct(found), key=_by_place)
        sentences = list(dict.fromkeys(s for error in errors for s in _sentences(error)))
        if len(sentences) > _SHOWN_PROBLEMS:
            more = len(sentences) - _SHOWN_PROBLEMS
            sentences = [*sentences[:_SHOWN_PROBLEMS], f"and {more} more"]
        return sentences

    def _check(self, schema: JsonSchema) -> Draft202012Validator:
        if self._validator is None:
            from jsonschema import Draft202012Validator  # noqa: PLC0415 — see load_validator
            from referencing import Registry  # noqa: PLC0415 — see load_validator

            # The default registry would go and fetch a remote $ref by itself.
            self._validator = Draft202012Validator(schema, registry=Registry())
        return self._validator


def _distinct(found: Iterator[ValidationError]) -> Iterator[ValidationError]:
    """Give each place's missing keys once, though the validator repeats them for every key."""
    told: set[tuple[str | int, ...]] = set()
    for error in islice(found, _EXAMINED_ERRORS):
        if error.validator == "required":
            place = tuple(error.absolute_path)
            if place in told:
                continue
            told.add(place)
        yield error


def _lighten(value: JsonValue, depth: int = _LIGHTENED_DEPTH) -> tuple[JsonValue, int]:
    """Put empty texts in the place of long ones, and say how long they were.

    Any text is JSON, and to write out a long one takes longer than the event loop may stand still.
    """
    if isinstance(value, str):
        return ("", len(value)) if len(value) > _QUICK_BYTES else (value, 0)
    if not depth or not isinstance(value, (dict, list)) or len(value) > _LIGHTENED_ITEMS:
        return value, 0
    if isinstance(value, list):
        items = [_lighten(item, depth - 1) for item in value]
        return [item for item, _ in items], sum(weight for _, weight in items)
    fields = {key: _lighten(item, depth - 1) for key, item in value.items()}
    light: JsonObject = {key: item for key, (item, _) in fields.items()}
    return light, sum(weight for _, weight in fields.values())


async def load_validator() -> None:
    """Load the validator in a thread, once.

    It takes ten times as long as starting Python: too long for every import of this module, and
    too long for the event loop to stand still at the first call.
    """
    if "jsonschema.validators" not in sys.modules:
        await to_thread.run_sync(importlib.import_module, "jsonschema.validators")


def find_similar_name(name: str, names: Iterable[str]) -> str | None:
    """Find the name that was probably meant, however its words were joined and capitalised."""
    known = {_bare(candidate): candidate for candidate in names}
    found = difflib.get_close_matches(_bare(name), known, n=1)
    return known[found[0]] if found else None


def _bare(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _by_place(error: ValidationError) -> list[str]:
    return [str(step) for step in error.absolute_path]


def _sentences(error: ValidationError) -> Iterator[str]:
    if error.validator == "required":
        yield from _missing(error)
    elif error.validator == "additionalProperties" and error.validator_value is False:
        yield from _unknown(error)
    elif error.validator in _UNIONS and error.context and not _all_at_once(error):
        # One branch was meant and almost met: what is wrong there tells more than the list of all.
        yield from _sentences(max(error.context, key=_closeness))
    elif size := _SIZES.get(str(error.validator)):
        bound, noun = size
        wanted = format_count(cast("int", error.validator_value), noun)
        given = len(cast("Sized", error.instance))
        yield f"{_place(error)} must have {bound} {wanted}, got {given:,}"
    elif expected := _expected(error.validator, error.validator_value, error):
        yield f"{_place(error)} must be {expected}, got {_shown(error.instance)}"
    else:
        yield f"{_place(error)}: {_clipped(error.message)}"


def _all_at_once(union: ValidationError) -> bool:
    """Tell whether every branch fails at what can be said in a word: its type or its values."""
    return all(error.validator in _IN_A_WORD and not error.relative_path for error in union.context or ())


def _closeness(error: ValidationError) -> tuple[bool, int]:
    """Rank the failures of branches: of the right type first, then the deeper ones."""
    return error.validator != "type" or bool(error.relative_path), len(error.relative_path)


def _missing(error: ValidationError) -> Iterator[str]:
    given = cast("JsonObject", error.instance)
    strangers = [key for key in given if key not in _properties(error)][:_COMPARED_NAMES]
    missing = [key for key in cast("list[str]", error.validator_value) if key not in given]
    for number, key in enumerate(missing):
        meant = find_similar_name(key, strangers) if number < _SHOWN_PROBLEMS else None
        hint = f"; {meant!r} was given, which is not its name" if meant else ""
        yield f"{_place(error, key)} is missing and required{hint}"


def _unknown(error: ValidationError) -> Iterator[str]:
    accepted = _properties(error)
    listed = _clipped(", ".join(accepted) or "none")
    strangers = [key for key in cast("JsonObject", error.instance) if not _is_accepted(key, error, accepted)]
    for number, key in enumerate(strangers):
        meant = find_similar_name(key, accepted[:_COMPARED_NAMES]) if number < _SHOWN_PROBLEMS else None
        hint = f"did you mean {meant!r}? " if meant else ""
        yield f"{_place(error, key)} is not accepted; {hint}Accepted: {listed}"


def _is_accepted(key: str, error: ValidationError, accepted: list[str]) -> bool:
    patterns = cast("JsonObject", error.schema).get("patternProperties")
    by_pattern = patterns if isinstance(patterns, dict) else {}
    return key in accepted or any(re.search(pattern, key) for pattern in by_pattern)


def _expected(keyword: object, value: object, error: ValidationError | None = None) -> str | None:
    """Say what a keyword asks for, where that can be said in few words."""
    if keyword == "type":
        names = cast("list[str]", value) if isinstance(value, list) else [str(value)]
        return " or ".join(names)
    if keyword == "enum":
        return f"one of {_shown(value)}"
    if keyword == "const":
        return _shown(value)
    if keyword in _UNIONS and error is not None and error.context:
        branches = [_branch(branch) for branch in cast("list[object]", value)]
        return " or ".join(b for b in branches if b) if all(branches) else None
    return None


def _branch(branch: object) -> str | None:
    """Say what one branch of a union asks for, if its first constraint tells."""
    if not is_json_object(branch):
        return None
    for keyword in ("const", "enum", "type"):
        if keyword in branch:
            return _expected(keyword, branch[keyword])
    return None


def _properties(error: ValidationError) -> list[str]:
    schema = cast("JsonObject", error.schema)
    properties = schema.get("properties")
    return list(properties) if isinstance(properties, dict) else []


def _place(error: ValidationError, key: str | None = None) -> str:
    steps = [*error.absolute_path, *([key] if key is not None else [])]
    text = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps)
    return repr(text.removeprefix(".")) if text else "the arguments"


def _shown(value: object) -> str:
    return _clipped(compact_json(cast("JsonValue", value)))


def _clipped(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
