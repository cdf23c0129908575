"""Call records of nodes in a stream in memory: which are published, and which are read."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.broker import KEY
from tests.support.waiting import until

from indusagi.core.json import compact_json
from induscode.cluster import key as key_module
from induscode.cluster.contract import ClusterFault, ClusterSettings, LostRaceError
from induscode.cluster.jetstream import StreamMessage
from induscode.cluster.key import UnsealedError
from induscode.cluster.shared import state as module
from induscode.cluster.shared.state import CallPublisher, keep_running, read_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio
SETTINGS = ClusterSettings(brokers=[], node="one", key=KEY)
SUBJECT = SETTINGS.subject("calls", "one")


class MemoryStream:
    """A stream that keeps what is published, and fails as it's told."""

    def __init__(self) -> None:
        self.messages: list[StreamMessage | None] = []
        self.failures: list[Exception] = []

    async def publish(self, subject: str, data: bytes) -> None:
        self.messages.append(StreamMessage(len(self.messages) + 1, subject, data))
        if self.failures:
            raise self.failures.pop(0)

    def list_batches(self) -> list[str]:
        present = [message for message in self.messages if message is not None]
        return [json.loads(KEY.unseal(SUBJECT, message.data))["batch"] for message in present]

    async def read_state(self) -> Any:
        return SimpleNamespace(first=1, last=len(self.messages))

    async def read_at(self, number: int) -> StreamMessage | None:
        return self.messages[number - 1]


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> MemoryStream:
    found = MemoryStream()

    def open_stream(broker: object, name: str) -> MemoryStream:
        assert name == SETTINGS.calls
        return found

    monkeypatch.setattr(module, "Stream", open_stream)
    return found


def broker(*, is_connected: bool = True) -> Any:
    return SimpleNamespace(settings=SETTINGS, is_connected=is_connected)


async def read() -> Sequence[Any]:
    return [(node, *row) async for node, row in read_calls(broker(), 3)]


async def test_records_are_read_newest_first_and_each_batch_once(stream: MemoryStream) -> None:
    publisher = CallPublisher(broker(), KEY)
    publisher.put([(number, "a", 0) for number in range(501)])
    await publisher.publish_all()
    assert (len(stream.messages), len(set(stream.list_batches()))) == (2, 2)
    first = stream.messages[0]
    assert first is not None
    await stream.publish(SUBJECT, first.data)  # sent again
    await publisher.publish_all()
    found = await read()
    assert [row[1] for row in found] == [*range(499, -1, -1), 500]
    assert found[0] == ("one", 499, "a", 0)


@pytest.mark.parametrize(
    "content",
    [
        b"no JSON",
        b"[1]",
        b"[" * 100_000,
        b'{"calls":1}',
        compact_json({"node": "one", "batch": "b", "calls": [1, [1], [1, 2, 3, 4], []]}).encode(),
        None,
    ],
)
@pytest.mark.parametrize("is_sealed", [True, False])
async def test_damaged_messages_are_left_out(content: bytes | None, is_sealed: bool, stream: MemoryStream) -> None:
    publisher = CallPublisher(broker(), KEY)
    publisher.put([(1, "a", 0)])
    await publisher.publish_all()
    if content is None:
        stream.messages.append(None)
    else:
        await stream.publish(SUBJECT, KEY.seal(SUBJECT, content) if is_sealed else content)
    assert await read() == [("one", 1, "a", 0)]


async def test_a_message_that_unpacks_to_too_much_is_left_out(
    stream: MemoryStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leaked key's messages stay in the stream after a rotation."""
    monkeypatch.setattr(key_module, "_MAX_BYTES", 1_000)
    rows: Any = {"node": "one", "calls": [[1, "a", 0]]}
    for padding in ("", " " * 1_000):
        await stream.publish(SUBJECT, KEY.seal(SUBJECT, (compact_json(rows) + padding).encode()))
    assert await read() == [("one", 1, "a", 0)]
    with pytest.raises(UnsealedError, match="larger than 1,000 bytes"):
        KEY.unseal(SUBJECT, KEY.seal(SUBJECT, bytes(1_001)))
    assert KEY.unseal(SUBJECT, KEY.seal(SUBJECT, bytes(1_000))) == bytes(1_000)


async def test_records_of_the_version_before_have_a_column_less(stream: MemoryStream) -> None:
    rows: Any = {"node": "old", "calls": [[1, "a"], [2, "b", 0]]}
    await stream.publish(SUBJECT, KEY.seal(SUBJECT, compact_json(rows).encode()))
    assert await read() == [("old", 2, "b", 0), ("old", 1, "a")]


async def test_batch_without_an_answer_is_sent_again_as_it_was(stream: MemoryStream) -> None:
    publisher = CallPublisher(broker(), KEY)
    publisher.put([(1, "a", 0)])
    stream.failures = [ClusterFault("away", "no answer")]
    with pytest.raises(ClusterFault):
        await publisher.publish_all()
    publisher.put([(2, "b", 0)])
    await publisher.publish_all()
    one, again, two = stream.list_batches()
    assert (one == again, again == two) == (True, False)
    assert await read() == [("one", 2, "b", 0), ("one", 1, "a", 0)]


@pytest.mark.parametrize(("is_connected", "published"), [(True, 1), (False, 0)])
async def test_last_records_are_published_if_the_broker_is_there(
    is_connected: bool, published: int, stream: MemoryStream
) -> None:
    publisher = CallPublisher(broker(is_connected=is_connected), KEY)
    publisher.put([(1, "a", 0)])
    stream.failures = [LostRaceError("it was slow")]
    await publisher.close()
    assert len(stream.messages) == published


async def test_oldest_records_past_the_limit_are_dropped(stream: MemoryStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_WAITING", 2)
    publisher = CallPublisher(broker(), KEY)
    publisher.put([(number, "a", 0) for number in range(5)])
    await publisher.publish_all()
    assert [row[1] for row in await read()] == [4, 3]


async def test_publishing_goes_on_after_a_failure(stream: MemoryStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PUBLISH_INTERVAL_S", 0)
    monkeypatch.setattr(module, "_RETRY_S", 0)
    publisher = CallPublisher(broker(), KEY)
    publisher.put([(1, "a", 0)])
    stream.failures = [ClusterFault("full", "no room"), LostRaceError("x")]
    running = asyncio.create_task(keep_running(publisher.run))  # noqa: TID251 — awaited below
    await until(lambda: len(stream.messages) == 3)
    running.cancel()
    await asyncio.wait({running})
    assert len(set(stream.list_batches())) == 1
