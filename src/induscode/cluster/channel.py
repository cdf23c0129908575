"""Messages between two nodes over broker subjects: channels, and single requests.

A channel is a `Transport`: it carries frames in both directions and reports its end once. Messages are sealed and
numbered (`ChannelCipher`). A forged or replayed message is dropped silently. A lost one ends the channel, so a frame is
delivered at most once, and never after a gap. A frame beyond the broker's limit travels in parts. Nothing is resent:
frames in flight at the end have an unknown outcome.

The broker reports subjects without listeners, and anyone could fake that report. So we probe the other end then, and
consider it gone only if it doesn't answer.

A request is sealed for the subject of its receiver, which only that process has, and carries the sender's name and a
number, so it counts once. The answer is sealed for the subject the request names, so it fits no other request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from indusagi.core.json import JsonObject, compact_json
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.contract import FaultDetail, FaultReason
from indusagi.interop.protocol_bridge.rpc.transport import QueuedTransport, TransportEnd, encode_frame
from induscode.cluster.broker import Broker, is_unheard
from induscode.cluster.contract import ClusterFault, UnheardError, read_object
from induscode.cluster.key import HEAD_BYTES, ChannelCipher, ReplayGuard, Seal, is_opening

if TYPE_CHECKING:
    from nats.aio.msg import Msg


GRACE_S = 0.5
"""How long an answer may take after the broker reports that nothing listens."""
_WHOLE, _PART, _LAST, _END, _REST, _PROBE, _HERE = b"F", b"P", b"L", b"E", b"R", b"Q", b"H"
_REFUSAL = b"X"
"""Prefix of a node's message that it has no such channel, and so no cipher for it."""
_FRAME_BYTES = 32 * 1024 * 1024
"""Largest frame to reassemble. Each server has a smaller limit."""
_CLOSED = FaultDetail(reason="closed")
_REASONS = frozenset(
    {"exited", "closed", "not_found", "refused", "frame_too_large", "malformed", "moved", "node_changed"}
)
_MAX_END_BYTES = 16 * 1024
_CLOSE_S = 2.0
"""How long queued frames may take to be sent before the end."""


