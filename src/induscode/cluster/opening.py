"""Options of commands that use a cluster: its brokers and key, from flags or settings; and its preparation.

Functions that read options raise `click.UsageError` if one is missing or can't be used.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import click

from indusagi.core.app_dirs import state_dir
from indusagi.core.records import record
from indusagi.core.secrets import SecretText, parse_secret_text, quotes_value
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import print_status
from induscode.cluster.broker import LONGEST_S, STATES, Broker, open_broker
from induscode.cluster.contract import (
    CREDENTIALS_VARIABLE,
    LEASE_S,
    ClusterFault,
    ClusterSettings,
    LostRaceError,
    parse_brokers,
    read_credentials,
)
from induscode.cluster.jetstream import Bucket, open_bucket
from induscode.cluster.key import ClusterKey, read_key
from induscode.cluster.proofs import PROOF, check_key, find_proof_place
from induscode.launch.options import read_invocation
from induscode.launch.settings import CLUSTER_BROKERS, CLUSTER_CREDENTIALS, CLUSTER_KEY_FILE, Settings

if TYPE_CHECKING:
    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig

    from indusagi.core.cancel import CancelToken

_F = TypeVar("_F", bound=Callable[..., object])
_FAILED = 1
_KEY_NAME = "cluster.key"
"""File name in the state directory."""
_BROKERS, _CREDENTIALS, KEY_FILE = "induscode.brokers", "induscode.broker_credentials", "induscode.key_file"
"""Where the context of a command has the values of its options."""
_PASSWORD_SHOWN = (
    "the address of the brokers has a password, which others may read in the process list or a file: store it "
    "(indus secrets set broker) and write nats://USER:${keyring:broker}@HOST, or use --broker-credentials FILE or the "
    f"variable {CREDENTIALS_VARIABLE}"
)
CREDENTIALS_HELP = (
    f"A file with USER:PASSWORD, a token or NATS credentials; by default the variable {CREDENTIALS_VARIABLE}."
)
KEY_HELP = "The key of the cluster; by default the setting cluster.key_file, or cluster.key in the state directory."


def broker_option(function: _F) -> _F:
    """Add `--cluster`, the brokers, and `--broker-credentials`, the file with the user and password for them."""
    credentials = _keep_option("--broker-credentials", _CREDENTIALS, "FILE", CREDENTIALS_HELP)
    text = "The NATS brokers; by default those of the setting cluster.brokers."
    return _keep_option("--cluster", _BROKERS, "URL,…", text)(credentials(function))


def key_option(function: _F) -> _F:
    """Add `--cluster-key`, the file with the key of the cluster."""
    return _keep_option("--cluster-key", KEY_FILE, "FILE", KEY_HELP)(function)


def _keep_option(flag: str, key: str, metavar: str, describe: str) -> Callable[[_F], _F]:
    """Build an option whose value the context has, so that commands needn't pass it on."""

    def keep(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[key] = value

    return click.option(flag, metavar=metavar, help=describe, expose_value=False, callback=keep)


def add_credentials(
    context: click.Context, cluster: ClusterSettings, settings: Settings, file: str | None
) -> ClusterSettings:
    """Add this process's broker credentials, from `file`, a variable or the settings.

    A password in an address works, with a warning.
    """
    try:
        credentials = read_credentials(file or settings.get(CLUSTER_CREDENTIALS))
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"--broker-credentials: {exc}", context) from exc
    if not credentials and any(urlsplit(one).username and not quotes_value(one) for one in cluster.brokers):
        print_status(_PASSWORD_SHOWN)
    return replace(cluster, credentials=credentials)


def read_brokers(texts: Sequence[str]) -> Sequence[str]:
    """Parse addresses of brokers, with the secrets they refer to; raises `SecretFault` or `ValueError`."""
    from indusagi.interop.auth.secrets import reveal  # noqa: PLC0415 — with a cluster only

    return parse_brokers(",".join(reveal(parse_secret_text(text)) for text in texts))


def read_settings(context: click.Context, brokers: str | None = None) -> ClusterSettings:
    """Read the brokers and their credentials from flags, variables or settings."""
    settings, brokers = read_invocation(context).settings, brokers or context.meta.get(_BROKERS)
    texts = settings.get(CLUSTER_BROKERS) if brokers is None else (brokers,)
    if not texts:
        raise click.UsageError("which brokers? Use --cluster URL, or the setting cluster.brokers", context)
    try:
        found = ClusterSettings(brokers=read_brokers(texts), node="command")
    except ValueError as exc:
        raise click.UsageError(f"{'--cluster' if brokers else 'the setting cluster.brokers'}: {exc}", context) from exc
    return add_credentials(context, found, settings, context.meta.get(_CREDENTIALS))


