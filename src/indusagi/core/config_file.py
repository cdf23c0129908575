"""Configuration files as data: JSON (RFC 8259), JSON with comments, or TOML (https://toml.io/en/v1.0.0).

Reads only regular files of limited size. An unreadable file yields a reason instead of an exception.
"""

from __future__ import annotations

import json
import re
from typing import cast

from indusagi.core.app_dirs import read_small_file
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record

LARGEST_BYTES = 16 * 1024 * 1024
_MAX_COMMENTED_CHARS = 1024 * 1024
"""Larger texts aren't searched for comments: such files are hand-written."""


@record
class ConfigFile:
    """A file's content, or the `trouble` with reading it."""

    document: JsonValue
    trouble: str | None = None
    line: int | None = None
    """Where parsing failed, counted from 1."""
    column: int | None = None
    repeated: tuple[str, ...] = ()
    """Duplicate keys of an object; the last one counts (RFC 8259 §4)."""


def read_config_file(path: str) -> ConfigFile:
    """Read a file: TOML if it ends in `.toml`, else JSON with optional comments."""
    try:
        data = read_small_file(path, LARGEST_BYTES)
    except OSError as exc:
        return ConfigFile(None, exc.strerror or str(exc))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = exc.object[: exc.start]
        line, column = before.count(b"\n") + 1, exc.start - before.rfind(b"\n")
        return ConfigFile(None, f"it is not UTF-8 at byte {exc.start}", line, column)
    return _parse_toml(text) if path.endswith(".toml") else parse_json(text)


def _parse_toml(text: str) -> ConfigFile:
    import tomllib  # noqa: PLC0415 — one dialect of many uses it

    try:
        return ConfigFile(cast("JsonValue", tomllib.loads(text)))
    except RecursionError as exc:
        return ConfigFile(None, f"invalid TOML: {exc}")
    except ValueError as exc:
        # Python 3.11 only has the position in the message; 3.14 has attributes for it.
        position = _TOML_POSITION.search(str(exc))
        line, column = (int(position[1]), int(position[2])) if position else (text.count("\n") + 1, 1)
        return ConfigFile(None, f"invalid TOML: {exc}", line, column)


def parse_json(text: str) -> ConfigFile:
    """Parse JSON, with comments and trailing commas if necessary."""
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
        result: JsonObject = {}
        for key, value in pairs:
            if key in result:
                repeated.append(key)
            result[key] = value
        return result

    try:
        try:
            document = cast("JsonValue", json.loads(text, object_pairs_hook=collect))
        except ValueError as exc:
            plain = _without_comments(text) if len(text) <= _MAX_COMMENTED_CHARS else text
            if plain == text:
                raise
            repeated.clear()
            try:
                document = cast("JsonValue", json.loads(plain, object_pairs_hook=collect))
            except ValueError:
                raise exc from None
    except json.JSONDecodeError as exc:
        return ConfigFile(None, f"invalid JSON: {exc}", exc.lineno, exc.colno)
    except (ValueError, RecursionError) as exc:
        return ConfigFile(None, f"invalid JSON: {exc}")
    return ConfigFile(document, repeated=tuple(repeated))


def _without_comments(text: str) -> str:
    """Blank out comments and trailing commas, preserving lines and columns."""
    tokens: list[str] = []
    comma: int | None = None
    last = "{"  # the last token other than space or comment; `{,}` has no trailing comma
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token.startswith(("//", "/*")):
            token = "".join("\n" if char == "\n" else " " for char in token)
        elif token in {"}", "]"} and comma is not None:
            tokens[comma] = " "
        if not token.isspace():
            comma = len(tokens) if token == "," and last not in {"{", "[", ","} else None
            last = token
        tokens.append(token)
    return "".join(tokens)


_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)'  # a string, perhaps without its end
    r"|//[^\n]*|/\*.*?(?:\*/|\Z)"  # a comment
    r'|[^"/{}\[\],\s]+|\s+|.',
    re.DOTALL,
)
_TOML_POSITION = re.compile(r"\(at line (\d+), column (\d+)\)")
