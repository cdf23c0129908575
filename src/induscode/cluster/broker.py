"""Connection to the brokers of a cluster.

Requests have short deadlines, longer ones while the broker is slow. The client keeps reconnecting while it's open, and
its buffers are bounded. Every outcome updates `state`, shown in status lines and by `indus cluster status`, which
distinguishes brokers that are away, slow, full or without a majority. Only this module, `client`, `jetstream` and
`opening` import `nats`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from indusagi.core.faults import describe_error
from indusagi.core.records import record
from indusagi.core.tasks import Listeners
from induscode.cluster.contract import BrokerState, ClusterFault, ClusterSettings, LostRaceError, hide_password

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.errors import APIError

    OnMessage = Callable[[Msg], Awaitable[None]]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

REQUEST_S = 1.0
"""Deadline of one broker request, short enough to retry a renewal several times within a lease."""
LONGEST_S = 3.0
"""Upper bound for that deadline while round trips are slow."""
_ROUND_TRIPS = 3
"""Round trips to allow per request: the broker forwards it to the leader, which asks a third one."""
_MEASURE_EVERY_S = 1.0
"""Interval between round-trip measurements."""
_FLUSH_S = 2
_RECONNECT_S = 0.25
_PING_S = 1
"""The client leaves a broker after two unanswered pings, within half a lease."""
_PENDING_BYTES = 8 * 1024 * 1024
"""Send buffer while the broker is away. Sending fails once it's full."""
_UNREAD_MESSAGES = 8_192
_UNREAD_BYTES = 64 * 1024 * 1024
_NO_STORAGE = frozenset({10002, 10023, 10028, 10047, 10077})
"""JetStream error codes for account, memory and storage limits and failed writes:
https://github.com/nats-io/nats-server/blob/main/server/errors.json."""
_OWN_LIMIT = frozenset({"maximum bytes exceeded", "maximum messages exceeded"})
"""Errors of a stream that hit its own limit; other streams still work."""
_NO_JETSTREAM = frozenset({10039, 10076})
"""JetStream is off in the broker or the account."""
_TOO_MANY_REPLICAS = frozenset({10005, 10074})
"""Fewer brokers than replicas: no peers, or a standalone broker."""
_WRONG_LAST = 10071
"""JetStream's error code for an unexpected last sequence."""
MISSING_EXTRA = "--cluster needs the extra `cluster`: pip install 'indus-deck[cluster]'"


# -- health -----------------------------------------------------------------------------------
#
# A failed write counts until one succeeds at the same place or a lease is renewed, since brokers that are full or
# without a majority still answer some requests. Unanswered requests mean slow brokers if the round trip to the
# connected one is long, otherwise brokers without a majority, unless a read found its bucket missing. Answer times are
# averaged, so the state doesn't change with every request.


SLOW_S = 0.5
"""Average above which a broker is slow; also the round trip that explains a missing answer."""
_WEIGHT = 0.3
"""Weight of the last answer in the average."""
STATES: Mapping[BrokerState, str] = {
    "away": "are away: servers of this node go on until its lease ends",
    "slow": "answer slowly: calls of servers on other nodes take longer",
    "full": "have no storage left: leases cannot be renewed",
    "partitioned": "do not answer: they have no majority, too much to do, or a full disk",
    "without JetStream": "store nothing: start nats-server with -js",
    "missing": "have lost the buckets of the cluster: indus cluster init",
}
"""Meaning of each state, after `the brokers`; none for `ready`."""


def explain_state(state: BrokerState) -> str:
    """Return the brokers' state as a reason to append to a message, or "" if they're ready."""
    return f": the brokers {STATES[state].partition(':')[0]}" if state in STATES else ""


class BrokerHealth:
    """The brokers' state as one process sees it. A successful write to `leases` clears all failed writes."""

    def __init__(self, leases: str = "") -> None:
        self.is_connected = True
        self.round_trip_s = 0.0
        """To the connected broker, without storage."""
        self._unread: BrokerState | None = None
        """Why the last read got no answer."""
        self._leases = leases
        self._unwritten: dict[str, BrokerState] = {}
        """Why the last write to each bucket or stream failed."""
        self._average_s = 0.0

    @property
    def state(self) -> BrokerState:
        """The current state."""
        if not self.is_connected:
            return "away"
        if self._unread == "missing":
            return self._unread
        if self._unwritten:
            return self._unwritten.get(self._leases) or next(iter(self._unwritten.values()))
        if self._unread is not None:
            return self._unread
        return "slow" if max(self._average_s, self.round_trip_s) > SLOW_S else "ready"

    def take_answer(self, took_s: float, wrote: str = "") -> None:
        """Record an answer. `wrote` is a write's bucket or stream."""
        self.is_connected, self._unread = True, None
        self._average_s += _WEIGHT * (took_s - self._average_s)
        self._unwritten.pop(wrote, None)
        if wrote and wrote == self._leases:
            self._unwritten.clear()

    def take_failure(self, state: BrokerState, wrote: str = "") -> None:
        """Record a failed request, and why."""
        if wrote:
            self._unwritten[wrote] = state
        else:
            self._unread = state

    def take_silence(self, wrote: str = "") -> BrokerState:
        """Record a request that timed out, and return why."""
        state: BrokerState = "slow" if self.round_trip_s > SLOW_S else "partitioned"
        if self._unread == "missing":
            state = self._unread  # nothing answers for a missing bucket
        self.take_failure(state, wrote)
        return state if self.is_connected else "away"

    def take_unread(self) -> None:
        """Record that messages came faster than they were read."""
        self._average_s = max(self._average_s, 2 * SLOW_S)

    def connect(self, *, is_connected: bool) -> None:
        """Record that the connection was lost or is back."""
        self.is_connected = is_connected
        if is_connected:
            self._unread, self._average_s, self.round_trip_s = None, 0.0, 0.0


