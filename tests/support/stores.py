"""Stores of the ledger for tests, and ways to look into their files from outside."""

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

    from induscode.deck.mcp.store import ThreadedStore


def store_file(folder: Path) -> Path:
    """Name the file of a test's store, in a folder that is not there yet."""
    return folder / "state" / "ledger.db"


@asynccontextmanager
async def stored(folder: Path) -> AsyncGenerator[ThreadedStore]:
    """Open a store, and close it."""
    store = await open_store(str(store_file(folder)))
    try:
        yield store
    finally:
        await store.aclose()


def batch(number: int, *, run: str = "r1") -> Callable[[], Batch]:
    """Make a batch with one row and its document."""
    text = f'{{"number":{number}}}'
    address = content_address(text)
    facts = {"definition": address, "tool": f"t{number}"}
    event = Event(run, AT, "pin", facts, f"s{number}")  # type: ignore[arg-type]
    return lambda: Batch((event,), {address: text})


async def filled(folder: Path, rows: int) -> None:
    """Write so many rows into a store, and close it."""
    async with stored(folder) as store:
        for number in range(1, rows + 1):
            store.append(batch(number))
        assert await store.flush()


def outside(path: Path, *statements: str) -> None:
    """Do something to a store's file with nobody of ours looking."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def asked(path: Path, question: str) -> list[tuple[object, ...]]:
    """Ask a store's file something with nobody of ours looking."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(question).fetchall()


def forge(path: Path, *statements: str) -> None:
    """Change rows and make their digests fit, as another version may have written them."""
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
