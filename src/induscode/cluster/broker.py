"""Connection to the brokers of a cluster.

Every request has a short deadline, longer while the broker is slow; the client reconnects for as long as it is open,
and its buffers are bounded. Each outcome updates `state`, which status lines and `indus cluster status` show: a broker
that is away, slow, full or without a majority is told apart (`health`). Only this module, `bucket`, `client`,
`prepare` and `streams` import `nats`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from indusagi.core.faults import describe_error
from indusagi.core.records import record
from induscode.cluster.bucket import Bucket
from induscode.cluster.contract import (
    BrokerState,
    ClusterFault,
    ClusterSettings,
    LostRaceError,
    WrongKeyError,
    hide_password,
)
from induscode.cluster.health import BrokerHealth
from induscode.cluster.key import UnsealedError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.errors import APIError

    from induscode.cluster.key import ClusterKey

    OnMessage = Callable[[Msg], Awaitable[None]]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

REQUEST_S = 1.0
"""How long one request to the broker may take; a renewal is tried several times within a lease."""
LONGEST_S = 3.0
"""How long it may take while round trips to the broker take long."""
_ROUND_TRIPS = 3
"""A request may take so many round trips: its broker passes it on to the leader, which asks a third one."""
_MEASURE_EVERY_S = 1.0
"""Between two measurements of the round trip."""
_FLUSH_S = 2
_RECONNECT_S = 0.25
_PING_S = 1
"""A broker that does not answer two of these pings is left for another: within half of a lease."""
_PENDING_BYTES = 8 * 1024 * 1024
"""What is kept for a broker that is away; past it, sending fails."""
_UNREAD_MESSAGES = 8_192
_UNREAD_BYTES = 64 * 1024 * 1024
PROOF = "proof"
"""The entry with the proof of the key of the cluster."""
REPLACED = "replaced"
"""The entry that tells holders of an earlier key that it was replaced."""
_NO_STORAGE = frozenset({10002, 10023, 10028, 10047, 10077})
"""JetStream error codes for limits of the account, memory, storage, and writes that failed:
https://github.com/nats-io/nats-server/blob/main/server/errors.json."""
_OWN_LIMIT = frozenset({"maximum bytes exceeded", "maximum messages exceeded"})
"""What a stream says that has reached its own limit; the others go on."""
_NO_JETSTREAM = frozenset({10039, 10076})
"""JetStream is off in the broker, or in the account."""
_TOO_MANY_REPLICAS = frozenset({10005, 10074})
"""Fewer brokers than replicas: no peers, or a broker that is in no cluster."""
_WRONG_LAST = 10071
"""JetStream's error code for another last message than the expected one."""
MISSING_EXTRA = "--cluster needs the extra `cluster`: pip install 'indus-deck[cluster]'"


@record
class Storage:
    """What the account of this process stores at the brokers."""

    used: int
    limit: int | None
    """None: the account has none of its own."""


