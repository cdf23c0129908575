"""Search of operations by what they do: BM25 over the words of their fields.

Words are lower-cased, split at humps and punctuation, and reduced to a stem. Each field has a weight. Two facts raise a
score: the query covers most of the summary, and a verb of the query fits the method. Formula:
https://doi.org/10.1561/1500000019, section 3.6 (BM25F).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from induscode.connectors.operations import OperationSpec

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_STOP: Final = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by can do does for from have how i if in into is it its me my of on or our so that the"
        " their them then there these they this to was what when where which who will with you your",
    )
)
_VERBS: Final = {
    "GET": "get list show read find fetch view look download check",
    "HEAD": "check exists",
    "POST": "create add new make open send start post",
    "PUT": "set put replace update change",
    "PATCH": "update change edit modify patch",
    "DELETE": "delete remove drop cancel",
}
"""What people call the methods."""
_SYNONYMS: Final = {
    "reference": "ref", "ask": "request", "people": "user", "person": "user", "me": "authenticated user", "am": "",
    "logged": "authenticated", "login": "authenticated", "signed": "authenticated", "i": "authenticated user",
    "repo": "repository", "pr": "pull request", "org": "organization", "organisation": "organization",
    "remaining": "limit", "quota": "limit", "picture": "image", "photo": "image", "mail": "email",
    "config": "configuration",
}  # fmt: skip
"""Words that people use for words of documents; they are added to the query."""
_COVERAGE: Final = 0.8
_FITTING_METHOD: Final = 1.3
_SATURATION: Final = 1.2
_LENGTH: Final = 0.5
"""How much a long field counts less (`b` of BM25)."""
_LONGEST_DESCRIPTION: Final = 600


def split_words(text: str) -> list[str]:
    """Split a text into stems, without the words that say nothing."""
    words = (match.lower() for match in _WORD.findall(text))
    return [_find_stem(word) for word in words if word not in _STOP]


def _find_stem(word: str) -> str:
    """Cut the common endings of an English word; the result need not be a word."""
    for ending, least in (("ies", 5), ("ing", 6), ("ed", 5), ("es", 5), ("s", 4)):
        if len(word) >= least and word.endswith(ending) and not word.endswith("ss"):
            word = word[: -len(ending)] + ("y" if ending == "ies" else "")
            break
    return word.removesuffix("e") if len(word) > 3 else word


def find_methods(query: str) -> frozenset[str]:
    """Find the methods that a query asks for by its verbs; another imperative (`fork`) mostly creates."""
    words = split_words(query)
    methods = frozenset(method for method, verbs in _METHOD_VERBS.items() if not verbs.isdisjoint(words))
    first = _WORD.search(query)
    is_imperative = first is not None and first[0].lower() not in _STOP
    return methods or (frozenset({"POST", "PUT"}) if is_imperative else frozenset())


_METHOD_VERBS: Final = {method: frozenset(split_words(verbs)) for method, verbs in _VERBS.items()}


class OperationIndex:
    """An index of operations; it is built once and never changes."""

    def __init__(self, operations: Iterable[OperationSpec]) -> None:
        self._operations = tuple(operations)
        self._summaries = [frozenset(split_words(operation.summary or operation.id)) for operation in self._operations]
        fields = [_list_fields(operation) for operation in self._operations]
        count = max(1, len(fields))
        means = [sum(len(words) for _, words in column) / count or 1.0 for column in zip(*fields, strict=True)]
        postings: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for number, row in enumerate(fields):
            for (weight, words), mean in zip(row, means, strict=True):
                norm = 1 - _LENGTH + _LENGTH * len(words) / mean
                for word, times in Counter(words).items():
                    postings[word][number] = postings[word].get(number, 0.0) + weight * times / norm
        self._postings = dict(postings)

    def search(self, query: str, limit: int, connectors: Sequence[str] = ()) -> list[OperationSpec]:
        """Return the operations that fit a query best, the best one first."""
        scores: defaultdict[int, float] = defaultdict(float)
        total = len(self._operations)
        added = " ".join(_SYNONYMS.get(word.lower(), "") for word in _WORD.findall(query))
        words = dict.fromkeys(split_words(f"{query} {added}"))
        for word in words:
            rows = self._postings.get(word, {})
            rarity = math.log(1 + (total - len(rows) + 0.5) / (len(rows) + 0.5))
            for number, weight in rows.items():
                scores[number] += rarity * weight / (weight + _SATURATION)
        methods = find_methods(query)
        for number in scores:
            summary = self._summaries[number]
            scores[number] *= 1 + _COVERAGE * len(summary & words.keys()) / max(1, len(summary))
            if self._operations[number].method in methods:
                scores[number] *= _FITTING_METHOD
        ranked = sorted(scores, key=lambda number: (-scores[number], len(self._operations[number].path), number))
        found = (self._operations[number] for number in ranked)
        return [spec for spec in found if not connectors or spec.connector in connectors][:limit]


def _list_fields(operation: OperationSpec) -> list[tuple[float, list[str]]]:
    """List the fields of an operation: weight and words."""
    return [
        (3.0, split_words(operation.id)),
        (4.0, split_words(operation.summary)),
        (1.0, split_words(" ".join(operation.tags))),
        (1.0, split_words(operation.path)),
        (0.6, split_words(operation.description[:_LONGEST_DESCRIPTION])),
    ]
