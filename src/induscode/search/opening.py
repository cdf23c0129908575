"""The index as a run opens it: with the semantic half where numpy is installed and the model was fetched."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from indusagi.core.faults import Note
from induscode.search.index import ToolIndex
from induscode.search.weights import SENTENCE_ENCODER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from induscode.search.items import SearchItem
    from induscode.search.semantic import SemanticIndex

INSTALL_NUMPY = "pip install 'indus-deck[semantic]'"


def has_numpy() -> bool:
    """Tell whether numpy is installed: the extra `semantic`."""
    return find_spec("numpy") is not None


def has_semantic() -> bool:
    """Tell whether the semantic half can be opened: numpy is installed, and the model was fetched."""
    return SENTENCE_ENCODER.is_fetched() and has_numpy()


def open_index(
    items: Iterable[SearchItem], report: Callable[[int, int], None] = lambda _done, _all: None
) -> tuple[ToolIndex, Sequence[Note]]:
    """Build the index of some items, with their vectors; a note says why words alone are searched. It blocks.

    Args:
        items: What can be found.
        report: Gets how many of the missing vectors are made, and how many there are.

    Raises:
        SearchUnavailableError: SQLite was built without FTS5.
    """
    index = ToolIndex(items)
    try:
        index.semantic = open_semantic()
        index.prepare(report)
    except (OSError, ValueError) as exc:
        index.semantic = None
        return index, [describe_unusable(exc)]
    return index, index.notes


def describe_unusable(exc: Exception) -> Note:
    """Say that the semantic half takes no part, and why."""
    remedy = f"words alone are searched; {SENTENCE_ENCODER.fetch_command} checks the model, and fetches a damaged one"
    return Note("the semantic half of the search", f"it cannot be used: {exc}", remedy)


def open_semantic() -> SemanticIndex | None:
    """Open the semantic half with its cache; None where numpy or the model is missing.

    Raises:
        OSError: The model cannot be read.
        ValueError: It is damaged.
    """
    if not has_semantic():
        return None
    from induscode.search.encoder import read_encoder  # noqa: PLC0415 — imports numpy
    from induscode.search.semantic import SemanticIndex, encode_checked  # noqa: PLC0415 — imports numpy
    from induscode.search.vectors import VectorCache, vectors_path  # noqa: PLC0415 — used with numpy alone

    encoder = read_encoder(SENTENCE_ENCODER.path)
    encode_checked(encoder, ["tool"])  # where the cache has all vectors, damage would show in the results alone
    return SemanticIndex(encoder, VectorCache(vectors_path()))