def read_observer_settings(context: click.Context) -> ClusterSettings:
    """Read the brokers, and the key if this machine has one. Without it, only the brokers can be shown."""
    if KEY_FILE not in context.meta:
        path = find_key_file(read_invocation(context).settings)
        if not isinstance(path, SecretText) and not os.path.exists(path):
            return read_settings(context)
    return read_keyed_settings(context)


def find_key_file(settings: Settings, key_file: str | None = None, *, is_written: bool = False) -> str:
    """Return the path of the key file, or the reference that stands for it unless the file `is_written`."""
    path = (key_file and parse_secret_text(key_file)) or settings.get(CLUSTER_KEY_FILE)
    if isinstance(path, SecretText):
        if is_written:
            raise click.UsageError(f"{path} is a secret, and the key has to be written: name a file with --cluster-key")
        return path
    try:
        return os.path.expanduser(path) if path else os.path.join(state_dir(), _KEY_NAME)
    except OSError as exc:
        raise click.UsageError(str(exc)) from exc


def load_key(context: click.Context, settings: Settings, key_file: str | None) -> ClusterKey:
    """Read the cluster key."""
    path = find_key_file(settings, key_file)
    try:
        return read_key(path)
    except FileNotFoundError as exc:
        remedy = "copy it from the machine that ran indus cluster init, or name it with --cluster-key"
        raise click.UsageError(f"there is no key of the cluster at {path}: {remedy}", context) from exc
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"--cluster-key: {exc}", context) from exc


def read_keyed_settings(context: click.Context, brokers: str | None = None) -> ClusterSettings:
    """Read the brokers and the key."""
    found, settings = read_settings(context, brokers), read_invocation(context).settings
    return replace(found, key=load_key(context, settings, context.meta.get(KEY_FILE)))


def describe_fault(fault: ClusterFault) -> str:
    """Describe a fault, after the brokers' state if that's the cause; a missing majority comes with its reasons."""
    if fault.state in {"ready", "missing"}:
        return str(fault)
    reasons = f": {STATES[fault.state].partition(': ')[2]}" if fault.state == "partitioned" else ""
    return f"brokers {fault.state}: {fault}{reasons}"


def run_with_broker(
    settings: ClusterSettings, work: Callable[[Broker], Awaitable[int]], *, checks_key: bool = True
) -> int:
    """Connect, do the work and return its exit code. Prints why connecting failed."""

    async def run(_: CancelToken) -> int:
        try:
            async with open_broker(settings) as broker:
                if settings.key is not None and checks_key:
                    await check_key(broker)
                return await work(broker)
        except ClusterFault as fault:
            print_status(describe_fault(fault))
            return _FAILED

    return run_until_signal(run)


# -- preparation ------------------------------------------------------------------------------
#
# Renewing a lease is a write, so nothing else may use up the storage. In an account with a limit, or if they have a
# limit themselves, ledgers get a part of it and reject rows beyond it, which then wait in their nodes' files; call
# records drop their oldest. The rest is for leases, placements and shared entries.


_CALLS_S = 7 * 86_400.0
"""Retention of call records."""
_CALLS_BYTES = 256 * 1024 * 1024
_SHARE = 8
"""Call records get at most 1/8 of the account, and another 1/8 stays free of ledgers and call records."""
_NO_LIMIT = -1
_ROUNDS = 4
"""Round trips to allow: placing a stream takes the brokers longer than writing an entry."""


@record(kw_only=True)
class Prepared:
    """The outcome of a preparation."""

    made: Sequence[str]
    """Names of the buckets and streams that were missing."""
    ledger_bytes: int | None
    """Size limit of the ledgers, or None if only the brokers' storage limits them."""
    is_changed: bool = False
    """Whether the limit of existing ledgers changed."""
    lease_s: float
    """Lifetime of a lease. The first preparation fixes it, and the number of replicas."""
    replicas: int


