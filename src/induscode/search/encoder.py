"""Sentence encoder: turns a text into a vector, so that texts with the same meaning point in the same direction.

The model is all-MiniLM-L6-v2, a BERT with six layers (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2).
The forward pass is numpy in float32: embeddings, six layers of attention and feed-forward
(https://arxiv.org/abs/1810.04805), the mean over the tokens, normalized to length one. Tests compare it with another
implementation.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[float32]


# numpy is loaded so that its matrix products use one thread. A query's matrices are small: more threads gain nothing,
# and on a busy machine they wait a hundred times as long for each other. The library reads the variable when it loads
# (https://github.com/OpenMathLib/OpenBLAS#usage); the environment of child processes stays unchanged. An already loaded
# numpy keeps its threads.
_VARIABLES = ("OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_added = [name for name in _VARIABLES if name not in os.environ]
os.environ.update(dict.fromkeys(_added, "1"))
try:
    import numpy as np
finally:
    for _name in _added:
        del os.environ[_name]


# -- encoder ----------------------------------------------------------------------------------


LONGEST_TEXT: Final = 128
"""Tokens to read; the model's training sentences weren't longer."""
_HEADS: Final = 12
_EPSILON: Final = 1e-12
_BATCH_SIZE: Final = 16
_MASKED: Final = np.float32(-1e9)


class SentenceEncoder:
    """The model with its weights, under their original names."""

    def __init__(self, tensors: Mapping[str, Array], vocabulary: Sequence[str], heads: int = _HEADS) -> None:
        self._tensors = tensors
        self._words = WordPiece(vocabulary)
        self._heads = heads
        self._layers = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("encoder.layer."))

    @property
    def width(self) -> int:
        """Dimensions of a vector."""
        return self._tensors["embeddings.LayerNorm.weight"].shape[0]

    def encode(self, texts: Sequence[str]) -> Array:
        """Encode texts as rows of length one."""
        rows = [self._words.encode(text, LONGEST_TEXT) for text in texts]
        vectors = np.empty((len(rows), self.width), np.float32)
        # Batch texts of similar length, since a batch is padded to its longest.
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        for start in range(0, len(order), _BATCH_SIZE):
            batch = order[start : start + _BATCH_SIZE]
            longest = max(len(rows[number]) for number in batch)
            numbers = np.zeros((len(batch), longest), np.int64)
            mask = np.zeros((len(batch), longest), np.float32)
            for place, number in enumerate(batch):
                numbers[place, : len(rows[number])] = rows[number]
                mask[place, : len(rows[number])] = 1
            vectors[batch] = self._run(numbers, mask)
        return vectors

    def _run(self, numbers: NDArray[np.int64], mask: Array) -> Array:
        """Run the model on a batch of token numbers; the mask is 0 for padding."""
        get = self._tensors
        state = get["embeddings.word_embeddings.weight"][numbers]
        state = state + get["embeddings.position_embeddings.weight"][: numbers.shape[1]]
        state = self._normalize(state + get["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        bias = ((1 - mask) * _MASKED)[:, None, None, :]
        for layer in range(self._layers):
            name = f"encoder.layer.{layer}"
            attended = self._apply(
                self._attend(state, bias, f"{name}.attention.self"), f"{name}.attention.output.dense"
            )
            state = self._normalize(state + attended, f"{name}.attention.output.LayerNorm")
            inner = _gelu(self._apply(state, f"{name}.intermediate.dense"))
            state = self._normalize(state + self._apply(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        weights = mask / mask.sum(1, keepdims=True)
        pooled = np.einsum("btw,bt->bw", state, weights)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    def _attend(self, state: Array, bias: Array, name: str) -> Array:
        count, length, width = state.shape

        def split(part: str) -> Array:  # (batch, length, width) to (batch, heads, length, width of a head)
            heads = self._apply(state, f"{name}.{part}").reshape(count, length, self._heads, -1)
            return heads.transpose(0, 2, 1, 3)

        query, key, value = split("query"), split("key"), split("value")
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(math.sqrt(query.shape[-1])) + bias
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return (scores @ value).transpose(0, 2, 1, 3).reshape(count, length, width)

    def _apply(self, state: Array, name: str) -> Array:
        return state @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]

    def _normalize(self, state: Array, name: str) -> Array:
        centred = state - state.mean(-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(_EPSILON))
        return centred / spread * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]


def _gelu(values: Array) -> Array:
    """Multiply by the normal distribution function: https://arxiv.org/abs/1606.08415.

    numpy has no error function: https://doi.org/10.1119/1.15018 — formula 7.1.26 of Abramowitz and Stegun, with an
    error of at most 1.5e-7, below float32 precision.
    """
    scaled = np.abs(values) * np.float32(math.sqrt(0.5))
    step = 1 / (1 + np.float32(0.3275911) * scaled)
    series = np.float32(1.061405429) * step + np.float32(-1.453152027)
    for factor in (1.421413741, -0.284496736, 0.254829592):
        series = series * step + np.float32(factor)
    tail = series * step * np.exp(-scaled * scaled)  # 1 - erf(scaled)
    return values * np.where(values < 0, tail, 2 - tail) * np.float32(0.5)


def read_encoder(path: str) -> SentenceEncoder:
    """Read the model from its file: safetensors (https://huggingface.co/docs/safetensors), then the vocabulary.

    The weights are memory-mapped, so unused ones are never read. Raises `OSError` if the file can't be read, and
    `ValueError` if it isn't a sentence encoder.
    """
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return _parse_encoder(data)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as exc:
        raise ValueError(f"{path} holds no sentence encoder: {exc}") from exc


def _parse_encoder(data: mmap.mmap) -> SentenceEncoder:
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    tensors: dict[str, Array] = {}
    end = 0
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        first, last = entry["data_offsets"]
        end = max(end, last)
        values = np.frombuffer(data, np.float32, (last - first) // 4, 8 + length + first)
        tensors[name] = values.reshape(entry["shape"])
    vocabulary = data[8 + length + end :].decode("utf-8").split("\n")
    return SentenceEncoder(tensors, vocabulary)


# -- wordpiece --------------------------------------------------------------------------------
#
# Texts are normalized like uncased BERT models do it: strip control characters and accents, lower the case, split off
# ideographs and punctuation. A word is then cut greedily into the longest parts in the vocabulary; a word that can't be
# cut is unknown. https://arxiv.org/abs/1810.04805, section 3. Tests compare the results with the library `tokenizers`.


_MAX_WORD_CHARS: Final = 100
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_PLAIN_WORD: Final = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
"""Words and punctuation of a lower-case ASCII text."""


class WordPiece:
    """A vocabulary with one part per line, numbered by line."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self._numbers = {part: number for number, part in enumerate(vocabulary)}
        self._begin, self._end, self._unknown = (self._numbers[name] for name in ("[CLS]", "[SEP]", "[UNK]"))
        self._cut = lru_cache(maxsize=8_192)(self._cut_word)

    def encode(self, text: str, limit: int) -> list[int]:
        """Return the numbers of at most `limit` parts, including the start and end markers."""
        numbers: list[int] = []
        for word in _split(text):
            numbers += self._cut(word)
            if len(numbers) > limit - 2:
                break
        return [self._begin, *numbers[: limit - 2], self._end]

    def _cut_word(self, word: str) -> list[int]:
        if len(word) > _MAX_WORD_CHARS:
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
            is_sign = character.isascii() and not character.isalnum()
            if is_sign or unicodedata.category(character).startswith("P"):
                if start < position:
                    yield word[start:position]
                yield character
                start = position + 1
        if start < len(word):
            yield word[start:]


def _clean(character: str) -> str:
    """Remove control characters, turn white space into spaces, and put spaces around ideographs."""
    if character in "\t\n\r":
        return " "
    code = ord(character)
    if code == 0xFFFD or unicodedata.category(character) in {"Cc", "Cf", "Co"}:
        return ""
    if character.isspace():
        return " "
    return f" {character} " if any(low <= code <= high for low, high in _IDEOGRAPHS) else character
