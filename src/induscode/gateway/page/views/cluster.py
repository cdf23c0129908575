"""The cluster view: nodes, the servers they own, and the state of the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from induscode.gateway.page.html import Html, PageError, PageView, live, show_nothing, show_state, table, tag

if TYPE_CHECKING:
    from induscode.cluster.contract import Placement
    from induscode.cluster.node import ClusterNode
    from induscode.gateway.page.access import PageRequest

_ROLES = {"all": "serves clients, runs servers", "doors": "serves clients", "offers": "offers its own servers"}


async def show_cluster(page: PageRequest) -> PageView:
    """Show brokers, nodes and placements as this node sees them, including what didn't answer in time."""
    node = page.source.node
    if node is None:
        raise PageError("This gateway belongs to no cluster: indus serve --http --cluster URL starts a node of one.")
    from induscode.cluster.report import read_report  # noqa: PLC0415 — with a cluster only

    membership = node.membership
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read_report(node.broker, membership))
        listing = tasks.create_task(_list_placements(node))
    report, placements = reading.result(), listing.result()
    storage = f" Storage: {stored}." if (stored := report.describe_storage()) else ""
    problems = [*report.list_problems()]
    if not membership.is_held():
        problems.insert(0, "this node has no lease, and runs no server")
    nodes = [
        (
            f"{one.node} (this one)" if one.instance == node.info.instance else one.node,
            show_state("draining") if one.draining else _ROLES[one.role],
            f"{one.owned} of {one.capacity}",
            one.sandboxes or "none",
            f"{one.unpublished}",
            tag("code", one.lease[:12]),
            one.url,
        )
        for one in report.nodes
    ]
    brokers = [
        (view.name or "(name unknown)", view.address, [show_state(view.state), f" {view.words}"])
        for view in report.brokers
    ]
    content = live(
        "cluster",
        "cluster",
        tag("p", f"Brokers: {report.summary}. A lease lasts {membership.times.ttl_s:g} s.{storage}"),
        tag("article", tag("ul", [tag("li", problem) for problem in problems]), cls="warning") if problems else None,
        table(("Broker", "Address", "State"), brokers, caption="Brokers"),
        table(
            ("Node", "Role", "Servers", "Sandboxes", "Unpublished", "Lease", "Address"),
            nodes,
            caption="Nodes",
            numbers=(2, 4),
        )
        if nodes
        else show_nothing("No node has a lease."),
        tag("h2", "Placements"),
        _show_placements(node, placements),
    )
    return PageView("Cluster", content, "cluster")


async def _list_placements(node: ClusterNode) -> Sequence[Placement] | None:
    """List the placements, or return `None` if the brokers don't answer."""
    from induscode.cluster.contract import ClusterFault  # noqa: PLC0415 — with a cluster only

    try:
        return await node.placements.list_all()
    except ClusterFault:
        return None


def _show_placements(node: ClusterNode, placements: Sequence[Placement] | None) -> Html:
    if placements is None:
        return show_nothing("They are not known: the brokers do not answer.")
    if not placements:
        return show_nothing("No server runs.")
    from induscode.cluster.placement import find_replica  # noqa: PLC0415 — with a cluster only

    several = {one.server for one in placements if find_replica(one.key) != 1}
    rows = [
        (
            f"{one.server} (replica {find_replica(one.key)})" if one.server in several else one.server,
            one.node,
            f"{one.epoch}",
            show_state("ready")
            if node.membership.find_holder(one.lease)
            else [show_state("fault"), " its node is gone, or has no lease"],
        )
        for one in placements
    ]
    return table(("Server", "Node", "Epoch", "State"), rows, caption="Placements", numbers=(2,))
