"""Ledger stores for tests, and access to their files by a separate SQLite connection."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

from tests.support.deck import AT

from induscode.deck.mcp.store import open_store
from induscode.deck.mcp.store.events import Batch, Event, chain_digest, content_address

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from induscode.deck.mcp.store import LedgerStore


def store_file(folder: Path) -> Path:
    """Return the path of a test's store, in a directory that does not exist yet."""
    return folder / "state" / "ledger.db"


@asynccontextmanager
async def stored(folder: Path) -> AsyncGenerator[LedgerStore]:
    """Open a store, and close it."""
    store = await open_store(str(store_file(folder)))
    try:
        yield store
    finally:
        await store.aclose()


def batch(number: int, *, run: str = "r1") -> Callable[[], Batch]:
    """Build a batch with one row and its document."""
    text = f'{{"number":{number}}}'
    address = content_address(text)
    facts = {"definition": address, "tool": f"t{number}"}
    event = Event(run, AT, "pin", facts, f"s{number}")  # type: ignore[arg-type]
    return lambda: Batch((event,), {address: text})


async def fill_store(folder: Path, rows: int) -> None:
    """Write rows into a store, and close it."""
    async with stored(folder) as store:
        for number in range(1, rows + 1):
            store.append(batch(number))
        assert await store.flush()


def run_sql(path: Path, *statements: str) -> None:
    """Run statements on a store's file with a separate connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def query_file(path: Path, question: str) -> list[tuple[object, ...]]:
    """Query a store's file with a separate connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(question).fetchall()


def forge(path: Path, *statements: str) -> None:
    """Change rows and recompute their digests, as another version may have written them."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
        asked = "SELECT position, digest FROM ends WHERE name = 'base'"
        position, digest = connection.execute(asked).fetchone()
        asked = "SELECT position, run, seq, at, op, subject, facts FROM events ORDER BY position"
        for position, *cells in connection.execute(asked).fetchall():
            digest = chain_digest(digest, position, cells)
            connection.execute("UPDATE events SET digest = ? WHERE position = ?", (digest, position))
        connection.execute("UPDATE ends SET position = ?, digest = ? WHERE name = 'head'", (position, digest))
    path.with_name("pins.jsonl").unlink(missing_ok=True)
