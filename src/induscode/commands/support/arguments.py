"""The arguments of a call as words of a command line: `key=value`, read by the tool's schema."""

from __future__ import annotations

import json
import math
import os
import select
import sys
from typing import TYPE_CHECKING

from indusagi.capabilities.arguments import ArgumentChecker, find_similar_name
from indusagi.core.app_dirs import read_small_file
from indusagi.core.json import is_json_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import JsonSchema

_LARGEST_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_STEP_S = 0.2


class ArgumentError(ValueError):
    """Words that do not say what the arguments are."""


def read_arguments(words: Sequence[str], given: JsonObject, schema: JsonSchema) -> JsonObject:
    """Put together the object that is given and what the words add to it.

    Raises:
        ArgumentError: A word is no `key=value`, or a value does not fit.
    """
    named: JsonObject = {}
    for word in words:
        key, raw, text = _split(word)
        value = _json(text, f"the value of {key!r}") if raw else _value(key, text, _property(schema, key))
        _put(named, key, value, schema)
    return {**given, **named}


async def check_arguments(arguments: JsonObject, schema: JsonSchema) -> None:
    """Compare arguments with what a model is shown of a tool, before its server gets them.

    What its own schema takes, that view takes as well, so nothing is refused here that the server
    would take. A schema that cannot be used for the comparison refuses nothing.

    Raises:
        ArgumentError: The arguments do not fit.
    """
    try:
        problems = await ArgumentChecker(schema).check(arguments)
    except Exception:  # noqa: BLE001 — boundary: a stranger's schema breaks the validator in many ways
        return
    if problems:
        raise ArgumentError("; ".join(problems))


def describe_parameters(schema: JsonSchema) -> str:
    """Give the signature of a tool in one line: names, types, and which may be left out."""
    properties = schema.get("properties")
    known = properties if is_json_object(properties) else {}
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    parts: list[str] = []
    for name, about in known.items():
        types = "|".join(_types(about)) if is_json_object(about) else ""
        parts.append(f"{name}{'' if name in needed else '?'}{f': {types}' if types else ''}")
    return ", ".join(parts) or "no arguments"


def _split(word: str) -> tuple[str, bool, str]:
    key, equals, text = word.partition("=")
    raw = key.endswith(":")
    key = key.removesuffix(":")
    if not equals or not key:
        raise ArgumentError(f"{word!r} is no key=value (or key:=JSON)")
    return key, raw, text


def _put(named: JsonObject, key: str, value: JsonValue, schema: JsonSchema) -> None:
    """Add a value; a key that comes again adds to a list, if the tool takes one."""
    if key not in named:
        named[key] = value
        return
    known = named[key]
    if "array" not in _types(_property(schema, key) or {}) or not isinstance(known, list):
        raise ArgumentError(f"{key!r} is given twice, and is no list")
    named[key] = [*known, *(value if isinstance(value, list) else [value])]


def _property(schema: JsonSchema, key: str) -> JsonObject | None:
    """Find what a schema says of a key; None if it says nothing and takes anything.

    Raises:
        ArgumentError: It takes no such key.
    """
    properties = schema.get("properties")
    known = properties if is_json_object(properties) else {}
    found = known.get(key)
    if is_json_object(found):
        return found
    if key not in known and schema.get("additionalProperties") is False:
        meant = find_similar_name(key, known)
        hint = f" (did you mean {meant!r}?)" if meant else ""
        raise ArgumentError(f"there is no argument {key!r}{hint}")
    return None


def _types(schema: JsonObject) -> list[str]:
    """Name the types that a schema admits, those of its branches included."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [one for one in kind if isinstance(one, str)]
    branches = schema.get("anyOf", schema.get("oneOf"))
    found = [one for one in branches if is_json_object(one)] if isinstance(branches, list) else []
    return [kind for branch in found for kind in _types(branch)]


def _value(key: str, text: str, schema: JsonObject | None) -> JsonValue:
    types = _types(schema or {})
    if not types or "string" in types:
        return text
    for kind in types:
        try:
            return _READERS[kind](key, text, schema or {})
        except (KeyError, ValueError):
            continue
    said = " or ".join(types)
    raise ArgumentError(f"{key!r} must be {said}, not {text!r}")


def _number(_key: str, text: str, _schema: JsonObject) -> JsonValue:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not math.isfinite(number):
        raise ValueError("JSON has no such number")
    return number


def _integer(_key: str, text: str, _schema: JsonObject) -> JsonValue:
    return int(text)


def _boolean(_key: str, text: str, _schema: JsonObject) -> JsonValue:
    return {"true": True, "false": False}[text.lower()]


def _null(_key: str, text: str, _schema: JsonObject) -> JsonValue:
    return {"null": None}[text]


def _array(key: str, text: str, schema: JsonObject) -> JsonValue:
    if text.startswith("["):
        found: JsonValue = json.loads(text)
        return found
    items = schema.get("items")
    return [_value(key, text, items if is_json_object(items) else None)]


def _mapping(_key: str, text: str, _schema: JsonObject) -> JsonValue:
    found: JsonValue = json.loads(text)
    if not is_json_object(found):
        raise ValueError("no object")
    return found


_READERS = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
    "array": _array,
    "object": _mapping,
}


# -- the whole object -------------------------------------------------------------------------


def read_object(whole: str) -> JsonObject:
    """Read the object of `--json`; it may wait for standard input, so not in an event loop.

    Raises:
        ArgumentError: It cannot be read, or is none.
    """
    text, where = _text(whole)
    found = _json(text, where)
    if not is_json_object(found):
        raise ArgumentError(f"{where} must be a JSON object")
    return found


def _text(whole: str) -> tuple[str, str]:
    """Give the JSON that `--json` means: itself, a file after `@`, or standard input for `-`."""
    if whole != "-" and not whole.startswith("@"):
        return whole, "the value of --json"
    where = "standard input" if whole == "-" else whole[1:]
    try:
        data = _piped() if whole == "-" else read_small_file(whole[1:], _LARGEST_BYTES)
        return data.decode("utf-8"), where
    except OSError as exc:
        raise ArgumentError(f"{where}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise ArgumentError(f"{where} is not UTF-8 at byte {exc.start}") from exc


def _piped() -> bytes:
    if sys.stdin is None:  # started with it closed
        return b""
    data = bytearray()
    while chunk := _next_chunk(sys.stdin.fileno()):
        data += chunk
        if len(data) > _LARGEST_BYTES:
            raise OSError(f"more than {_LARGEST_BYTES:,} bytes")
    return bytes(data)


def _next_chunk(descriptor: int) -> bytes:
    """Wait for more, in small steps: a signal that comes just before a read does not end it."""
    while not select.select([descriptor], [], [], _STEP_S)[0]:
        continue
    return os.read(descriptor, _CHUNK_BYTES)


def _json(text: str, where: str) -> JsonValue:
    try:
        found: JsonValue = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as exc:
        raise ArgumentError(f"{where} is invalid JSON: {exc}") from exc
    return found


def _refused(name: str) -> None:
    raise ValueError(f"JSON has no {name}")
