"""Lexical half of the search: SQLite FTS5 in memory, with a weight for each field.

An item matches if one word of the query is in one of its fields. The score is that of `bm25()`
(https://www.sqlite.org/fts5.html#the_bm25_function); words are reduced to their stems by the Porter tokenizer. Two
facts raise it: the query has most of the words of the heading (the title, or else the name), and a verb of the query
fits the verb of the heading.

Chinese, Japanese and Korean have no spaces between words. A query in them that finds no word is compared by pairs of
neighbouring characters, in a table of its own: it changes no other query.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final
from weakref import finalize

from indusagi.core.faults import CoreError
from induscode.search.words import (
    find_stem,
    find_verb_groups,
    list_pairs,
    list_query_pairs,
    list_query_words,
    list_stems,
    split_humps,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from induscode.search.items import SearchItem

FIELDS: Final = {
    "name": 3.0,
    "server": 1.0,
    "title": 4.0,
    "description": 0.6,
    "parameters": 0.6,
    "parameter_texts": 0.3,
    "keywords": 0.5,
}
"""The indexed fields and their weights; docs/search.md says what they were chosen on."""
_COVERAGE: Final = 0.8
_FITTING_VERB: Final = 1.3
_VERB_PLACES: Final = 2
"""The verb is among the first words of a name or title."""
_LONGEST_FIELD: Final = 600
"""Characters of a field that are indexed: what a tool does is said first, and `bm25()` holds length against it."""
_CREATE: Final = f"CREATE VIRTUAL TABLE items USING fts5({', '.join(FIELDS)}, tokenize = 'porter unicode61')"
_INSERT: Final = f"INSERT INTO items (rowid, {', '.join(FIELDS)}) VALUES ({', '.join('?' * (len(FIELDS) + 1))})"


_CREATE_PAIRS: Final = "CREATE VIRTUAL TABLE IF NOT EXISTS pairs USING fts5(text, tokenize = 'unicode61')"
_SELECT_PAIRS: Final = "SELECT rowid, -bm25(pairs) FROM pairs WHERE pairs MATCH ?"


class SearchUnavailableError(CoreError):
    """This Python has no full text search."""


class LexicalIndex:
    """Full text index of items, which are known by numbers.

    Raises:
        SearchUnavailableError: SQLite was built without FTS5.
    """

    def __init__(self, weights: Mapping[str, float] = FIELDS) -> None:
        # The owner of the index makes sure that one thread uses it at a time.
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
        """The items in the table of pairs, which is made for the first one."""

    def add(self, rows: Iterable[tuple[int, SearchItem]]) -> None:
        """Add items under new numbers."""
        added = list(rows)
        fields = [(number, *_list_fields(item)) for number, item in added]
        self._database.execute("BEGIN")
        self._database.executemany(_INSERT, fields)
        self._add_pairs((number, " ".join(texts)) for number, *texts in fields)
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

    def _add_pairs(self, texts: Iterable[tuple[int, str]]) -> None:
        """Add the pairs of the items that have some."""
        rows = [(number, " ".join(pairs)) for number, text in texts if (pairs := list_pairs(text))]
        if rows:
            self._database.execute(_CREATE_PAIRS)
            self._database.executemany("INSERT INTO pairs (rowid, text) VALUES (?, ?)", rows)
            self._paired.update(number for number, _ in rows)

    def score(self, query: str) -> dict[int, float]:
        """Return the scores of all items that have a word of the query; all are positive.

        Where no item has one, those that share pairs of characters of an unspaced script count.
        """
        words = list_query_words(query)
        return (self._score_words(words) or self._score_pairs(query)) if words else {}

    def _score_pairs(self, query: str) -> dict[int, float]:
        pairs = list_query_pairs(query) if self._paired else []
        if not pairs:
            return {}
        # A single character matches every pair that begins with it.
        match = " OR ".join(f'"{pair}"' if len(pair) > 1 else f'"{pair}" *' for pair in pairs)
        return dict(self._database.execute(_SELECT_PAIRS, (match,)).fetchall())

    def _score_words(self, words: Sequence[str]) -> dict[int, float]:
        # In quotes a word is never an operator: https://www.sqlite.org/fts5.html#fts5_strings.
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
    """List the texts of an item in the order of `FIELDS`."""
    names = " ".join(parameter.name for parameter in item.parameters)
    about = " ".join(parameter.description for parameter in item.parameters)
    texts = (item.name, item.server, item.title, item.description, names, about, item.keywords)
    return tuple(split_humps(text[:_LONGEST_FIELD]) for text in texts)
