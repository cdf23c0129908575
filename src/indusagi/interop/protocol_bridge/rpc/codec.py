"""Encoding and decoding of JSON-RPC frames as bytes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, cast

from indusagi.core.invisible import clean_json

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

_BOM = b"\xef\xbb\xbf"
_WHITESPACE = " \t\r\n"
_WHITESPACE_SET = frozenset(_WHITESPACE)
_PAYLOAD_KEYS = ("result", "params", "error")
_ENVELOPE_BYTES = 256
"""About how many bytes a frame has besides its payload."""
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_RESPONSE_HEAD = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*"(?:result|error)"'
)
"""The usual beginning of a response: it shows the id even if the rest is invalid."""
_OBJECT_HEAD = re.compile(r'\{\s*"(?:jsonrpc|id|result|error)"\s*:')
"""Where a message may begin in the middle of a line."""
_RESPONSE_TRIES = 16


class EncodeError(ValueError):
    """A frame contains a number that JSON cannot represent."""


def decode_frame(line: bytes) -> JsonValue:
    """Decode one line.

    An unpaired surrogate becomes U+FFFD, as invalid UTF-8 does: Python decodes its escape, which RFC 8259 §8.2 leaves
    open, but the text could not be encoded again.

    Raises:
        ValueError: Invalid JSON.
        RecursionError: It is nested too deeply.
    """
    text = line.removeprefix(_BOM).decode("utf-8", "replace").strip(_WHITESPACE)
    # `raw_decode`: `decode` searches for white space in a way that takes as long as the parsing.
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(f"more follows at character {end:,}")
    if _SURROGATE_ESCAPE.search(text):
        value, _ = clean_json(cast("JsonValue", value), lambda part: _SURROGATE.subn("\ufffd", part))
    return cast("JsonValue", value)


class EncodedObject(dict[str, "JsonValue"]):
    """An object with its encoded bytes; it must not be changed."""

    __slots__ = ("encoded",)

    def __init__(self, value: JsonObject, encoded: bytes) -> None:
        super().__init__(value)
        self.encoded = encoded


def decode_frame_verbatim(line: bytes) -> JsonValue:
    """Decode a frame and keep the bytes of its payload, so that it can be passed on unchanged.

    Raises:
        ValueError: Invalid JSON, or a value that could not be encoded again.
        RecursionError: It is nested too deeply.
    """
    text = line.removeprefix(_BOM).decode("utf-8", "replace").strip(_WHITESPACE)
    if not text.startswith("{"):
        return _check_encodable(decode_frame(line))
    frame: JsonObject = {}
    index = _skip_whitespace(text, 1)
    has_more = not text.startswith("}", index)
    while has_more:
        if not text.startswith('"', index):
            raise ValueError(f"a name is expected at character {index:,}")
        key, index = _DECODER.raw_decode(text, index)
        start = _skip_sign(text, index, ":")
        value, index = _DECODER.raw_decode(text, start)
        if key in _PAYLOAD_KEYS and isinstance(value, dict):
            # Strings contain no line ends; between them a line end means nothing, and would end our line.
            payload = text[start:index].replace("\r", " ").replace("\n", " ")
            frame[key] = EncodedObject(cast("JsonObject", value), payload.encode("utf-8", "backslashreplace"))
        else:
            frame[key] = _check_encodable(value)
        index = _skip_whitespace(text, index)
        has_more = text.startswith(",", index)
        index = _skip_whitespace(text, index + 1) if has_more else index
    if _skip_sign(text, index, "}") != len(text):
        raise ValueError(f"more follows at character {index:,}")
    return frame


def _skip_sign(text: str, index: int, sign: str) -> int:
    index = _skip_whitespace(text, index)
    if not text.startswith(sign, index):
        raise ValueError(f"{sign!r} is expected at character {index:,}")
    return _skip_whitespace(text, index + 1)


def _skip_whitespace(text: str, index: int) -> int:
    while text[index : index + 1] in _WHITESPACE_SET:
        index += 1
    return index


def estimate_size(frame: JsonObject) -> int:
    """Estimate the bytes of a frame that was decoded verbatim."""
    payloads = (frame.get(key) for key in _PAYLOAD_KEYS)
    return _ENVELOPE_BYTES + sum(len(value.encoded) for value in payloads if type(value) is EncodedObject)


def find_response_id(line: bytes) -> int | None:
    """Return the id of an invalid line that begins like a response."""
    match = _RESPONSE_HEAD.match(line.removeprefix(_BOM))
    return int(match[1]) if match else None


def find_responses(line: bytes) -> list[JsonObject]:
    """Find responses in a line that has other text before, between or after them."""
    text = line.decode("utf-8", "replace")
    responses: list[JsonObject] = []
    index = 0
    for _ in range(_RESPONSE_TRIES):
        head = _OBJECT_HEAD.search(text, index)
        if head is None:
            break
        try:
            value, index = _DECODER.raw_decode(text, head.start())
        except (ValueError, RecursionError):
            index = head.end()
            continue
        if value.get("jsonrpc") == "2.0" and ("result" in value or "error" in value):
            responses.append(value)
    return responses


def encode_frame(frame: JsonObject) -> bytes:
    """Encode a frame as one line without its end; an `EncodedObject` in it is not encoded again.

    Raises:
        EncodeError: It contains a number that JSON cannot represent.
    """
    for key in _PAYLOAD_KEYS:
        value = frame.get(key)
        if type(value) is EncodedObject:
            envelope = _encode({name: other for name, other in frame.items() if name != key})
            return b'%b,"%b":%b}' % (envelope[:-1], key.encode(), value.encoded)
    return _encode(frame)


def encode_object(value: JsonObject) -> EncodedObject:
    """Encode an object once, for several frames.

    Raises:
        EncodeError: It contains a number that JSON cannot represent.
    """
    return EncodedObject(value, _encode(value))


def add_progress_token(params: JsonObject | None, identity: int | str) -> JsonObject:
    """Add a progress token to the parameters of a request.

    https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/progress
    """
    params = params or {}
    meta = params.get("_meta")
    own = meta if isinstance(meta, dict) else {}
    return {**params, "_meta": {**own, "progressToken": identity}}


def _encode(value: JsonValue) -> bytes:
    try:
        text = _ENCODER.encode(value)
    except ValueError as exc:  # an infinity (also a decoded `1e999`), or too many digits
        raise EncodeError(f"it holds a number that cannot be written: {exc}") from exc
    return text.encode("utf-8", "backslashreplace")


def _check_encodable(value: JsonValue) -> JsonValue:
    # Strings and integers always are.
    if isinstance(value, (float, list, dict)):
        _encode(value)
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False, allow_nan=False)