async def prepare_cluster(
    broker: Broker, *, replicas: int, lease_s: float = LEASE_S, ledger_bytes: int | None = None
) -> Prepared:
    """Create missing buckets and streams. Of existing ones, only the ledger limit may grow.

    Raises:
        ClusterFault: The broker refuses, e.g. without JetStream or with fewer members than `replicas`.
    """
    from nats.js.api import KeyValueConfig, StorageType  # noqa: PLC0415 — only with a cluster

    settings, key = broker.settings, broker.settings.key
    assert key is not None
    streams = broker.client.jetstream(timeout=_ROUNDS * LONGEST_S)  # pyright: ignore[reportUnknownMemberType] — untyped options
    made: list[str] = []
    names = (settings.placements, settings.keys, settings.shared)
    for name, ttl in ((settings.leases, lease_s), *((name, None) for name in names)):
        try:
            await open_bucket(broker, name)
        except ClusterFault as fault:
            if fault.state != "missing":
                raise
            config = KeyValueConfig(bucket=name, ttl=ttl, replicas=replicas, storage=StorageType.FILE, history=1)
            making = streams.create_key_value(config)  # pyright: ignore[reportUnknownMemberType] — untyped options
            await broker.run(f"the bucket {name} could not be made", making, requests=_ROUNDS, writes=name)
            made.append(name)
    storage = await broker.read_storage()
    # What each replica may store; None without a limit.
    share = None if storage.limit is None else storage.limit // replicas
    calls_bytes = _CALLS_BYTES if share is None else min(_CALLS_BYTES, share // _SHARE)
    calls = await _prepare_stream(
        broker, streams, made, settings.calls, f"{settings.prefix}.calls.>", replicas, calls_bytes, kept_s=_CALLS_S
    )
    if ledger_bytes is None and share is not None:
        ledger_bytes = max(1, share - share // _SHARE - max(share // _SHARE, calls.max_bytes or 0))
    limit = _NO_LIMIT if ledger_bytes is None else ledger_bytes
    ledger = await _prepare_stream(
        broker, streams, made, settings.ledger, f"{settings.prefix}.ledger.>", replicas, limit
    )
    before = ledger.max_bytes or _NO_LIMIT
    is_changed = limit != before and limit != _NO_LIMIT and (limit > before or before == _NO_LIMIT)
    if is_changed:
        ledger.max_bytes = limit
        changing = streams.update_stream(ledger)  # pyright: ignore[reportUnknownMemberType] — untyped options
        await broker.run(f"the limit of {settings.ledger} could not be changed", changing, requests=_ROUNDS)
    leases = await open_bucket(broker, settings.leases)
    await _prove_key(broker, leases, key)
    present, status = limit if is_changed else before, await leases.read_status()
    return Prepared(
        made=made,
        ledger_bytes=None if present == _NO_LIMIT else present,
        is_changed=is_changed,
        lease_s=status.ttl_s,
        replicas=status.replicas,
    )


async def _prove_key(broker: Broker, leases: Bucket, key: ClusterKey) -> None:
    """Write the proof of the key if it's missing. Replaces an earlier version's proof while no node runs."""
    keys = await open_bucket(broker, broker.settings.keys)
    sealed, present = key.seal(find_proof_place(broker.settings), PROOF.encode()), await keys.get(PROOF)
    with suppress(LostRaceError):  # another process was first
        if present is None:
            await keys.put(PROOF, sealed)
        elif key.has_sealed(broker.settings.keys, present.value):
            if await leases.read_all():
                raise ClusterFault("ready", "nodes of an earlier version of indus run: stop all nodes first")
            await keys.put(PROOF, sealed, present.revision)
    await check_key(broker)


async def _prepare_stream(
    broker: Broker,
    streams: JetStreamContext,
    made: list[str],
    name: str,
    subjects: str,
    replicas: int,
    kept_bytes: int,
    kept_s: float | None = None,
) -> StreamConfig:
    """Create a stream if it's missing, and return its configuration.

    Without an age limit, a stream rejects messages when it or the broker is full, and single messages can't be
    removed. With one, it drops its oldest messages.
    """
    from nats.js.api import DiscardPolicy, StorageType, StreamConfig  # noqa: PLC0415 — only with a cluster

    try:
        return (await broker.run(f"the stream {name} could not be read", streams.stream_info(name))).config
    except ClusterFault as fault:
        if fault.state != "missing":
            raise
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
    making = streams.add_stream(config)  # pyright: ignore[reportUnknownMemberType] — untyped options
    await broker.run(f"the stream {name} could not be made", making, requests=_ROUNDS, writes=name)
    made.append(name)
    return config
