"""Search index: items in, ranked hits out.

An item named exactly like the query comes first, whatever its score; comparing names ignores case, `-`, `_` and spaces.
The order depends only on the items and the queries. `update` indexes only changes.

With a sentence encoder, the semantic half joins in once `prepare` has computed the vectors of all items: the score is
the cosine plus a fraction of the lexical score. Until then, and without an encoder, the ranking is purely lexical. An
index is thread-safe. Its methods block; a search takes about a millisecond, or 15 with the encoder.
"""

from __future__ import annotations

import heapq
from itertools import zip_longest
from threading import Lock
from typing import TYPE_CHECKING, Final

from indusagi.core.records import record
from induscode.search.items import SEARCH_KINDS
from induscode.search.lexical import LONGEST_QUERY, LexicalIndex, normalize_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from indusagi.core.faults import Note
    from induscode.search.items import SearchItem, SearchKind
    from induscode.search.semantic import Array, SemanticIndex

FOUND: Final = 5
"""Default number of hits."""
_MAX_QUERIES: Final = 10
_LEXICAL_SHARE: Final = 0.005
"""Weight of one lexical point relative to the cosine. docs/evidence/search.md explains how it was chosen."""
_MIN_COSINE: Final = 0.3
"""Minimum cosine for an item without a word of the query."""


@record
class ItemHit:
    """A found item."""

    item: SearchItem
    score: float
    """From 0 to 1, relative to the query's best hit; 1 for an exact name."""


@record
class SearchAnswer:
    """The result of a search."""

    hits: Sequence[ItemHit]
    """The best matches, best first."""
    matched: int
    """Number of matching items, including the hits."""
    searched: int
    """Number of items searched, after filtering by server and kind."""
    is_semantic: bool = False
    """Whether the semantic half took part."""

    @property
    def left_out(self) -> int:
        """Number of matches beyond the hits."""
        return self.matched - len(self.hits)


class ToolIndex:
    """Index of tools, prompts, resources and actions.

    Args:
        items: The items to index.
        semantic: The semantic half, used after `prepare`.
        on_added: Called after an update with new items.

    Raises:
        SearchUnavailableError: SQLite was built without FTS5.
    """

    def __init__(
        self,
        items: Iterable[SearchItem] = (),
        semantic: SemanticIndex | None = None,
        on_added: Callable[[], None] = lambda: None,
    ) -> None:
        self._lock = Lock()
        self._on_added = on_added
        self._lexical = LexicalIndex()
        self.semantic = semantic
        self._items: dict[int, SearchItem] = {}
        self._numbers: dict[tuple[SearchKind, str], int] = {}
        self._names: dict[str, set[int]] = {}
        self._next = 1
        self.source: object = None
        """Where the last update's items came from."""
        self.update(items)

    @property
    def items(self) -> Sequence[SearchItem]:
        """All items, by name."""
        with self._lock:
            return sorted(self._items.values(), key=lambda item: (item.qualified_name, item.kind))

    @property
    def notes(self) -> Sequence[Note]:
        """Problems with the vector cache."""
        return () if self.semantic is None else self.semantic.notes

    def update(self, items: Iterable[SearchItem], source: object = None) -> int:
        """Replace the items, indexing only those with a new digest, and return their number.

        If several items share kind and qualified name, the last one wins. New items have no vectors until `prepare`.

        Args:
            items: The items to index.
            source: Where the items came from, for callers sharing an index.
        """
        wanted: dict[tuple[SearchKind, str], SearchItem] = {(item.kind, item.qualified_name): item for item in items}
        with self._lock:
            self.source = source
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
            if self.semantic is not None:
                self.semantic.select(self._items)
        if added:
            self._on_added()
        return len(added)

    def prepare(
        self,
        report: Callable[[int, int], None] = lambda _done, _all: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Compute missing vectors for the semantic half, and return whether it's active.

        Blocks for about 50 ms per item without a cached vector, so call it in a separate thread. Searches continue
        in the meantime.

        Args:
            report: Gets the numbers of computed and of missing vectors.
            should_stop: Checked after every two items. Computed vectors are kept.
        """
        if self.semantic is None:
            return False
        self.semantic.prepare(self.items, report, should_stop)
        with self._lock:
            return self.semantic.select(self._items)

    def search(
        self,
        queries: Sequence[str],
        *,
        server: str | None = None,
        kinds: Collection[SearchKind] = SEARCH_KINDS,
        limit: int = FOUND,
    ) -> SearchAnswer:
        """Find the items that fit the queries best.

        Hits of several queries alternate: the best of each, then the second of each.

        Args:
            queries: Words or names; at most ten are read.
            server: Only items of this server.
            kinds: Only items of these kinds.
            limit: Maximum number of hits.
        """
        texts = [query[:LONGEST_QUERY] for query in queries[:_MAX_QUERIES]]
        semantic = self.semantic
        vectors = [None if semantic is None else semantic.encode_query(text) for text in texts]
        with self._lock:
            permitted: Collection[int] = self._items
            if server is not None or len(kinds) < len(SEARCH_KINDS):
                permitted = {
                    number
                    for number, item in self._items.items()
                    if item.kind in kinds and (server is None or item.server == server)
                }
            pairs = zip(texts, vectors, strict=True)
            ranked = [self._rank(text, vector, permitted, limit) for text, vector in pairs]
            merged: dict[int, float] = {}
            for row in zip_longest(*(best for best, _ in ranked)):
                for number, score in filter(None, row):
                    merged.setdefault(number, score)
            hits = [ItemHit(self._items[number], score) for number, score in [*merged.items()][: max(0, limit)]]
            matched = len(set[int]().union(*(numbers for _, numbers in ranked)))
        return SearchAnswer(hits, matched, len(permitted), any(vector is not None for vector in vectors))

    def close(self) -> None:
        """Free the memory."""
        with self._lock:
            self._lexical.close()

    def _rank(
        self, query: str, vector: Array | None, permitted: Collection[int], limit: int
    ) -> tuple[Sequence[tuple[int, float]], Collection[int]]:
        """Rank the items for one query. Returns the best with their scores, and all matches."""
        scores = self._lexical.score(query)
        name = normalize_name(query)
        cosines = self.semantic.score(vector) if vector is not None and self.semantic is not None and name else {}
        if cosines:  # empty if an update came after encoding the query
            scores = {
                number: cosine + _LEXICAL_SHARE * scores.get(number, 0.0)
                for number, cosine in cosines.items()
                if number in scores or cosine >= _MIN_COSINE
            }
        if permitted is not self._items:
            scores = {number: score for number, score in scores.items() if number in permitted}
        named = {number for number in self._names.get(name, ()) if number in permitted}
        top = max(scores.values(), default=0.0)

        def order(number: int) -> tuple[bool, float, str, str]:
            item = self._items[number]
            return number not in named, -scores.get(number, 0.0), item.qualified_name, item.kind

        matched = scores.keys() | named
        # Only the last places need names, so cut by score first, keeping all that share the last score.
        least = heapq.nlargest(limit, scores.values())[-1:] if len(scores) > limit > 0 else []
        close = [number for number, score in scores.items() if score >= least[0]] if least else [*scores]
        best = sorted({*close, *named}, key=order)[: max(0, limit)]
        return [
            (number, 1.0 if number in named else max(0.0, scores[number] / top) if top > 0 else 0.0) for number in best
        ], matched


def _list_names(item: SearchItem) -> set[str]:
    """List the names that put an item first."""
    names = (item.qualified_name, item.name, f"{item.server} {item.name}")
    return {normalize_name(name) for name in names} - {""}
