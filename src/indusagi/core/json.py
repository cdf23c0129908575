r"""JSON as types, and one compact text form of it.

The text form is what gets hashed, compared and measured, so it is total: any depth, and strings
that hold half of a surrogate pair (a peer may send `"\ud800"`) have one too. What JSON cannot
carry is refused with the place where it stands, never coerced: Python would write `NaN`, and
turn the key `1` into `"1"`, and two different values would look the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ForwardRef, TypeAlias, TypeGuard, cast

from indusagi.core.faults import CoreError

JsonScalar: TypeAlias = str | int | float | bool | None
if TYPE_CHECKING:
    JsonValue: TypeAlias = JsonScalar | list["JsonValue"] | dict[str, "JsonValue"]
    JsonLike: TypeAlias = JsonScalar | Sequence["JsonLike"] | Mapping[str, "JsonLike"]
else:
    # A forward reference with its module, so that `typing.get_type_hints` finds it from anywhere.
    _VALUE, _LIKE = (ForwardRef(name, module=__name__) for name in ("JsonValue", "JsonLike"))
    JsonValue = JsonScalar | list[_VALUE] | dict[str, _VALUE]
    JsonLike = JsonScalar | Sequence[_LIKE] | Mapping[str, _LIKE]
JsonObject: TypeAlias = dict[str, JsonValue]
"""For results; for parameters there is `JsonLike`, which a `dict[str, int]` is too."""

_SHOWN_STEPS = 8
"""How many steps of the path into a value a message shows: it is for a person."""


def _encoder(*, sort_keys: bool) -> json.JSONEncoder:
    return json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)


# Made once: what `json.dumps` makes at every call takes as long as writing a small value.
_PLAIN, _SORTED = _encoder(sort_keys=False), _encoder(sort_keys=True)
_DECODER = json.JSONDecoder()


class NotJson(CoreError):
    """A value that JSON cannot carry; the message names the place and the reason."""


def is_json_object(value: object) -> TypeGuard[JsonObject]:
    """Tell whether `value` is a dict with string keys; what the keys hold is not looked at."""
    if not isinstance(value, dict):
        return False
    # A loop and no generator: most have a few keys, and making one takes longer than looking.
    for key in cast("dict[object, object]", value):  # noqa: SIM110
        if not isinstance(key, str):
            return False
    return True


def compact_json(value: JsonLike, *, sort_keys: bool = False) -> str:
    """Write `value` with no white space, in insertion or key order, other scripts as they are.

    Raises:
        NotJson: A NaN, an infinity, a cycle, a key that is no string, or a foreign type.
    """
    try:
        text = (_SORTED if sort_keys else _PLAIN).encode(value)
        # The encoder turns keys such as 1 and None into text without a word; reading back tells.
        faithful = isinstance(value, str) or _DECODER.raw_decode(text)[0] == value
    except (TypeError, ValueError, RecursionError):
        text, faithful = "", False
    if not faithful:
        text = "".join(_write(value, sort_keys=sort_keys))
    # Half a surrogate pair has no UTF-8 form; as an escape, which JSON allows, it has one.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(slots=True)
class _Open:
    """One array or object that is being written."""

    container: list[object] | dict[object, object]
    steps: Iterator[object]
    step: object = None
    comma: str = ""


def _write(root: object, *, sort_keys: bool) -> Iterator[str]:
    """Write any value in pieces without recursion, or raise `NotJson` at the culprit."""
    frames: list[_Open] = []
    above: set[int] = set()
    value = root
    while True:
        if isinstance(value, (list, dict)):
            container = cast("list[object] | dict[object, object]", value)
            if id(container) in above:
                raise _not_json(frames, "is a container that holds itself")
            above.add(id(container))
            frames.append(_opened(container, sort_keys))
            yield "{" if isinstance(container, dict) else "["
        else:
            yield _scalar(value, frames)
        while frames and not _advance(frames[-1]):
            done = frames.pop().container
            above.discard(id(done))
            yield "}" if isinstance(done, dict) else "]"
        if not frames:
            return
        value, prefix = _current(frames)
        yield prefix


_END = object()


def _opened(container: list[object] | dict[object, object], sort_keys: bool) -> _Open:
    if isinstance(container, list):
        return _Open(container, iter(range(len(container))))
    # Keys that are no strings are refused one by one later; until then any order will do.
    keys = sorted(container, key=str) if sort_keys else list(container)
    return _Open(container, iter(keys))


def _advance(frame: _Open) -> bool:
    frame.step = next(frame.steps, _END)
    return frame.step is not _END


def _current(frames: list[_Open]) -> tuple[object, str]:
    """Give the child the last frame stands at, and what is written before it."""
    frame = frames[-1]
    comma, frame.comma = frame.comma, ","
    if isinstance(frame.container, list):
        return frame.container[cast("int", frame.step)], comma
    if not isinstance(frame.step, str):
        raise _not_json(frames[:-1], f"has the key {frame.step!r}, which is no string")
    key = json.dumps(frame.step, ensure_ascii=False)
    return frame.container[frame.step], f"{comma}{key}:"


def _scalar(value: object, frames: list[_Open]) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise _not_json(frames, f"is {value!r}, a number that JSON does not have")
    if value is not None and not isinstance(value, (str, int, float)):
        raise _not_json(frames, f"is of type {type(value).__name__}, which JSON does not have")
    try:
        return json.dumps(value, ensure_ascii=False)
    except ValueError as exc:  # an integer with more digits than Python will write
        raise _not_json(frames, f"cannot be written: {exc}") from exc


def _not_json(frames: list[_Open], reason: str) -> NotJson:
    steps = [f"[{f.step}]" if isinstance(f.step, int) else f".{f.step}" for f in frames]
    if len(steps) > _SHOWN_STEPS:
        steps = [*steps[:_SHOWN_STEPS], "…"]
    return NotJson(f"not JSON: ${''.join(steps)} {reason}")
