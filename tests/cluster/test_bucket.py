"""Buckets, over a store in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from nats.js.kv import KeyValue

from induscode.cluster.jetstream import Bucket, BucketEntry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

_T = TypeVar("_T")


class Runner:
    async def run(self, what: str, request: Awaitable[_T], **_: object) -> _T:
        return await request


class Watcher:
    def __init__(self, entries: list[KeyValue.Entry | None]) -> None:
        self._entries = entries
        self.is_stopped = False

    async def __aiter__(self) -> AsyncIterator[KeyValue.Entry | None]:
        for entry in self._entries:
            yield entry

    async def stop(self) -> None:
        self.is_stopped = True


class Values:
    """A key-value store whose watchers give what a test says, one after the other."""

    def __init__(self, *watchers: list[KeyValue.Entry | None], messages: int) -> None:
        self._watchers = [Watcher(entries) for entries in watchers]
        self._messages = messages
        self.opened: list[Watcher] = []

    async def watchall(self) -> Watcher:
        self.opened.append(self._watchers.pop(0))
        return self.opened[-1]

    async def status(self) -> SimpleNamespace:
        return SimpleNamespace(values=self._messages)


def entry(key: str, operation: str | None = None) -> KeyValue.Entry:
    return KeyValue.Entry("b", key, b"x", 3, 0, None, operation)


async def read(values: Any) -> Any:
    found = await Bucket(cast("Any", Runner()), values, "b").read_all()
    assert all(one.is_stopped for one in values.opened)
    return found


async def test_entries_are_read_again_when_the_client_reports_the_end_before_the_first_one() -> None:
    values = Values([None, entry("a")], [entry("a"), None], messages=1)
    assert await read(values) == {"a": BucketEntry(b"x", 3)}


async def test_an_empty_bucket_is_read_once() -> None:
    values = Values([None], messages=0)
    assert await read(values) == {}
    assert len(values.opened) == 1


async def test_removed_keys_are_no_entries_and_no_reason_to_read_again() -> None:
    values = Values([entry("a", "DEL"), entry("b", "PURGE"), None], messages=2)
    assert await read(values) == {}
