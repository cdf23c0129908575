"""The cluster: its nodes, which servers they own, and how the brokers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from induscode.ui.contract import PageError, PageView
from induscode.ui.html import table, tag
from induscode.ui.parts import live, show_nothing, show_state

if TYPE_CHECKING:
    from induscode.ui.contract import PageRequest

_ROLES = {"all": "serves clients, runs servers", "doors": "serves clients", "offers": "offers its own servers"}


async def show_cluster(page: PageRequest) -> PageView:
    """Show the nodes and the placements, as this node sees them."""
    node = page.source.node
    if node is None:
        raise PageError("This gateway belongs to no cluster: indus serve --http --cluster URL starts a node of one.")
    from induscode.cluster.placement import find_replica  # noqa: PLC0415 — only in a cluster

    membership = node.membership
    nodes = [
        (
            f"{one.node} (this one)" if one.instance == node.info.instance else one.node,
            show_state("draining") if one.draining else _ROLES[one.role],
            f"{one.owned} of {one.capacity}",
            tag("code", one.lease[:12]),
            one.url,
        )
        for one in membership.list_nodes()
    ]
    owners = await node.placements.list_all()
    several = {one.server for one in owners if find_replica(one.key) != 1}
    placements = [
        (
            f"{one.server} (replica {find_replica(one.key)})" if one.server in several else one.server,
            one.node,
            f"{one.epoch}",
            show_state("ready") if membership.find_holder(one.lease) else [show_state("fault"), " its node is gone"],
        )
        for one in owners
    ]
    content = live(
        "cluster",
        "cluster",
        tag("p", f"Brokers: {node.broker.state}. A lease lasts {membership.times.ttl_s:g} s."),
        table(("Node", "Role", "Servers", "Lease", "Address"), nodes, caption="Nodes", numbers=(2,)),
        tag("h2", "Placements"),
        table(("Server", "Node", "Epoch", "State"), placements, caption="Placements", numbers=(2,))
        if placements
        else show_nothing("No server runs."),
    )
    return PageView("Cluster", content, "cluster")
