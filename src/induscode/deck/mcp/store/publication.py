"""Publishes a ledger's chain to other machines: tracks the published rows and reads the following ones.

A chain has a random id, stored with its ends in the file. A file that doesn't continue the rows published under its id
(restored from a backup, or copied to another machine) gets a new one.

Runs of a node are published in full. The user's other runs in the same file are published as digests only: they stay
provable, but their content stays on the machine.
"""

from __future__ import annotations

import secrets
from dataclasses import field
from typing import TYPE_CHECKING

from indusagi.core.records import record
from indusagi.core.sqlite import transaction
from induscode.deck.mcp.store.database import ChainEnd, check_row, parse_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.deck.mcp.store.database import LedgerDb

CHAIN = "chain"
"""The end that holds the chain's id. Its position counts the former ids."""
PUBLISHED = "published"
"""The end of the rows other machines have confirmed."""
FORMER = "former"
"""The end that holds the previous id and its number of published rows."""


@record
class ChainRow:
    """One row of a chain. Without cells, the row is withheld and only its digest is known."""

    position: int
    digest: str
    cells: Sequence[str | int] = ()
    """Run, number in the run, time, op, subject and facts, as digested."""


@record
class ChainPart:
    """Rows of a ledger after a position, with facts about the whole chain."""

    chain: str
    """Its id."""
    base: ChainEnd
    head: ChainEnd
    published: ChainEnd | None
    before: ChainEnd | None
    """The row before the first of these, or `None` if the file doesn't have it."""
    former: ChainEnd | None = None
    """The chain's previous id (as the digest) and the last row published under it."""
    rows: Sequence[ChainRow] = field(default=())

    @property
    def unpublished(self) -> int:
        """The number of rows still to publish."""
        done = self.base.position if self.published is None else self.published.position
        return max(0, self.head.position - max(done, self.base.position))


def read_part(db: LedgerDb, after: int | None, most_rows: int, most_characters: int) -> ChainPart:
    """Read up to so many rows after a position, or after the file's base (`None`)."""
    chain = _find_chain(db)
    base, head = db.end("base"), db.end("head")
    start = base.position if after is None else after
    before = base if start == base.position else None
    if base.position < start <= head.position:
        cells = db.connection.execute("SELECT digest FROM events WHERE position = ?", (start,)).fetchone()
        before = None if cells is None else ChainEnd(start, str(cells[0]))
    rows: list[ChainRow] = []
    if before is not None and most_rows:
        query = (
            "SELECT position, run, seq, at, op, subject, facts, digest FROM events "
            "WHERE position > ? ORDER BY position LIMIT ?"
        )
        shared: dict[str, bool] = {}
        length = 0
        for found in db.connection.execute(query, (start, most_rows)):
            check_row(found)
            position, *cells, digest = found
            run = str(cells[0])
            if run not in shared:
                shared[run] = _is_of_node(db, run)
            row = ChainRow(position, digest, tuple(cells) if shared[run] else ())
            length += sum(len(str(cell)) for cell in row.cells) + len(digest)
            if rows and length > most_characters:
                break
            rows.append(row)
    return ChainPart(chain, base, head, _find_end(db, PUBLISHED), before, _find_end(db, FORMER), rows)


def _is_of_node(db: LedgerDb, run: str) -> bool:
    cells = db.connection.execute(
        "SELECT position, facts FROM events WHERE run = ? AND op = 'run' ORDER BY seq LIMIT 1", (run,)
    ).fetchone()
    return cells is not None and bool(parse_facts(str(cells[1]), cells[0]).get("node"))


def _find_end(db: LedgerDb, name: str) -> ChainEnd | None:
    cells = db.connection.execute("SELECT position, digest FROM ends WHERE name = ?", (name,)).fetchone()
    return None if cells is None else ChainEnd(int(cells[0]), str(cells[1]))


def _find_chain(db: LedgerDb) -> str:
    end = _find_end(db, CHAIN)
    if end is None:
        with transaction(db.connection):
            end = _find_end(db, CHAIN)
            if end is None:  # no other process got there first
                end = ChainEnd(0, secrets.token_hex(8))
                db.set_end(CHAIN, end)
    return end.digest


def mark_published(db: LedgerDb, chain: str, end: ChainEnd) -> None:
    """Store the end of the published rows, unless the chain's id has changed."""
    with transaction(db.connection):
        known = _find_end(db, CHAIN)
        if known is not None and known.digest == chain:
            db.set_end(PUBLISHED, end)


def renew_chain(db: LedgerDb, former: str, published: int) -> str:
    """Replace the chain's id if it's still the former one, recording its published rows, and return the current id."""
    with transaction(db.connection):
        known = _find_end(db, CHAIN)
        if known is not None and known.digest != former:
            return known.digest
        fresh = ChainEnd(0 if known is None else known.position + 1, secrets.token_hex(8))
        db.set_end(CHAIN, fresh)
        db.set_end(FORMER, ChainEnd(published, former))
        db.connection.execute("DELETE FROM ends WHERE name = ?", (PUBLISHED,))
        return fresh.digest
