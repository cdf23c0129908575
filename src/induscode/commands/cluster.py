"""`indus cluster`: sets up a cluster's brokers, shows its nodes and placements, and drains nodes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import click
from anyio import to_thread

from indusagi.core.json import JsonObject
from indusagi.core.text import format_count
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, write_json
from induscode.cli.terminal import print_line, print_status
from induscode.cluster.broker import Broker
from induscode.cluster.contract import ClusterFault, NodeInfo
from induscode.cluster.jetstream import open_bucket
from induscode.cluster.key import ClusterKey, create_key, read_key
from induscode.cluster.membership import Membership, open_membership
from induscode.cluster.opening import (
    KEY_FILE,
    Prepared,
    broker_option,
    describe_fault,
    find_key_file,
    key_option,
    prepare_cluster,
    read_observer_settings,
    read_settings,
    run_with_broker,
)
from induscode.cluster.placement import Placements, find_replica
from induscode.cluster.proofs import check_key
from induscode.cluster.report import BrokerReport, read_report
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.launch.options import read_invocation

_ROLES = {"all": "serves clients, runs servers", "doors": "serves clients", "offers": "offers its own servers"}
_STATE = "induscode.commands.cluster_state"
_FAILED = 1
_MAX_MB = (2**63 - 1) >> 20
"""Brokers count bytes in 64 bits."""
_DRAIN_LIMIT_S = 60.0
_POLL_INTERVAL_S = 0.25


@click.command(
    cls=CommandGroup,
    commands={
        "init": LazyCommand("prepare the brokers, and make the key of the cluster", ":init"),
        "status": LazyCommand("show the brokers and the nodes", ":status"),
        "placements": LazyCommand("show which node runs which server", ":placements"),
        "drain": LazyCommand("move the servers of a node to others", ":drain"),
        "config": LazyCommand("show and change the servers and rules of all nodes", f"{_STATE}:config"),
        "offer-key": LazyCommand("issue or revoke the key of a node that offers its servers", f"{_STATE}:offer_key"),
        "rotate-key": LazyCommand("replace the key of the cluster", f"{_STATE}:rotate"),
        "verify": LazyCommand("verify the ledgers of all nodes", f"{_STATE}:verify"),
    },
    default="status",
)
def command() -> None:
    """Prepare and examine a cluster of gateways. Without a command: status."""


def cluster_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options for the brokers, the key and JSON, and pass the context."""
    return broker_option(key_option(as_json(click.pass_context(command))))


def with_observed_brokers(command: Callable[..., Awaitable[int]]) -> Callable[..., int]:
    """Run an async command with the brokers as its first argument; the key is needed only to see the nodes."""

    @wraps(command)
    def run(context: click.Context, **options: Any) -> int:
        settings = read_observer_settings(context)
        return run_with_broker(settings, lambda broker: command(broker, **options), checks_key=False)

    return cluster_options(run)


@click.command("init")
@broker_option
@click.option(
    "--replicas",
    type=click.Choice(["1", "3"]),
    default="1",
    show_default=True,
    help="Brokers that keep each entry; 3 needs three brokers, and survives the loss of one.",
)
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(1.0, 300.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a node that is silent keeps its servers.",
)
@click.option(
    "--ledger-limit",
    "ledger_mb",
    type=click.IntRange(1, _MAX_MB),
    metavar="MB",
    help="The most that the ledgers of all nodes take; by default three quarters of the account's storage limit.",
)
@key_option
@as_json
@click.pass_context
def init(context: click.Context, *, replicas: str, lease_s: float, ledger_mb: int | None, as_json: bool) -> int:
    """Prepare the brokers of a cluster, once, and create its key. Keeps existing state, but may enlarge the ledgers.

    The key seals messages between nodes and data stored at the brokers: copy its file to every node. The brokers need
    JetStream. By default they sync to disk every two minutes, so a power failure may lose the writes since: set
    `sync_interval: always` in their configuration.
    """
    path = find_key_file(read_invocation(context).settings, context.meta.get(KEY_FILE), is_written=True)

    async def work(broker: Broker) -> int:
        key, is_new = await _find_key(broker, path)
        broker.settings = replace(broker.settings, key=key)
        ledger_bytes = None if ledger_mb is None else ledger_mb << 20
        try:
            prepared = await prepare_cluster(broker, replicas=int(replicas), lease_s=lease_s, ledger_bytes=ledger_bytes)
        except ClusterFault as fault:
            if is_new and fault.state == "ready":  # rejected, so nothing is sealed with this key yet
                await to_thread.run_sync(os.unlink, path)
            raise
        if as_json:
            sizes: JsonObject = {"ledger_bytes": prepared.ledger_bytes, "lease_s": prepared.lease_s}
            write_json({"made": [*prepared.made], "key_file": path, **sizes, "replicas": prepared.replicas})
            return 0
        _print_prepared(prepared, lease_s=lease_s, replicas=int(replicas), ledger_bytes=ledger_bytes)
        if is_new:
            print_line(f"key of the cluster: {path}; every node that serves clients needs a copy of this file")
        return 0

    return run_with_broker(read_settings(context), work)


