"""A gateway as a node of a cluster: what it shares with the other nodes, and what it takes from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from induscode.deck.mcp.store.pins import build_identities

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from induscode.cluster.shared.state import SharedState
    from induscode.commands.serve.gateway import Gateway


class GatewaySharing:
    """The shared state of a node, applied to its gateway."""

    def __init__(self, state: SharedState) -> None:
        self.state = state

    def follow(self, gateway: Gateway, tasks: TaskGroup) -> None:
        """Share the approvals of this gateway, and apply those of other nodes as soon as they are there."""
        state = self.state
        if state.store is not None:
            state.store.identities = lambda: build_identities(gateway.plan.configs.values()).values()
        state.on_pins = lambda: tasks.start_soon(gateway.read_approvals)
        state.share_pins()
