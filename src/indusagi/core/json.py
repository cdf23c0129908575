r"""JSON types, and a compact text form of JSON values (RFC 8259).

We hash, compare and measure the text form: every value has one, at any depth, and different values have different ones.
A value that JSON can't represent is rejected with its path; Python's encoder would write `NaN`, and turn the key `1`
into `"1"`. Half a surrogate pair, which a peer may send as `"\ud800"` (RFC 8259 §8.2), is written as an escape.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ForwardRef, TypeAlias, TypeGuard, cast

from indusagi.core.faults import CoreError

JsonScalar: TypeAlias = str | int | float | bool | None
if TYPE_CHECKING:
    JsonValue: TypeAlias = JsonScalar | list["JsonValue"] | dict[str, "JsonValue"]
    JsonLike: TypeAlias = JsonScalar | Sequence["JsonLike"] | Mapping[str, "JsonLike"]
else:
    # `typing.get_type_hints` evaluates it with any module's names: Python 3.14 ignores the reference's own module.
    _VALUE, _LIKE = (
        ForwardRef(f"__import__({__name__!r}, fromlist=['_']).{name}") for name in ("JsonValue", "JsonLike")
    )
    JsonValue = JsonScalar | list[_VALUE] | dict[str, _VALUE]
    JsonLike = JsonScalar | Sequence[_LIKE] | Mapping[str, _LIKE]
JsonObject: TypeAlias = dict[str, JsonValue]
"""For results. Parameters take `JsonLike`, which includes `dict[str, int]`."""

BYTES_PER_TOKEN = 4
"""Estimate for text, JSON and code."""
_MAX_NAME_CHARS = 60
_MAX_STEPS = 8
"""How many steps of a path an error message shows."""


def _encoder(*, sort_keys: bool) -> json.JSONEncoder:
    return json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)


# Built once: `json.dumps` builds an encoder per call, which takes as long as encoding a small value.
_PLAIN, _SORTED = _encoder(sort_keys=False), _encoder(sort_keys=True)
_DECODER = json.JSONDecoder()


class NotJson(CoreError):
    """A value that JSON can't represent; the message has its path and the reason."""


def is_json_object(value: object) -> TypeGuard[JsonObject]:
    """Return whether `value` is a dict with string keys, without checking the values."""
    if not isinstance(value, dict):
        return False
    # A loop: with few keys, making a generator takes longer than running it.
    for key in cast("dict[object, object]", value):  # noqa: SIM110
        if not isinstance(key, str):
            return False
    return True


_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a surrogate pair, whether or not the other half follows."""


def build_object(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Build an object from its pairs, as an `object_pairs_hook`.

    Raises `ValueError` if a name occurs twice: two readers could disagree on which value counts (RFC 8259 §4).
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the name {twice[:_MAX_NAME_CHARS]!r} occurs twice in one object")
    return members


def refuse_constant(name: str) -> None:
    """Reject `NaN` and infinities, as a `parse_constant`: Python has them, JSON doesn't."""
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(object_pairs_hook=build_object, parse_constant=refuse_constant)


def has_half_character(value: JsonValue) -> bool:
    """Return whether a decoded value contains half a surrogate pair, which no encoding can represent."""
    try:
        _PLAIN.encode(value).encode()
    except (UnicodeEncodeError, RecursionError):
        return True
    return False


def parse_strict_json(data: bytes) -> JsonValue:
    """Decode a document that has to mean the same to every reader, such as a token or a key set.

    Raises `ValueError` for invalid UTF-8 or JSON, a duplicate name, half a character, or too many levels.
    """
    text = data.decode("utf-8")
    try:
        value = cast("JsonValue", _STRICT.decode(text))
    except RecursionError:
        raise ValueError("it has too many levels") from None
    if _SURROGATE_ESCAPE.search(text) and has_half_character(value):
        raise ValueError("it has half of a character")
    return value


def compact_json(value: JsonLike, *, sort_keys: bool = False) -> str:
    """Encode `value` without white space, keys in insertion or sorted order, non-ASCII characters unescaped.

    Raises `NotJson` for a NaN, an infinity, a cycle, a non-string key, or a type that isn't JSON's.
    """
    return _encode(value, sort_keys, _DECODER, json.dumps)


def _encode(value: JsonLike, sort_keys: bool, decoder: json.JSONDecoder, format_number: Callable[[float], str]) -> str:
    try:
        text = (_SORTED if sort_keys else _PLAIN).encode(value)
        # The encoder turns tuples into arrays and keys such as 1 and None into strings. Decoding reveals that faster
        # than a walk in Python.
        is_exact = isinstance(value, str) or decoder.raw_decode(text)[0] == value
    except (TypeError, ValueError, RecursionError):
        text, is_exact = "", False
    if not is_exact:
        text = _write(value, sort_keys=sort_keys, format_number=format_number)
    return text if text.isascii() else _escape_halves(text)