def _print_prepared(prepared: Prepared, *, lease_s: float, replicas: int, ledger_bytes: int | None) -> None:
    """Print what we created and changed, and which flags had no effect on existing state."""
    copies = format_count(prepared.replicas, "broker")
    if prepared.made:
        print_line(f"made {', '.join(prepared.made)}, each on {copies}")
        print_line("advice: `sync_interval: always` in the brokers' `jetstream` block, against power failures")
    elif not prepared.is_changed:
        print_line("everything is there already")
    if (prepared.lease_s, prepared.replicas) != (lease_s, replicas):
        print_line(f"the first preparation counts: leases of {prepared.lease_s:g} s, each entry on {copies}")
    if prepared.ledger_bytes is None:
        print_line("advice: without a limit (`max_file` of the account, or --ledger-limit) ledgers can fill the disk")
        return
    megabytes = prepared.ledger_bytes / (1 << 20)
    if prepared.made or prepared.is_changed:
        print_line(f"the ledgers take {megabytes:,.1f} MB at most")
    if ledger_bytes is not None and ledger_bytes < prepared.ledger_bytes:
        print_line(f"the ledgers keep their limit of {megabytes:,.1f} MB: it can only grow")


async def _find_key(broker: Broker, path: str) -> tuple[ClusterKey, bool]:
    """Read the key, or create one for a new cluster; also return whether it's new."""
    try:
        return await to_thread.run_sync(read_key, path), False
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as exc:
        raise ClusterFault("ready", str(exc)) from exc
    try:
        has_key = await check_key(broker)
    except ClusterFault as fault:
        if fault.state != "missing":
            raise
        has_key = False
    if has_key:
        message = f"the cluster has a key, and {path} is missing: copy it from the machine that prepared the cluster"
        raise ClusterFault("ready", message)
    try:
        return await to_thread.run_sync(create_key, path), True
    except OSError as exc:
        raise ClusterFault("ready", f"the key cannot be written: {exc}") from exc


@click.command("status")
@with_observed_brokers
async def status(broker: Broker, *, as_json: bool) -> int:
    """Show how the brokers are, and with the key which nodes there are; UNPUBLISHED: rows of its ledger only it has.

    Exit code 1 if the brokers do not answer, or have no storage left.
    """
    try:
        async with open_membership(broker, observer=True) as membership:
            report = await read_report(broker, membership)
            _print_status(report, membership.times.ttl_s, as_json=as_json)
    except ClusterFault as fault:
        report = await read_report(broker, None)
        if as_json:
            write_json({**report.to_json(), "broker": fault.state, "error": str(fault), "nodes": []})
        else:
            for view in report.brokers:
                print_line(f"broker {view}")
            print_status(describe_fault(fault))
        return _FAILED
    return 0 if report.is_usable else _FAILED


