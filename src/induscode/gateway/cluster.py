"""Flags that make `indus serve` a cluster node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from indusagi.core.records import record
from induscode.cluster.opening import (
    CREDENTIALS,
    add_credentials,
    credentials_option,
    find_key_file,
    key_option,
    load_key,
)

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup

    from induscode.cluster.contract import ClusterSettings
    from induscode.deck.mcp.store import LedgerStore, ThreadedStore
    from induscode.launch.settings import Settings
    from induscode.permissions.gate import CardChecks
    from induscode.servers.config.trust import TrustStore

_F = TypeVar("_F", bound=Callable[..., object])
_EXCLUDED_BY_CLUSTER = {
    "transparent": "--transparent",
    "print_config": "--print-config",
    "install": "--install",
    "uninstall": "--uninstall",
    "dry_run": "--dry-run",
    "stdio": "--stdio",
}


@record(kw_only=True)
class NodeHooks:
    """Hooks of a gateway that is a cluster node; they do nothing by default."""

    share_store: Callable[[ThreadedStore], AbstractAsyncContextManager[LedgerStore]] | None = None
    """Shares the ledger."""
    trust: TrustStore | None = None
    """Consents of this user and of the other nodes."""
    limit_checks: Callable[[CardChecks], CardChecks] = lambda checks: checks
    """Adds the cluster's rules to the permission checks."""
    on_follow: Callable[[Any, TaskGroup], None] = lambda gateway, tasks: None
    """Called with the gateway when it starts to follow its servers."""


def cluster_flags(command: _F) -> _F:
    """Add the cluster flags to a command."""
    options = [
        click.option(
            "--cluster",
            metavar="URL,…",
            help="With --http: join the cluster of these NATS brokers; servers run on one node and are used by all.",
        ),
        key_option,
        credentials_option,
        click.option("--node", metavar="NAME", help="With --cluster: the name of this node; the machine's by default."),
        click.option(
            "--capacity",
            type=click.IntRange(1, 10_000),
            metavar="N",
            help="With --cluster: the most servers that this node runs for the cluster; 64 by default.",
        ),
        click.option(
            "--idle-stop",
            type=click.IntRange(0, 7 * 24 * 3600),
            metavar="SECONDS",
            help="With --cluster: stop a server that is not called for so long, until its next call; by default never.",
        ),
        click.option("--doors-only", is_flag=True, help="With --cluster: serve clients, and run no server here."),
        click.option(
            "--offer-only",
            is_flag=True,
            help="With --cluster: run the servers of this machine only, for rows whose command is cluster:NODE/SERVER.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def parse_cluster(context: click.Context) -> ClusterSettings | None:
    """Check the flags; return `None` without `--cluster`.

    Raises:
        click.UsageError: The flags conflict, or an address or a name is invalid.
    """
    params = context.params
    names = ("node", "capacity", "idle_stop", "doors_only", "offer_only", "key_file")
    given = {**{key: params[key] for key in names}, "broker_credentials": context.meta.get(CREDENTIALS)}
    if params["cluster"] is None:
        for key, value in given.items():
            if value:
                flag = "cluster-key" if key == "key_file" else key.replace("_", "-")
                raise click.UsageError(f"--{flag} means nothing without --cluster", context)
        return None
    for key, flag in _EXCLUDED_BY_CLUSTER.items():
        if params[key]:
            raise click.UsageError(f"--cluster and {flag} exclude each other", context)
    if params["doors_only"] and params["offer_only"]:
        raise click.UsageError("--doors-only and --offer-only exclude each other", context)
    if params["http"] is None and not params["offer_only"]:
        raise click.UsageError("--cluster needs --http: clients reach a node over HTTP", context)
    from induscode.cluster.contract import CAPACITY, ClusterSettings, find_node_name, parse_brokers  # noqa: PLC0415 — only with --cluster

    try:
        brokers = parse_brokers(params["cluster"])
    except ValueError as exc:
        raise click.UsageError(f"--cluster: {exc}", context) from exc
    try:
        node = find_node_name(params["node"])
    except ValueError as exc:
        raise click.UsageError(f"--node {exc}", context) from exc
    role = "offers" if params["offer_only"] else "doors" if params["doors_only"] else "all"
    return ClusterSettings(brokers=brokers, node=node, role=role, capacity=params["capacity"] or CAPACITY)


def complete_cluster(context: click.Context, cluster: ClusterSettings, settings: Settings) -> ClusterSettings:
    """Add settings, credentials, and the key of the cluster or of an offering node.

    Raises:
        click.UsageError: The extra or the key is missing, or the key or the credentials are unusable.
    """
    from importlib.util import find_spec  # noqa: PLC0415 — only with --cluster

    from induscode.cluster.broker import MISSING_EXTRA  # noqa: PLC0415 — only with --cluster
    from induscode.launch.settings import CLUSTER_AFFINITY, CLUSTER_IDLE  # noqa: PLC0415 — only with --cluster

    if find_spec("nats") is None:
        raise click.UsageError(MISSING_EXTRA, context)
    idle_s = context.params["idle_stop"]
    idle_s = settings.get(CLUSTER_IDLE) if idle_s is None else idle_s
    cluster = replace(cluster, affinity=settings.get(CLUSTER_AFFINITY), idle_s=idle_s)
    cluster = add_credentials(context, cluster, settings)
    key_file = context.params["key_file"]
    if cluster.role == "offers":
        return _add_offer_key(context, cluster, find_key_file(settings, key_file))
    return replace(cluster, key=load_key(context, settings, key_file))


def _add_offer_key(context: click.Context, cluster: ClusterSettings, path: str) -> ClusterSettings:
    """Add an offering node's key, which contains its name, or the cluster's key.

    Raises:
        click.UsageError: The key is missing, unusable, or another node's.
    """
    from induscode.cluster.key import ClusterKey, read_any_key  # noqa: PLC0415 — only with --cluster

    try:
        key = read_any_key(path)
    except FileNotFoundError as exc:
        remedy = (
            f"make one with `indus cluster offer-key {cluster.node}` where the key of the cluster is, and copy it here"
        )
        raise click.UsageError(f"--offer-only needs a key, and there is none at {path}: {remedy}", context) from exc
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"--cluster-key: {exc}", context) from exc
    if isinstance(key, ClusterKey):
        return replace(cluster, key=key)
    if context.params["node"] not in {None, key.node}:
        raise click.UsageError(f"--node {cluster.node!r}: the key at {path} is that of {key.node!r}", context)
    return replace(cluster, offer=key, node=key.node)
