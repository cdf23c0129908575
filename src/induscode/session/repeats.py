"""Finds a model that turns in circles: the same call, the same answer, again and again.

Only calls that bring nothing new count. As soon as a call brings something that was not seen
before, counting starts again: a test that fails in the same words after another edit is no circle.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.json import NotJson, compact_json

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

Finding: TypeAlias = Literal["fine", "tell", "stop"]

TELL_AT = 3
STOP_AT = 6


class RepeatGuard:
    """Counts the calls of one run."""

    def __init__(self, tell_at: int = TELL_AT, stop_at: int = STOP_AT) -> None:
        self._tell_at, self._stop_at = tell_at, stop_at
        self._known: set[str] = set()
        self._again: Counter[str] = Counter()

    def note(self, name: str, arguments: JsonValue, answer: str) -> Finding:
        """Take a call with its answer, and tell what is to be done about it."""
        key = _digest(name, arguments, answer)
        if key not in self._known:
            self._known.add(key)
            self._again.clear()
            return "fine"
        self._again[key] += 1
        times = self._again[key] + 1
        if times >= self._stop_at:
            return "stop"
        return "tell" if times == self._tell_at else "fine"


def repeat_words(name: str, times: int = TELL_AT) -> str:
    """Say to the model what it does."""
    return (
        f"[{name} has given this same answer to this same call {times} times. It will not change "
        "by itself: do something else, or say what is in the way.]"
    )


def _digest(name: str, arguments: JsonValue, answer: str) -> str:
    try:
        given = compact_json(arguments, sort_keys=True)
    except NotJson:
        given = repr(arguments)
    text = "\0".join((name, given, answer))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
