"""The sentence encoder: WordPiece beside `tokenizers`, the forward pass beside a slow one, and published weights."""

from __future__ import annotations

import json
import math
import os
import random
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece as OutsideWordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from induscode.search.encoder import SentenceEncoder, WordPiece, read_encoder
from induscode.search.weights import SENTENCE_ENCODER

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    *(
        "create",
        "issue",
        "mail",
        "e",
        "##s",
        "##e",
        "##r",
        "a",
        "b",
        "##a",
        "##b",
        "1",
        "##2",
        "!",
        "-",
        "_",
        "中",
        "ß",
        "я",
        "##я",
    ),
]
WIDTH, HEADS, LAYERS, INNER = 8, 2, 2, 12
ENCODER_FILE = SENTENCE_ENCODER.path


def build_outside() -> Tokenizer:
    tokenizer = Tokenizer(OutsideWordPiece({part: n for n, part in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


OUTSIDE, OURS = build_outside(), WordPiece(VOCABULARY)
LETTERS = st.one_of(
    st.sampled_from("abeserя12ÄÉß中文!-_ \t\n\u00a0\u200b\ufffd\x0b\x85"), st.characters(max_codepoint=0x5FF)
)


@given(st.text(LETTERS, max_size=60))
def test_words_are_cut_as_by_tokenizers(text: str) -> None:
    assert OURS.encode(text, 200) == [2, *OUTSIDE.encode(text).ids, 3]


def test_a_text_is_cut_to_its_limit_and_a_long_word_is_unknown() -> None:
    assert OURS.encode("create issue mail create", 4) == [2, 4, 5, 3]
    assert OURS.encode("a" * 101, 128) == [2, 1, 3]


def make_tensors(seed: int) -> dict[str, Any]:
    """Make random weights, as lists."""
    generator = random.Random(seed)

    def fill(*shape: int) -> list[Any]:
        if len(shape) == 1:
            return [generator.gauss(0, 0.6) for _ in range(shape[0])]
        return [fill(*shape[1:]) for _ in range(shape[0])]

    tensors = {
        "embeddings.word_embeddings.weight": fill(len(VOCABULARY), WIDTH),
        "embeddings.position_embeddings.weight": fill(32, WIDTH),
        "embeddings.token_type_embeddings.weight": fill(2, WIDTH),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
        for part, rows, columns in (
            *((f"attention.self.{part}", WIDTH, WIDTH) for part in ("query", "key", "value")),
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", INNER, WIDTH),
            ("output.dense", WIDTH, INNER),
        ):
            tensors[f"{name}.{part}.weight"], tensors[f"{name}.{part}.bias"] = fill(rows, columns), fill(rows)
    for name in norms:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = fill(WIDTH), fill(WIDTH)
    return tensors


def run_slowly(tensors: dict[str, Any], numbers: list[int]) -> list[float]:
    """Run the model on one text with loops over Python numbers, as the papers write it."""

    def apply(rows: list[list[float]], name: str) -> list[list[float]]:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return [
            [math.fsum(x * w for x, w in zip(row, line, strict=True)) + b for line, b in zip(weight, bias, strict=True)]
            for row in rows
        ]

    def normalize(rows: list[list[float]], name: str) -> list[list[float]]:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        result: list[list[float]] = []
        for row in rows:
            mean = math.fsum(row) / len(row)
            deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in row) / len(row) + 1e-12)
            result.append([(x - mean) / deviation * w + b for x, w, b in zip(row, weight, bias, strict=True)])
        return result

    def add(one: list[list[float]], other: list[list[float]]) -> list[list[float]]:
        return [[x + y for x, y in zip(a, b, strict=True)] for a, b in zip(one, other, strict=True)]

    table = tensors["embeddings.word_embeddings.weight"]
    places, kinds = tensors["embeddings.position_embeddings.weight"], tensors["embeddings.token_type_embeddings.weight"]
    rows = [[w + p + t for w, p, t in zip(table[n], places[k], kinds[0], strict=True)] for k, n in enumerate(numbers)]
    rows = normalize(rows, "embeddings.LayerNorm")
    size = WIDTH // HEADS
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        query, key, value = (apply(rows, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        attended: list[list[float]] = []
        for q in query:
            line: list[float] = []
            for head in range(HEADS):
                part = slice(head * size, (head + 1) * size)
                powers = [
                    math.exp(sum(a * b for a, b in zip(q[part], k[part], strict=True)) / math.sqrt(size)) for k in key
                ]
                line += [
                    sum(p * v[n] for p, v in zip(powers, value, strict=True)) / sum(powers)
                    for n in range(part.start, part.stop)
                ]
            attended.append(line)
        rows = normalize(
            add(rows, apply(attended, f"{name}.attention.output.dense")), f"{name}.attention.output.LayerNorm"
        )
        inner = [
            [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in row] for row in apply(rows, f"{name}.intermediate.dense")
        ]
        rows = normalize(add(rows, apply(inner, f"{name}.output.dense")), f"{name}.output.LayerNorm")
    pooled = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    length = math.sqrt(sum(x * x for x in pooled))
    return [x / length for x in pooled]


TEXTS = ["create issue", "", "mail a b a b a 1 2 !", "create mail - issue я", *["a b"] * 20]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_forward_pass_equals_a_slow_one(seed: int, tmp_path: Path) -> None:
    tensors = make_tensors(seed)
    path = tmp_path / "model.bin"
    write_model(path, tensors)
    encoder = SentenceEncoder(read_encoder(str(path))._tensors, VOCABULARY, HEADS)
    # Texts of several lengths share a batch: padding must not be seen.
    expected = [run_slowly(tensors, OURS.encode(text, 128)) for text in TEXTS]
    assert np.abs(encoder.encode(TEXTS) - np.array(expected)).max() < 2e-5


def write_model(path: Path, tensors: dict[str, Any]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        array = np.array(values, np.float32)
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data + "\n".join(VOCABULARY).encode())


@pytest.mark.skipif(not os.path.exists(ENCODER_FILE), reason="the model is not here: indus search fetch-model")
def test_published_weights_give_the_vectors_of_sentence_transformers() -> None:
    encoder = read_encoder(ENCODER_FILE)
    rows = encoder.encode(["send an email", "mail a message to somebody", "read a file"])
    # By sentence-transformers 6.2.0 with torch 2.13.0.
    assert np.allclose(rows[0][:5], [-0.01844298, -0.01871728, 0.05826794, 0.01976261, 0.05374474], atol=1e-5)
    assert rows[0] @ rows[1] > 0.7 > 0.2 > rows[0] @ rows[2]
