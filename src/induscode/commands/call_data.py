"""What `indus call` takes and returns on the command line.

Arguments are `key=value` according to the tool's schema, or one JSON object. An outcome is printed: text and embedded
text resources as they are, images, audio and other data as one line each, which `--save` writes to files.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import mimetypes
import os
import re
import select
import sys
from collections.abc import Sequence
from contextlib import suppress

from indusagi.capabilities.arguments import ArgumentChecker, find_similar_name
from indusagi.core.app_dirs import read_small_file
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.text import cut_text, escape_unseen
from indusagi.runtime.contract import JsonSchema, ToolContentBlock, ToolOutcome
from induscode.cli.terminal import print_line, print_status, print_text

_MAX_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_POLL_INTERVAL_S = 0.2


class ArgumentError(ValueError):
    """The arguments on the command line are invalid."""


def read_arguments(words: Sequence[str], document: JsonObject, schema: JsonSchema) -> JsonObject:
    """Merge the `key=value` words over the object from `--json`; `ArgumentError` if one doesn't fit the schema."""
    named: JsonObject = {}
    for word in words:
        left, equals, text = word.partition("=")
        key = left.removesuffix(":")
        if not equals or not key:
            raise ArgumentError(f"{word!r} is not key=value (or key:=JSON)")
        if left.endswith(":"):
            value = _parse_json(text, f"the value of {key!r}")
        else:
            value = _parse_value(key, text, _find_property(schema, key))
        if key in named:  # a repeated key adds to a list, if the tool takes one
            known = named[key]
            if "array" not in _list_types(_find_property(schema, key) or {}) or not isinstance(known, list):
                raise ArgumentError(f"{key!r} is given twice, and is not a list")
            value = [*known, *(value if isinstance(value, list) else [value])]
        named[key] = value
    return {**document, **named}


async def check_arguments(arguments: JsonObject, schema: JsonSchema) -> None:
    """Validate arguments against the model view of a tool's schema, before sending them to its server.

    The model view accepts everything that the server's own schema accepts. If a schema breaks the validator, we accept
    everything.
    """
    try:
        problems = await ArgumentChecker(schema).check(arguments)
    except Exception:  # noqa: BLE001 — boundary: a foreign schema breaks the validator in many ways
        return
    if problems:
        raise ArgumentError("; ".join(problems))


def describe_parameters(schema: JsonSchema) -> str:
    """Format a tool's parameters in one line, as `path: string, limit?: integer`."""
    properties = schema.get("properties")
    known = properties if is_json_object(properties) else {}
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    parts: list[str] = []
    for name, about in known.items():
        types = "|".join(_list_types(about)) if is_json_object(about) else ""
        parts.append(f"{name}{'' if name in needed else '?'}{f': {types}' if types else ''}")
    return ", ".join(parts) or "no arguments"


def _find_property(schema: JsonSchema, key: str) -> JsonObject | None:
    """Return the schema of a key, `None` if it takes any value; `ArgumentError` if the schema doesn't allow the key."""
    properties = schema.get("properties")
    known = properties if is_json_object(properties) else {}
    schema_of_key = known.get(key)
    if is_json_object(schema_of_key):
        return schema_of_key
    if key not in known and schema.get("additionalProperties") is False:
        similar = find_similar_name(key, known)
        hint = f" (did you mean {similar!r}?)" if similar else ""
        raise ArgumentError(f"there is no argument {key!r}{hint}")
    return None


def _list_types(schema: JsonObject) -> list[str]:
    """List the types that a schema and its branches allow."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [name for name in kind if isinstance(name, str)]
    branches = schema.get("anyOf", schema.get("oneOf"))
    schemas = [branch for branch in branches if is_json_object(branch)] if isinstance(branches, list) else []
    return [kind for branch in schemas for kind in _list_types(branch)]


def _parse_value(key: str, text: str, schema: JsonObject | None) -> JsonValue:
    types = _list_types(schema or {})
    if not types or "string" in types:
        return text
    for kind in types:
        try:
            if kind != "array" or text.startswith("["):
                return _parse_kind(kind, text)
            item = (schema or {}).get("items")
            return [_parse_value(key, text, item if is_json_object(item) else None)]
        except ValueError:
            continue
    raise ArgumentError(f"{key!r} must be {' or '.join(types)}, not {text!r}")


def _parse_kind(kind: str, text: str) -> JsonValue:
    """Parse a text as a JSON schema type; raise ValueError if it doesn't fit or the type is unknown."""
    if kind in {"integer", "number"}:
        with suppress(ValueError):
            return int(text)
    if kind == "number" and math.isfinite(number := float(text)):
        return number
    if kind == "boolean" and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if kind == "null" and text == "null":
        return None
    if kind in {"array", "object"}:
        value: JsonValue = json.loads(text)
        if kind == "array" or is_json_object(value):
            return value
    raise ValueError(f"not of type {kind}")


# -- --json -----------------------------------------------------------------------------------


def read_object(option: str) -> JsonObject:
    """Read the object from `--json`. Blocks on standard input, so don't call it from the event loop."""
    text, where = _read_text(option)
    document = _parse_json(text, where)
    if not is_json_object(document):
        raise ArgumentError(f"{where} must be a JSON object")
    return document