def _escape_halves(text: str) -> str:
    """Join the halves of surrogate pairs, and escape a single half: it has no UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


DIGEST_LENGTH = 32
"""Hexadecimal digits of a digest: 128 bits of the SHA-256."""


def estimate_tokens(value: JsonLike) -> int:
    """Estimate the tokens of a text or JSON value: one per four bytes."""
    text = value if isinstance(value, str) else compact_json(value)
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def content_hash(value: JsonLike, *, sort_keys: bool = False) -> str:
    """Hash the ECMAScript `JSON.stringify` text of `value` to 32 hexadecimal digits.

    `1` and `1.0` are the same number there. Key order matters unless `sort_keys` is set. Raises `NotJson` if JSON can't
    represent `value`.
    """
    return _digest(_encode(value, sort_keys, _ECMASCRIPT_DECODER, _format_number))


def exact_hash(value: JsonLike, *, sort_keys: bool = False) -> str:
    """Hash the compact JSON of `value`, which distinguishes all numbers, even `1` and `1.0`. For pins.

    Raises `NotJson` if JSON can't represent `value`.
    """
    return _digest(compact_json(value, sort_keys=sort_keys))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:DIGEST_LENGTH]


def _refuse_float(text: str) -> float:
    raise ValueError(text)


def _parse_small_integer(text: str) -> int:
    if len(text) > _SAFE_DIGITS:
        raise ValueError(text)
    return int(text)


_SAFE_DIGITS = 15
_ECMASCRIPT_DECODER = json.JSONDecoder(parse_float=_refuse_float, parse_int=_parse_small_integer)
"""Fails on numbers that ECMAScript may write differently, so that `_format_number` writes them."""
_MAX_SAFE_INTEGER = 2**53 - 1


def _format_number(value: float) -> str:
    """Format a number like ECMAScript (https://tc39.es/ecma262/#sec-numeric-types-number-tostring).

    An integer too large for a double keeps its digits.
    """
    if isinstance(value, int):
        if abs(value) <= _MAX_SAFE_INTEGER:
            return json.dumps(value)
        try:
            value = float(value)
        except OverflowError:
            return json.dumps(value)
    if value == 0:
        return "0"  # -0 too
    mantissa, _, power = repr(abs(float(value))).partition("e")
    whole, _, rest = mantissa.partition(".")
    written = (whole + rest).lstrip("0")
    point = len(whole) + int(power or 0) - (len(whole + rest) - len(written))
    digits, sign = written.rstrip("0"), "-" if value < 0 else ""
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


_END = object()


def _write(root: object, *, sort_keys: bool, format_number: Callable[[float], str] = json.dumps) -> str:
    """Encode a value of any depth without recursion, or raise `NotJson` for the first part that isn't JSON."""
    pieces: list[str] = []
    path: list[object] = []
    open_ids: set[int] = set()
    # Prefix to write, step, value; `_END` closes a container.
    pending: list[tuple[str, object, object]] = [("", "$", root)]
    while pending:
        prefix, step, value = pending.pop()
        pieces.append(prefix)
        if step is _END:
            path.pop()
            open_ids.discard(id(value))
            continue
        if not isinstance(value, (dict, list)):
            pieces.append(_write_scalar(value, path, step, format_number))
            continue
        container = cast("dict[object, object] | list[object]", value)
        path.append(step)
        if id(container) in open_ids:
            raise _not_json(path, "is a container that holds itself")
        open_ids.add(id(container))
        if isinstance(container, list):
            pieces.append("[")
            pending.append(("]", _END, container))
            children = [("," if index else "", index, child) for index, child in enumerate(container)]
        else:
            pieces.append("{")
            pending.append(("}", _END, container))
            children = list[tuple[str, object, object]]()
            for key in sorted(container, key=str) if sort_keys else container:
                if not isinstance(key, str):
                    raise _not_json(path, f"has the key {key!r}, which is not a string")
                name = json.dumps(key, ensure_ascii=False)
                children.append((f"{',' if children else ''}{name}:", key, container[key]))
        pending.extend(reversed(children))
    return "".join(pieces)


def _write_scalar(value: object, path: list[object], step: object, format_number: Callable[[float], str]) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise _not_json([*path, step], f"is {value!r}, a number that JSON does not have")
    if value is not None and not isinstance(value, (str, int, float)):
        raise _not_json([*path, step], f"is of type {type(value).__name__}, which JSON does not have")
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return format_number(value)
        return json.dumps(value, ensure_ascii=False)
    except ValueError as exc:  # more digits than `sys.set_int_max_str_digits` allows
        raise _not_json([*path, step], f"cannot be written: {exc}") from exc


def _not_json(path: Sequence[object], reason: str) -> NotJson:
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path[1:]]
    if len(steps) > _MAX_STEPS:
        steps = [*steps[:_MAX_STEPS], "…"]
    return NotJson(f"not JSON: ${''.join(steps)} {reason}")
