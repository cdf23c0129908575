"""Watch over the placements of this node: what someone without the key of the cluster has changed is written again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from induscode.cluster.contract import ClusterFault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.aio.msg import Msg

    from induscode.cluster.membership import Membership
    from induscode.cluster.placement import Placements
    from induscode.cluster.served import ServedServer

_log = logging.getLogger(__name__)


class PlacementWatch:
    """Checks the placements of the servers that this node owns."""

    def __init__(self, placements: Placements, membership: Membership, served: Mapping[str, ServedServer]) -> None:
        self._placements = placements
        self._membership = membership
        self._served = served
        """By the key of the placement."""

    async def notice(self, message: Msg) -> None:
        """Take the word of the broker that a placement was written or removed: one of this node may have been."""
        served = self._served.get(message.subject.partition(f"{self._placements.name}.")[2])
        if served is not None:
            await self.check(served)

    async def check_all(self) -> None:
        """Check all of them: the lease was tampered with, and another node may have claimed one."""
        for served in [*self._served.values()]:
            await self.check(served)

    async def check(self, served: ServedServer) -> None:
        """Write a placement again if someone without the key has changed it; a later owner's epoch ends the server."""
        if served.is_leaving or not self._membership.holds(served.placement.lease):
            return
        try:
            found = await self._placements.restore(served.placement)
            if found is None:
                served.end("was taken over by another node", "node_changed")
            elif served.is_leaving:  # given up meanwhile
                await self._placements.release(found)
            else:
                served.placement = found
        except ClusterFault as fault:
            _log.debug("the placement of %s is not checked: %s", served.placement.server, fault)
