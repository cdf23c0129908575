"""Channels in memory: what the other end didn't send, or sent before, is dropped; what was lost ends the channel."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.broker import KEY
from tests.support.transports import LoopTime, settled

from induscode.cluster.channel import GRACE_S, Channel, ChannelTable
from induscode.cluster.contract import ClusterSettings
from induscode.cluster.key import ChannelCipher, ClusterKey, ReplayGuard, Seal, is_opening

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd

pytestmark = pytest.mark.anyio
SEAL = Seal.of_cluster(KEY)
SUBJECT = "indus.call.key.1"
UNHEARD = {"Status": "503"}


class Wire:
    """A broker in memory with two nodes: a test decides what arrives."""

    def __init__(self, seal: Seal = SEAL) -> None:
        self.settings = ClusterSettings(brokers=["nats://127.0.0.1:1"], node="one")
        self.payload_bytes = 1_000
        self.sent: list[Any] = []
        """Everything that either node has sent."""
        self.tables = [ChannelTable(cast("Any", self), name, seal) for name in ("a", "b")]
        self.got: list[list[Any]] = [[], []]
        self.ends: list[list[TransportEnd]] = [[], []]
        self.channel = self.tables[0].open(SUBJECT, SEAL)
        self._listen(self.channel, 0)
        self.accepted: dict[str, Channel] = {}

    def _listen(self, channel: Channel, end: int) -> None:
        channel.attach(lambda data: self.got[end].append(json.loads(cast("bytes", data))), self.ends[end].append)

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        self.sent.append(SimpleNamespace(subject=subject, data=data, reply=reply, headers=None))

    async def arrive(self, message: Any) -> None:
        """Let a message arrive at the node that listens to its subject."""
        if message.subject != SUBJECT:
            table = self.tables[1] if message.subject.startswith("indus.inbox.b.") else self.tables[0]
            await table.receive(message)
            return
        channel = self.accepted.get(message.reply)
        if channel is None and is_opening(message.data):
            channel = self.tables[1].accept(message)
            if channel is not None:
                self.accepted[message.reply] = channel
                self._listen(channel, 1)
        if channel is not None:
            await channel.receive(message)
        elif not is_opening(message.data):
            await self.tables[1].refuse(message)

    async def flow(self) -> None:
        """Let everything arrive, once and in order."""
        while True:
            await settled()
            if not self.sent:
                return
            await self.arrive(self.sent.pop(0))

    async def close(self) -> None:
        for table in self.tables:
            await table.close()


async def test_frames_of_any_size_arrive_in_both_directions() -> None:
    wire = Wire()
    for number in range(3):
        wire.channel.send({"n": number, "text": "x" * 3_000 * number})
    await wire.flow()
    assert [frame["n"] for frame in wire.got[1]] == [0, 1, 2]
    wire.accepted[wire.channel._inbox].send({"back": "y" * 5_000})
    await wire.flow()
    assert [len(frame["back"]) for frame in wire.got[0]] == [5_000]
    await wire.close()


async def test_finding_r2_a_message_that_is_repeated_reflected_moved_or_changed_is_dropped() -> None:
    wire = Wire()
    recorded: list[Any] = []
    for number in range(3):
        wire.channel.send({"n": number})
    await settled()
    recorded += wire.sent
    await wire.flow()
    other = wire.accepted[wire.channel._inbox]
    other.send({"back": 1})
    await settled()
    recorded += wire.sent
    await wire.flow()
    second = wire.tables[0].open(SUBJECT, SEAL)
    second.send({"second": True})
    await wire.flow()
    subjects = {message.subject for message in recorded} | {second._inbox}
    replies = {message.reply for message in recorded} | {second._inbox, "indus.inbox.x.9-9", ""}
    for message in recorded:
        for subject in sorted(subjects):
            for reply in sorted(replies):
                await wire.arrive(SimpleNamespace(subject=subject, data=message.data, reply=reply, headers=None))
        for place in range(len(message.data)):  # a bit of the head, of the content, of the tag
            data = bytearray(message.data)
            data[place] ^= 1
            await wire.arrive(SimpleNamespace(**{**vars(message), "data": bytes(data)}))
    for data in (b"", b"F", b"F\0\0\0\1{}", b"E\0\0\0\0{}", b"X{}", b"X" + SEAL.seal("elsewhere", {"unheard": True})):
        for subject in sorted(subjects):
            await wire.arrive(SimpleNamespace(subject=subject, data=data, reply=wire.channel._inbox, headers=None))
    await wire.flow()
    assert wire.got == [[{"back": 1}], [{"n": 0}, {"n": 1}, {"n": 2}, {"second": True}]]
    assert wire.ends == [[], []]
    wire.channel.send({"n": 3})  # honest traffic goes on
    await wire.flow()
    assert wire.got[1][-1] == {"n": 3}
    await wire.close()


@pytest.mark.parametrize("reply", ["$KV.indus_leases.x-1", "$JS.API.STREAM.DELETE.x", "indus.beat", "_INBOX.x", ""])
async def test_a_refusal_goes_to_no_other_subject_than_an_inbox(reply: str) -> None:
    wire = Wire()
    await wire.tables[1].refuse(cast("Any", SimpleNamespace(subject=SUBJECT, reply=reply, data=b"")))
    assert wire.sent == []
    await wire.close()


async def test_a_channel_that_was_closed_cannot_be_opened_again_by_its_first_messages() -> None:
    wire = Wire()
    wire.channel.send({"pay": 1})
    await settled()
    recorded = [*wire.sent]
    await wire.flow()
    wire.accepted.pop(wire.channel._inbox).finish("done")
    await wire.flow()
    for message in recorded * 2:
        await wire.arrive(message)
    assert wire.accepted == {}
    assert wire.got[1] == [{"pay": 1}]
    await wire.close()


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_lost_or_late_message_ends_the_channel_and_nothing_comes_after_a_gap(lost: int) -> None:
    wire = Wire()
    wire.channel.send({"n": 0})
    await wire.flow()
    for number in range(1, 4):
        wire.channel.send({"n": number})
    await settled()
    messages = [*wire.sent]
    wire.sent.clear()
    messages.append(messages.pop(lost))
    for message in messages:
        await wire.arrive(message)
    assert wire.got[1] == [{"n": 0}, {"n": 1}][: lost + 1]
    assert "lost a message" in wire.ends[1][0].message
    await wire.flow()
    assert len(wire.ends[0]) == 1  # the other end learns it
    await wire.close()


async def test_a_forged_word_that_nobody_listens_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    time, wire = LoopTime(monkeypatch), Wire()
    wire.channel.send({"n": 0})
    await wire.flow()
    forged = SimpleNamespace(subject=wire.channel._inbox, data=b"", reply="", headers=UNHEARD)
    for _ in range(3):
        await wire.arrive(forged)
        await wire.flow()  # the other end answers the probe
        await time.passes(2 * GRACE_S)
    assert wire.ends == [[], []]
    await wire.arrive(forged)
    wire.sent.clear()  # the other end is really gone
    await time.passes(2 * GRACE_S)
    assert wire.ends[0][0].message == "is not there any more"
    assert wire.channel.is_unheard
    await wire.close()


async def test_an_end_with_another_key_opens_nothing() -> None:
    wire = Wire(Seal.of_cluster(ClusterKey(bytes(32))))
    wire.channel.send({"n": 0})
    await wire.flow()
    assert wire.accepted == {}
    assert wire.got == [[], []]
    await wire.close()


def test_numbers_of_a_sender_count_once_in_any_order_within_a_window() -> None:
    guard = ReplayGuard()
    for number in (1, 3, 2, 700, 5, 2_000):
        assert guard.take("a", number)
        assert not guard.take("a", number)
    assert guard.take("a", 1_999)
    assert not guard.take("a", 6)  # long before the window: it may have come
    assert guard.take("b", 1)


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02\xff", b"\x02\x03ab", b"{}", b"\x01" + bytes(40), b"\x02\x00"])
def test_what_is_no_envelope_opens_as_nothing(data: bytes) -> None:
    assert SEAL.open("place", data) is None


async def test_first_node_that_answers_is_the_other_end_for_good() -> None:
    connecting = ChannelCipher(SEAL, SUBJECT, "inbox")
    first, second = (ChannelCipher(SEAL, SUBJECT, "inbox", inbox) for inbox in ("first", "second"))
    assert connecting.decrypt(first.encrypt(b"d", b"x"), "first") == (b"d", 1, b"x")
    assert connecting.decrypt(second.encrypt(b"d", b"y"), "second") is None
    assert connecting.decrypt(first.encrypt(b"d", b"z"), "first") == (b"d", 2, b"z")
