"""Streams of the broker: replicated logs whose messages have numbers.

A message is published if the last one of its subject is the one the writer expects, and read by its number; nothing of
a reader rests at the broker, so there is nothing to restore after a lost connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import TYPE_CHECKING

from indusagi.core.records import record
from induscode.cluster.broker import LONGEST_S, Broker

if TYPE_CHECKING:
    from datetime import datetime

    from nats.js.api import RawStreamMsg

_NO_MESSAGE = 10037
"""JetStream's error code for a number or a subject without a message."""
_READ_TOGETHER = 32
"""Messages that are asked for at the same time."""


@record
class StreamMessage:
    """A message of a stream."""

    number: int
    subject: str
    data: bytes


@record
class StreamState:
    """What a stream holds: the numbers of its first and its last message."""

    first: int
    last: int
    messages: int
    size: int
    created: datetime | None = None
    """When it was made; another time means that it is another stream of the same name."""


class Stream:
    """One stream of the cluster."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self._broker = broker
        self._api = broker.client.jetstream(timeout=LONGEST_S)  # pyright: ignore[reportUnknownMemberType] — untyped options

    async def publish(
        self, subject: str, data: bytes, *, identity: str = "", expected: int | None = None
    ) -> tuple[int, bool]:
        """Append a message; return its number, and whether one of this identity was there already.

        Raises:
            LostRaceError: The last message of the subject has another number than `expected`.
            ClusterFault: The broker did not do it, or did not say so in time; or this node has no lease.
        """
        self._broker.check_write()
        headers = {"Nats-Expected-Stream": self.name}
        if identity:
            headers["Nats-Msg-Id"] = identity
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        request = self._api.publish(subject, data, headers=headers)
        ack = await self._broker.run(f"nothing was written to {self.name}", request, writes=self.name)
        return ack.seq, bool(ack.duplicate)

    async def read_last(self, subject: str) -> StreamMessage | None:
        """Read the last message of a subject; raises ClusterFault as `publish`."""
        return await self._read(self._api.get_last_msg(self.name, subject))

    async def read_at(self, number: int) -> StreamMessage | None:
        """Read the message of a number; raises ClusterFault as `publish`."""
        return await self._read(self._api.get_msg(self.name, number))

    async def read_next(self, number: int, subject: str) -> StreamMessage | None:
        """Read the first message of a subject from a number on; raises ClusterFault as `publish`."""
        return await self._read(self._api.get_msg(self.name, max(1, number), subject, next=True))

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
        """Read what there is; raises ClusterFault as `publish`."""
        info = await self._broker.run(f"{self.name} could not be read", self._api.stream_info(self.name))
        state = info.state
        return StreamState(state.first_seq, state.last_seq, state.messages, state.bytes, info.created)

    async def read_range(self, first: int, last: int) -> AsyncGenerator[tuple[int, StreamMessage | None]]:
        """Read all messages of some numbers in order; None for one that was removed.

        Raises:
            ClusterFault: The broker did not answer.
        """
        for start in range(first, last + 1, _READ_TOGETHER):
            numbers = range(start, min(start + _READ_TOGETHER, last + 1))
            try:
                async with asyncio.TaskGroup() as tasks:
                    reading = [tasks.create_task(self.read_at(number)) for number in numbers]
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from group
            for number, task in zip(numbers, reading, strict=True):
                yield number, task.result()
