"""How much the store keeps, and how what is beyond that goes without going unnoticed.

Runs leave in the order in which they came, and with them the rows that stand before the first row
of a run that stays. One row is written in their stead: how many there were, of which time, and the
digest of the last of them, from which the chain goes on. What is still the last word on a subject
(a pin, a listing) is written down anew first, so pruning forgets nothing that is in force.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from indusagi.core.clock import iso_utc, now_ms
from induscode.deck.mcp.store.database import transaction
from induscode.deck.mcp.store.events import Event, PruneResult, document_addresses, filter_texts
from induscode.deck.mcp.store.file import ChainEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from induscode.deck.mcp.store.database import LedgerDb
    from induscode.deck.mcp.store.events import Retention, RowOp

_DAY_MS = 86_400_000


def prune(
    db: LedgerDb, keep: Retention, own_run: str, now: Callable[[], int] = now_ms
) -> tuple[PruneResult, ChainEnd] | None:
    """Take out old runs, never the caller's own; None if there are none."""
    at_ms = now()
    with transaction(db.connection):
        cut = _cut(db, keep, own_run, iso_utc(at_ms - keep.days * _DAY_MS))
        base = db.end("base")
        if cut <= base.position + 1:
            return None
        seqs = dict(db.seqs)
        pruned, end = _replaced(db, base, cut, seqs, own_run, iso_utc(at_ms))
        _drop_documents(db)
    db.seqs = seqs
    return pruned, end


def _cut(db: LedgerDb, keep: Retention, own_run: str, oldest: str) -> int:
    """Give the position of the first row that stays."""
    runs = db.runs()
    recent = {run.run for run in runs[max(0, len(runs) - keep.runs) :]}
    stay = [run.first for run in runs if run.run == own_run or (run.run in recent and run.began >= oldest)]
    return min(stay, default=db.end("head").position + 1)


def _replaced(
    db: LedgerDb, base: ChainEnd, cut: int, seqs: dict[str, int], own_run: str, at: str
) -> tuple[PruneResult, ChainEnd]:
    connection = db.connection
    asked = "SELECT count(*), count(DISTINCT run), min(at), max(at) FROM events WHERE position < ?"
    rows, runs, first_at, last_at = connection.execute(asked, (cut,)).fetchone()
    last = next(db.select("WHERE events.position = ?", (cut - 1,)))
    end = db.end("head")
    where = "JOIN latest USING (position) WHERE events.position < ? ORDER BY events.position"
    for row in tuple(db.select(where, (cut,))):
        again = Event(own_run, at, cast("RowOp", row.op), row.facts, row.subject)
        end = db.write(again, end, seqs)
    record = Event(
        own_run,
        at,
        "prune",
        {
            "first": base.position + 1,
            "last": last.position,
            "digest": last.digest,
            "rows": rows,
            "runs": runs,
            "from": first_at,
            "to": last_at,
        },
    )
    end = db.write(record, end, seqs)
    connection.execute("DELETE FROM events WHERE position < ?", (cut,))
    db.set_end("base", ChainEnd(last.position, last.digest))
    db.set_end("head", end)
    return PruneResult(runs, rows), end


def _drop_documents(db: LedgerDb) -> None:
    """Take out the documents that no row needs any more."""
    needed: set[str] = set()
    manifests: set[str] = set()
    for row in db.select("WHERE op IN ('enroll', 'pin', 'turn')"):
        found = document_addresses(row.op, row.facts)
        needed |= found
        manifests |= found if row.op == "turn" else set()
    for text in db.documents(manifests).values():
        needed.update(filter_texts(json.loads(text)))
    there = [address for (address,) in db.connection.execute("SELECT address FROM documents")]
    gone = [(address,) for address in there if address not in needed]
    db.connection.executemany("DELETE FROM documents WHERE address = ?", gone)
