"""Search index: items in, ranked hits out.

An item named exactly like the query comes first, whatever its score; comparing names ignores case, `-`, `_` and spaces.
The order depends only on the items and the queries. `update` indexes only changes.

The lexical half is in-memory SQLite FTS5, with a weight per field. An item matches if one of its fields contains a word
of the query. The score is `bm25()` (https://www.sqlite.org/fts5.html#the_bm25_function) over Porter-stemmed words. Two
things raise it: the query contains most words of the heading (the title, or else the name), and a verb of the query
fits the heading's verb. Chinese, Japanese and Korean don't separate words with spaces. If such a query matches no word,
it's compared by pairs of adjacent characters, in a separate table that affects no other query.

With a sentence encoder, the semantic half joins in once `prepare` has computed the vectors of all items: the score is
the cosine plus a fraction of the lexical score. Until then, and without an encoder, the ranking is purely lexical. An
index is thread-safe. Its methods block; a search takes about a millisecond, or 15 with the encoder.
"""

from __future__ import annotations

import heapq
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from threading import Lock
from typing import TYPE_CHECKING, Final
from unicodedata import normalize
from weakref import finalize

from indusagi.core.faults import CoreError, Note
from indusagi.core.records import record
from induscode.search.items import HUMP, SEARCH_KINDS, SearchItem, SearchKind

if TYPE_CHECKING:
    from induscode.search.semantic import Array, SemanticIndex


FIELDS: Final = {
    "name": 3.0,
    "server": 1.0,
    "title": 4.0,
    "description": 0.6,
    "parameters": 0.6,
    "parameter_texts": 0.3,
    "keywords": 0.5,
}
"""Indexed fields and their weights. docs/evidence/search.md explains how they were chosen."""
_COVERAGE: Final = 0.8
_FITTING_VERB: Final = 1.3
_VERB_PLACES: Final = 2
"""The verb is among the first words of a name or title."""
_MAX_FIELD_CHARS: Final = 600
"""Indexed characters per field: descriptions state the purpose first, and `bm25()` penalizes length."""
_CREATE: Final = f"CREATE VIRTUAL TABLE items USING fts5({', '.join(FIELDS)}, tokenize = 'porter unicode61')"
_INSERT: Final = f"INSERT INTO items (rowid, {', '.join(FIELDS)}) VALUES ({', '.join('?' * (len(FIELDS) + 1))})"
_CREATE_PAIRS: Final = "CREATE VIRTUAL TABLE IF NOT EXISTS pairs USING fts5(text, tokenize = 'unicode61')"
_SELECT_PAIRS: Final = "SELECT rowid, -bm25(pairs) FROM pairs WHERE pairs MATCH ?"


class SearchUnavailableError(CoreError):
    """This Python lacks full text search."""


