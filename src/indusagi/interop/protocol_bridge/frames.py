"""A frame as bytes: how one is read, and how one is written."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

_BOM = b"\xef\xbb\xbf"
_WHITE = " \t\r\n"
_ANSWER = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*"(?:result|error)"'
)
"""How an answer begins, as everybody writes it: its id is known even if the rest cannot be read."""


def read_frame(line: bytes) -> JsonValue:
    """Read what a peer has written in one line.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    text = line.removeprefix(_BOM).decode("utf-8", "replace").strip(_WHITE)
    # Not `decode`: that looks for white space in a way that takes as long as all of the reading.
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(f"more follows at character {end:,}")
    return cast("JsonValue", value)


def answered_id(line: bytes) -> int | None:
    """Tell which request a line was meant to answer that cannot be read."""
    found = _ANSWER.match(line.removeprefix(_BOM))
    return int(found[1]) if found else None


def write_frame(frame: JsonObject) -> bytes:
    """Write a frame as one line, without its end."""
    return _ENCODER.encode(frame).encode("utf-8", "backslashreplace")


def _no_such_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_such_number)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
