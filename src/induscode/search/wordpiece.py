"""WordPiece: splits a text into the numbered word parts that the sentence encoder was trained on.

The text is normalized as the uncased BERT models do it: control characters removed, accents stripped, lower case,
ideographs and punctuation split off. A word is then cut into the longest parts that the vocabulary has, from its
beginning; a word that cannot be cut is unknown. https://arxiv.org/abs/1810.04805, section 3. The results equal those of
the library `tokenizers`, which tests compare them with.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LONGEST_WORD: Final = 100
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_PLAIN_WORD: Final = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
"""The words and the punctuation of an ASCII text in lower case."""


class WordPiece:
    """A vocabulary: one part in each line, its number is that of the line."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self._numbers = {part: number for number, part in enumerate(vocabulary)}
        self._begin, self._end, self._unknown = (self._numbers[name] for name in ("[CLS]", "[SEP]", "[UNK]"))
        self._cut = lru_cache(maxsize=8_192)(self._cut_word)

    def encode(self, text: str, limit: int) -> list[int]:
        """Return the numbers of at most `limit` parts, those that mark the beginning and the end included."""
        numbers: list[int] = []
        for word in _split(text):
            numbers += self._cut(word)
            if len(numbers) > limit - 2:
                break
        return [self._begin, *numbers[: limit - 2], self._end]

    def _cut_word(self, word: str) -> list[int]:
        if len(word) > _LONGEST_WORD:
            return [self._unknown]
        numbers: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self._numbers.get(f"{mark}{word[start:end]}")
                if number is not None:
                    break
            else:
                return [self._unknown]
            numbers.append(number)
            start = end
        return numbers


def _split(text: str) -> Iterator[str]:
    """Split a text into normalized words, ideographs and punctuation."""
    if text.isascii() and text.isprintable():
        yield from _PLAIN_WORD.findall(text.lower())
        return
    text = "".join(_clean(character) for character in text)
    text = "".join(
        character for character in unicodedata.normalize("NFD", text) if unicodedata.category(character) != "Mn"
    )
    for word in text.lower().split():
        start = 0
        for position, character in enumerate(word):
            if _is_punctuation(character):
                if start < position:
                    yield word[start:position]
                yield character
                start = position + 1
        if start < len(word):
            yield word[start:]


def _clean(character: str) -> str:
    """Remove a control character, make a space of white space, and put spaces around an ideograph."""
    if character in "\t\n\r":
        return " "
    code = ord(character)
    if code == 0xFFFD or unicodedata.category(character) in {"Cc", "Cf", "Co"}:
        return ""
    if character.isspace():
        return " "
    return f" {character} " if any(low <= code <= high for low, high in _IDEOGRAPHS) else character


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P") or (character.isascii() and not character.isalnum())
