"""Chains of ledgers in one stream, and the anchors over them, as pure values.

Every node publishes its ledger's rows in order, under the id of its chain. An **anchor** records up to which row its
author has verified each chain, plus the digest of the previous anchor. A chain that loses its last rows, or all of
them, no longer reaches its anchors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from induscode.deck.mcp.store.database import ChainEnd, ChainRow
from induscode.deck.mcp.store.events import chain_digest

_CELLS = (str, int, str, str, str, str)
_END = 2
"""Position and digest."""
_MAX_PROBLEMS = 10_000
"""A writer without the key can add any number of messages."""
NO_ANCHOR = "0" * 64
"""Digest preceding the first anchor."""


@record(kw_only=True)
class ChainBatch:
    """Rows of one chain published together."""

    node: str
    previous: ChainEnd
    rows: Sequence[ChainRow]
    is_first: bool = False
    """Whether the chain starts here."""
    former: str = ""
    """The file's previous chain."""
    reason: str = ""
    """Why a chain published before starts again."""

    def encode(self) -> bytes:
        """Encode it for the stream."""
        rows: list[JsonValue] = [[row.position, row.digest, *row.cells] for row in self.rows]
        value: JsonObject = {"node": self.node, "previous": _encode_end(self.previous), "rows": rows}
        if self.is_first:
            value["first"] = {"former": self.former, "reason": self.reason}
        return compact_json(value).encode()

    @classmethod
    def parse(cls, data: bytes) -> ChainBatch:
        """Parse the output of `encode`, or raise `ValueError`."""
        value = _parse_object(data)
        rows = value.get("rows")
        first = value.get("first")
        if not isinstance(rows, list) or not rows:
            raise ValueError("it has no rows")
        facts = first if is_json_object(first) else {}
        return cls(
            node=str(value.get("node")),
            previous=_parse_end(value.get("previous")),
            rows=[_parse_row(row) for row in rows],
            is_first=first is not None,
            former=str(facts.get("former", "")),
            reason=str(facts.get("reason", "")),
        )


@record(kw_only=True)
class Anchor:
    """How far one node verified each chain."""

    number: int
    previous: str
    """Digest of the previous anchor."""
    node: str
    at: str
    through: int
    """Number of the last message read."""
    heads: Mapping[str, ChainEnd]

    def encode(self) -> bytes:
        """Encode it for the stream."""
        heads: JsonObject = {chain: _encode_end(end) for chain, end in sorted(self.heads.items())}
        value: JsonObject = {"number": self.number, "previous": self.previous, "node": self.node, "at": self.at}
        return compact_json({**value, "through": self.through, "heads": heads}).encode()

    @classmethod
    def parse(cls, data: bytes) -> Anchor:
        """Parse the output of `encode`, or raise `ValueError`."""
        value = _parse_object(data)
        number, through, heads = value.get("number"), value.get("through"), value.get("heads")
        if not isinstance(number, int) or not isinstance(through, int) or not is_json_object(heads):
            raise ValueError("it is no anchor")
        return cls(
            number=number,
            previous=str(value.get("previous")),
            node=str(value.get("node")),
            at=str(value.get("at")),
            through=through,
            heads={chain: _parse_end(end) for chain, end in heads.items()},
        )


def digest_anchor(data: bytes) -> str:
    """Digest an encoded anchor."""
    return hashlib.sha256(data).hexdigest()


@record(kw_only=True)
class ChainProblem:
    """A difference from what was published."""

    message: str
    chain: str = ""
    node: str = ""
    row: int = 0
    number: int = 0
    """Number of the message in the stream."""

    def __str__(self) -> str:
        where = [f"node {self.node!r}" if self.node else "", f"chain {self.chain}" if self.chain else ""]
        where.append(f"row {self.row:,}" if self.row else "")
        where.append(f"message {self.number:,}" if self.number else "")
        text = ", ".join(filter(None, where))
        return f"{text}: {self.message}" if text else self.message

    def to_json(self) -> JsonObject:
        """Convert to a JSON object."""
        return {
            "node": self.node,
            "chain": self.chain,
            "row": self.row,
            "stream_sequence": self.number,
            "message": self.message,
        }


