"""Pages that were fetched a moment ago, so that their next part costs nothing."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

PageT = TypeVar("PageT")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[PageT]):
    page: PageT
    size: int
    until: float


class PageCache(Generic[PageT]):
    """Pages by key, for a time and up to a size; those that were used longest ago go first.

    Times are those of the event loop, in seconds.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, _Entry[PageT]] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes that are held."""
        return self._size

    def get(self, key: Hashable, now: float) -> PageT | None:
        """Find a page that is still good."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.until <= now:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.page

    def put(self, key: Hashable, page: PageT, size: int, *, until: float, limit: int) -> None:
        """Keep a page, unless it alone is larger than all that may be kept."""
        self._drop(key)
        if size > limit:
            return
        self._entries[key] = _Entry(page, size, until)
        self._size += size
        while self._size > limit:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry.size
