"""Turns the flags of `indus serve` into the settings of a cluster node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from indusagi.core.records import record
from induscode.cluster.broker import MISSING_EXTRA
from induscode.cluster.contract import CAPACITY, ClusterSettings, find_node_name, parse_brokers
from induscode.cluster.key import ClusterKey, read_any_key
from induscode.cluster.opening import add_credentials, find_key_file, load_key
from induscode.launch.settings import CLUSTER_AFFINITY, CLUSTER_IDLE

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup

    from induscode.deck.mcp.store import LedgerStore, ThreadedStore
    from induscode.launch.settings import Settings
    from induscode.permissions import CardChecks
    from induscode.servers.config.trust import TrustStore


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


def parse_cluster(context: click.Context) -> ClusterSettings | None:
    """Read the brokers and this node; return `None` without `--cluster`.

    Raises:
        click.UsageError: There's no `--http`, or an address or a name is invalid.
    """
    params = context.params
    if params["cluster"] is None:
        return None
    if params["http"] is None and not params["offer_only"]:
        raise click.UsageError("--cluster needs --http: clients reach a node over HTTP", context)
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
    if find_spec("nats") is None:
        raise click.UsageError(MISSING_EXTRA, context)
    idle_s = context.params["idle_stop"]
    idle_s = settings.get(CLUSTER_IDLE) if idle_s is None else idle_s
    cluster = replace(cluster, affinity=settings.get(CLUSTER_AFFINITY), idle_s=idle_s)
    cluster = add_credentials(context, cluster, settings, context.params["broker_credentials"])
    key_file = context.params["cluster_key"]
    if cluster.role == "offers":
        return _add_offer_key(context, cluster, find_key_file(settings, key_file))
    return replace(cluster, key=load_key(context, settings, key_file))


def _add_offer_key(context: click.Context, cluster: ClusterSettings, path: str) -> ClusterSettings:
    """Add an offering node's key, which contains its name, or the cluster's key.

    Raises:
        click.UsageError: The key is missing, unusable, or another node's.
    """
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