class LexicalIndex:
    """Full text index of numbered items; raises `SearchUnavailableError` if SQLite was built without FTS5."""

    def __init__(self, weights: Mapping[str, float] = FIELDS) -> None:
        # The owner of the index ensures that one thread uses it at a time.
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        try:
            self._database.execute(_CREATE)
        except sqlite3.OperationalError as exc:
            self._database.close()
            message = f"SQLite {sqlite3.sqlite_version} of this Python has no FTS5 ({exc}): use a Python that has it"
            raise SearchUnavailableError(message) from exc
        self._close = finalize(self, self._database.close)
        ranked = ", ".join(str(weights[field]) for field in FIELDS)
        self._select = f"SELECT rowid, -bm25(items, {ranked}) FROM items WHERE items MATCH ?"
        self._headings: dict[int, tuple[frozenset[str], frozenset[int]]] = {}
        self._paired: set[int] = set()
        """Items in the table of pairs, which is created for the first one."""

    def add(self, rows: Iterable[tuple[int, SearchItem]]) -> None:
        """Add items under new numbers."""
        added = list(rows)
        fields = [(number, *_list_fields(item)) for number, item in added]
        self._database.execute("BEGIN")
        self._database.executemany(_INSERT, fields)
        pairs = [(number, " ".join(found)) for number, *texts in fields if (found := list_pairs(" ".join(texts)))]
        if pairs:
            self._database.execute(_CREATE_PAIRS)
            self._database.executemany("INSERT INTO pairs (rowid, text) VALUES (?, ?)", pairs)
            self._paired.update(number for number, _ in pairs)
        self._database.execute("COMMIT")
        for number, item in added:
            name, title = list_stems(item.name), list_stems(item.title)
            verbs = find_verb_groups((*name[:_VERB_PLACES], *title[:_VERB_PLACES]))
            self._headings[number] = frozenset(title or name), verbs

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove items."""
        removed = list(numbers)
        self._database.execute("BEGIN")
        self._database.executemany("DELETE FROM items WHERE rowid = ?", ((number,) for number in removed))
        paired = [(number,) for number in removed if number in self._paired]
        if paired:
            self._database.executemany("DELETE FROM pairs WHERE rowid = ?", paired)
        self._database.execute("COMMIT")
        self._paired.difference_update(removed)
        for number in removed:
            del self._headings[number]

    def score(self, query: str) -> dict[int, float]:
        """Return the positive scores of all items containing a word of the query.

        If there are none, score items sharing character pairs of an unspaced script.
        """
        words = list_query_words(query)
        return (self._score_words(words) or self._score_pairs(query)) if words else {}

    def _score_pairs(self, query: str) -> dict[int, float]:
        pairs = list_query_pairs(query) if self._paired else []
        if not pairs:
            return {}
        # A single character matches every pair starting with it.
        match = " OR ".join(f'"{pair}"' if len(pair) > 1 else f'"{pair}" *' for pair in pairs)
        return dict(self._database.execute(_SELECT_PAIRS, (match,)).fetchall())

    def _score_words(self, words: Sequence[str]) -> dict[int, float]:
        # A quoted word is never an operator: https://www.sqlite.org/fts5.html#fts5_strings.
        match = " OR ".join(f'"{word}"' for word in words)
        stems = frozenset(map(find_stem, words))
        verbs = find_verb_groups(stems)
        scores: dict[int, float] = {}
        for number, score in self._database.execute(self._select, (match,)):
            heading, own_verbs = self._headings[number]
            if not heading.isdisjoint(stems):
                score *= 1 + _COVERAGE * len(heading & stems) / len(heading)
            scores[number] = score if verbs.isdisjoint(own_verbs) else score * _FITTING_VERB
        return scores

    def close(self) -> None:
        """Free the memory."""
        self._close()


def _list_fields(item: SearchItem) -> tuple[str, ...]:
    """List an item's texts in the order of `FIELDS`."""
    names = " ".join(parameter.name for parameter in item.parameters)
    about = " ".join(parameter.description for parameter in item.parameters)
    texts = (item.name, item.server, item.title, item.description, names, about, item.keywords)
    return tuple(split_humps(text[:_MAX_FIELD_CHARS]) for text in texts)


# -- words ------------------------------------------------------------------------------------
#
# FTS5 splits texts at everything except letters and digits, folds case and stems English words. Before that, we add the
# parts of camel-case words (`createIssue`, `GitHub`), drop stop words from queries, and add synonyms that users say for
# words in definitions.


_HUMPED = re.compile(r"[a-z0-9][A-Z]|[A-Z][A-Z][a-z]")
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(
    "[\u3041-\u3096\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0002fa1f]+"
)
"""Kana, ideographs and Hangul: FTS5 reads everything up to the next space or sign as one word."""
_STOP: Final = frozenset(
    re.findall(
        r"\w+",
        "a about all also an and any are as at be but by can could do does for from give have how i if in into is it"
        " its just let me my need of on or our please should so some such tell than that the their them then there"
        " these they this to us want was we what when where which who will with would you your",
    )
)
_SYNONYMS: Final = {
    "reference": "ref", "ask": "request", "people": "user", "person": "user",
    "logged": "authenticated", "login": "authenticated", "signed": "authenticated",
    "repo": "repository", "pr": "pull request", "org": "organization", "organisation": "organization",
    "remaining": "limit", "quota": "limit", "picture": "image", "photo": "image", "mail": "email",
    "config": "configuration",
}  # fmt: skip
_VERBS: Final = (
    "get list show read find fetch view look download check search query retrieve",
    "create add new make open send start post write publish insert generate",
    "set put replace update change edit modify patch rename move",
    "delete remove drop cancel clear",
)
"""Interchangeable verbs: to read, to create, to change, to remove."""
_MAX_WORDS: Final = 64
LONGEST_QUERY: Final = 2_000
"""Characters of a query to read."""
LONGEST_NAME: Final = 1_000
"""Longer names aren't compared with other spellings."""


