"""Vector cache: a private SQLite file that may be deleted at any time.

A vector's key is the digest of its definition, so only changed definitions are recomputed. A damaged file is replaced,
with a note. All functions block.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

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

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_VECTORS: Final = DatabaseFormat(
    application_id=0x76656373,
    version=1,  # increases with the model, and with the texts vectors are computed from
    upgrades={0: ("CREATE TABLE vectors (digest TEXT NOT NULL UNIQUE, vector BLOB NOT NULL)",)},
)
_MAX_ROWS: Final = 50_000
"""The oldest go first."""
_BATCH_SIZE: Final = 500


def vectors_path() -> str:
    """Return the cache's path, which may not exist.

    Raises:
        OSError: The home directory is unknown.
    """
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
                for start in range(0, len(wanted), _BATCH_SIZE):
                    some = wanted[start : start + _BATCH_SIZE]
                    marks = ", ".join("?" * len(some))
                    rows = database.execute(f"SELECT digest, vector FROM vectors WHERE digest IN ({marks})", some)
                    vectors.update(row for row in rows if isinstance(row[1], bytes) and len(row[1]) == size)
        except sqlite3.Error as exc:
            if is_damage(exc) or isinstance(exc, ForeignDatabaseError):
                self._begin_again(exc)
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

    def _begin_again(self, exc: sqlite3.Error) -> None:
        self.notes.append(Note(f"the search cache {self.path}", f"it is damaged ({exc}), and was begun again"))
        with suppress(OSError):
            remove_database(self.path)

    def _give_up(self, exc: Exception) -> None:
        note = Note(
            f"the search cache {self.path}", f"it cannot be used: {exc}", "what it lacks is made again in each run"
        )
        if note not in self.notes:
            self.notes.append(note)
