"""What the tool search costs: building the index, one query by words, one by meaning, and the command.

Durations are compared with the start of a bare Python, about ten milliseconds: what a user notices is a share of that.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bench.measure import calls, compare
from bench.process import python, starts
from bench.row import Check, Row
from induscode.local_model.weights import SENTENCE_ENCODER
from induscode.search.index import ToolIndex
from induscode.search.items import build_item
from induscode.search.opening import has_numpy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Pair
    from induscode.search.items import SearchItem

_NOTHING = "python -c pass"
_TOOLS = 2_000
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
    index = ToolIndex(_make_items()[:527])
    return compare(calls(lambda: index.search([_QUERY])), starts(python("-c", "pass")), rounds=_ROUNDS)


def _encode() -> Pair | Check:
    if not SENTENCE_ENCODER.is_fetched() or not has_numpy():
        return Check(ok=True, note=f"not measured: there is no model ({SENTENCE_ENCODER.fetch_command})")
    from induscode.search.encoder import read_encoder  # noqa: PLC0415 — imports numpy
    from induscode.search.semantic import SemanticIndex  # noqa: PLC0415 — imports numpy

    index = ToolIndex(_make_items()[:50], SemanticIndex(read_encoder(SENTENCE_ENCODER.path)))
    index.prepare()
    return compare(calls(lambda: index.search([_QUERY])), starts(python("-c", "pass")), rounds=_ROUNDS)


ROWS = (
    Row("search-build", f"the index of {_TOOLS:,} tools, built", _NOTHING, _build, budget=10),
    Row("search-words", "one search among 527 tools, by words", _NOTHING, _search, budget=0.1),
    Row("search-meaning", "one search among 50 tools, with the model", _NOTHING, _encode, budget=1.5),
)
