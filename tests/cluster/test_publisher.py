"""The publisher of a ledger without a broker: what it makes of the end of its chain in the stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.broker import KEY

from induscode.cluster.contract import ClusterFault, ClusterSettings
from induscode.cluster.jetstream import StreamMessage
from induscode.cluster.shared.chains import ChainBook
from induscode.cluster.shared.ledger import LedgerPublisher, take_message
from induscode.cluster.shared.state import finish
from induscode.deck.mcp.store.database import ChainEnd, ChainPart, ChainRow

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio
START = ChainEnd(0, "0" * 64)
SETTINGS = ClusterSettings(brokers=["nats://127.0.0.1:1"], node="one", key=KEY)


@dataclass
class Stream:
    """A stream in memory; it keeps what is published."""

    messages: list[StreamMessage] = field(default_factory=list[StreamMessage])

    async def read_last(self, subject: str) -> StreamMessage | None:
        return next((one for one in reversed(self.messages) if one.subject == subject), None)

    async def publish(self, subject: str, data: bytes, *, expected: int) -> int:
        last = await self.read_last(subject)
        assert expected == (0 if last is None else last.number)
        self.messages.append(StreamMessage(len(self.messages) + 1, subject, data))
        return len(self.messages)


@dataclass
class Source:
    """A ledger in memory."""

    rows: Sequence[ChainRow]
    published: ChainEnd | None = None
    chain: str = "c1"
    is_readable: bool = True
    former: ChainEnd | None = None

    async def read_part(self, after: int | None, most_rows: int, most_characters: int) -> ChainPart | None:
        if not self.is_readable:
            return None
        ends = [START, *(ChainEnd(row.position, row.digest) for row in self.rows)]
        before = ends[after or 0] if (after or 0) < len(ends) else None
        rows = self.rows[after or 0 :][:most_rows]
        return ChainPart(self.chain, START, ends[-1], self.published, before, self.former, rows)

    async def mark_published(self, chain: str, end: ChainEnd) -> None:
        assert chain == self.chain
        self.published = end

    async def renew_chain(self, former: str, published: int) -> str | None:
        assert former == self.chain
        self.chain, self.published = "c2", None
        return self.chain


def row(position: int, letter: str = "a") -> ChainRow:
    return ChainRow(position, letter * 64)


@dataclass
class Stage:
    """A publisher, what it was given, and what it said."""

    stream: Stream
    source: Source
    notes: list[str] = field(default_factory=list[str])
    counts: list[int] = field(default_factory=list[int])

    def open(self) -> LedgerPublisher:
        stream, source = cast("Any", self.stream), cast("Any", self.source)
        return LedgerPublisher(stream, SETTINGS, KEY, source, self.notes.append, 1_000_000, self.counts.append)


async def test_rows_are_published_once_and_counted() -> None:
    stage = Stage(Stream(), Source([row(1), row(2)]))
    publisher = stage.open()
    await publisher.publish_all()
    await publisher.publish_all()
    assert (len(stage.stream.messages), stage.source.published, stage.notes) == (1, ChainEnd(2, "a" * 64), [])
    assert stage.counts == [2, 0]
    # Another process goes on where this one has ended, and marks what it finds.
    stage.source.rows, stage.source.published = [row(1), row(2), row(3)], None
    await stage.open().publish_all()
    assert (len(stage.stream.messages), stage.source.published) == (2, ChainEnd(3, "a" * 64))
    assert stage.notes == []


async def test_a_message_of_another_cluster_is_told_and_the_chain_begins_again() -> None:
    subject = SETTINGS.subject("ledger.chain", "c1")
    stage = Stage(Stream([StreamMessage(1_234, subject, b"not sealed")]), Source([row(1)]))
    await stage.open().publish_all()
    assert "message 1,234 of the stream of ledgers is not of this cluster" in stage.notes[0]
    assert len(stage.notes) == 1


async def test_rows_that_the_stream_has_lost_are_told_once_and_published_again() -> None:
    stage = Stage(Stream(), Source([row(1), row(2)], ChainEnd(2, "a" * 64)))
    publisher = stage.open()
    await publisher.publish_all()
    publisher.forget()
    await publisher.publish_all()
    assert stage.notes == ["the stream of ledgers has lost rows 1 to 2 of this node; they are published again"]
    assert len(stage.stream.messages) == 1


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([row(1)], "its file ends with row 1, and 2 were published: it is an older copy"),
        ([row(1), row(2, "b")], "its row 2 is not the published one: the file was copied or rewritten"),
    ],
)
async def test_a_file_that_does_not_continue_the_stream_begins_a_new_chain(rows: list[ChainRow], reason: str) -> None:
    stage = Stage(Stream(), Source([row(1), row(2)]))
    publisher = stage.open()
    await publisher.publish_all()
    stage.source.rows = rows
    await publisher.publish_all()
    assert stage.notes == [f"the ledger of this node begins a new chain: {reason}"]
    assert stage.source.chain == "c2"
    assert [one.subject for one in stage.stream.messages] == [
        SETTINGS.subject("ledger.chain", one) for one in ("c1", "c2")
    ]


async def test_a_new_chain_that_another_process_publishes_names_the_former_one() -> None:
    stage = Stage(Stream(), Source([row(1)], chain="c2", former=ChainEnd(2, "c1")))
    await stage.open().publish_all()
    book = ChainBook()
    take_message(book, SETTINGS, KEY, 1, stage.stream.messages[0])
    assert [problem.message for problem in book.problems] == [
        "it replaces chain c1: its file did not continue the published row 2"
    ]


async def test_a_ledger_that_cannot_be_read_is_a_fault() -> None:
    stage = Stage(Stream(), Source([row(1)], is_readable=False))
    with pytest.raises(ClusterFault, match="the ledger cannot be read"):
        await stage.open().publish_all()


async def test_what_is_left_is_published_at_the_end() -> None:
    stage = Stage(Stream(), Source([row(1)]))
    await finish(stage.open().publish_all)
    assert stage.source.published == ChainEnd(1, "a" * 64)
    await finish(Stage(Stream(), Source([row(1)], is_readable=False)).open().publish_all)
