"""Requests between nodes: sealed, numbered, and answered under the request's own subject.

A request is sealed for the subject of its receiver, which only that process has, and carries the sender's name and a
number, so it counts once. The answer is sealed for the subject the request names, so it fits no other request. The
broker reports subjects without listeners; since anyone could fake that, it only shortens the wait for an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import TYPE_CHECKING

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from induscode.cluster.broker import LONGEST_S, Broker, is_unheard
from induscode.cluster.contract import ClusterFault, UnheardError
from induscode.cluster.seals import ReplayGuard, Seal

if TYPE_CHECKING:
    from datetime import datetime

    from nats.aio.msg import Msg
    from nats.js.api import RawStreamMsg

GRACE_S = 0.5
"""How long an answer may take after the broker reports that nothing listens."""


class _OpenRequest:
    """A request without an answer."""

    def __init__(self, seal: Seal) -> None:
        self.seal = seal
        self.answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self.limit: asyncio.Timeout | None = None
        self.is_unheard = False

    def doubt(self) -> None:
        """Shorten the deadline: the broker, or an impostor, says that nothing listens."""
        if self.limit is not None and not self.is_unheard:
            when, soon = self.limit.when(), asyncio.get_running_loop().time() + GRACE_S
            self.limit.reschedule(soon if when is None else min(when, soon))
        self.is_unheard = True


class NodeRequests:
    """Sends requests to other nodes, and opens and answers theirs."""

    def __init__(self, broker: Broker, own: Seal, instance: str) -> None:
        self._broker = broker
        self._own = own
        self._instance = instance
        self._number = 0
        self._open: dict[str, _OpenRequest] = {}
        """By the subject of the answer."""
        self._taken = ReplayGuard()

    async def ask(self, instance: str, seal: Seal, value: JsonObject, within_s: float | None = None) -> JsonObject:
        """Send a request to a node, sealed like the node's own messages, and return its answer.

        Raises:
            UnheardError: There's no such node.
            ClusterFault: It didn't answer, or there's no connection.
        """
        self._number += 1
        subject = self._broker.settings.node_subject(instance)
        reply = self._broker.settings.reply_subject(self._instance, self._number)
        asked = self._open[reply] = _OpenRequest(seal)
        try:
            async with asyncio.timeout(within_s or 2 * self._broker.request_s) as asked.limit:
                await self._broker.publish(subject, self._seal(seal, subject, reply, value), reply)
                return await asked.answer
        except TimeoutError as exc:
            if asked.is_unheard:
                raise UnheardError(f"{subject}: nothing listens there") from exc
            raise ClusterFault("ready" if self._broker.is_connected else "away", f"{subject} did not answer") from exc
        finally:
            del self._open[reply]

    async def tell(self, instance: str, seal: Seal, value: JsonObject) -> None:
        """Send a request that needs no answer.

        Raises:
            ClusterFault: There's no connection.
        """
        self._number += 1
        subject = self._broker.settings.node_subject(instance)
        await self._broker.publish(subject, self._seal(seal, subject, "", value))

    def _seal(self, seal: Seal, subject: str, reply: str, value: JsonObject) -> bytes:
        return seal.seal(f"{subject} {reply}", {**value, "from": self._instance, "number": self._number})

    async def take_answer(self, message: Msg) -> None:
        """Handle a message on the answer subject of one of our requests."""
        asked = self._open.get(message.subject)
        if asked is None:
            return
        if is_unheard(message):
            asked.doubt()
            return
        value = asked.seal.open(f"answer {message.subject}", message.data)
        if value is not None and not asked.answer.done():
            asked.answer.set_result(value)

    def open(self, message: Msg) -> JsonObject | None:
        """Open a request to this node. `None` if it's forged or replayed."""
        value = self._own.open(f"{message.subject} {message.reply}", message.data) or {}
        sender, number = value.get("from"), value.get("number")
        if not isinstance(sender, str) or not isinstance(number, int) or not self._taken.take(sender, number):
            return None
        return value

    async def answer(self, message: Msg, value: JsonObject) -> None:
        """Answer a request.

        Raises:
            ClusterFault: There's no connection.
        """
        if message.reply:
            await self._broker.publish(message.reply, self._own.seal(f"answer {message.reply}", value))


# -- streams ----------------------------------------------------------------------------------
#
# A write requires the subject's last message to be the expected one, and reads are by number. The broker keeps no
# reader state, so there's nothing to restore after a lost connection.


_NO_MESSAGE = 10037
"""JetStream's error code for a number or subject without a message."""
_CONCURRENT_READS = 32
"""Concurrent reads."""


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
    size: int
    created: datetime | None = None
    """Creation time. A different one means a different stream of the same name."""


class Stream:
    """One stream of the cluster."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self._broker = broker
        self._api = broker.client.jetstream(timeout=LONGEST_S)  # pyright: ignore[reportUnknownMemberType] — untyped options

    async def publish(
        self, subject: str, data: bytes, *, identity: str = "", expected: int | None = None
    ) -> tuple[int, bool]:
        """Append a message. Returns its number, and whether this identity was already there.

        Raises:
            LostRaceError: The subject's last message isn't `expected`.
            ClusterFault: The broker failed or didn't confirm in time, or this node has no lease.
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
        """Read a subject's last message. Raises ClusterFault like `publish`."""
        return await self._read(self._api.get_last_msg(self.name, subject))

    async def read_at(self, number: int) -> StreamMessage | None:
        """Read a message by number. Raises ClusterFault like `publish`."""
        return await self._read(self._api.get_msg(self.name, number))

    async def read_next(self, number: int, subject: str) -> StreamMessage | None:
        """Read a subject's first message from a number on. Raises ClusterFault like `publish`."""
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
        """Read the stream's state. Raises ClusterFault like `publish`."""
        info = await self._broker.run(f"{self.name} could not be read", self._api.stream_info(self.name))
        state = info.state
        return StreamState(state.first_seq, state.last_seq, state.messages, state.bytes, info.created)

    async def read_range(self, first: int, last: int) -> AsyncGenerator[tuple[int, StreamMessage | None]]:
        """Read a range of messages in order; None for removed ones.

        Raises:
            ClusterFault: The broker didn't answer.
        """
        for start in range(first, last + 1, _CONCURRENT_READS):
            numbers = range(start, min(start + _CONCURRENT_READS, last + 1))
            try:
                async with asyncio.TaskGroup() as tasks:
                    reading = [tasks.create_task(self.read_at(number)) for number in numbers]
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from group
            for number, task in zip(numbers, reading, strict=True):
                yield number, task.result()
