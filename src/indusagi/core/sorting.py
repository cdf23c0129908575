"""Very many things in order, without a stop for everybody else."""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
_AT_ONCE = 4_000


def sort_in_chunks(items: Sequence[T], key: Callable[[T], Any]) -> list[T]:
    """Sort a part at a time, for a thread: no other one runs while a large list is sorted."""
    if len(items) <= _AT_ONCE:
        return sorted(items, key=key)
    parts = (sorted(items[at : at + _AT_ONCE], key=key) for at in range(0, len(items), _AT_ONCE))
    return list(merge(*parts, key=key))
