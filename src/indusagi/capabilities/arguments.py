"""Tool arguments: fix harmless mistakes of models, then check the arguments against a JSON Schema.

We fix parameter names borrowed from other tools, quoted numbers and lists, and null for optional parameters. Ambiguous
arguments stay as they are and fail the check. Its messages say what was sent, which values are valid and which key was
probably meant, so the model gets the next call right. A tool never sees invalid arguments.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, cast

from anyio import to_thread

from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.text import format_count
from indusagi.runtime.contract import JsonSchema

if TYPE_CHECKING:  # not in public signatures; loaded by the first check
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

_SHOWN_PROBLEMS = 8
_EXAMINED_ERRORS = 200
"""How many validator errors to read: it may report one per value."""
_COMPARED_NAMES = 50
"""How many names to compare with a misspelt one."""
_QUICK_BYTES = 16 * 1024
"""Check larger arguments in a thread."""
_LIGHT_DEPTH = 4
_LIGHT_ITEMS = 256
_UNIONS = frozenset({"anyOf", "oneOf"})
_SIMPLE = frozenset({"type", "enum", "const"})
_SIZES = {
    "minLength": ("at least", "character"),
    "maxLength": ("at most", "character"),
    "minItems": ("at least", "item"),
    "maxItems": ("at most", "item"),
}
_SHOWN_CHARACTERS = 80
"""How much of a value, or of the validator's message, to quote."""


class ArgumentChecker:
    """Checks arguments against one schema."""

    def __init__(self, schema: JsonSchema) -> None:
        self.schema = schema
        self._validator: Draft202012Validator | None = None

    async def check(self, arguments: JsonValue) -> list[str]:
        """List the problems like `problems`, using a thread for large arguments.

        Raises:
            NotJson: The arguments aren't JSON.
            Exception: The schema is invalid; the validator raises various types.
        """
        light, weight = _lighten(arguments)
        size = weight + len(compact_json(light))
        if "jsonschema.validators" not in sys.modules:
            await load_validator()
        if size <= _QUICK_BYTES:
            return self.problems(arguments)
        return await to_thread.run_sync(self.problems, arguments)

    def problems(self, arguments: JsonValue) -> list[str]:
        """List the problems, one sentence each; empty if the arguments are valid.

        Raises `Exception` if the schema is invalid; the validator raises various types.
        """
        if not is_json_object(arguments):
            return [f"the arguments must be an object, got {_clip_json(arguments)}"]
        if self._validator is None:
            from jsonschema import Draft202012Validator  # noqa: PLC0415 — see load_validator
            from referencing import Registry  # noqa: PLC0415 — see load_validator

            # The default registry would fetch a remote $ref over the network.
            self._validator = Draft202012Validator(self.schema, registry=Registry())
        found = cast("Iterator[ValidationError]", self._validator.iter_errors(arguments))  # pyright: ignore[reportUnknownMemberType] — its stub is half typed
        try:
            first = [*islice(found, _EXAMINED_ERRORS)]
        except BaseException as exc:
            # A schema that refers to itself without end. If the stack ends inside the validator's Rust code, that
            # raises something that isn't an `Exception`: no boundary would stop it.
            if type(exc).__name__ == "PanicException":
                raise RecursionError("the schema refers to itself") from None
            raise
        if not first:
            return []
        # The validator reports the missing keys of an object once per key: one error per object is enough.
        distinct: dict[object, ValidationError] = {}
        for error in first:
            distinct.setdefault(tuple(error.absolute_path) if error.validator == "required" else id(error), error)
        errors = sorted(distinct.values(), key=lambda error: [str(step) for step in error.absolute_path])
        sentences = list(dict.fromkeys(s for error in errors for s in _sentences(error)))
        if len(sentences) > _SHOWN_PROBLEMS:
            more = len(sentences) - _SHOWN_PROBLEMS
            sentences = [*sentences[:_SHOWN_PROBLEMS], f"and {more} more"]
        return sentences