@dataclass(slots=True)
class ChainState:
    """State of one chain after the messages so far."""

    node: str
    base: ChainEnd
    head: ChainEnd
    withheld: int = 0
    is_broken: bool = False
    recent: dict[int, str] = field(default_factory=dict[int, str])
    """Digests of rows since the last anchor."""
    kept: list[str] | None = None
    """Digests of all rows, for the chain to compare with a file."""


class ChainBook:
    """Verifies a stream's messages in order, and collects problems."""

    def __init__(self, keep: str = "") -> None:
        """Start empty. Collects the digests of all rows of the chain `keep`."""
        self.chains: dict[str, ChainState] = {}
        self.anchors = 0
        self.last_anchor = NO_ANCHOR
        self.anchored: Mapping[str, ChainEnd] = {}
        """Heads of the last anchor."""
        self.problems: list[ChainProblem] = []
        self._keep = keep
        self._owed: dict[tuple[str, int], tuple[str, int]] = {}
        """Rows an anchor names that haven't come yet: digest, and number of the anchor."""

    @classmethod
    def resume(cls, anchor: Anchor, digest: str) -> ChainBook:
        """Start from an anchor's verified state."""
        book = cls()
        book.anchors, book.last_anchor, book.anchored = anchor.number, digest, anchor.heads
        for chain, end in anchor.heads.items():
            book.chains[chain] = ChainState("", end, end, recent={end.position: end.digest})
        return book

    def list_heads(self) -> Mapping[str, ChainEnd]:
        """List the heads of intact chains."""
        return {chain: state.head for chain, state in self.chains.items() if not state.is_broken}

    def report(self, message: str, *, chain: str = "", row: int = 0, number: int = 0, breaks: bool = True) -> None:
        """Add a problem. A broken chain isn't anchored any more."""
        state = self.chains.get(chain)
        if state is not None and breaks:
            state.is_broken = True
        node = "" if state is None else state.node
        if len(self.problems) == _MAX_PROBLEMS:
            self.problems.append(ChainProblem(message="there is more; further problems are not listed"))
        if len(self.problems) > _MAX_PROBLEMS:
            return
        self.problems.append(ChainProblem(message=message, chain=chain, node=node, row=row, number=number))

    def take_batch(self, chain: str, data: bytes, number: int) -> None:
        """Add a message with a chain's rows."""
        try:
            batch = ChainBatch.parse(data)
        except ValueError as exc:
            self.report(f"it cannot be read: {exc}", chain=chain, number=number)
            return
        state = self.chains.get(chain)
        if state is None or batch.is_first:
            state = self._begin(chain, state, batch, number)
        if batch.node and not state.node:
            state.node = batch.node
        head, previous = state.head, batch.previous
        if previous.position > head.position:
            text = f"rows {head.position + 1:,} to {previous.position:,} are missing"
            self.report(text, chain=chain, row=head.position + 1, number=number)
            state.head = previous
        elif previous.position == head.position and previous.digest != head.digest:
            text = f"it follows another row {head.position:,} than the one before: the chain was forked or rewritten"
            self.report(text, chain=chain, row=head.position, number=number)
            state.head = previous
        elif previous.position < head.position:
            last = batch.rows[-1].position
            text = f"rows {previous.position + 1:,} to {last:,} are there again: the message was repeated or inserted"
            self.report(text, chain=chain, row=previous.position + 1, number=number)
        for row in batch.rows:
            if row.position > state.head.position:
                self._take_row(chain, state, row, number)
            elif (known := state.recent.get(row.position)) is not None and known != row.digest:
                self.report("there are two versions of it", chain=chain, row=row.position, number=number)

    def _begin(self, chain: str, state: ChainState | None, batch: ChainBatch, number: int) -> ChainState:
        if state is not None and not batch.reason:
            self.report(
                "the chain begins a second time: the message was repeated or inserted", chain=chain, number=number
            )
            return state
        fresh = ChainState(batch.node, batch.previous, batch.previous)
        fresh.kept = list[str]() if chain == self._keep else None
        self.chains[chain] = fresh
        if not batch.is_first:
            text = f"rows 1 to {batch.previous.position:,} are missing"
            self.report(text, chain=chain, row=1, number=number)
        elif batch.reason:
            text = f"it replaces chain {batch.former}: {batch.reason}" if batch.former else batch.reason
            # The following rows are intact.
            self.report(text, chain=chain, number=number, breaks=False)
        return fresh

    def _take_row(self, chain: str, state: ChainState, row: ChainRow, number: int) -> None:
        head = state.head
        if row.position != head.position + 1:
            text = f"rows {head.position + 1:,} to {row.position - 1:,} are missing"
            self.report(text, chain=chain, row=head.position + 1, number=number)
        elif row.cells and chain_digest(head.digest, row.position, row.cells) != row.digest:
            self.report("it is not the row that was written", chain=chain, row=row.position, number=number)
        owed = self._owed.pop((chain, row.position), None)
        if owed is not None and owed[0] != row.digest:
            self.report(f"anchor {owed[1]:,} has another row", chain=chain, row=row.position, number=number)
        state.head = ChainEnd(row.position, row.digest)
        state.recent[row.position] = row.digest
        state.withheld += not row.cells
        if state.kept is not None:
            state.kept.append(row.digest)

    def take_anchor(self, data: bytes, number: int) -> None:
        """Add a message with an anchor."""
        try:
            anchor = Anchor.parse(data)
        except ValueError as exc:
            self.report(f"an anchor cannot be read: {exc}", number=number)
            return
        if anchor.number <= self.anchors:
            self.report(f"anchor {anchor.number:,} is there again: the message was repeated or inserted", number=number)
            return
        if anchor.number != self.anchors + 1 or anchor.previous != self.last_anchor:
            self.report(f"anchor {anchor.number:,} does not follow anchor {self.anchors:,}", number=number)
        self.anchors, self.last_anchor, self.anchored = anchor.number, digest_anchor(data), anchor.heads
        for chain, end in anchor.heads.items():
            state = self.chains.get(chain)
            if state is None or state.head.position < end.position:
                self._owed[chain, end.position] = end.digest, anchor.number
            elif state.recent.get(end.position, end.digest) != end.digest:
                text = f"anchor {anchor.number:,} of node {anchor.node!r} has another row"
                self.report(text, chain=chain, row=end.position, number=number)
            if state is not None:
                state.recent = {at: digest for at, digest in state.recent.items() if at >= end.position}

    def finish(self) -> None:
        """Report rows named by anchors and missing from the stream."""
        for (chain, position), (_, anchor) in sorted(self._owed.items()):
            state = self.chains.get(chain)
            there = "has no row of it" if state is None else f"ends with row {state.head.position:,}"
            self.report(f"anchor {anchor:,} has seen this row, and the stream {there}", chain=chain, row=position)
        self._owed.clear()


def _encode_end(end: ChainEnd) -> JsonValue:
    return [end.position, end.digest]


def _parse_end(value: JsonValue) -> ChainEnd:
    position, digest = value if isinstance(value, list) and len(value) == _END else (None, None)
    if isinstance(position, int) and isinstance(digest, str):
        return ChainEnd(position, digest)
    raise ValueError("it names no row")


def _parse_row(value: JsonValue) -> ChainRow:
    if isinstance(value, list) and len(value) in {_END, _END + len(_CELLS)}:
        end, cells = _parse_end(value[:_END]), [cell for cell in value[_END:] if isinstance(cell, str | int)]
        if [*map(type, cells)] in ([], [*_CELLS]):
            return ChainRow(end.position, end.digest, tuple(cells))
    raise ValueError("a row of it has another form")


def _parse_object(data: bytes) -> JsonObject:
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ValueError("it is no JSON") from exc
    if not is_json_object(value):
        raise ValueError("it is no object")
    return value