def _read_text(option: str) -> tuple[str, str]:
    """Return the JSON text and its source: the option itself, a file (`@FILE`), or standard input (`-`)."""
    if option != "-" and not option.startswith("@"):
        return option, "the value of --json"
    where = "standard input" if option == "-" else option[1:]
    try:
        data = _read_stdin() if option == "-" else read_small_file(option[1:], _MAX_BYTES)
        return data.decode("utf-8"), where
    except OSError as exc:
        raise ArgumentError(f"{where}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise ArgumentError(f"{where} is not UTF-8 at byte {exc.start}") from exc


def _read_stdin() -> bytes:
    if sys.stdin is None:  # started with it closed
        return b""
    data = bytearray()
    descriptor = sys.stdin.fileno()
    while len(data) <= _MAX_BYTES:
        # Poll: a signal that arrives just before a blocking read wouldn't interrupt it.
        if not select.select([descriptor], [], [], _POLL_INTERVAL_S)[0]:
            continue
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return bytes(data)
        data += chunk
    raise OSError(f"more than {_MAX_BYTES:,} bytes")


def _parse_json(text: str, where: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise ArgumentError(f"{where} is invalid JSON: {exc}") from exc
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


# -- outcome of a call ------------------------------------------------------------------------------


_MAX_LINE = 500
_MAX_FILES = 10_000
# Media types missing from Python 3.11's table, or only there on some systems.
_SUFFIXES = {
    "application/yaml": ".yaml",
    "application/x-yaml": ".yaml",
    "audio/flac": ".flac",
    "audio/mp4": ".m4a",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "audio/webm": ".weba",
    "image/jpg": ".jpg",
    "image/webp": ".webp",
    "text/markdown": ".md",
}


def to_json(outcome: ToolOutcome) -> JsonObject:
    """Convert an outcome to one JSON value."""
    content: list[JsonValue] = [
        {**(block.extra or {}), "type": "text", "text": block.text} if block.kind == "text" else block.value
        for block in outcome.content
    ]
    return {
        "isError": outcome.is_error,
        "content": content,
        "structured": outcome.structured,
        "details": dict(outcome.details),
    }


def print_call_notes(outcome: ToolOutcome) -> None:
    """Print what we noted about a call, such as a path that the sandbox of its server hides."""
    notes = outcome.details.get("notes")
    for note in notes if isinstance(notes, list | tuple) else ():
        print_status(escape_unseen(str(note)))


def print_blocks(blocks: Sequence[ToolContentBlock], *, raw: bool) -> None:
    """Print blocks: text unchanged if `raw`, else made safe for a terminal; data in one line each.

    With `raw`, nothing surrounds the texts (including text resources), except a newline between two if needed.
    """
    is_open = False  # whether the last text lacks a final newline
    for block in blocks:
        text = block.text if block.kind == "text" else _get_resource(block.value).get("text")
        if is_open:
            print_line("")
        is_open = raw and isinstance(text, str) and not text.endswith("\n")
        if block.kind != "text" and not (raw and isinstance(text, str)):
            print_line(summarize_block(block.value))
        if isinstance(text, str):
            sys.stdout.write(text) if raw else print_text(text)


def format_block(block: ToolContentBlock) -> str:
    """Return a block's text, or a one-line summary of its data."""
    return block.text if block.kind == "text" else summarize_block(block.value)


def summarize_block(value: JsonValue) -> str:
    """Summarize a non-text block in one line."""
    kind = value.get("type") if is_json_object(value) else None
    if not isinstance(kind, str):
        return compact_json(value)
    facts = _get_resource(value)
    parts = [kind, *(str(facts[key]) for key in ("uri", "mimeType") if facts.get(key))]
    data = _get_base64(facts)
    if data is not None:
        parts.append(f"{len(data) * 3 // 4 - data[-2:].count('='):,} bytes")
    text = facts.get("text")
    if isinstance(text, str):
        parts.append(f"{len(text):,} characters")
    return cut_text(f"[{', '.join(parts)}]", _MAX_LINE)


def save_blocks(blocks: Sequence[ToolContentBlock], directory: str, tool: str) -> list[str]:
    """Write the data of every image, audio and resource block to a new file in a directory.

    File names consist of the tool's name and a number, nothing from the server. We never overwrite a file.
    """
    os.makedirs(directory, exist_ok=True)
    paths: list[str] = []
    for block in blocks:
        if block.kind == "text":
            continue
        facts = _get_resource(block.value)
        content = _decode(facts)
        if content is None:
            continue
        mime = facts.get("mimeType")
        # RFC 9110 §8.3.1: parameters follow a semicolon, and case doesn't matter.
        kind = mime.partition(";")[0].strip().lower() if isinstance(mime, str) else ""
        unknown = ".txt" if isinstance(facts.get("text"), str) else ".bin"
        suffix = _SUFFIXES.get(kind) or mimetypes.guess_extension(kind) or unknown
        paths.append(_write_new(directory, re.sub(r"[^A-Za-z0-9_-]", "_", tool), suffix, content))
    return paths


def _get_resource(value: JsonValue) -> JsonObject:
    """Return the resource embedded in a block, or else the block itself."""
    if not is_json_object(value):
        return {}
    inner = value.get("resource")
    return inner if is_json_object(inner) else value


def _get_base64(facts: JsonObject) -> str | None:
    data = facts.get("data", facts.get("blob"))
    return data if isinstance(data, str) else None


def _decode(facts: JsonObject) -> bytes | None:
    data, text = _get_base64(facts), facts.get("text")
    if data is None:
        return text.encode("utf-8", "replace") if isinstance(text, str) else None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        print_status("a block was not saved: its data is not valid base64")
        return None


def _write_new(directory: str, name: str, suffix: str, content: bytes) -> str:
    for number in range(1, _MAX_FILES):
        path = os.path.join(directory, f"{name}-{number}{suffix}")
        try:
            with open(path, "xb") as file:
                file.write(content)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(17, "too many saved files", directory)
