"""Preparation of the brokers: the buckets and streams of a cluster, and how much each may store.

Leases are renewed by writes, so nothing else may take the last of the storage. In an account with a limit, or with
a limit of their own, the ledgers take a part of it and refuse rows beyond, which wait in the files of their nodes; call
records drop their oldest. What remains is for leases, placements and what the nodes share.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from indusagi.core.records import record
from induscode.cluster.broker import LONGEST_S, PROOF, Broker, check_key, find_proof_place, is_sealed_with
from induscode.cluster.contract import LEASE_S, ClusterFault, LostRaceError

if TYPE_CHECKING:
    from nats.js.api import StreamConfig

    from induscode.cluster.bucket import Bucket
    from induscode.cluster.key import ClusterKey

_CALLS_S = 7 * 86_400.0
"""How long call records are kept."""
_CALLS_BYTES = 256 * 1024 * 1024
_SHARE = 8
"""One of so many parts of the account is for call records at most, and one is kept free of ledgers and call records."""
_NO_LIMIT = -1
_ROUNDS = 4
"""Brokers that find a place for a stream take longer than for an entry."""


@record(kw_only=True)
class Prepared:
    """What a preparation has done."""

    made: Sequence[str]
    """The names of the buckets and streams that were missing."""
    ledger_bytes: int | None
    """The most that the ledgers take; None: the brokers' storage is the only limit."""
    is_changed: bool = False
    """Whether the limit of ledgers that were there before has changed."""
    lease_s: float
    """How long a lease lives; the first preparation decides, and the number of replicas as well."""
    replicas: int


async def prepare_cluster(
    broker: Broker, *, replicas: int, lease_s: float = LEASE_S, ledger_bytes: int | None = None
) -> Prepared:
    """Make the buckets and streams that are missing; of what exists, the limit of the ledgers may grow.

    Raises:
        ClusterFault: The broker refuses, as one without JetStream or with fewer members than `replicas` does.
    """
    from nats.js.api import KeyValueConfig, StorageType  # noqa: PLC0415 — only with a cluster

    made: list[str] = []
    settings, streams = broker.settings, broker.client.jetstream(timeout=_ROUNDS * LONGEST_S)  # pyright: ignore[reportUnknownMemberType] — untyped options
    names = (settings.placements, settings.keys, settings.shared)
    for name, ttl in ((settings.leases, lease_s), *((name, None) for name in names)):
        try:
            await broker.open_bucket(name)
        except ClusterFault as fault:
            if fault.state != "missing":
                raise
            config = KeyValueConfig(bucket=name, ttl=ttl, replicas=replicas, storage=StorageType.FILE, history=1)
            making = streams.create_key_value(config)  # pyright: ignore[reportUnknownMemberType] — untyped options
            await broker.run(f"the bucket {name} could not be made", making, requests=_ROUNDS, writes=name)
            made.append(name)
    share = await _read_share(broker, replicas)
    calls_bytes = _CALLS_BYTES if share is None else min(_CALLS_BYTES, share // _SHARE)
    calls, is_new = await _prepare_stream(
        broker, settings.calls, f"{settings.prefix}.calls.>", replicas=replicas, kept_s=_CALLS_S, kept_bytes=calls_bytes
    )
    made += [settings.calls] if is_new else []
    if ledger_bytes is None and share is not None:
        ledger_bytes = max(1, share - share // _SHARE - max(share // _SHARE, calls.max_bytes or 0))
    limit = _NO_LIMIT if ledger_bytes is None else ledger_bytes
    ledger, is_new = await _prepare_stream(
        broker, settings.ledger, f"{settings.prefix}.ledger.>", replicas=replicas, kept_bytes=limit
    )
    made += [settings.ledger] if is_new else []
    before = ledger.max_bytes or _NO_LIMIT
    is_changed = limit != before and limit != _NO_LIMIT and (limit > before or before == _NO_LIMIT)
    if is_changed:
        ledger.max_bytes = limit
        changing = streams.update_stream(ledger)  # pyright: ignore[reportUnknownMemberType] — untyped options
        await broker.run(f"the limit of {settings.ledger} could not be changed", changing, requests=_ROUNDS)
    key = settings.key
    if key is None:
        raise ClusterFault("missing", "a cluster needs a key")
    keys = await broker.open_bucket(settings.keys)
    await _prove_key(broker, keys, key)
    present = limit if is_changed else before
    leases = await broker.open_bucket(settings.leases)
    return Prepared(
        made=made,
        ledger_bytes=None if present == _NO_LIMIT else present,
        is_changed=is_changed,
        lease_s=await leases.read_ttl(),
        replicas=await leases.count_replicas(),
    )


async def _prove_key(broker: Broker, keys: Bucket, key: ClusterKey) -> None:
    """Write the proof of the key, unless it's there; that of an earlier version is replaced while no node runs."""
    sealed, present = key.seal(find_proof_place(broker.settings), PROOF.encode()), await keys.get(PROOF)
    with suppress(LostRaceError):  # another process was first
        if present is None:
            await keys.create(PROOF, sealed)
        elif is_sealed_with(key, broker.settings.keys, present.value):
            leases = await broker.open_bucket(broker.settings.leases)
            if await leases.read_all():
                raise ClusterFault("ready", "nodes of an earlier version of indus run: stop all nodes first")
            await keys.update(PROOF, sealed, present.revision)
    await check_key(broker)


async def _read_share(broker: Broker, replicas: int) -> int | None:
    """Read how much each copy of everything may take in the account; None: it has no limit of its own."""
    storage = await broker.read_storage()
    return None if storage.limit is None else storage.limit // replicas


async def _prepare_stream(
    broker: Broker, name: str, subjects: str, *, replicas: int, kept_s: float | None = None, kept_bytes: int = _NO_LIMIT
) -> tuple[StreamConfig, bool]:
    """Make a stream that is missing; return its configuration, and whether it was missing.

    One without a time limit refuses messages when it or the broker is full, and its messages cannot be removed one by
    one; one with a time limit drops its oldest messages.

    Raises:
        ClusterFault: The broker refuses.
    """
    from nats.js.api import DiscardPolicy, StorageType, StreamConfig  # noqa: PLC0415 — only with a cluster

    api = broker.client.jetstream(timeout=_ROUNDS * LONGEST_S)  # pyright: ignore[reportUnknownMemberType] — untyped options
    try:
        info = await broker.run(f"the stream {name} could not be read", api.stream_info(name))
    except ClusterFault as fault:
        if fault.state != "missing":
            raise
    else:
        return info.config, False
    is_limited = kept_s is not None
    config = StreamConfig(
        name=name,
        subjects=[subjects],
        storage=StorageType.FILE,
        num_replicas=replicas,
        max_age=kept_s or 0.0,
        max_bytes=kept_bytes,
        discard=DiscardPolicy.OLD if is_limited else DiscardPolicy.NEW,
        deny_delete=not is_limited,
        deny_purge=not is_limited,
    )
    making = api.add_stream(config)  # pyright: ignore[reportUnknownMemberType] — untyped options
    await broker.run(f"the stream {name} could not be made", making, requests=_ROUNDS, writes=name)
    return config, True