def _print_status(report: BrokerReport, lease_s: float, *, as_json: bool) -> None:
    nodes = Listing(
        "nodes",
        report.nodes,
        ("NODE", "SERVERS", "SANDBOXES", "UNPUBLISHED", "STATE", "ADDRESS"),
        lambda node: (
            *(node.node, f"{node.owned}/{node.capacity}", node.sandboxes, node.unpublished),
            *("draining" if node.draining else _ROLES[node.role], node.url),
        ),
        to_json=NodeInfo.to_json,
        before={**report.to_json(), "lease_s": lease_s},
    )
    if as_json:
        nodes.show(as_json=True)
        return
    storage = f"; storage: {stored}" if (stored := report.describe_storage()) else ""
    print_line(f"brokers: {report.summary}; a lease lasts {lease_s:g} s{storage}")
    for problem in report.list_problems():
        print_line(problem)
    if not report.nodes and not report.silent and not report.waiting and report.is_usable:
        print_line("no node is there: start one with indus serve --http --cluster URL")
    nodes.show(as_json=False)


@click.command("placements")
@with_observed_brokers
async def placements(broker: Broker, *, as_json: bool) -> int:
    """Show which node runs which server, and since which epoch."""
    async with open_membership(broker, observer=True) as membership:
        entries = await open_bucket(broker, broker.settings.placements)
        found = await Placements(entries, membership).list_all()
        rows: list[JsonObject] = []
        for one in found:
            is_live = membership.find_holder(one.lease) is not None
            row: JsonObject = {"server": one.server, "node": one.node, "epoch": one.epoch, "live": is_live}
            rows.append({**row, "key": one.key, "replica": find_replica(one.key)})
    several = {one.server for one in found if find_replica(one.key) != 1}

    def format_cells(row: JsonObject) -> tuple[object, ...]:
        server = f"{row['server']} (replica {row['replica']})" if row["server"] in several else row["server"]
        return server, row["node"], row["epoch"], row["key"], "" if row["live"] else "its node is gone"

    heads = ("SERVER", "NODE", "EPOCH", "KEY", "")
    return Listing("placements", rows, heads, format_cells, empty="no server runs").show(as_json=as_json)


@click.command("drain")
@click.argument("node")
@with_observed_brokers
async def drain(broker: Broker, *, node: str, as_json: bool) -> int:
    """Move the servers of NODE to other nodes, each once its calls have ended, and place no more there.

    It keeps serving clients until you stop it, and may run servers after a restart. Exit code 1 if there is no such
    node, or a server stays.
    """
    async with open_membership(broker, observer=True) as membership:
        named = [info for info in membership.list_nodes() if info.node == node]
        if not named:
            known = ", ".join(info.node for info in membership.list_nodes()) or "none"
            print_status(f"there is no node {node!r}; there are: {known}")
            return _FAILED
        if len(named) > 1:
            where = ", ".join(info.url or info.instance for info in named)
            print_status(f"{len(named)} nodes are named {node!r} ({where}): stop all but one")
            return _FAILED
        found = named[0]
        others = [info for info in membership.list_nodes() if info.instance != found.instance]
        if found.owned and found.role == "offers":
            print_status(f"no other node may run the servers that {node!r} offers: they end")
        elif found.owned and not any(info.may_own() and info.owned < info.capacity for info in others):
            print_status(f"no other node may run servers now: the servers of {node!r} end")
        count = (await membership.ask(found.instance, {"op": "drain"})).get("owned")
        if not isinstance(count, int):
            print_status(f"node {node!r} does not drain: it stops now, or runs another version of indus")
            return _FAILED
        left = await _wait_drained(membership, found.instance)
    if as_json:
        write_json({"node": node, "servers": count, "left": left})
    else:
        moved, stay = format_count(count, "server"), format_count(left, "server")
        print_line(f"{node}: drained of {moved}" if not left else f"{node}: still runs {stay}")
    return _FAILED if left else 0


async def _wait_drained(membership: Membership, instance: str) -> int:
    """Wait until a node reports no servers, up to a minute; return how many it still owns."""
    info: NodeInfo | None = None
    for _ in range(int(_DRAIN_LIMIT_S / _POLL_INTERVAL_S)):
        await asyncio.sleep(_POLL_INTERVAL_S)
        info = next((one for one in membership.list_nodes() if one.instance == instance), None)
        if info is None or (info.draining and not info.owned):
            return 0
    return 0 if info is None else info.owned
