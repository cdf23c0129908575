"""Storage of a cluster at its brokers, in JetStream: buckets of entries, and streams of messages.

An entry's revision is its write's sequence number (https://docs.nats.io/nats-concepts/jetstream/key-value-store). A
write names the expected revision, so one of two concurrent writers fails. A message names the expected last message
of its subject, and reads are by number: the broker keeps no reader state that a lost connection could damage. Every
method raises `ClusterFault` if the brokers fail or don't answer in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from indusagi.core.records import record

if TYPE_CHECKING:
    from nats.js.api import RawStreamMsg
    from nats.js.kv import KeyValue

    from induscode.cluster.broker import Broker

_NO_STREAM = 10059
"""JetStream's error code for a missing stream, and so a missing bucket."""
_NO_MESSAGE = 10037
"""JetStream's error code for a number or subject without a message."""
_CONCURRENT_READS = 32


# -- buckets ----------------------------------------------------------------------------------


@record
class BucketEntry:
    """A bucket's value with its revision."""

    value: bytes
    revision: int


@record
class BucketStatus:
    """How the brokers keep a bucket."""

    ttl_s: float
    """Lifetime of its entries; 0 for no end."""
    replicas: int
    offline: Sequence[str]
    """Unreachable brokers that should keep a copy, according to the one that answers."""


async def open_bucket(broker: Broker, name: str) -> Bucket:
    """Open a bucket created by `prepare_cluster`, or raise `ClusterFault`."""
    values = await broker.run(f"the bucket {name} could not be opened", broker.streams.key_value(name))
    return Bucket(broker, values, name)


class Bucket:
    """A bucket at the broker."""

    def __init__(self, broker: Broker, values: KeyValue, name: str) -> None:
        self.name = name
        self._broker = broker
        self._values = values

    async def put(self, key: str, value: bytes, revision: int | None = None) -> int:
        """Create an entry, or replace the one with this revision. Return the new revision.

        Raises:
            LostRaceError: It exists, or has another revision by now.
            ClusterFault: The broker failed, or didn't confirm in time.
        """
        if revision is None:
            what, request = f"the entry {key} could not be created", self._values.create(key, value)
        else:
            what, request = f"the entry {key} could not be changed", self._values.update(key, value, revision)
        return await self._broker.run(what, request, requests=2 if revision is None else 1, writes=self.name)

    async def delete(self, key: str, revision: int) -> None:
        """Delete an entry with this revision. Raises like `put`."""
        await self._broker.run(
            f"the entry {key} could not be deleted", self._values.delete(key, revision), writes=self.name
        )

    async def get(self, key: str) -> BucketEntry | None:
        """Read an entry, or return `None`."""
        from nats.js.errors import BucketNotFoundError, KeyNotFoundError  # noqa: PLC0415 — only with a cluster

        async def get() -> BucketEntry | None:
            try:
                entry = await self._values.get(key)
            except KeyNotFoundError as exc:
                # nats-py raises the same for a missing bucket, and not all of its errors have a code.
                if getattr(exc.__context__, "err_code", None) == _NO_STREAM:
                    raise BucketNotFoundError from exc
                return None
            return BucketEntry(entry.value or b"", entry.revision or 0)

        return await self._broker.run(f"the entry {key} could not be read", get())

    async def read_all(self) -> Mapping[str, BucketEntry]:
        """Read all entries, by key, in one stream of messages."""

        async def read_once() -> Sequence[KeyValue.Entry]:
            watcher = await self._values.watchall()  # pyright: ignore[reportUnknownMemberType] — untyped options
            found: list[KeyValue.Entry] = []
            try:
                async for entry in watcher:
                    if entry is None:  # changes follow
                        break
                    found.append(entry)
            finally:
                await watcher.stop()
            return found

        async def read_all() -> Mapping[str, BucketEntry]:
            # nats-py reports the end too early while the first entry is on its way. Removed keys leave a marker, so a
            # bucket with messages always has entries.
            while not (found := await read_once()) and (await self._values.status()).values:
                pass
            present = [entry for entry in found if entry.operation is None]
            return {entry.key: BucketEntry(entry.value or b"", entry.revision or 0) for entry in present}

        return await self._broker.run("the entries could not be listed", read_all(), requests=3)

    async def read_status(self) -> BucketStatus:
        """Read how the brokers keep the bucket."""
        status = await self._broker.run("the bucket could not be read", self._values.status())
        cluster = status.stream_info.cluster
        peers = [] if cluster is None else cluster.replicas or []
        offline = sorted(peer.name or "?" for peer in peers if peer.offline)
        return BucketStatus(float(status.ttl or 0.0), status.stream_info.config.num_replicas or 1, offline)


# -- streams ----------------------------------------------------------------------------------


@record
class StreamMessage:
    """A message of a stream."""

    number: int
    subject: str
    data: bytes


@record
class StreamState:
    """First and last message number, and the size of a stream."""

    first: int
    last: int
    messages: int
    created: datetime | None = None
    """Creation time. A different one means a different stream of the same name."""


class Stream:
    """One stream of the cluster."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self._broker = broker

    async def publish(self, subject: str, data: bytes, *, expected: int | None = None) -> int:
        """Append a message, and return its number.

        Raises:
            LostRaceError: The subject's last message isn't `expected`.
            ClusterFault: The broker failed or didn't confirm in time, or this node has no lease.
        """
        self._broker.check_write()
        headers = {"Nats-Expected-Stream": self.name}
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        request = self._broker.streams.publish(subject, data, headers=headers)
        return (await self._broker.run(f"nothing was written to {self.name}", request, writes=self.name)).seq

    async def read_last(self, subject: str) -> StreamMessage | None:
        """Read a subject's last message."""
        return await self._read(self._broker.streams.get_last_msg(self.name, subject))

    async def read_at(self, number: int) -> StreamMessage | None:
        """Read a message by number."""
        return await self._read(self._broker.streams.get_msg(self.name, number))

    async def read_next(self, number: int, subject: str) -> StreamMessage | None:
        """Read a subject's first message from a number on."""
        return await self._read(self._broker.streams.get_msg(self.name, max(1, number), subject, next=True))

    async def _read(self, request: Awaitable[RawStreamMsg]) -> StreamMessage | None:
        from nats.js.errors import NotFoundError  # noqa: PLC0415 — only with a cluster

        async def read() -> StreamMessage | None:
            try:
                found = await request
            except NotFoundError as exc:
                if exc.err_code == _NO_MESSAGE:
                    return None
                raise
            return StreamMessage(found.seq or 0, found.subject or "", found.data or b"")

        return await self._broker.run(f"{self.name} could not be read", read())

    async def read_state(self) -> StreamState:
        """Read the stream's state."""
        request = self._broker.streams.stream_info(self.name)
        info = await self._broker.run(f"{self.name} could not be read", request)
        return StreamState(info.state.first_seq, info.state.last_seq, info.state.messages, info.created)

    async def read_range(self, first: int, last: int) -> AsyncGenerator[tuple[int, StreamMessage | None]]:
        """Read a range of messages in order; `None` for removed ones."""
        for start in range(first, last + 1, _CONCURRENT_READS):
            numbers = range(start, min(start + _CONCURRENT_READS, last + 1))
            try:
                async with asyncio.TaskGroup() as tasks:
                    reading = [tasks.create_task(self.read_at(number)) for number in numbers]
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from group
            for number, task in zip(numbers, reading, strict=True):
                yield number, task.result()
