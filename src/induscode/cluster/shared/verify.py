"""Verification of a cluster's ledgers: every message of the stream, every anchor, and this machine's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from induscode.cluster.contract import ClusterFault
from induscode.cluster.requests import Stream
from induscode.cluster.shared.chains import ChainBook, ChainProblem, ChainState
from induscode.cluster.shared.ledger import take_message

if TYPE_CHECKING:
    from induscode.cluster.broker import Broker
    from induscode.deck.mcp.store import ThreadedStore

_PAGE_ROWS = 4_096
_PAGE_CHARACTERS = 16 * 1024 * 1024


@record(kw_only=True)
class ClusterReport:
    """The result of a verification."""

    chains: Mapping[str, ChainState]
    anchors: int
    messages: int
    problems: Sequence[ChainProblem]
    own_chain: str = ""
    """This machine's chain, or empty if it isn't published."""
    own_rows: int = 0
    """Rows of this machine's file compared with the stream."""
    unpublished: int = 0

    def to_json(self) -> JsonObject:
        """Convert to a JSON object."""
        return {
            "ok": not self.problems,
            "messages": self.messages,
            "anchors": self.anchors,
            "chains": [
                {
                    "chain": chain,
                    "node": state.node,
                    "first_row": state.base.position + 1,
                    "last_row": state.head.position,
                    "digest": state.head.digest,
                    "withheld": state.withheld,
                }
                for chain, state in self.chains.items()
            ],
            "this_machine": {"chain": self.own_chain, "compared": self.own_rows, "unpublished": self.unpublished},
            "problems": [problem.to_json() for problem in self.problems],
        }


async def verify_cluster(broker: Broker, source: ThreadedStore | None) -> ClusterReport:
    """Read and verify the whole ledger stream, and compare it with this machine's ledger.

    Raises:
        ClusterFault: The broker doesn't answer, or the stream is missing.
    """
    settings = broker.settings
    if settings.key is None:
        raise ClusterFault("missing", "the key of the cluster is missing")
    stream = Stream(broker, settings.ledger)
    part = None if source is None else await source.read_part(None, 0, 0)
    book = ChainBook(keep="" if part is None else part.chain)
    state = await stream.read_state()
    if state.first > 1:
        book.report(f"messages 1 to {state.first - 1:,} were removed from the stream", number=1)
    async for number, message in stream.read_range(max(1, state.first), state.last):
        take_message(book, settings, settings.key, number, message)
    book.finish()
    compared = 0
    if part is not None and source is not None:
        compared = await _compare_file(book, source, part.chain)
    is_published = part is not None and part.chain in book.chains
    return ClusterReport(
        chains=book.chains,
        anchors=book.anchors,
        messages=state.messages,
        problems=book.problems,
        own_chain=part.chain if part is not None and is_published else "",
        own_rows=compared,
        unpublished=0 if part is None else part.unpublished,
    )


async def _compare_file(book: ChainBook, source: ThreadedStore, chain: str) -> int:
    """Compare this machine's file with its chain in the stream, and return the number of compared rows."""
    state = book.chains.get(chain)
    part = await source.read_part(None, _PAGE_ROWS, _PAGE_CHARACTERS)
    if part is None:
        book.report("the ledger of this machine cannot be read (indus ledger verify)")
        return 0
    if state is None or state.kept is None:
        if part.published is not None:
            text = f"this machine has published its rows up to {part.published.position:,}, and the stream has none"
            book.report(text, chain=chain)
        return 0
    if part.head.position < state.head.position:
        text = f"the file of this machine ends with row {part.head.position:,}, the stream with {state.head.position:,}"
        book.report(f"{text}: the file is an older copy", chain=chain, row=part.head.position + 1)
    if part.published is not None and part.published.position > state.head.position:
        text = f"this machine has published it, and the stream ends with row {state.head.position:,}"
        book.report(text, chain=chain, row=part.published.position)
    compared, first = 0, state.base.position + 1
    while part is not None and part.rows:
        for row in part.rows:
            index = row.position - first
            if 0 <= index < len(state.kept):
                compared += 1
                if state.kept[index] != row.digest:
                    book.report("the file of this machine has another row", chain=chain, row=row.position)
                    return compared
        part = await source.read_part(part.rows[-1].position, _PAGE_ROWS, _PAGE_CHARACTERS)
    return compared