# -- connection -------------------------------------------------------------------------------


@record
class Storage:
    """Storage used by this process's account at the brokers."""

    used: int
    limit: int | None
    """`None` if the account has no limit."""


class Broker:
    """An open connection. Create it with `open_broker`."""

    def __init__(self, client: Client, settings: ClusterSettings) -> None:
        self.client = client
        self.settings = settings
        self.health = BrokerHealth(settings.leases)
        self.streams = client.jetstream(timeout=LONGEST_S)  # pyright: ignore[reportUnknownMemberType] — untyped options
        self._reported_state: BrokerState = "ready"
        self.on_state: Listeners[[BrokerState]] = Listeners()
        """Called on a state change."""
        self.on_cut: Listeners[[]] = Listeners()
        """Called when the connection drops; sent messages may not have arrived."""
        self.on_back: Listeners[[]] = Listeners()
        """Called after reconnecting."""
        self.check_write: Callable[[], None] = lambda: None
        """Called before sharing something with other nodes. Raises `ClusterFault` while this node mustn't."""
        self.names: dict[str, str] = {}
        """Broker names by address, from their greetings."""
        self._echo_subject = ""
        """Subject on which this process sends messages to itself."""
        self._echoed = 0
        self._echoes: dict[int, asyncio.Future[None]] = {}
        """Pending echoes, by number."""
        self._asked_at: float | None = None
        """Start of the pending round trip."""

    @property
    def state(self) -> BrokerState:
        """State of the brokers according to the last requests."""
        return self.health.state

    def report(self) -> None:
        """Call `on_state` if the state changed."""
        if self.state != self._reported_state:
            self._reported_state = self.state
            self.on_state(self._reported_state)

    @property
    def request_s(self) -> float:
        """Current deadline of one request."""
        return min(max(REQUEST_S, _ROUND_TRIPS * self.health.round_trip_s), LONGEST_S)

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected."""
        return self.client.is_connected

    @property
    def payload_bytes(self) -> int:
        """Largest message the broker accepts."""
        return self.client.max_payload

    async def run(self, what: str, request: Awaitable[_T], *, requests: int = 1, writes: str = "") -> _T:
        """Await a request within its deadline, and update the broker's health.

        `requests` is the number of round trips it makes, `writes` the bucket or stream it changes.

        Raises:
            LostRaceError: Another writer changed the entry first.
            ClusterFault: The request failed or timed out.
        """
        try:
            return await self._run(what, request, requests * self.request_s, writes)
        finally:
            self.report()

    async def _run(self, what: str, request: Awaitable[_T], within_s: float, writes: str) -> _T:
        import nats.errors  # noqa: PLC0415 — only with a cluster
        from nats.js import errors  # noqa: PLC0415 — only with a cluster

        health = self.health
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(within_s):
                result = await keep_cancellation(request)
        except (errors.KeyWrongLastSequenceError, errors.KeyNotFoundError) as exc:
            # Not found: the entry existed when the create failed, and expired before the client looked again.
            health.take_answer(loop.time() - began)  # doesn't prove that writes work: a rejection needs no storage
            raise LostRaceError(what) from exc
        except (errors.NotFoundError, errors.BucketNotFoundError) as exc:
            health.take_failure("missing", writes)
            message = f"{what}: the broker has no such bucket or stream; prepare it once with `indus cluster init`"
            raise ClusterFault("missing", message) from exc
        except errors.APIError as exc:
            if exc.err_code == _WRONG_LAST:
                health.take_answer(loop.time() - began)
                raise LostRaceError(what) from exc
            state, why = _explain_api_error(exc)
            if state == "ready" or (state == "full" and exc.description in _OWN_LIMIT):
                health.take_answer(loop.time() - began)
            else:
                health.take_failure(state, writes)
            raise ClusterFault(state, f"{what}: {why}") from exc
        except (TimeoutError, nats.errors.Error, OSError) as exc:
            # Connected but no answer: the brokers are slow or have no majority.
            health.is_connected = self.client.is_connected
            self._count_open_round_trip()
            why = "no answer in time" if isinstance(exc, TimeoutError) else describe_error(exc)
            raise ClusterFault(health.take_silence(writes), f"{what}: {why}") from exc
        health.take_answer(loop.time() - began, writes)
        return result

    def _count_open_round_trip(self) -> None:
        """Count the pending round trip as at least the time it has taken so far."""
        if self._asked_at is not None:
            since_s = asyncio.get_running_loop().time() - self._asked_at
            self.health.round_trip_s = max(self.health.round_trip_s, since_s)

    async def measure_round_trip(self) -> None:
        """Measure the round trip to the connected broker."""
        import nats.errors  # noqa: PLC0415 — only with a cluster

        began = self._asked_at = asyncio.get_running_loop().time()
        try:
            await self._flush_to_broker(LONGEST_S)
            self.health.round_trip_s = asyncio.get_running_loop().time() - began
        except (TimeoutError, nats.errors.Error, OSError):
            self._count_open_round_trip()
        finally:
            self._asked_at = None
        self.report()

    async def _flush_to_broker(self, within_s: float) -> None:
        """Wait until the connected broker has processed everything sent so far, using a message to ourselves.

        A PING won't do: abandoning one breaks the client when the answer arrives (`_process_pong` in
        https://github.com/nats-io/nats.py).
        """
        if not self._echo_subject:
            subject = f"{self.settings.prefix}.round-trip.{self.settings.node}.{secrets.token_hex(8)}"
            await self.client.subscribe(subject, cb=self._take_echo)  # pyright: ignore[reportUnknownMemberType] — untyped options
            self._echo_subject = subject
        self._echoed += 1
        number = self._echoed
        echo = self._echoes[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(within_s):
                await self.client.publish(self._echo_subject, b"%d" % number)
                await echo
        finally:
            del self._echoes[number]

    async def _take_echo(self, message: Msg) -> None:
        echo = self._echoes.get(int(message.data)) if message.data.isdigit() else None
        if echo is not None and not echo.done():
            echo.set_result(None)

    async def measure_round_trips(self) -> None:
        """Measure the round trip periodically, until cancelled."""
        while True:
            await asyncio.sleep(_MEASURE_EVERY_S)
            if self.client.is_connected:
                await self.measure_round_trip()

    async def read_storage(self) -> Storage:
        """Read the account's storage use and limit, or raise `ClusterFault`."""
        info = await self.run("the account could not be read", self.streams.account_info())
        limit = info.limits.max_storage
        return Storage(info.storage, limit if limit > 0 else None)

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send a message at most once, or raise `ClusterFault`. If nothing listens, `reply` gets status 503."""
        import nats.errors  # noqa: PLC0415 — only with a cluster

        try:
            if not self.client.is_connected:
                raise ClusterFault("away", "the broker is away")
            await self.client.publish(subject, data, reply=reply)
        except (nats.errors.Error, OSError) as exc:
            raise ClusterFault("away", f"nothing can be sent: {describe_error(exc)}") from exc

    async def subscribe(self, subject: str, on_message: OnMessage) -> Callable[[], Awaitable[None]]:
        """Call `on_message` for each message, one at a time, or raise `ClusterFault`. Returns the unsubscriber."""
        import nats.errors  # noqa: PLC0415 — only with a cluster

        try:
            subscription = await self.client.subscribe(  # pyright: ignore[reportUnknownMemberType] — untyped options
                subject, cb=on_message, pending_msgs_limit=_UNREAD_MESSAGES, pending_bytes_limit=_UNREAD_BYTES
            )
            await self._flush_to_broker(_FLUSH_S)  # after this the broker has the subscription
        except (TimeoutError, nats.errors.Error, OSError) as exc:
            raise ClusterFault("away", f"{subject} cannot be listened to: {describe_error(exc)}") from exc

        async def stop() -> None:
            with suppress(nats.errors.Error, OSError):  # already ended by the connection
                await subscription.unsubscribe()

        return stop


async def keep_cancellation(request: Awaitable[_T]) -> _T:
    """Await a client request, and stay cancelled if its answer or an error arrives at the same moment.

    The client uses `asyncio.wait_for`, which drops the cancellation in that case before Python 3.12:
    https://github.com/python/cpython/issues/86296.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await request
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def is_unheard(message: Msg) -> bool:
    """Return whether this is the broker's status 503, i.e. nothing listens."""
    return not message.data and message.headers is not None and message.headers.get("Status") == "503"


