"""The flags of `indus serve` that make it a node of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from induscode.cluster.contract import ClusterSettings

_F = TypeVar("_F", bound=Callable[..., object])
_BESIDE_CLUSTER = {
    "transparent": "--transparent",
    "print_config": "--print-config",
    "install": "--install",
    "uninstall": "--uninstall",
    "dry_run": "--dry-run",
    "stdio": "--stdio",
}


def cluster_flags(command: _F) -> _F:
    """Add the flags to a command."""
    options = [
        click.option(
            "--cluster",
            metavar="URL,…",
            help="With --http: join the cluster of these NATS brokers; servers run on one node and are used by all.",
        ),
        click.option("--node", metavar="NAME", help="With --cluster: the name of this node; the machine's by default."),
        click.option(
            "--capacity",
            type=click.IntRange(1, 10_000),
            metavar="N",
            help="With --cluster: the most servers that this node runs for the cluster; 64 by default.",
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
    """Check the flags; `None` without `--cluster`.

    Raises:
        click.UsageError: They cannot be used together, or an address or a name is invalid.
    """
    params = context.params
    given = {key: params[key] for key in ("node", "capacity", "doors_only", "offer_only")}
    if params["cluster"] is None:
        for key, value in given.items():
            if value:
                raise click.UsageError(f"--{key.replace('_', '-')} means nothing without --cluster", context)
        return None
    for key, flag in _BESIDE_CLUSTER.items():
        if params[key]:
            raise click.UsageError(f"--cluster and {flag} exclude each other", context)
    if params["doors_only"] and params["offer_only"]:
        raise click.UsageError("--doors-only and --offer-only exclude each other", context)
    if params["http"] is None and not params["offer_only"]:
        raise click.UsageError("--cluster needs --http: clients reach a node over HTTP", context)
    from induscode.cluster.contract import CAPACITY, ClusterSettings  # noqa: PLC0415 — only with --cluster
    from induscode.cluster.options import find_node_name, parse_brokers  # noqa: PLC0415 — only with --cluster

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
