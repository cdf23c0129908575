"""Chains of several ledgers in one stream: whatever is done to a message, the verification names it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.broker import KEY

from induscode.cluster.contract import ClusterSettings
from induscode.cluster.jetstream import StreamMessage
from induscode.cluster.shared.chains import NO_ANCHOR, Anchor, ChainBatch, ChainBook, ChainProblem, digest_anchor
from induscode.cluster.shared.ledger import take_message
from induscode.deck.mcp.store.database import ChainEnd, ChainRow
from induscode.deck.mcp.store.events import GENESIS, chain_digest

SETTINGS = ClusterSettings(brokers=["nats://a"], node="a", key=KEY)
BEGIN = ChainEnd(0, GENESIS)


def make_rows(start: ChainEnd, count: int, word: str = "x", *, withheld: bool = False) -> list[ChainRow]:
    rows: list[ChainRow] = []
    for _ in range(count):
        position = start.position + 1
        cells = ("r", position, "2026-11-17T00:00:00Z", "fault", "", f'{{"word":"{word}"}}')
        start = ChainEnd(position, chain_digest(start.digest, position, cells))
        rows.append(ChainRow(position, start.digest, () if withheld else cells))
    return rows


class StreamScript:
    """Builds the messages of a stream as nodes publish them."""

    def __init__(self) -> None:
        self.messages: list[StreamMessage] = []
        self.heads: dict[str, ChainEnd] = {}
        self._anchors = 0
        self._digest = NO_ANCHOR

    def add(self, subject: str, data: bytes) -> None:
        number = len(self.messages) + 1
        self.messages.append(StreamMessage(number, subject, KEY.seal(subject, data)))

    def publish(self, chain: str, count: int, word: str = "x", *, withheld: bool = False) -> None:
        previous = self.heads.get(chain, BEGIN)
        rows = make_rows(previous, count, word, withheld=withheld)
        batch = ChainBatch(node=f"node-{chain}", previous=previous, rows=rows, is_first=chain not in self.heads)
        self.heads[chain] = ChainEnd(rows[-1].position, rows[-1].digest)
        self.add(SETTINGS.subject("ledger.chain", chain), batch.encode())

    def anchor(self) -> None:
        self._anchors += 1
        anchor = Anchor(
            number=self._anchors,
            previous=self._digest,
            node="a",
            at="now",
            through=len(self.messages),
            heads=dict(self.heads),
        )
        data = anchor.encode()
        self._digest = digest_anchor(data)
        self.add(SETTINGS.subject("ledger.anchor"), data)


def two_chains() -> StreamScript:
    script = StreamScript()
    script.publish("one", 3)
    script.publish("two", 2, withheld=True)
    script.publish("one", 1)
    script.anchor()
    script.publish("two", 2)
    script.publish("one", 2)
    script.anchor()
    return script


def verify(messages: list[StreamMessage | None]) -> list[str]:
    """Verify messages that the stream has under the numbers 1, 2, 3 and so on."""
    book = ChainBook()
    for number, message in enumerate(messages, 1):
        take_message(book, SETTINGS, KEY, number, message)
    book.finish()
    return [str(problem) for problem in book.problems]


def test_whole_chains_are_right() -> None:
    script = two_chains()
    book = ChainBook()
    for message in script.messages:
        take_message(book, SETTINGS, KEY, message.number, message)
    book.finish()
    assert book.problems == []
    assert book.list_heads() == script.heads
    assert (book.chains["two"].head.position, book.chains["two"].withheld) == (4, 2)


@given(st.integers(0, 6), st.integers(0, 6))
def test_every_change_of_a_message_is_named(at: int, other: int) -> None:
    messages = [*two_chains().messages]
    assert verify([*messages[:at], None, *messages[at + 1 :]])  # removed, the number stays
    if at < len(messages) - 1:
        assert verify([*messages[:at], *messages[at + 1 :]])  # removed without a trace
    assert verify([*messages[: at + 1], messages[at], *messages[at + 1 :]])  # repeated at once
    assert verify([*messages, messages[at]])  # repeated at the end
    damaged = bytearray(messages[at].data)
    damaged[-1] ^= 1
    assert verify([*messages[:at], replace(messages[at], data=bytes(damaged)), *messages[at + 1 :]])
    foreign = replace(messages[at], subject=messages[other].subject)
    if foreign.subject != messages[at].subject:
        assert verify([*messages[:at], foreign, *messages[at + 1 :]])  # moved to another chain
    if at != other and messages[at].subject == messages[other].subject:
        swapped = [*messages]
        swapped[at], swapped[other] = swapped[other], swapped[at]
        assert verify([*swapped])


def test_problem_is_json_with_its_place() -> None:
    problem = ChainProblem(message="m", chain="c", node="n", row=2, number=3)
    assert problem.to_json() == {"node": "n", "chain": "c", "row": 2, "stream_sequence": 3, "message": "m"}
    assert (str(problem), str(ChainProblem(message="m"))) == ("node 'n', chain c, row 2, message 3: m", "m")


def test_problems_say_where() -> None:
    script = two_chains()
    messages = script.messages
    # The end of chain `one`: only the second anchor knows of it.
    assert verify([*messages[:5], messages[6]]) == [
        "node 'node-one', chain one, row 6: anchor 2 has seen this row, and the stream ends with row 4"
    ]
    assert verify([None, *messages[1:]])[:2] == [
        "message 1: the message was removed from the stream",
        "node 'node-one', chain one, row 1, message 3: rows 1 to 3 are missing",
    ]
    subject = SETTINGS.subject("ledger.chain", "one")
    forked = ChainBatch(node="node-one", previous=script.heads["one"], rows=make_rows(BEGIN, 7, "y")[6:])
    fork = StreamMessage(8, subject, KEY.seal(subject, forked.encode()))
    assert verify([*messages, fork]) == [
        "node 'node-one', chain one, row 7, message 8: it is not the row that was written"
    ]
    other = make_rows(BEGIN, 6, "y")
    rewritten = ChainBatch(node="node-one", previous=ChainEnd(6, other[-1].digest), rows=make_rows(BEGIN, 7, "y")[6:])
    assert (
        "forked or rewritten"
        in verify([*messages, StreamMessage(8, subject, KEY.seal(subject, rewritten.encode()))])[0]
    )


def test_chain_that_replaces_another_is_named_and_goes_on_to_be_anchored() -> None:
    script, book = StreamScript(), ChainBook()
    rows = make_rows(BEGIN, 2)
    reason = "the file was damaged"
    batch = ChainBatch(node="n", previous=BEGIN, rows=rows, is_first=True, former="old", reason=reason)
    script.add(SETTINGS.subject("ledger.chain", "new"), batch.encode())
    take_message(book, SETTINGS, KEY, 1, script.messages[0])
    (problem,) = book.problems
    assert str(problem) == f"node 'n', chain new, message 1: it replaces chain old: {reason}"
    assert book.list_heads() == {"new": ChainEnd(2, rows[-1].digest)}


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"rows":[]}', b'{"rows":[[1]],"previous":[0,"x"]}', b'{"rows":[[1,2]]}', b"9" * 5_000]
)
def test_sealed_nonsense_is_named(data: bytes) -> None:
    for subject in (SETTINGS.subject("ledger.chain", "one"), SETTINGS.subject("ledger.anchor")):
        assert "cannot be read" in verify([StreamMessage(1, subject, KEY.seal(subject, data))])[0]