def split_humps(text: str) -> str:
    """Add the parts of camel-case words: `createIssue` becomes `createIssue create Issue`."""
    if _HUMPED.search(text) is None:
        return text
    parts = [HUMP.sub(" ", word) for word in _WORD.findall(text) if _HUMPED.search(word) is not None]
    return f"{text} {' '.join(parts)}" if parts else text


def list_query_words(query: str) -> list[str]:
    """List a query's distinct words in lower case, with synonyms. Keeps stop words only if there are no others."""
    words = [word.lower() for word in _WORD.findall(split_humps(query[:LONGEST_QUERY]))]
    kept = [word for word in words if word not in _STOP] or words
    added = [other for word in words for other in _SYNONYMS.get(word, "").split()]
    return list(dict.fromkeys([*kept, *added]))[:_MAX_WORDS]


def is_good_match(query: str, item: SearchItem) -> bool:
    """Return whether an item has half of the query's words or their synonyms; verbs alone don't count."""
    names = [parameter.name for parameter in item.parameters]
    about = {*list_stems(" ".join((item.name, item.title, item.description, item.keywords, *names)))}
    words = [word.lower() for word in _WORD.findall(split_humps(query)) if word.lower() not in _STOP]
    nouns = [word for word in words if not find_verb_groups(frozenset({find_stem(word)}))] or words
    found = sum(not about.isdisjoint(map(find_stem, list_query_words(word))) for word in nouns)
    return 2 * found >= len(nouns)


def list_stems(text: str) -> list[str]:
    """List the stems of the words in a name or title. A stem needn't be a word."""
    return [find_stem(word) for word in map(str.lower, _WORD.findall(split_humps(text))) if word not in _STOP]


def find_stem(word: str) -> str:
    """Strip common endings of an English word."""
    for ending, least in (("ies", 5), ("ing", 6), ("ed", 5), ("es", 5), ("s", 4)):
        if len(word) >= least and word.endswith(ending) and not word.endswith("ss"):
            word = word[: -len(ending)] + ("y" if ending == "ies" else "")
            break
    return word.removesuffix("e") if len(word) > 3 else word


_VERB_GROUPS: Final = {find_stem(verb): number for number, verbs in enumerate(_VERBS) for verb in verbs.split()}


def list_pairs(text: str) -> list[str]:
    """List the pairs of adjacent characters in the unspaced parts of a text.

    The last character of a part comes alone, so that each character starts one of its pairs.
    """
    if text.isascii():
        return []
    return [part[place : place + 2] for part in _UNSPACED.findall(text) for place in range(len(part))]


def list_query_pairs(query: str) -> list[str]:
    """List a query's pairs, with single characters only where they stand alone."""
    parts = _UNSPACED.findall(query[:LONGEST_QUERY])
    pairs = [part[place : place + 2] for part in parts for place in range(max(1, len(part) - 1))]
    return [*dict.fromkeys(pairs)][:_MAX_WORDS]


def find_verb_groups(stems: Iterable[str]) -> frozenset[int]:
    """Find the verb groups that the stems belong to."""
    return frozenset(_VERB_GROUPS[stem] for stem in stems if stem in _VERB_GROUPS)


def normalize_name(name: str) -> str:
    """Reduce a name to lower-case letters and digits, so that `create-issue` and `createIssue` are equal.

    Unicode-equivalent characters are equal too: `é` in one code point or two, wide forms.
    """
    if not name.isascii():
        name = normalize("NFKC", normalize("NFKC", name).casefold())
    return "".join(_WORD.findall(name)).lower()


# -- index ------------------------------------------------------------------------------------


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
    """Index of tools, prompts, resources and actions. `on_added` is called after an update with new items.

    Raises `SearchUnavailableError` if SQLite was built without FTS5.
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
        `source` says where the items came from, for callers sharing an index.
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

        Blocks for about 50 ms per item without a cached vector, so call it in a separate thread. Searches continue in
        the meantime.
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
        """Find the items that fit the queries (words or names, at most ten) best.

        Hits of several queries alternate: the best of each, then the second of each.
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
        """Rank the items for one query. Return the best items with their scores, and the numbers of all matches."""
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
