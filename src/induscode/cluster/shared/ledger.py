"""Publishes a node's ledger, and anchors and verifies all ledgers of the cluster.

A ledger is written to its own file first. The publisher then appends its rows to the replicated stream in order. Each
batch requires the previous message to be the last of its chain, so the broker or the digests catch a second writer, a
gap or a fork. While the broker is away or full, rows wait in the file; memory holds one batch. No caller waits for
any of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.records import record
from indusagi.core.time import iso_utc, now_ms
from induscode.cluster.contract import ClusterFault, ClusterSettings, LostRaceError
from induscode.cluster.jetstream import Stream, StreamMessage
from induscode.cluster.key import ClusterKey, UnsealedError
from induscode.cluster.shared.chains import Anchor, ChainBatch, ChainBook, ChainProblem, ChainState, digest_anchor
from induscode.deck.mcp.store.database import ChainEnd, ChainPart, ChainRow

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.cluster.broker import Broker
    from induscode.deck.mcp.store import LedgerStore

_BATCH_ROWS = 256
_BATCH_CHARACTERS = 512 * 1024
_HEADERS_BYTES = 4_096
"""Message size beyond the content."""
_POLL_INTERVAL_S = 0.4
"""Polling interval for the file, since other processes write to it too."""
ANCHOR_S = 60.0
_MAX_REPORTED = 5
"""Problems reported at once; `indus cluster verify` lists them all."""


class LedgerPublisher:
    """Publishes the rows of one ledger."""

    def __init__(
        self,
        stream: Stream,
        settings: ClusterSettings,
        key: ClusterKey,
        source: LedgerStore,
        on_note: Callable[[str], None],
        largest_bytes: int,
        on_count: Callable[[int], None],
    ) -> None:
        self._on_count = on_count
        """Called with the number of waiting rows when it changes."""
        self._stream = stream
        self._settings = settings
        self._key = key
        self._source = source
        self._on_note = on_note
        self._largest_bytes = largest_bytes - _HEADERS_BYTES
        self._chain = ""
        self._end: ChainEnd | None = None
        """The chain's last row in the stream, or None if unknown or empty."""
        self._last = 0
        """Number of the chain's last message in the stream."""
        self._is_known = False
        self._first = (False, "", "")
        """Whether the next batch starts the chain, its former id, and the reason."""
        self._waiting = -1
        self._is_full = False
        """Whether the last note said the stream is full."""
        self._told_lost = (0, 0)
        """Rows the last note reported as lost: after the first number, up to the second."""

    def forget(self) -> None:
        """Reread the chain's end from the stream, after a reconnect or a rejected message."""
        self._is_known = False

    async def run(self) -> None:
        """Publish rows as they come, until cancelled or something fails."""
        while True:
            try:
                await self.publish_all()
            except (ClusterFault, LostRaceError) as exc:
                self._report_full(is_full=isinstance(exc, ClusterFault) and exc.state == "full")
                self.forget()
                part = await self._source.read_part(None, 0, 0)
                if part is not None:
                    self._report(part.unpublished)
                raise
            self._report_full(is_full=False)
            await asyncio.sleep(_POLL_INTERVAL_S)

    def _report_full(self, *, is_full: bool) -> None:
        if is_full and not self._is_full:
            remedy = "give the account more storage (max_file), then run indus cluster init again"
            self._on_note(f"the brokers take no more rows of the ledgers, which wait in the file: {remedy}")
        elif self._is_full and not is_full:
            self._on_note("the brokers take rows of the ledgers again")
        self._is_full = is_full

    async def publish_all(self) -> None:
        """Publish every row of the file that isn't in the stream.

        Raises `LostRaceError` if another process on this machine publishes the same file.
        """
        while True:
            if not self._is_known:
                await self._find_end()
            after = None if self._end is None else self._end.position
            part = await self._source.read_part(after, _BATCH_ROWS, _BATCH_CHARACTERS)
            if part is None or part.chain != self._chain:
                self._is_known = False
                if part is None:
                    return  # the store's notes say why
                continue
            self._report(part.unpublished)
            if self._end is not None and part.before != self._end:
                await self._renew(part)
                continue
            if self._end is not None and (part.published is None or part.published.position < self._end.position):
                # The broker's last answer was lost, or another process on this machine published.
                await self._source.mark_published(self._chain, self._end)
                self._report(part.head.position - self._end.position)
            if not part.rows:
                return
            assert part.before is not None
            await self._publish(part.before, part.rows)

    def _report(self, waiting: int) -> None:
        if waiting != self._waiting:
            self._waiting = waiting
            self._on_count(waiting)

    async def _find_end(self) -> None:
        """Find the chain's last row in the stream."""
        part = await self._source.read_part(None, 0, 0)
        if part is None:
            raise ClusterFault("ready", "the ledger cannot be read")
        self._chain, self._first = part.chain, (False, "", "")
        subject = self._settings.subject("ledger.chain", part.chain)
        last = await self._stream.read_last(subject)
        done = part.published
        self._last = 0 if last is None else last.number
        self._end = None if last is None else self._read_end(last) or done
        there = 0 if self._end is None else self._end.position
        if self._end is None:
            self._first = (True, *_explain_beginning(part, is_taken=last is not None))
        if done is not None and there < done.position and self._told_lost != (there, done.position):
            self._told_lost = there, done.position
            lost = f"rows {there + 1:,} to {done.position:,} of this node"
            self._on_note(f"the stream of ledgers has lost {lost}; they are published again")
        self._is_known = True

    def _read_end(self, message: StreamMessage) -> ChainEnd | None:
        try:
            row = ChainBatch.parse(open_message(self._key, message)).rows[-1]
        except ValueError as exc:
            self._on_note(f"message {message.number:,} of the stream of ledgers is not of this cluster: {exc}")
            return None
        return ChainEnd(row.position, row.digest)

    async def _renew(self, part: ChainPart) -> None:
        """Start a new chain, because the file doesn't continue the published one."""
        assert self._end is not None
        there = self._end.position
        if there > part.head.position:
            reason = f"its file ends with row {part.head.position:,}, and {there:,} were published: it is an older copy"
        elif there < part.base.position:
            reason = f"its rows {there + 1:,} to {part.base.position:,} were removed before they were published"
        else:
            reason = f"its row {there:,} is not the published one: the file was copied or rewritten"
        former = part.chain
        chain = await self._source.renew_chain(former, there)
        if chain is None:
            raise ClusterFault("ready", "the ledger cannot be written")
        self._on_note(f"the ledger of this node begins a new chain: {reason}")
        self._chain, self._end, self._last = chain, None, 0
        self._first = (True, former, reason)

    async def _publish(self, before: ChainEnd, rows: Sequence[ChainRow]) -> None:
        subject = self._settings.subject("ledger.chain", self._chain)
        is_first, former, reason = self._first
        batch = ChainBatch(
            node=self._settings.node, previous=before, rows=rows, is_first=is_first, former=former, reason=reason
        )
        data = self._key.seal(subject, batch.encode())
        while len(data) > self._largest_bytes:
            # Shrink the batch. A single row that's too large is published as its digest.
            rows = rows[: len(rows) // 2] if len(rows) > 1 else [ChainRow(rows[0].position, rows[0].digest)]
            batch = replace(batch, rows=rows)
            data = self._key.seal(subject, batch.encode())
        end = ChainEnd(rows[-1].position, rows[-1].digest)
        # If an unanswered attempt wrote it, another message is the last one by now.
        self._last = await self._stream.publish(subject, data, expected=self._last)
        self._end, self._first = end, (False, "", "")
        await self._source.mark_published(self._chain, end)


def _explain_beginning(part: ChainPart, *, is_taken: bool) -> tuple[str, str]:
    """Return the former id of a chain missing from the stream, and why it starts; both empty for a new ledger."""
    if is_taken:
        return "", "its subject was taken by a writer without the key"
    if part.published is not None:
        return "", f"the stream had lost its rows up to {part.published.position:,}"
    if part.former is not None:
        return part.former.digest, f"its file did not continue the published row {part.former.position:,}"
    return "", ""


class LedgerAuditor:
    """Verifies all chains as they grow, and anchors them."""

    def __init__(
        self, stream: Stream, settings: ClusterSettings, key: ClusterKey, on_note: Callable[[str], None]
    ) -> None:
        self.book = ChainBook()
        self._stream = stream
        self._settings = settings
        self._key = key
        self._on_note = on_note
        self._next = 0
        """Number of the next message to read; 0 to start at the last anchor."""
        self._reported = 0

    async def run(self) -> None:
        """Verify and anchor periodically, until cancelled or something fails."""
        while True:
            await asyncio.sleep(ANCHOR_S)
            await self.anchor()

    async def anchor(self) -> bool:
        """Read new messages, and anchor them if anything changed. Return whether an anchor was made.

        Raises `LostRaceError` if another node made one at the same time.
        """
        await self.read_new()
        heads = self.book.list_heads()
        if not heads or dict(heads) == dict(self.book.anchored):
            return False
        last = await self._stream.read_last(self._settings.subject("ledger.anchor"))
        anchor = Anchor(
            number=self.book.anchors + 1,
            previous=self.book.last_anchor,
            node=self._settings.node,
            at=iso_utc(now_ms()),
            through=self._next - 1,
            heads=heads,
        )
        data = anchor.encode()
        sealed = self._key.seal(self._settings.subject("ledger.anchor"), data)
        if last is not None and last.number >= self._next:
            return False  # another node was first
        expected = 0 if last is None else last.number
        await self._stream.publish(self._settings.subject("ledger.anchor"), sealed, expected=expected)
        return True

    async def read_new(self) -> None:
        """Verify new messages."""
        if not self._next:
            await self._resume()
        state = await self._stream.read_state()
        async for number, message in self._stream.read_range(max(self._next, state.first), state.last):
            take_message(self.book, self._settings, self._key, number, message)
            self._next = number + 1
        fresh = self.book.problems[self._reported :]
        for problem in fresh[:_MAX_REPORTED]:
            self._on_note(f"the ledgers of the cluster: {problem} (indus cluster verify)")
        if len(fresh) > _MAX_REPORTED:
            self._on_note(f"the ledgers of the cluster: {len(fresh) - _MAX_REPORTED:,} further problems")
        self._reported = len(self.book.problems)

    async def _resume(self) -> None:
        """Start at the last anchor, or at the first message if there's no readable anchor."""
        self._next = 1
        last = await self._stream.read_last(self._settings.subject("ledger.anchor"))
        if last is None:
            return
        try:
            data = open_message(self._key, last)
            anchor = Anchor.parse(data)
        except (UnsealedError, ValueError):
            return
        before = ChainBook.resume(anchor, digest_anchor(data))
        # Reread rows that came between its reading and its writing. The anchor itself is known.
        async for number, message in self._stream.read_range(anchor.through + 1, last.number - 1):
            take_message(before, self._settings, self._key, number, message)
        self.book, self._next = before, last.number + 1


def open_message(key: ClusterKey, message: StreamMessage) -> bytes:
    """Open a message of the ledger stream. Raises `UnsealedError` if it isn't from a node of this cluster."""
    return key.unseal_message("ledger", message.subject, message.data, message.number)


def take_message(
    book: ChainBook, settings: ClusterSettings, key: ClusterKey, number: int, message: StreamMessage | None
) -> None:
    """Open a message of the ledger stream and add it to a book."""
    if message is None:
        book.report("the message was removed from the stream", number=number)
        return
    prefix = settings.subject("ledger.chain", "")
    chain = message.subject.removeprefix(prefix) if message.subject.startswith(prefix) else None
    try:
        data = open_message(key, message)
    except UnsealedError as exc:
        node = "" if chain is None else f" of chain {chain}"
        book.report(f"a message{node} is not of a node of this cluster: {exc}", number=number)
        return
    if chain is not None:
        book.take_batch(chain, data, number)
    else:
        book.take_anchor(data, number)


# -- verification -----------------------------------------------------------------------------


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


async def verify_cluster(broker: Broker, source: LedgerStore | None) -> ClusterReport:
    """Read and verify the whole ledger stream, and compare it with this machine's ledger."""
    settings, key = broker.settings, broker.settings.key
    assert key is not None
    stream = Stream(broker, settings.ledger)
    part = None if source is None else await source.read_part(None, 0, 0)
    book = ChainBook(keep="" if part is None else part.chain)
    state = await stream.read_state()
    if state.first > 1:
        book.report(f"messages 1 to {state.first - 1:,} were removed from the stream", number=1)
    async for number, message in stream.read_range(max(1, state.first), state.last):
        take_message(book, settings, key, number, message)
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


async def _compare_file(book: ChainBook, source: LedgerStore, chain: str) -> int:
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