class Channel(QueuedTransport):
    """One end of a channel."""

    def __init__(
        self,
        broker: Broker,
        peer: str,
        inbox: str,
        cipher: ChannelCipher,
        seal: Seal,
        on_close: Callable[[], None],
        on_rest: Callable[[], None],
    ) -> None:
        super().__init__()
        self._broker = broker
        self._cipher = cipher
        self._seal = seal
        self._probe: asyncio.TimerHandle | None = None
        """Ends the channel unless the other end answers first."""
        self._peer = peer
        """Subject of the other end."""
        self._inbox = inbox
        self._on_close = on_close
        self._received = 0
        self._parts: list[bytes] = []
        self._parts_size = 0
        self._is_closing = False
        self._tells_end = True
        """Whether the other end may not know yet that the channel has ended, and why."""
        self.is_unheard = False
        """Whether it ended because nothing listens at the other end, or its node left."""
        self._on_rest = on_rest
        """Called when the other end wants to end the channel if it's unused."""
        self._sent_all = asyncio.Event()
        """Set while the queue is empty."""
        self._pump = BackgroundTask("channel")

    def start(self, on_ended: Callable[[Channel], None]) -> None:
        """Start sending queued frames. Calls `on_ended` after the last message."""
        self._pump.start(self._run(on_ended))

    async def _run(self, on_ended: Callable[[Channel], None]) -> None:
        try:
            while self._end is None:
                while self._queue:
                    await self._publish(await self.next_frame())
                self._sent_all.set()
                if self._is_closing:
                    self.finish("closed the connection")
                self._queued.clear()
                if self._end is None:
                    await self._queued.wait()
        except ClusterFault as fault:
            self.finish(f"cannot be reached: {fault}")
        except ValueError as exc:  # a number that JSON cannot represent
            self.finish(f"cannot be sent a frame: {exc}", FaultDetail(reason="malformed"))
        if self._tells_end and self._end is not None:
            await self.tell_end(self._end)
        on_ended(self)

    def send(self, frame: JsonObject) -> None:
        """Queue a frame. Does nothing after the end."""
        self._sent_all.clear()
        super().send(frame)

    async def flush(self) -> None:
        """Wait until every frame is sent or the channel has ended."""
        while self._end is None and not self._sent_all.is_set():
            await self._sent_all.wait()

    async def _publish(self, frame: JsonObject) -> None:
        data, limit = encode_frame(frame), self._broker.payload_bytes - HEAD_BYTES
        if len(data) <= limit:
            await self._transmit(_WHOLE, data)
            return
        view = memoryview(data)
        for start in range(0, len(data), limit):
            kind = _PART if start + limit < len(data) else _LAST
            await self._transmit(kind, bytes(view[start : start + limit]))

    async def _transmit(self, kind: bytes, data: bytes = b"") -> None:
        # No await between numbering and sending: the broker preserves the order of one client's messages.
        await self._broker.publish(self._peer, self._cipher.encrypt(kind, data), self._inbox)

    async def receive(self, message: Msg) -> None:
        """Handle a message from the other end or the broker. Drop anything else."""
        if self._end is not None:
            return
        if is_unheard(message):
            await self._doubt()
            return
        if message.data.startswith(_REFUSAL):
            refusal = self._seal.open(_find_refusal_place(self._peer, self._inbox), message.data[len(_REFUSAL) :])
            if refusal is not None:
                self._take_end(refusal)
            return
        opened = self._cipher.decrypt(message.data, message.reply)
        if opened is not None and opened[1] > self._received:
            self._believe()
            await self._take(*opened)

    async def _take(self, kind: bytes, number: int, body: bytes) -> None:
        """Handle a new message from the other end."""
        if kind == _END:  # also after a gap: the other end was cut off
            self._take_end(read_object(body))
            return
        self._received += 1
        if number != self._received:
            self.finish(f"lost a message: {number} came instead of {self._received}", _CLOSED)
        elif kind == _WHOLE:
            self.deliver(body)
        elif kind == _REST:
            self._on_rest()
        elif kind == _PROBE:
            with suppress(ClusterFault):
                await self._transmit(_HERE)
        elif kind in {_PART, _LAST}:
            self._take_part(body, is_last=kind == _LAST)

    def _take_part(self, body: bytes, *, is_last: bool) -> None:
        self._parts.append(body)
        self._parts_size += len(body)
        if self._parts_size > _FRAME_BYTES:
            self.finish(f"sent a frame of more than {_FRAME_BYTES:,} bytes", FaultDetail(reason="frame_too_large"))
        elif is_last:
            whole, self._parts, self._parts_size = b"".join(self._parts), [], 0
            self.deliver(whole)

    async def _doubt(self) -> None:
        """Probe the other end."""
        if self._probe is not None:
            return

        def give_up() -> None:
            self.is_unheard, self._tells_end = True, False
            self.finish("is not there any more")

        self._probe = asyncio.get_running_loop().call_later(GRACE_S, give_up)
        with suppress(ClusterFault):
            await self._transmit(_PROBE)

    def _believe(self) -> None:
        """Cancel the probe: the other end is alive."""
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    def _take_end(self, fields: JsonObject) -> None:
        message, reason, code, signal = (fields.get(name) for name in ("message", "reason", "exit_code", "signal"))
        stderr = fields.get("stderr")
        detail = FaultDetail(
            reason=cast("FaultReason", reason) if reason in _REASONS else "closed",
            exit_code=code if isinstance(code, int) else None,
            signal=signal if isinstance(signal, int) else None,
            stderr=tuple(line for line in stderr if isinstance(line, str)) if isinstance(stderr, list) else (),
        )
        self._tells_end = False
        self.is_unheard = fields.get("unheard") is True and not self._received
        self.finish(message if isinstance(message, str) else "ended the connection", detail)

    def finish(self, message: str, detail: FaultDetail = _CLOSED) -> TransportEnd:
        """End the channel, here and for the node that holds it, and notify the other end."""
        is_first = self._end is None
        end = super().finish(message, detail)
        if is_first:
            self._believe()
            self._queued.set()
            self._sent_all.set()
            self._on_close()
        return end

    async def tell_end(self, end: TransportEnd) -> None:
        """Send the other end the reason, on a best-effort basis."""
        detail = end.detail
        fields: JsonObject = {"message": end.message, "reason": detail.reason}
        more: JsonObject = {"exit_code": detail.exit_code, "signal": detail.signal, "stderr": [*detail.stderr]}
        text = compact_json({**fields, **more}).encode()
        if len(text) > _MAX_END_BYTES:
            text = compact_json({**fields, "message": end.message[:1_000]}).encode()
        with suppress(ClusterFault):  # the channel table sends it when the broker is back
            await self._transmit(_END, text)

    async def tell_rest(self) -> None:
        """Ask the other end to end the channel if it's unused."""
        with suppress(ClusterFault):  # it ends anyway then
            await self._transmit(_REST)

    def end_after_queue(self) -> None:
        """End it after the queued frames."""
        self._is_closing = True
        self._queued.set()

    async def close(self) -> None:
        """End it after the queued frames, and wait for that. Safe to call twice."""
        self.end_after_queue()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._pump.wait()
        except TimeoutError:
            self.finish("closed the connection")
            self._pump.cancel()
        await self._pump.join()


