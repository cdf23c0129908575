"""Words of names, texts and queries.

FTS5 splits texts at everything that is no letter or digit, folds case and takes the stem of English words. Two things
are done before: words with humps (`createIssue`, `GitHub`) are added in their parts, and the words of a query that say
nothing are left out.
"""

from __future__ import annotations

import re
from typing import Final

_HUMPED = re.compile(r"[^\W_]*[a-z0-9][A-Z][^\W_]*|[A-Z]{2,}[a-z][^\W_]*")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")
_STOP: Final = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by can could do does for from have how i if in into is it its let me my of on or our"
        " please so that the their them then there these they this to us was we what when where which who will with"
        " would you your",
    )
)
_MOST_WORDS: Final = 64
LONGEST_QUERY: Final = 2_000
"""Characters of a query that are read."""


def split_humps(text: str) -> str:
    """Add the parts of words with humps: `createIssue` becomes `createIssue create Issue`."""
    parts = [_HUMP.sub(" ", word) for word in _HUMPED.findall(text)]
    return f"{text} {' '.join(parts)}" if parts else text


def list_query_words(query: str) -> list[str]:
    """List the words of a query once each, in lower case; stop words only if there are no others."""
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(split_humps(query[:LONGEST_QUERY]))))
    return ([word for word in words if word not in _STOP] or words)[:_MOST_WORDS]


def normalize_name(name: str) -> str:
    """Reduce a name to its letters and digits in lower case, so that `create-issue` and `createIssue` are the same."""
    return "".join(_WORD.findall(name)).lower()
