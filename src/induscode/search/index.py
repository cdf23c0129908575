"""Index of what can be found: items in, ranked hits out.

An item whose name is the query comes first, whatever its score; names are compared without case, `-`, `_` and spaces.
The order depends on the items and the queries alone. `update` indexes only what has changed. An index can be used from
several threads; its methods block, a search for about a millisecond.
"""

from __future__ import annotations

from itertools import zip_longest
from threading import Lock
from typing import TYPE_CHECKING, Final

from indusagi.core.records import record
from induscode.search.items import SEARCH_KINDS
from induscode.search.lexical import LexicalIndex
from induscode.search.words import LONGEST_QUERY, normalize_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from induscode.search.items import SearchItem, SearchKind

FOUND: Final = 5
"""Hits of one search, unless told otherwise."""
_MOST_QUERIES: Final = 10


@record
class SearchHit:
    """An item that was found."""

    item: SearchItem
    score: float
    """From 0 to 1, relative to the best hit of the same query; 1 for the item with that very name."""


@record
class SearchAnswer:
    """What a search has found."""

    hits: Sequence[SearchHit]
    """The best ones, the best first."""
    matched: int
    """How many items matched a query, with the hits."""
    searched: int
    """How many items were looked at, after the restriction to a server and to kinds."""

    @property
    def left_out(self) -> int:
        """How many items matched and are no hits."""
        return self.matched - len(self.hits)


class ToolIndex:
    """Index of tools, prompts, resources and actions.

    Args:
        items: What can be found.

    Raises:
        SearchUnavailableError: SQLite was built without FTS5.
    """

    def __init__(self, items: Iterable[SearchItem] = ()) -> None:
        self._lock = Lock()
        self._lexical = LexicalIndex()
        self._items: dict[int, SearchItem] = {}
        self._numbers: dict[tuple[SearchKind, str], int] = {}
        self._names: dict[str, set[int]] = {}
        self._next = 1
        self.update(items)

    @property
    def items(self) -> Sequence[SearchItem]:
        """What can be found, by name."""
        with self._lock:
            return sorted(self._items.values(), key=lambda item: (item.qualified_name, item.kind))

    def update(self, items: Iterable[SearchItem]) -> int:
        """Replace what can be found; only items with a new digest are indexed. Returns the number of those.

        Of several items with one kind and one qualified name the last one counts.
        """
        wanted: dict[tuple[SearchKind, str], SearchItem] = {(item.kind, item.qualified_name): item for item in items}
        with self._lock:
            stale = [
                number
                for key, number in self._numbers.items()
                if key not in wanted or wanted[key].digest != self._items[number].digest
            ]
            self._lexical.remove(stale)
            for number in stale:
                item = self._items.pop(number)
                del self._numbers[item.kind, item.qualified_name]
                for name in _list_names(item):
                    self._names[name].discard(number)
            added: dict[int, SearchItem] = {}
            for key, item in wanted.items():
                if key not in self._numbers:
                    self._numbers[key] = self._next
                    added[self._next] = item
                    self._next += 1
            self._lexical.add(added.items())
            self._items |= added
            for number, item in added.items():
                for name in _list_names(item):
                    self._names.setdefault(name, set()).add(number)
            return len(added)

    def search(
        self,
        queries: Sequence[str],
        *,
        server: str | None = None,
        kinds: Collection[SearchKind] = SEARCH_KINDS,
        limit: int = FOUND,
    ) -> SearchAnswer:
        """Find the items that fit the queries best.

        The hits of several queries take turns: the best of each, then the second of each.

        Args:
            queries: What is looked for, in words or by name; at most ten are read.
            server: Only items of this server.
            kinds: Only items of these kinds.
            limit: The most hits.
        """
        with self._lock:
            permitted = {
                number
                for number, item in self._items.items()
                if item.kind in kinds and (server is None or item.server == server)
            }
            ranked = [self._rank(query[:LONGEST_QUERY], permitted) for query in queries[:_MOST_QUERIES]]
            merged: dict[int, float] = {}
            for row in zip_longest(*ranked):
                for number, score in filter(None, row):
                    merged.setdefault(number, score)
            hits = [SearchHit(self._items[number], score) for number, score in merged.items()]
        return SearchAnswer(hits[: max(0, limit)], len(hits), len(permitted))

    def close(self) -> None:
        """Free the memory."""
        with self._lock:
            self._lexical.close()

    def _rank(self, query: str, permitted: Collection[int]) -> list[tuple[int, float]]:
        """Rank the items for one query."""
        scores = {number: score for number, score in self._lexical.score(query).items() if number in permitted}
        best = max(scores.values(), default=0.0) or 1.0
        named = self._names.get(normalize_name(query), set()) & set(permitted)
        found = {number: score / best for number, score in scores.items()} | dict.fromkeys(named, 1.0)

        def order(number: int) -> tuple[bool, float, str, str]:
            item = self._items[number]
            return number not in named, -scores.get(number, 0.0), item.qualified_name, item.kind

        return [(number, found[number]) for number in sorted(found, key=order)]


def _list_names(item: SearchItem) -> set[str]:
    """List the names under which an item comes first."""
    names = (item.qualified_name, item.name, f"{item.server} {item.name}")
    return {normalize_name(name) for name in names} - {""}
