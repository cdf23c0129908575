"""Words of names, texts and queries.

FTS5 splits texts at everything that is no letter or digit, folds case and takes the stem of English words. Three things
are done before: words with humps (`createIssue`, `GitHub`) are added in their parts, the words of a query that say
nothing are left out, and words that people use for words of definitions are added.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from unicodedata import normalize

if TYPE_CHECKING:
    from collections.abc import Iterable

_HUMPED = re.compile(r"[a-z0-9][A-Z]|[A-Z][A-Z][a-z]")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(
    "[\u3041-\u3096\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0002fa1f]+"
)
"""Kana, ideographs and Hangul: FTS5 takes everything up to the next space or sign as one word."""
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
"""Verbs that people use for one another: to read, to create, to change, to remove."""
_MOST_WORDS: Final = 64
LONGEST_QUERY: Final = 2_000
"""Characters of a query that are read."""
LONGEST_NAME: Final = 1_000
"""Characters of a name that may be another spelling of a tool's; a longer one is compared with none."""


def split_humps(text: str) -> str:
    """Add the parts of words with humps: `createIssue` becomes `createIssue create Issue`."""
    if _HUMPED.search(text) is None:
        return text
    parts = [_HUMP.sub(" ", word) for word in _WORD.findall(text) if _HUMPED.search(word) is not None]
    return f"{text} {' '.join(parts)}" if parts else text


def list_query_words(query: str) -> list[str]:
    """List the words of a query once each, in lower case, with synonyms; stop words only if there are no others."""
    words = [word.lower() for word in _WORD.findall(split_humps(query[:LONGEST_QUERY]))]
    kept = [word for word in words if word not in _STOP] or words
    added = [other for word in words for other in _SYNONYMS.get(word, "").split()]
    return list(dict.fromkeys([*kept, *added]))[:_MOST_WORDS]


def list_stems(text: str) -> list[str]:
    """List the stems of the words of a name or title; a stem need not be a word."""
    return [find_stem(word) for word in map(str.lower, _WORD.findall(split_humps(text))) if word not in _STOP]


def find_stem(word: str) -> str:
    """Cut the common endings of an English word."""
    for ending, least in (("ies", 5), ("ing", 6), ("ed", 5), ("es", 5), ("s", 4)):
        if len(word) >= least and word.endswith(ending) and not word.endswith("ss"):
            word = word[: -len(ending)] + ("y" if ending == "ies" else "")
            break
    return word.removesuffix("e") if len(word) > 3 else word


_VERB_GROUPS: Final = {find_stem(verb): number for number, verbs in enumerate(_VERBS) for verb in verbs.split()}


def list_pairs(text: str) -> list[str]:
    """List the pairs of neighbouring characters in the parts of a text that are written without spaces.

    The last character of such a part comes alone, so that each character begins one of its pairs.
    """
    if text.isascii():
        return []
    return [part[place : place + 2] for part in _UNSPACED.findall(text) for place in range(len(part))]


def list_query_pairs(query: str) -> list[str]:
    """List the pairs of a query; a single character only where it stands alone."""
    parts = _UNSPACED.findall(query[:LONGEST_QUERY])
    pairs = [part[place : place + 2] for part in parts for place in range(max(1, len(part) - 1))]
    return [*dict.fromkeys(pairs)][:_MOST_WORDS]


def find_verb_groups(stems: Iterable[str]) -> frozenset[int]:
    """Find what the stems say is done: the numbers of the groups of verbs."""
    return frozenset(_VERB_GROUPS[stem] for stem in stems if stem in _VERB_GROUPS)


def normalize_name(name: str) -> str:
    """Reduce a name to its letters and digits without case, so that `create-issue` and `createIssue` are the same.

    Characters that Unicode holds for the same are so: `é` in one code point or two, wide forms.
    """
    if not name.isascii():
        name = normalize("NFKC", normalize("NFKC", name).casefold())
    return "".join(_WORD.findall(name)).lower()