class Broker:
    """An open connection; `open_broker` makes one."""

    def __init__(self, client: Client, settings: ClusterSettings) -> None:
        self.client = client
        self.settings = settings
        self.health = BrokerHealth(settings.leases)
        self._told: BrokerState = "ready"
        self.on_state: Callable[[BrokerState], None] = lambda _: None
        """Called when the state has changed."""
        self.on_cut: Callable[[], None] = lambda: None
        """Called when the connection is lost: what was sent may not have arrived."""
        self.on_back: Callable[[], None] = lambda: None
        """Called when it is there again."""
        self.check_write: Callable[[], None] = lambda: None
        """Called before something is shared with other nodes; raises `ClusterFault` while this node may not do that."""
        self.names: dict[str, str] = {}
        """The names of brokers by address, as they have greeted."""
        self._echo_subject = ""
        """Where messages of this process to itself come back from the broker."""
        self._echoed = 0
        self._echoes: dict[int, asyncio.Future[None]] = {}
        """Those that are under way, by number."""
        self._asked_at: float | None = None
        """When the round trip began that has not ended."""
        self._streams = client.jetstream(timeout=LONGEST_S)  # pyright: ignore[reportUnknownMemberType] — untyped options

    @property
    def state(self) -> BrokerState:
        """The brokers as the last requests have found them."""
        return self.health.state

    def report(self) -> None:
        """Call `on_state` if the state has changed."""
        if self.state != self._told:
            self._told = self.state
            self.on_state(self._told)

    @property
    def request_s(self) -> float:
        """How long one request may take now."""
        return min(max(REQUEST_S, _ROUND_TRIPS * self.health.round_trip_s), LONGEST_S)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self.client.is_connected

    def list_addresses(self) -> Sequence[str]:
        """List the brokers that were given, and those that they have named."""
        return [*dict.fromkeys((*self.settings.brokers, *(uri.geturl() for uri in self.client.servers)))]

    @property
    def payload_bytes(self) -> int:
        """The largest message that the broker takes."""
        return self.client.max_payload

    async def run(self, what: str, request: Awaitable[_T], *, requests: int = 1, writes: str = "") -> _T:
        """Await a request within its deadline, and take note of how the broker does.

        `requests`: how many round trips it is made of. `writes`: the bucket or stream that it changes.

        Raises:
            LostRaceError: It refused a change of an entry that another writer has changed.
            ClusterFault: It did not do what was asked, or did not say so in time.
        """
        try:
            return await self._run(what, request, requests * self.request_s, writes=writes)
        finally:
            self.report()

    async def _run(self, what: str, request: Awaitable[_T], within_s: float, *, writes: str) -> _T:
        import nats.errors  # noqa: PLC0415 — only with a cluster
        from nats.js import errors  # noqa: PLC0415 — only with a cluster

        health = self.health
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(within_s):
                result = await keep_cancellation(request)
        except (errors.KeyWrongLastSequenceError, errors.KeyNotFoundError) as exc:
            # Not found: it was there when the creation was refused, and has run out before the client looked again.
            health.take_answer(loop.time() - began)  # a refusal needs no storage: it is no proof that a write works
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
            # A connection without an answer: the brokers have no majority, or they are slow.
            health.is_connected = self.client.is_connected
            self._count_open_round_trip()
            why = "no answer in time" if isinstance(exc, TimeoutError) else describe_error(exc)
            raise ClusterFault(health.take_silence(writes), f"{what}: {why}") from exc
        health.take_answer(loop.time() - began, writes)
        return result

    def _count_open_round_trip(self) -> None:
        """Take the round trip that has not ended into account."""
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
        """Wait until the connected broker has taken everything that was sent so far: a message to oneself is back.

        A PING that is given up breaks the client when its answer comes (https://github.com/nats-io/nats.py:
        `_process_pong`).
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
        """Measure the round trip all the time; runs until cancelled."""
        while True:
            await asyncio.sleep(_MEASURE_EVERY_S)
            if self.client.is_connected:
                await self.measure_round_trip()

    async def open_bucket(self, name: str) -> Bucket:
        """Open a bucket that `prepare_cluster` has made.

        Raises:
            ClusterFault: It is missing, or the broker does not answer.
        """
        values = await self.run(f"the bucket {name} could not be opened", self._streams.key_value(name))
        return Bucket(self, values, name)

    async def read_storage(self) -> Storage:
        """Read how much the account stores, and may store.

        Raises:
            ClusterFault: The broker has no JetStream, or does not answer.
        """
        info = await self.run("the account could not be read", self._streams.account_info())
        limit = info.limits.max_storage
        return Storage(info.storage, limit if limit > 0 else None)

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send a message, at most once; without a receiver, `reply` gets a message with the status 503.

        Raises:
            ClusterFault: There is no connection, or too much waits for it.
        """
        import nats.errors  # noqa: PLC0415 — only with a cluster

        try:
            if not self.client.is_connected:
                raise ClusterFault("away", "the broker is away")
            await self.client.publish(subject, data, reply=reply)
        except (nats.errors.Error, OSError) as exc:
            raise ClusterFault("away", f"nothing can be sent: {describe_error(exc)}") from exc

    async def subscribe(self, subject: str, on_message: OnMessage) -> Callable[[], Awaitable[None]]:
        """Have `on_message` called for each message, one after the other; returns a function that ends it.

        Raises:
            ClusterFault: There is no connection.
        """
        import nats.errors  # noqa: PLC0415 — only with a cluster

        try:
            subscription = await self.client.subscribe(  # pyright: ignore[reportUnknownMemberType] — untyped options
                subject, cb=on_message, pending_msgs_limit=_UNREAD_MESSAGES, pending_bytes_limit=_UNREAD_BYTES
            )
            await self._flush_to_broker(_FLUSH_S)  # the broker has the subscription then
        except (TimeoutError, nats.errors.Error, OSError) as exc:
            raise ClusterFault("away", f"{subject} cannot be listened to: {describe_error(exc)}") from exc

        async def stop() -> None:
            with suppress(nats.errors.Error, OSError):  # the connection has ended it
                await subscription.unsubscribe()

        return stop


