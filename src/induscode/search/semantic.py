"""Semantic half of the search: the vector of the query beside the vectors of the items.

The vector of an item is the mean of two: of its name and first sentence, and of everything that describes it. The score
is the mean of the two cosines. Vectors are read from the cache, and made for items that it lacks, which may go on in
one thread while others search.
"""

from __future__ import annotations

import re
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from induscode.search.arrays import np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy import float32
    from numpy.typing import NDArray

    from indusagi.core.faults import Note
    from induscode.search.items import SearchItem
    from induscode.search.vectors import VectorCache

    Array: TypeAlias = NDArray[float32]

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATOR: Final = re.compile(r"[\W_]+")
_LONGEST_HEADING: Final = 300
_LONGEST_TEXT: Final = 2_000
"""More characters than the encoder reads."""
_TOGETHER: Final = 2
"""Items between two questions whether to stop; more at once are not encoded faster."""


class Encoder(Protocol):
    """What turns texts into rows of length one."""

    @property
    def width(self) -> int:
        """Numbers of a row."""
        ...

    def encode(self, texts: Sequence[str]) -> Array:
        """Encode texts."""
        ...


class SemanticIndex:
    """Vectors of items, by their digests."""

    def __init__(self, encoder: Encoder, cache: VectorCache | None = None) -> None:
        self._encoder = encoder
        self._cache = cache
        self._lock = Lock()
        """Held while vectors are added or dropped."""
        self._vectors: dict[str, Array] = {}
        self._matrix: tuple[Sequence[int], Array] | None = None

    @property
    def notes(self) -> Sequence[Note]:
        """What is wrong with the cache."""
        return () if self._cache is None else tuple(self._cache.notes)

    def prepare(
        self,
        items: Iterable[SearchItem],
        report: Callable[[int, int], None] = lambda _done, _all: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make sure that there are vectors of some items; it blocks, about 30 ms for each that the cache lacks.

        Args:
            items: The items.
            report: Gets how many of the missing vectors are made, and how many there are.
            should_stop: Asked after every two items; what was made so far is kept.

        Raises:
            ValueError: The weights of the encoder are damaged.
        """
        wanted = {item.digest: item for item in items if item.digest not in self._vectors}
        if self._cache is not None and wanted:
            rows = self._cache.read(wanted, 4 * self._encoder.width)
            kept = {digest: np.frombuffer(data, np.float32) for digest, data in rows.items()}
            with self._lock:
                self._vectors |= kept
            wanted = {digest: item for digest, item in wanted.items() if digest not in kept}
        missing = [*wanted.values()]
        for start in range(0, len(missing), _TOGETHER):
            if should_stop():
                return
            report(start, len(missing))
            some = missing[start : start + _TOGETHER]
            rows = encode_checked(self._encoder, [text for item in some for text in list_texts(item)])
            made = {item.digest: rows[2 * place : 2 * place + 2].mean(0) for place, item in enumerate(some)}
            with self._lock:
                self._vectors |= made
            if self._cache is not None:
                self._cache.write({digest: vector.tobytes() for digest, vector in made.items()})

    def select(self, items: Mapping[int, SearchItem]) -> bool:
        """Search these items from now on, under their numbers; without vectors of all of them nothing is searched."""
        with self._lock:
            if any(item.digest not in self._vectors for item in items.values()):
                self._matrix = None
                return False
            digests = {item.digest for item in items.values()}
            self._vectors = {digest: vector for digest, vector in self._vectors.items() if digest in digests}
            rows = [self._vectors[item.digest] for item in items.values()]
            self._matrix = ([*items], np.stack(rows)) if rows else None
            return True

    def encode_query(self, query: str) -> Array | None:
        """Encode a query; None while nothing is searched, and where damaged weights give no numbers for it."""
        if self._matrix is None:
            return None
        try:
            return encode_checked(self._encoder, [query])[0]
        except ValueError:
            return None

    def score(self, query: Array) -> dict[int, float]:
        """Return the scores of all items: cosines."""
        if self._matrix is None:
            return {}
        numbers, matrix = self._matrix
        return dict(zip(numbers, (matrix @ query).tolist(), strict=True))


def encode_checked(encoder: Encoder, texts: Sequence[str]) -> Array:
    """Encode texts.

    Raises:
        ValueError: The result is no numbers: the weights of the encoder are damaged.
    """
    with np.errstate(all="ignore"):
        rows = encoder.encode(texts)
    if not np.isfinite(rows).all():
        raise ValueError("the sentence encoder gives no numbers: its weights are damaged")
    return rows


def list_texts(item: SearchItem) -> tuple[str, str]:
    """List the two texts that stand for an item: its heading, and everything."""
    name, server = _split_name(item.name), _split_name(item.server)
    heading = " ".join((item.title or item.description).split()).partition(". ")[0]
    parameters = " ".join(_split_name(parameter.name) for parameter in item.parameters)
    everything = f"{server} {name}. {item.title} {item.description} {parameters}"
    return f"{name}: {heading}"[:_LONGEST_HEADING], " ".join(everything.split())[:_LONGEST_TEXT]


def _split_name(name: str) -> str:
    return _SEPARATOR.sub(" ", _HUMP.sub(" ", name)).strip()