@asynccontextmanager
async def open_broker(settings: ClusterSettings) -> AsyncGenerator[Broker]:
    """Connect to one of the brokers, and stay connected inside the block.

    Raises `ClusterFault` if none is reachable, or `nats-py` isn't installed.
    """
    try:
        import nats.errors  # noqa: PLC0415 — only with a cluster

        from induscode.cluster.client import BrokerClient  # noqa: PLC0415 — only with a cluster
    except ImportError as exc:
        raise ClusterFault("missing", MISSING_EXTRA) from exc
    brokers: list[Broker] = []
    refusals: deque[Exception] = deque(maxlen=1)
    logging.getLogger("asyncio").addFilter(_is_wanted)

    async def report_error(exc: Exception) -> None:
        refusals.append(exc)
        _log.debug("the broker's client: %s", describe_error(exc))
        if isinstance(exc, nats.errors.SlowConsumerError):
            for broker in brokers:
                broker.health.take_unread()
                broker.report()

    async def report_cut() -> None:
        for broker in brokers:
            broker.health.connect(is_connected=False)
            broker.report()
            broker.on_cut()

    async def report_back() -> None:
        for broker in brokers:
            broker.health.connect(is_connected=True)
            broker.report()
            broker.on_back()

    client = BrokerClient(settings.credentials)
    try:
        async with asyncio.timeout(settings.connect_s * (1 + len(settings.brokers))):
            await client.connect(
                [*settings.brokers],
                name=f"indus {settings.node}",
                error_cb=report_error,
                disconnected_cb=report_cut,
                reconnected_cb=report_back,
                connect_timeout=settings.connect_s,
                reconnect_time_wait=_RECONNECT_S,
                max_reconnect_attempts=-1,
                ping_interval=_PING_S,
                max_outstanding_pings=2,
                pending_size=_PENDING_BYTES,
                drain_timeout=_FLUSH_S,
                allow_reconnect=True,
                # Lets broker permissions tell an offering node's answers from others'.
                inbox_prefix=f"_INBOX.{settings.node}" if settings.role == "offers" else "_INBOX",
            )
    except (TimeoutError, nats.errors.Error, OSError) as exc:
        where = ", ".join(hide_password(url) for url in settings.brokers)
        why = _explain_refusal([exc, *refusals][-1])
        raise ClusterFault("away", f"no broker can be used at {where}: {why}") from exc
    broker = Broker(client, settings)
    brokers.append(broker)
    measuring = asyncio.create_task(broker.measure_round_trips(), name="round trips to the broker")  # noqa: TID251 — awaited below
    try:
        await broker.measure_round_trip()  # sets the deadlines of the first requests
        yield broker
    finally:
        measuring.cancel()
        await asyncio.wait({measuring})
        brokers.clear()
        with suppress(Exception):  # it's closed either way
            async with asyncio.timeout(_FLUSH_S):
                await client.close()