async def keep_cancellation(request: Awaitable[_T]) -> _T:
    """Await a request of the client, and stay cancelled if its answer, or an error, came at the same moment.

    The client waits with `asyncio.wait_for`, which forgets the cancellation then:
    https://github.com/python/cpython/issues/86296, before Python 3.12.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await request
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def is_unheard(message: Msg) -> bool:
    """Return whether a message is the broker's word that nothing listens: the status 503."""
    return not message.data and message.headers is not None and message.headers.get("Status") == "503"


@asynccontextmanager
async def open_broker(settings: ClusterSettings) -> AsyncGenerator[Broker]:
    """Connect to one of the brokers, and stay connected inside the block.

    Raises:
        ClusterFault: None of them can be reached, or `nats-py` is not installed.
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
                # The broker's permissions can tell the answers to an offering node from those to others.
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
        await broker.measure_round_trip()  # the deadlines of the first requests follow from it
        yield broker
    finally:
        measuring.cancel()
        await asyncio.wait({measuring})
        broker.on_cut = broker.on_back = lambda: None
        broker.on_state = lambda _: None
        with suppress(Exception):  # it is closed either way
            async with asyncio.timeout(_FLUSH_S):
                await client.close()


def _is_wanted(entry: logging.LogRecord) -> bool:
    """Drop a warning that the client causes with each connection by TLS, and that means nothing."""
    return "eof_received() has no effect" not in str(entry.msg)


def _explain_api_error(exc: APIError) -> tuple[BrokerState, str]:
    """Return the state of brokers that refuse a request, and why, with what to do."""
    from nats.js.errors import ServiceUnavailableError  # noqa: PLC0415 — only with a cluster

    if exc.err_code in _NO_STORAGE:
        return "full", exc.description or "they have no storage left"
    # Nothing listens to requests for JetStream: nats-py gives that an error without a code.
    is_unheard = isinstance(exc, ServiceUnavailableError) and not exc.err_code
    if exc.err_code in _NO_JETSTREAM or is_unheard:
        reason = "JetStream is off in the broker, or in this account, or has not started yet"
        return "without JetStream", f"{reason}: start nats-server with -js, and give the account `jetstream: enabled`"
    if exc.err_code in _TOO_MANY_REPLICAS:
        return ("ready", "there are fewer brokers than replicas: use --replicas 1, or three brokers in a cluster")
    return "partitioned", exc.description or describe_error(exc)


def _explain_refusal(exc: Exception) -> str:
    """Say why a broker could not be connected to, with what to do."""
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


def find_proof_place(settings: ClusterSettings) -> str:
    """Return the place of the proof of the key. Earlier versions, which sealed no messages, used another place."""
    return f"{settings.keys}/{PROOF} 2"


async def check_key(broker: Broker) -> bool:
    """Check that this process has the key of the cluster; False if the cluster has none yet.

    Raises:
        WrongKeyError: It has another key.
        ClusterFault: The broker does not answer, or an earlier version has prepared the cluster.
    """
    key = broker.settings.key
    bucket = await broker.open_bucket(broker.settings.keys)
    entry = await bucket.get(PROOF)
    if entry is None:
        return False
    if key is None or is_sealed_with(key, find_proof_place(broker.settings), entry.value):
        return True
    if is_sealed_with(key, broker.settings.keys, entry.value):
        message = "an earlier version of indus has prepared this cluster, and its nodes send unsealed messages"
        raise ClusterFault("ready", f"{message}: update and stop all nodes, then run `indus cluster init` once")
    message = "the cluster has another key than this machine: copy the key file of the one that prepared it"
    replaced = await bucket.get(REPLACED)
    if replaced is not None and is_sealed_with(key, f"{broker.settings.keys}/{REPLACED}", replaced.value):
        message = (
            "the key of the cluster was replaced (indus cluster rotate-key): copy the new key file to this machine"
        )
    raise WrongKeyError(message)


def is_sealed_with(key: ClusterKey, place: str, data: bytes) -> bool:
    """Return whether a value of a place is sealed with a key."""
    try:
        key.unseal(place, data)
    except UnsealedError:
        return False
    return True
