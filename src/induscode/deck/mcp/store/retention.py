"""Retention: old runs leave the store, and a row records what was removed.

Runs leave in the order in which they began, with all rows before the first row of a run that stays. Rows that are still
the latest of their subject (a pin, a listing) are written again at the end first, so pruning removes nothing that
applies. A `prune` row then records how many rows were removed and the digest of the last one, from which the chain goes
on: `indus ledger verify` can still prove every remaining row after years of pruning.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from indusagi.core.clock import iso_utc, now_ms
from induscode.deck.mcp.store.database import ChainEnd, transaction
from induscode.deck.mcp.store.events import Event, PruneResult, document_addresses, filter_texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from induscode.deck.mcp.store.database import LedgerDb
    from induscode.deck.mcp.store.events import Retention, RowOp

_DAY_MS = 86_400_000


def prune(db: LedgerDb, keep: Retention, own_run: str, now: Callable[[], int] = now_ms) -> PruneResult | None:
    """Remove old runs, never the caller's own; None if there is nothing to remove."""
    at_ms = now()
    with transaction(db.connection):
        oldest = iso_utc(at_ms - keep.days * _DAY_MS)
        runs = db.runs()
        recent = {run.run for run in runs[max(0, len(runs) - keep.runs) :]}
        stay = [run.first for run in runs if run.run == own_run or (run.run in recent and run.began >= oldest)]
        cut = min(stay, default=db.end("head").position + 1)
        if cut <= db.end("base").position + 1:
            return None
        seqs = dict(db.seqs)
        result = _remove_rows(db, cut, seqs, own_run, iso_utc(at_ms))
        _remove_documents(db)
    db.seqs = seqs
    return result


def _remove_rows(db: LedgerDb, cut: int, seqs: dict[str, int], own_run: str, at: str) -> PruneResult:
    query = "SELECT count(*), count(DISTINCT run), min(at), max(at) FROM events WHERE position < ?"
    rows, runs, first_at, last_at = db.connection.execute(query, (cut,)).fetchone()
    last = next(db.select("WHERE events.position = ?", (cut - 1,)))
    end = db.end("head")
    where = "JOIN latest USING (position) WHERE events.position < ? ORDER BY events.position"
    for row in tuple(db.select(where, (cut,))):
        end = db.write(Event(own_run, at, cast("RowOp", row.op), row.facts, row.subject), end, seqs)
    removed = Event(
        own_run,
        at,
        "prune",
        {
            "first": db.end("base").position + 1,
            "last": last.position,
            "digest": last.digest,
            "rows": rows,
            "runs": runs,
            "from": first_at,
            "to": last_at,
        },
    )
    end = db.write(removed, end, seqs)
    db.connection.execute("DELETE FROM events WHERE position < ?", (cut,))
    db.set_end("base", ChainEnd(last.position, last.digest))
    db.set_end("head", end)
    return PruneResult(runs, rows)


def _remove_documents(db: LedgerDb) -> None:
    """Remove the documents that no row needs any more."""
    needed: set[str] = set()
    manifests: set[str] = set()
    for row in db.select("WHERE op IN ('enroll', 'pin', 'turn')"):
        addresses = document_addresses(row.op, row.facts)
        needed |= addresses
        manifests |= addresses if row.op == "turn" else set()
    for text in db.documents(manifests).values():
        needed.update(filter_texts(json.loads(text)))
    stored = [address for (address,) in db.connection.execute("SELECT address FROM documents")]
    unused = [(address,) for address in stored if address not in needed]
    db.connection.executemany("DELETE FROM documents WHERE address = ?", unused)
