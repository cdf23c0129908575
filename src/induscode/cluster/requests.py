"""Requests between nodes: sealed, numbered, and answered under the subject of the one request.

A request is sealed for the subject of its receiver, whose process has it alone, and carries the name of the sender and
a number: it counts once. The answer is sealed for the subject that the request names, so an answer to another request
isn't one. The broker says by itself that nobody listens to a subject; since anyone could say that in its name, it
only shortens the wait for an answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from indusagi.core.json import JsonObject
from induscode.cluster.broker import is_unheard
from induscode.cluster.contract import ClusterFault, UnheardError
from induscode.cluster.seals import ReplayGuard, Seal

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from induscode.cluster.broker import Broker

GRACE_S = 0.5
"""How long an answer may take after the broker's word that nobody listens."""


class _OpenRequest:
    """A request without an answer."""

    def __init__(self, seal: Seal) -> None:
        self.seal = seal
        self.answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self.limit: asyncio.Timeout | None = None
        self.is_unheard = False

    def doubt(self) -> None:
        """Take the word of the broker, or of someone else, that nobody listens."""
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
        """Send a request to a node, sealed as its own messages are, and return its answer.

        Raises:
            UnheardError: No such node is there.
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
        """Send a request to a node that answers nothing.

        Raises:
            ClusterFault: There's no connection.
        """
        self._number += 1
        subject = self._broker.settings.node_subject(instance)
        await self._broker.publish(subject, self._seal(seal, subject, "", value))

    def _seal(self, seal: Seal, subject: str, reply: str, value: JsonObject) -> bytes:
        return seal.seal(f"{subject} {reply}", {**value, "from": self._instance, "number": self._number})

    async def take_answer(self, message: Msg) -> None:
        """Take a message on the subject of a request of this node."""
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
        """Return a request to this node; `None` if it's forged, or came before."""
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
