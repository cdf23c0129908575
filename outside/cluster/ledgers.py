"""The ledgers of a run: what each gateway believes to have published, and what the brokers have of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from induscode.cluster.broker import open_broker
from induscode.cluster.shared.ledger import verify_cluster
from induscode.deck.mcp.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from induscode.cluster.contract import ClusterSettings
    from outside.cluster.history import History


async def read_ledgers(history: History, settings: ClusterSettings, files: Sequence[Path]) -> None:
    """Take the ledgers of all gateways into the history: acknowledged rows, rows in the stream, and problems."""
    history.chain = []
    async with open_broker(settings) as broker:
        for file in files:
            store = await open_store(str(file))
            try:
                part = await store.read_part(None, 0, 0)
                report = await verify_cluster(broker, store)
            finally:
                await store.aclose()
            history.broken_chains += [f"{file.parent.name}: {problem}" for problem in report.problems]
            if part is None:
                continue
            if part.published is not None:
                history.acknowledged += _name_rows(part.chain, part.base.position, part.published.position)
            state = report.chains.get(part.chain)
            if state is not None:
                history.chain += _name_rows(part.chain, state.base.position, state.head.position)


def _name_rows(chain: str, base: int, last: int) -> list[str]:
    return [f"row {position} of {chain}" for position in range(base + 1, last + 1)]
