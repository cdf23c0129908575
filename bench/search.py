"""What the tool search costs: building the index, one query by words, one by meaning, and the command.

Durations are compared with the start of a bare Python, about ten milliseconds: what a user notices is a share of that.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bench.measure import calls, compare
from bench.process import python, starts
from bench.row import CannotMeasure, Check, Row
from induscode.search.background import INSTALL_NUMPY, has_numpy
from induscode.search.index import ToolIndex
from induscode.search.items import build_item
from induscode.search.weights import SENTENCE_ENCODER

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from bench.measure import Pair
    from induscode.search.items import SearchItem
    from induscode.search.semantic import Array, VectorCache

_NOTHING = "python -c pass"
_TOOLS = 2_000
_USUAL = 527
_WIDTH = 384
_ROUNDS = 11
_QUERY = "find the open issues of a repository3 that mention a memory7 leak on some page11"
_VERBS = ["create", "list", "get", "update", "delete", "search", "open", "close", "read", "send"]
_THINGS = ["issue", "file", "message", "branch", "release", "user", "calendar", "invoice", "image", "record"]
_WORDS = [
    f"{word}{number}"
    for word in re.findall(r"\w+", "repository folder channel memory title owner path text state label page date")
    for number in range(20)
]


def _make_items() -> Sequence[SearchItem]:
    """Make tools with about as many words as those of public servers."""
    items: list[SearchItem] = []
    for number in range(_TOOLS):
        verb, thing = _VERBS[number % 10], _THINGS[number // 10 % 10]
        words = [_WORDS[(number * step * step) % len(_WORDS)] for step in range(1, 20)]
        schema = {
            "type": "object",
            "properties": {
                word: {"type": "string", "description": f"The {word} of the {thing}."} for word in words[:5]
            },
            "required": words[:2],
        }
        text = f"{verb.title()} one {thing} with its {', '.join(words)}. Returns what was done to the {thing}."
        name = f"{verb}_{thing}_{number}"
        items.append(build_item("tool", f"server{number // 50}", name, f"s__{name}", description=text, schema=schema))
    return items


def _build() -> Pair:
    items = _make_items()
    return compare(calls(lambda: ToolIndex(items)), starts(python("-c", "pass")), rounds=_ROUNDS)


def _search() -> Pair:
    index = ToolIndex(_make_items()[:_USUAL])
    return compare(calls(lambda: index.search([_QUERY])), starts(python("-c", "pass")), rounds=_ROUNDS)


def _encode() -> Pair | Check:
    if not SENTENCE_ENCODER.is_fetched() or not has_numpy():
        return Check(ok=True, note=f"not measured: there is no model ({SENTENCE_ENCODER.fetch_command})")
    from induscode.search.encoder import read_encoder  # noqa: PLC0415 — imports numpy
    from induscode.search.semantic import SemanticIndex  # noqa: PLC0415 — imports numpy

    items = _make_items()[:_USUAL]
    with _cached_vectors(items) as cache:
        index = ToolIndex(items, SemanticIndex(read_encoder(SENTENCE_ENCODER.path), cache))
        if not index.prepare():
            raise CannotMeasure("the cache lacks vectors")
    return compare(calls(lambda: index.search([_QUERY])), starts(python("-c", "pass")), rounds=_ROUNDS)


def _build_with_vectors() -> Pair | Check:
    if not has_numpy():
        return Check(ok=True, note=f"not measured: there is no numpy ({INSTALL_NUMPY})")
    from induscode.search.semantic import SemanticIndex  # noqa: PLC0415 — imports numpy

    items = _make_items()
    with _cached_vectors(items) as cache:

        def build() -> None:
            if not ToolIndex(items, SemanticIndex(_NoEncoder(), cache)).prepare():
                raise CannotMeasure("the cache lacks vectors")

        return compare(calls(build), starts(python("-c", "pass")), rounds=_ROUNDS)


class _NoEncoder:
    """Stands for the model where every vector is in the cache."""

    width = _WIDTH

    def encode(self, texts: Sequence[str]) -> Array:
        raise CannotMeasure("the cache lacks vectors")


@contextmanager
def _cached_vectors(items: Sequence[SearchItem]) -> Generator[VectorCache]:
    """Fill a cache with vectors of no meaning: a search takes as long with them."""
    from induscode.search.encoder import np  # noqa: PLC0415 — imports numpy
    from induscode.search.semantic import VectorCache  # noqa: PLC0415 — used with numpy alone

    numbers = np.random.default_rng(1).standard_normal((len(items), _WIDTH), np.float32)
    with TemporaryDirectory() as folder:
        cache = VectorCache(os.path.join(folder, "vectors.db"))
        cache.write({item.digest: row.tobytes() for item, row in zip(items, numbers, strict=True)})
        yield cache


ROWS = (
    Row("search-build", f"the index of {_TOOLS:,} tools, built", _NOTHING, _build, budget=10),
    Row(
        "search-cached", f"the same with the vectors of its {_TOOLS:,} tools", _NOTHING, _build_with_vectors, budget=10
    ),
    Row("search-words", f"one search among {_USUAL} tools, by words", _NOTHING, _search, budget=0.1),
    Row("search-meaning", f"one search among {_USUAL} tools, with the model", _NOTHING, _encode, budget=1.5),
)
