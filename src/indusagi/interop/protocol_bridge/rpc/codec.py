"""A frame as bytes: how one is read, and how one is written."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, cast

from indusagi.core.invisible import clean_json

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

_BOM = b"\xef\xbb\xbf"
_WHITE = " \t\r\n"
_BLANKS = frozenset(_WHITE)
_CARRIED = ("result", "params", "error")
_AROUND = 256
"""What a frame takes besides what it carries."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")
_ANSWER = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*"(?:result|error)"')
"""How an answer begins, as everybody writes it: its id is known even if the rest cannot be read."""


_OBJECT = re.compile(r'\{\s*"(?:jsonrpc|id|result|error)"\s*:')
"""Where a message may begin in the middle of a line."""
_MOST_TRIES = 16


class EncodeError(ValueError):
    """A frame holds a number that JSON has no way to write."""


def decode_frame(line: bytes) -> JsonValue:
    """Read what a peer has written in one line.

    Half of a surrogate pair becomes U+FFFD, as bytes that are not UTF-8 do: Python reads the escape
    (RFC 8259 section 8.2 leaves it open), but no text with it can be encoded again.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    text = line.removeprefix(_BOM).decode("utf-8", "replace").strip(_WHITE)
    # Not `decode`: that looks for white space in a way that takes as long as all of the reading.
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(f"more follows at character {end:,}")
    if _SURROGATE.search(text):
        value, _ = clean_json(cast("JsonValue", value), _replace_surrogates)
    return cast("JsonValue", value)


def _replace_surrogates(text: str) -> tuple[str, int]:
    return _HALF.subn("\ufffd", text)


class EncodedObject(dict[str, "JsonValue"]):
    """An object whose bytes are known; not to be changed afterwards."""

    __slots__ = ("encoded",)

    def __init__(self, value: JsonObject, encoded: bytes) -> None:
        super().__init__(value)
        self.encoded = encoded


def decode_frame_verbatim(line: bytes) -> JsonValue:
    """Read a frame, and keep the very bytes of what it carries: to be handed on as they are.

    Raises:
        ValueError: It is no JSON, or cannot be written again.
        RecursionError: It is nested too deeply.
    """
    text = line.removeprefix(_BOM).decode("utf-8", "replace").strip(_WHITE)
    if not text.startswith("{"):
        return _writable(decode_frame(line))
    frame: JsonObject = {}
    at = _after_white(text, 1)
    more = not text.startswith("}", at)
    while more:
        if not text.startswith('"', at):
            raise ValueError(f"a name is expected at character {at:,}")
        key, at = _DECODER.raw_decode(text, at)
        start = _after(text, at, ":")
        value, at = _DECODER.raw_decode(text, start)
        frame[key] = _kept(value, text[start:at]) if key in _CARRIED else _writable(value)
        at = _after_white(text, at)
        more = text.startswith(",", at)
        at = _after_white(text, at + 1) if more else at
    if _after(text, at, "}") != len(text):
        raise ValueError(f"more follows at character {at:,}")
    return frame


def encode_object(value: JsonObject) -> EncodedObject:
    """Write an object once, for good.

    Raises:
        EncodeError: It holds a number that JSON has no way to write.
    """
    return EncodedObject(value, _written(value))


def _kept(value: JsonValue, text: str) -> JsonValue:
    if not isinstance(value, dict):
        return _writable(value)
    # Outside of texts, where none can be, the end of a line means nothing, and would end ours.
    whole = text.replace("\r", " ").replace("\n", " ")
    return EncodedObject(value, whole.encode("utf-8", "backslashreplace"))


def _after(text: str, at: int, sign: str) -> int:
    at = _after_white(text, at)
    if not text.startswith(sign, at):
        raise ValueError(f"{sign!r} is expected at character {at:,}")
    return _after_white(text, at + 1)


def _after_white(text: str, at: int) -> int:
    while text[at : at + 1] in _BLANKS:
        at += 1
    return at


def estimate_size(frame: JsonObject) -> int:
    """Say about how many bytes a frame takes that was read and is handed on."""
    carried = (frame.get(key) for key in _CARRIED)
    return _AROUND + sum(len(value.encoded) for value in carried if type(value) is EncodedObject)


def find_response_id(line: bytes) -> int | None:
    """Tell which request a line was meant to answer that cannot be read."""
    found = _ANSWER.match(line.removeprefix(_BOM))
    return int(found[1]) if found else None


def find_responses(line: bytes) -> list[JsonObject]:
    """Find answers in a line that has other text before, between or after them."""
    text = line.decode("utf-8", "replace")
    found: list[JsonObject] = []
    at = 0
    for _ in range(_MOST_TRIES):
        start = _OBJECT.search(text, at)
        if start is None:
            break
        try:
            value, at = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            at = start.end()
            continue
        if value.get("jsonrpc") == "2.0" and ("result" in value or "error" in value):
            found.append(value)
    return found


def encode_frame(frame: JsonObject) -> bytes:
    """Write a frame as one line, without its end; what is prepared in it is not written anew.

    Raises:
        EncodeError: It holds a number that JSON has no way to write.
    """
    for key in _CARRIED:
        value = frame.get(key)
        if type(value) is EncodedObject:
            around = _written({name: other for name, other in frame.items() if name != key})
            return b'%b,"%b":%b}' % (around[:-1], key.encode(), value.encoded)
    return _written(frame)


def add_progress_token(params: JsonObject | None, identity: int | str) -> JsonObject:
    """Ask whoever is given a request to tell how far it has come."""
    given = params or {}
    meta = given.get("_meta")
    own = meta if isinstance(meta, dict) else {}
    return {**given, "_meta": {**own, "progressToken": identity}}


def _written(value: JsonValue) -> bytes:
    try:
        text = _ENCODER.encode(value)
    except ValueError as exc:  # an infinity (also `1e999`, once read), or too many digits
        raise EncodeError(f"it holds a number that cannot be written: {exc}") from exc
    return text.encode("utf-8", "backslashreplace")


def _writable(value: JsonValue) -> JsonValue:
    # Most are texts and whole numbers, of which nothing needs to be found out.
    if isinstance(value, (float, list, dict)):
        _written(value)
    return value


def _no_such_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_such_number)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False, allow_nan=False)
