"""The index as a run opens it: with the semantic half where numpy is installed and the model was fetched."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from induscode.local_model.weights import SENTENCE_ENCODER
from induscode.search.index import ToolIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from induscode.search.items import SearchItem
    from induscode.search.semantic import SemanticIndex

INSTALL_NUMPY = "pip install 'indus-deck[semantic]'"


def has_numpy() -> bool:
    """Tell whether numpy is installed: the extra `semantic`."""
    return find_spec("numpy") is not None


def has_semantic() -> bool:
    """Tell whether the semantic half can be opened: numpy is installed, and the model was fetched."""
    return SENTENCE_ENCODER.is_fetched() and has_numpy()


def open_index(items: Iterable[SearchItem]) -> ToolIndex:
    """Build the index of some items; `prepare` of it makes the vectors. It blocks.

    Raises:
        SearchUnavailableError: SQLite was built without FTS5.
    """
    return ToolIndex(items, open_semantic())


def open_semantic() -> SemanticIndex | None:
    """Open the semantic half with its cache; None where numpy or the model is missing."""
    if not has_semantic():
        return None
    from induscode.search.encoder import read_encoder  # noqa: PLC0415 — imports numpy
    from induscode.search.semantic import SemanticIndex  # noqa: PLC0415 — imports numpy
    from induscode.search.vectors import VectorCache, vectors_path  # noqa: PLC0415 — used with numpy alone

    return SemanticIndex(read_encoder(SENTENCE_ENCODER.path), VectorCache(vectors_path()))
