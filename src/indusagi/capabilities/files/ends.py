"""What two versions of a text begin and end with alike, found at the speed of comparing memory."""

from __future__ import annotations

from typing import TypeVar

TextT = TypeVar("TextT", str, bytes)
_CHUNK = 64 * 1024


def common_start(one: TextT, other: TextT) -> int:
    """Count the characters with which both begin."""
    most = min(len(one), len(other))
    at = 0
    while at < most and one[at : at + _CHUNK] == other[at : at + _CHUNK]:
        at += _CHUNK
    low, high = min(at, most), min(at + _CHUNK, most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_end(one: TextT, other: TextT, start: int) -> int:
    """Count the characters with which both end, not counting the first `start` of either."""
    most = min(len(one), len(other)) - start
    at = 0
    while at < most and _tail(one, at, min(at + _CHUNK, most)) == _tail(
        other, at, min(at + _CHUNK, most)
    ):
        at += _CHUNK
    low, high = min(at, most), min(at + _CHUNK, most)
    while low < high:
        middle = (low + high + 1) // 2
        if _tail(one, low, middle) == _tail(other, low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _tail(text: TextT, near: int, far: int) -> TextT:
    """Give what lies between `far` and `near` characters before the end."""
    return text[len(text) - far : len(text) - near]
