"""Semantic half of the search: compares the query's vector with the items' vectors.

An item's vector is the mean of two: one for its name and first sentence, one for everything that describes it. The
score is the mean of the two cosines. Vectors come from the cache, or are computed for items it lacks, in one thread
while others search.

The cache is a private SQLite file that may be deleted at any time. A vector's key is the digest of its definition, so
only changed definitions are recomputed. A damaged file is replaced, with a note. All functions block.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from indusagi.core.app_dirs import state_dir
from indusagi.core.faults import Note
from indusagi.core.sqlite import (
    DatabaseFormat,
    ForeignDatabaseError,
    connect,
    is_damage,
    prepare_database_file,
    remove_database,
    transaction,
)
from induscode.search.encoder import np
from induscode.search.items import HUMP, SearchItem

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[float32]


_VECTORS: Final = DatabaseFormat(
    application_id=0x76656373,
    version=1,  # increases with the model, and with the texts vectors are computed from
    upgrades={0: ("CREATE TABLE vectors (digest TEXT NOT NULL UNIQUE, vector BLOB NOT NULL)",)},
)
_MAX_ROWS: Final = 50_000
"""The oldest go first."""
_READ_BATCH: Final = 500


def vectors_path() -> str:
    """Return the cache's path, which may not exist; raises `OSError` if the home directory is unknown."""
    return os.path.join(state_dir(), "search-vectors.db")


class VectorCache:
    """The cache. Without a usable file it stores nothing, and a note says so."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.notes: list[Note] = []

    def read(self, digests: Collection[str], size: int) -> dict[str, bytes]:
        """Read the existing vectors with this size in bytes. Any other row means a damaged file."""
        vectors: dict[str, bytes] = {}
        wanted = list(digests)
        try:
            with closing(self._open()) as database:
                for start in range(0, len(wanted), _READ_BATCH):
                    some = wanted[start : start + _READ_BATCH]
                    marks = ", ".join("?" * len(some))
                    rows = database.execute(f"SELECT digest, vector FROM vectors WHERE digest IN ({marks})", some)
                    vectors.update(row for row in rows if isinstance(row[1], bytes) and len(row[1]) == size)
        except sqlite3.Error as exc:
            if is_damage(exc) or isinstance(exc, ForeignDatabaseError):
                self.notes.append(Note(f"the search cache {self.path}", f"it is damaged ({exc}), and was begun again"))
                with suppress(OSError):
                    remove_database(self.path)
            else:  # locked by another process, no space …
                self._give_up(exc)
        except OSError as exc:
            self._give_up(exc)
        return vectors

    def write(self, vectors: Mapping[str, bytes]) -> None:
        """Add vectors."""
        try:
            with closing(self._open()) as database, transaction(database):
                database.executemany("INSERT OR REPLACE INTO vectors (digest, vector) VALUES (?, ?)", vectors.items())
                database.execute(
                    "DELETE FROM vectors WHERE rowid <= (SELECT max(rowid) FROM vectors) - ?", (_MAX_ROWS,)
                )
        except (OSError, sqlite3.Error) as exc:
            self._give_up(exc)

    def _open(self) -> sqlite3.Connection:
        prepare_database_file(self.path)
        return connect(self.path, _VECTORS)

    def _give_up(self, exc: Exception) -> None:
        note = Note(
            f"the search cache {self.path}", f"it cannot be used: {exc}", "what it lacks is made again in each run"
        )
        if note not in self.notes:
            self.notes.append(note)


# -- semantic half ----------------------------------------------------------------------------


_SEPARATOR: Final = re.compile(r"[\W_]+")
_MAX_HEADING_CHARS: Final = 300
_MAX_TEXT_CHARS: Final = 2_000
"""More characters than the encoder reads."""
_BATCH_SIZE: Final = 2
"""Items between checks whether to stop. Larger batches aren't faster."""


class Encoder(Protocol):
    """Turns texts into rows of length one."""

    @property
    def width(self) -> int:
        """Dimensions of a row."""
        ...

    def encode(self, texts: Sequence[str]) -> Array:
        """Encode texts."""
        ...


class SemanticIndex:
    """Item vectors, by digest."""

    def __init__(self, encoder: Encoder, cache: VectorCache | None = None) -> None:
        self._encoder = encoder
        self._cache = cache
        self._lock = Lock()
        """Held while adding or dropping vectors."""
        self._vectors: dict[str, Array] = {}
        self._matrix: tuple[Sequence[int], Array] | None = None

    @property
    def notes(self) -> Sequence[Note]:
        """Problems with the cache."""
        return () if self._cache is None else tuple(self._cache.notes)

    def prepare(
        self,
        items: Iterable[SearchItem],
        report: Callable[[int, int], None] = lambda _done, _all: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ensure that items have vectors. Blocks for about 30 ms per item the cache lacks.

        `report` gets the numbers of computed and of missing vectors. `should_stop` is checked after every two items;
        computed vectors are kept. Raises `ValueError` if the encoder's weights are damaged.
        """
        wanted = {item.digest: item for item in items if item.digest not in self._vectors}
        if self._cache is not None and wanted:
            rows = self._cache.read(wanted, 4 * self._encoder.width)
            kept = {digest: np.frombuffer(data, np.float32) for digest, data in rows.items()}
            with self._lock:
                self._vectors |= kept
            wanted = {digest: item for digest, item in wanted.items() if digest not in kept}
        missing = [*wanted.values()]
        for start in range(0, len(missing), _BATCH_SIZE):
            if should_stop():
                return
            report(start, len(missing))
            some = missing[start : start + _BATCH_SIZE]
            rows = encode_checked(self._encoder, [text for item in some for text in list_texts(item)])
            made = {item.digest: rows[2 * place : 2 * place + 2].mean(0) for place, item in enumerate(some)}
            with self._lock:
                self._vectors |= made
            if self._cache is not None:
                self._cache.write({digest: vector.tobytes() for digest, vector in made.items()})

    def select(self, items: Mapping[int, SearchItem]) -> bool:
        """Search these numbered items from now on, or nothing unless all of them have vectors."""
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
        """Encode a query. None while nothing is searched, or if damaged weights yield no numbers for it."""
        if self._matrix is None:
            return None
        try:
            return encode_checked(self._encoder, [query])[0]
        except ValueError:
            return None

    def score(self, query: Array) -> dict[int, float]:
        """Return the cosines of all items."""
        if self._matrix is None:
            return {}
        numbers, matrix = self._matrix
        return dict(zip(numbers, (matrix @ query).tolist(), strict=True))


def encode_checked(encoder: Encoder, texts: Sequence[str]) -> Array:
    """Encode texts; raises `ValueError` if the result isn't finite, so the encoder's weights are damaged."""
    with np.errstate(all="ignore"):
        rows = encoder.encode(texts)
    if not np.isfinite(rows).all():
        raise ValueError("the sentence encoder gives no numbers: its weights are damaged")
    return rows


def list_texts(item: SearchItem) -> tuple[str, str]:
    """List the two texts that represent an item: its heading, and everything."""
    name, server = _split_name(item.name), _split_name(item.server)
    heading = " ".join((item.title or item.description).split()).partition(". ")[0]
    parameters = " ".join(_split_name(parameter.name) for parameter in item.parameters)
    everything = f"{server} {name}. {item.title} {item.description} {parameters}"
    return f"{name}: {heading}"[:_MAX_HEADING_CHARS], " ".join(everything.split())[:_MAX_TEXT_CHARS]


def _split_name(name: str) -> str:
    return _SEPARATOR.sub(" ", HUMP.sub(" ", name)).strip()
