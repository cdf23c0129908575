"""A configuration file as data: JSON, JSON with comments, or TOML. Never hangs, never raises.

Only a regular file of a sensible size is opened. What cannot be read comes back as a reason.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from indusagi.core.app_dirs import read_small_file

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

LARGEST_BYTES = 16 * 1024 * 1024
_LARGEST_COMMENTED = 1024 * 1024
"""Characters of a text that is looked through for comments: people write those by hand."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says; `trouble` if it could not be read."""

    document: JsonValue
    trouble: str | None = None
    line: int | None = None
    """Where it stopped being readable, counted from 1, where the file has lines."""
    column: int | None = None
    repeated: tuple[str, ...] = ()
    """Keys that stand twice in one object: the last one counts, as for everybody who reads JSON."""


def read_config_file(path: str) -> ConfigFile:
    """Read a file; `.toml` is TOML, everything else JSON that may have comments."""
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
    return _parsed_toml(text) if path.endswith(".toml") else parse_json(text)


def _parsed_toml(text: str) -> ConfigFile:
    import tomllib  # noqa: PLC0415 — one dialect of many is written in it

    try:
        return ConfigFile(cast("JsonValue", tomllib.loads(text)))
    except RecursionError as exc:
        return ConfigFile(None, f"invalid TOML: {exc}")
    except ValueError as exc:
        # Python 3.11 gives the place only in the text; 3.14 has attributes for it.
        place = _TOML_PLACE.search(str(exc))
        line, column = (int(place[1]), int(place[2])) if place else (text.count("\n") + 1, 1)
        return ConfigFile(None, f"invalid TOML: {exc}", line, column)


def parse_json(text: str) -> ConfigFile:
    """Read JSON; what only comments and trailing commas keep from being JSON is read too."""
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
        found: JsonObject = {}
        for key, value in pairs:
            if key in found:
                repeated.append(key)
            found[key] = value
        return found

    try:
        try:
            document = cast("JsonValue", json.loads(text, object_pairs_hook=collect))
        except ValueError as exc:
            plain = _without_comments(text) if len(text) <= _LARGEST_COMMENTED else text
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
    """Blank out comments and trailing commas; lines and columns stay where they are."""
    shown: list[str] = []
    comma: int | None = None
    last = "{"  # the last token that is neither space nor comment; `{,}` has no trailing comma
    at = 0
    while at < len(text):
        end = _token_end(text, at)
        token = text[at:end]
        if token.startswith(("//", "/*")):
            token = "".join("\n" if one == "\n" else " " for one in token)
        elif token in {"}", "]"} and comma is not None:
            shown[comma] = " "
        if token == ",":
            comma = None if last in {"{", "[", ","} else len(shown)
        elif not token.isspace():
            comma = None
        if not token.isspace():
            last = token
        shown.append(token)
        at = end
    return "".join(shown)


def _token_end(text: str, at: int) -> int:
    """Find the end of the string, the comment, or the plain text that starts here."""
    if text[at] == '"':
        return _string_end(text, at)
    if text.startswith("//", at):
        found = text.find("\n", at)
        return found if found >= 0 else len(text)
    if text.startswith("/*", at):
        found = text.find("*/", at + 2)
        return found + 2 if found >= 0 else len(text)
    if text[at] in "{}[],/":
        return at + 1
    found_plain = _PLAIN.match(text, at)
    return found_plain.end() if found_plain else at + 1


def _string_end(text: str, at: int) -> int:
    at += 1
    while at < len(text):
        found = _STRING_STOP.search(text, at)
        if found is None:
            return len(text)
        at = found.end()
        if found[0] == '"':
            return at
        at += 1  # whatever is escaped
    return len(text)


_TOML_PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")
_PLAIN = re.compile(r'[^"/{}\[\],\s]+|\s+')
_STRING_STOP = re.compile(r'["\\]')