def _find_refusal_place(subject: str, inbox: str) -> str:
    return f"refusal {subject} {inbox}"


class ChannelTable:
    """One node's open channels, by the last part of their inbox subject."""

    def __init__(self, broker: Broker, instance: str, own: Seal) -> None:
        self._broker = broker
        self._instance = instance
        self._own = own
        self._opened = 0
        self._open: dict[str, Channel] = {}
        self._accepted = ReplayGuard()
        """Ensures that no channel from another node is opened twice."""
        self._ending: set[Channel] = set()
        """Ended channels with a last message on its way."""
        self._untold: list[tuple[Channel, TransportEnd]] = []
        """Channels that ended while the broker was away."""

    async def receive(self, message: Msg) -> None:
        """Pass a message to its channel. Late ones are dropped."""
        channel = self._open.get(message.subject.rpartition(".")[2])
        if channel is not None:
            await channel.receive(message)

    def open(
        self,
        subject: str,
        seal: Seal,
        on_close: Callable[[], None] = lambda: None,
        on_rest: Callable[[], None] = lambda: None,
    ) -> Channel:
        """Open a channel to the node that has `seal` and listens to a subject, and start sending."""
        inbox = self._name_inbox()
        return self._add(subject, inbox, ChannelCipher(seal, subject, inbox), seal, on_close, on_rest)

    def accept(self, message: Msg, on_close: Callable[[], None] = lambda: None) -> Channel | None:
        """Open our end of a channel that starts with this message. `None` if it's forged or replayed."""
        inbox = self._name_inbox()
        cipher = ChannelCipher(self._own, message.subject, message.reply, inbox)
        if not is_opening(message.data) or cipher.decrypt(message.data, message.reply) is None:
            return None
        sender, _, name = message.reply.rpartition(".")
        number = name.partition("-")[0]
        if not number.isdecimal() or not self._accepted.take(sender, int(number)):
            return None
        return self._add(message.reply, inbox, cipher, self._own, on_close)

    async def refuse(self, message: Msg, reason: FaultReason = "closed") -> None:
        """Notify the other end that this channel isn't open here.

        The message isn't authentic, so it mustn't make this node, which has more rights, send to arbitrary subjects.
        """
        if not message.reply.startswith(self._broker.settings.subject("inbox", "")):
            return
        value: JsonObject = {"message": "is not there any more", "reason": reason, "unheard": True}
        sealed = self._own.seal(_find_refusal_place(message.subject, message.reply), value)
        with suppress(ClusterFault):  # the other end runs into its deadline
            await self._broker.publish(message.reply, _REFUSAL + sealed)

    def _name_inbox(self) -> str:
        """Name an inbox with a unique number and an unpredictable token."""
        self._opened += 1
        return self._broker.settings.subject("inbox", self._instance, f"{self._opened}-{secrets.token_hex(8)}")

    def _add(
        self,
        peer: str,
        inbox: str,
        cipher: ChannelCipher,
        seal: Seal,
        on_close: Callable[[], None],
        on_rest: Callable[[], None] = lambda: None,
    ) -> Channel:
        name = inbox.rpartition(".")[2]

        def forget() -> None:
            self._ending.add(self._open.pop(name))
            on_close()

        channel = self._open[name] = Channel(self._broker, peer, inbox, cipher, seal, forget, on_rest)
        channel.start(self._ending.discard)
        return channel

    def cut(self, message: str) -> None:
        """End all channels here, since sent messages may not have arrived. `tell_cut` notifies the other ends."""
        for channel in [*self._open.values()]:
            self._untold.append((channel, channel.finish(message, FaultDetail(reason="node_changed"))))

    async def tell_cut(self) -> None:
        """Notify the other ends of channels that ended while the broker was away."""
        untold, self._untold = self._untold, []
        for channel, end in untold:
            await channel.tell_end(end)

    async def close(self) -> None:
        """Close all remaining channels."""
        async with asyncio.TaskGroup() as tasks:
            for channel in [*self._open.values(), *self._ending]:
                tasks.create_task(channel.close())


# -- requests ---------------------------------------------------------------------------------


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
        subject = self._broker.settings.subject("node", instance)
        reply = self._broker.settings.subject("reply", self._instance, self._number)
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
        """Send a request that needs no answer."""
        self._number += 1
        subject = self._broker.settings.subject("node", instance)
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
        """Answer a request."""
        if message.reply:
            await self._broker.publish(message.reply, self._own.seal(f"answer {message.reply}", value))