def _lighten(value: JsonValue, depth: int = _LIGHT_DEPTH) -> tuple[JsonValue, int]:
    """Replace long strings with empty ones; return the result and the length removed.

    Any string is valid JSON, and encoding a long one would block the event loop.
    """
    if isinstance(value, str):
        return ("", len(value)) if len(value) > _QUICK_BYTES else (value, 0)
    if not depth or not isinstance(value, (dict, list)) or len(value) > _LIGHT_ITEMS:
        return value, 0
    if isinstance(value, list):
        items = [_lighten(item, depth - 1) for item in value]
        return [item for item, _ in items], sum(weight for _, weight in items)
    fields = {key: _lighten(item, depth - 1) for key, item in value.items()}
    light: JsonObject = {key: item for key, (item, _) in fields.items()}
    return light, sum(weight for _, weight in fields.values())


async def load_validator() -> None:
    """Import the validator once, in a thread: that takes ten times as long as starting Python."""
    if "jsonschema.validators" not in sys.modules:
        await to_thread.run_sync(importlib.import_module, "jsonschema.validators")


def find_similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, ignoring case, underscores and hyphens; None if nothing comes close."""
    from difflib import get_close_matches  # noqa: PLC0415 — only for a name that is unknown

    known = {_bare(candidate): candidate for candidate in names}
    matches = get_close_matches(_bare(name), known, n=1)
    return known[matches[0]] if matches else None


def _bare(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _sentences(error: ValidationError) -> Iterator[str]:
    if error.validator == "required":
        arguments = cast("JsonObject", error.instance)
        unknown = [key for key in arguments if key not in _properties(error)][:_COMPARED_NAMES]
        missing = [key for key in cast("list[str]", error.validator_value) if key not in arguments]
        for number, key in enumerate(missing):
            meant = find_similar_name(key, unknown) if number < _SHOWN_PROBLEMS else None
            hint = f"; {meant!r} was given, which is not its name" if meant else ""
            yield f"{_format_path(error, key)} is missing and required{hint}"
    elif error.validator == "additionalProperties" and error.validator_value is False:
        accepted = _properties(error)
        listed = _clip(", ".join(accepted) or "none")
        patterns = cast("JsonObject", error.schema).get("patternProperties")
        by_pattern = [*patterns] if isinstance(patterns, dict) else []
        unknown = [
            key
            for key in cast("JsonObject", error.instance)
            if key not in accepted and not any(re.search(pattern, key) for pattern in by_pattern)
        ]
        for number, key in enumerate(unknown):
            meant = find_similar_name(key, accepted[:_COMPARED_NAMES]) if number < _SHOWN_PROBLEMS else None
            hint = f"did you mean {meant!r}? " if meant else ""
            yield f"{_format_path(error, key)} is not accepted; {hint}Accepted: {listed}"
    elif (
        error.validator in _UNIONS
        and error.context
        and not all(branch.validator in _SIMPLE and not branch.relative_path for branch in error.context)
    ):
        # The model probably meant the closest branch, with the right type or else the deepest: its problem says more
        # than a list of all branches.
        closest = max(
            error.context,
            key=lambda branch: (branch.validator != "type" or bool(branch.relative_path), len(branch.relative_path)),
        )
        yield from _sentences(closest)
    elif size := _SIZES.get(str(error.validator)):
        bound, noun = size
        wanted = format_count(cast("int", error.validator_value), noun)
        length = len(cast("Sized", error.instance))
        yield f"{_format_path(error)} must have {bound} {wanted}, got {length:,}"
    elif expected := _describe_keyword(error.validator, error.validator_value, error):
        yield f"{_format_path(error)} must be {expected}, got {_clip_json(error.instance)}"
    else:
        yield f"{_format_path(error)}: {_clip(error.message)}"


def _describe_keyword(keyword: object, value: object, error: ValidationError | None = None) -> str | None:
    """Describe the requirement of a keyword, if that fits in a few words."""
    if keyword == "type":
        names = cast("list[str]", value) if isinstance(value, list) else [str(value)]
        return " or ".join(names)
    if keyword == "enum":
        return f"one of {_clip_json(value)}"
    if keyword == "const":
        return _clip_json(value)
    if keyword in _UNIONS and error is not None and error.context:
        branches: list[str] = []
        for branch in cast("list[object]", value):
            # Describe each branch by its first constraint.
            rules: JsonObject = branch if is_json_object(branch) else {}
            first = next((name for name in ("const", "enum", "type") if name in rules), "")
            branches.append(_describe_keyword(first, rules.get(first)) or "")
        return " or ".join(branches) if all(branches) else None
    return None


def _properties(error: ValidationError) -> list[str]:
    schema = cast("JsonObject", error.schema)
    properties = schema.get("properties")
    return list(properties) if isinstance(properties, dict) else []


def _format_path(error: ValidationError, key: str | None = None) -> str:
    steps = [*error.absolute_path, *([key] if key is not None else [])]
    text = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps)
    return repr(text.removeprefix(".")) if text else "the arguments"


def _clip_json(value: object) -> str:
    return _clip(compact_json(cast("JsonValue", value)))


def _clip(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


# -- coercion -----------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?[0-9]{1,15}(\.0)?")
_SEVERAL = re.compile(r"[,;\n\[\]{}\"]")
_LONGEST_LIST = 1_000_000


Coercion: TypeAlias = Callable[[JsonValue], JsonValue]


def coerce_to(schema: JsonSchema, aliases: Mapping[str, str], items: Mapping[str, Coercion] | None = None) -> Coercion:
    """Return a function that fixes arguments for `schema`.

    `aliases` maps other names to the schema's, `items` the name of a list to a function that fixes its items.
    """
    declared = schema.get("properties")
    properties: Mapping[str, JsonValue] = declared if is_json_object(declared) else {}
    listed = schema.get("required")
    required = listed if isinstance(listed, list) else []
    kinds = {name: _type_of(value) for name, value in properties.items()}
    optional = {
        name for name, kind in kinds.items() if name not in required and isinstance(kind, str) and kind != "null"
    }

    def prepare(arguments: JsonValue) -> JsonValue:
        if not is_json_object(arguments):
            return arguments
        named: dict[str, JsonValue] = {}
        for name, value in arguments.items():
            meant = aliases.get(name, name)
            # An alias next to the real name is ambiguous: leave it to the check.
            known = name if name in properties or meant in arguments else meant
            if value is None and known in optional:
                continue
            is_quoted = isinstance(value, str) and kinds.get(known) != "string"
            named[known] = _unquote(value, properties.get(known)) if is_quoted or isinstance(value, float) else value
        for name, coerce in (items or {}).items():
            listed = named.get(name)
            if isinstance(listed, list):
                named[name] = [coerce(item) for item in listed]
        return named

    return prepare


def _unquote(value: JsonValue, schema: JsonValue) -> JsonValue:
    """Parse a number, boolean, list or object sent as a string."""
    kind = _type_of(schema)
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    if kind in {"integer", "number"} and _NUMBER.fullmatch(value.strip()):
        return int(float(value))
    if kind == "boolean" and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    items = schema.get("items") if is_json_object(schema) else None
    is_empty = value.strip().lower() in {"", "null", "none"}
    if kind == "array" and _type_of(items) == "string" and not is_empty and not _SEVERAL.search(value):
        return [value]  # can only be the single item of a string list
    if kind in {"array", "object"} and len(value) <= _LONGEST_LIST:
        try:
            parsed = cast("JsonValue", json.loads(value))
        except (ValueError, RecursionError):
            return value
        return parsed if isinstance(parsed, list if kind == "array" else dict) else value
    return value


def _type_of(schema: JsonValue) -> JsonValue:
    return schema.get("type") if is_json_object(schema) else None