def _is_wanted(entry: logging.LogRecord) -> bool:
    """Drop a meaningless warning the client causes with every TLS connection."""
    return "eof_received() has no effect" not in str(entry.msg)


def _explain_api_error(exc: APIError) -> tuple[BrokerState, str]:
    """Return the state of brokers rejecting a request, and the reason with a remedy."""
    from nats.js.errors import ServiceUnavailableError  # noqa: PLC0415 — only with a cluster

    if exc.err_code in _NO_STORAGE:
        return "full", exc.description or "they have no storage left"
    # Nothing listens for JetStream requests: nats-py raises this error without a code.
    is_unheard = isinstance(exc, ServiceUnavailableError) and not exc.err_code
    if exc.err_code in _NO_JETSTREAM or is_unheard:
        reason = "JetStream is off in the broker, or in this account, or has not started yet"
        return "without JetStream", f"{reason}: start nats-server with -js, and give the account `jetstream: enabled`"
    if exc.err_code in _TOO_MANY_REPLICAS:
        return ("ready", "there are fewer brokers than replicas: use --replicas 1, or three brokers in a cluster")
    return "partitioned", exc.description or describe_error(exc)


def _explain_refusal(exc: Exception) -> str:
    """Say why connecting to a broker failed, with a remedy."""
    import ssl  # noqa: PLC0415 — only for this error

    text = describe_error(exc)
    if isinstance(exc, TimeoutError):
        return "no answer in time: they are away, or far too slow"
    if "authorization" in text.lower() or "authentication" in text.lower():
        return "it refuses this user or password (--broker-credentials FILE, or INDUS_BROKER_CREDENTIALS)"
    if isinstance(exc, ssl.SSLCertVerificationError):
        reason = f"its TLS certificate is not trusted ({exc.verify_message})"
        return f"{reason}; SSL_CERT_FILE names a file with the certificate of its authority"
    return text
