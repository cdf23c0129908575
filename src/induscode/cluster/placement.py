"""Placement: which node owns a server.

A placement is an entry without an expiry, valid as long as the lease it names. A node claims a free server by creating
the entry, and a server of a node whose lease ended by replacing it. Either way, the revision becomes the new owner's
epoch, which it then writes into the entry: an entry without an epoch is a pending claim. Entries are sealed. If someone
without the key changes or removes one, its owner writes it again (`restore`) with the same epoch. The best node for a
server is a pure function of its key and the live nodes: rendezvous hashing weighted by capacity, so all nodes agree
without a message, and few servers move when a node comes or goes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from indusagi.capabilities.sandbox.profile import format_profile
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import CLUSTER_PREFIX, StdioServerConfig
from induscode.cluster.contract import LostRaceError, NodeInfo, Placement

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.cluster.jetstream import Bucket, BucketEntry
    from induscode.cluster.membership import Membership


_log = logging.getLogger(__name__)

_KEY_CHARS = 32
_OWN_VARIABLES = frozenset({"INDUS_SERVED_BY"})
"""Variables that the gateway sets for its servers."""


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:_KEY_CHARS]


def build_replica_key(key: str, number: int) -> str:
    """Return the key of a replica's placement, counting from 1. The first one's is the server's key."""
    return f"{key}-{number - 1}" if number > 1 else key


def find_replica(key: str) -> int:
    """Return the replica number of a placement key, counting from 1."""
    number = key.partition("-")[2]
    return int(number) + 1 if number.isdecimal() else 1


@record
class ServerTarget:
    """The facts that decide where a server may run."""

    key: str
    only_node: str | None = None
    """The only node that may own it because it offers it; `None` for any node with an equal row."""
    affinity: str | None = None
    """Name pattern of preferred nodes."""
    sandbox: str = ""
    """What its row's sandbox needs a node to have; see `list_server_sandboxes`."""


def find_target(config: StdioServerConfig, info: NodeInfo, affinity: str | None = None) -> ServerTarget:
    """Work out where a server of a node's configuration may run.

    The command `cluster:NODE/SERVER` names a server that another node offers. A node with the role `offers` offers all
    its servers.
    """
    sandbox = "" if config.sandbox is None else config.sandbox.needs
    offering, server = (info.node, config.id) if info.role == "offers" else ("", "")
    if config.command.startswith(CLUSTER_PREFIX):
        offering, _, server = config.command.removeprefix(CLUSTER_PREFIX).partition("/")
    if offering:
        # An offering node may only write under its name, so the name comes first.
        return ServerTarget(f"{offering}.{_digest(['offer', offering, server])}", offering, sandbox=sandbox)
    # Equal rows on two nodes are the same server. The digest doesn't reveal secrets without the row.
    env = sorted((name, value) for name, value in config.env.items() if name not in _OWN_VARIABLES)
    held = [] if config.sandbox is None else [format_profile(config.sandbox)]
    facts = [config.id, config.command, [*config.args], env, config.cwd, *held]
    return ServerTarget(_digest(facts), affinity=affinity, sandbox=sandbox)


def rank_nodes(target: ServerTarget, nodes: Sequence[NodeInfo]) -> Sequence[NodeInfo]:
    """List the nodes that may own a server, preferred first, without full and draining ones.

    Nodes matching the affinity come before all others.
    """

    def weigh(node: NodeInfo) -> tuple[bool, float]:
        digest = hashlib.sha256(f"{target.key} {node.instance}".encode()).digest()
        # https://www.ietf.org/archive/id/draft-ietf-bess-weighted-hrw-00.html: -w / ln(u), u in (0, 1)
        u = (int.from_bytes(digest[:8], "big") + 1) / (2**64 + 2)
        is_near = target.affinity is not None and fnmatchcase(node.node, target.affinity)
        return is_near, -node.capacity / math.log(u)

    able = [node for node in nodes if node.may_own(target.only_node, target.sandbox) and node.owned < node.capacity]
    return sorted(able, key=weigh, reverse=True)


class Placements:
    """The placements at the broker."""

    def __init__(self, entries: Bucket, membership: Membership) -> None:
        self.name = entries.name
        self._entries = entries
        self._membership = membership

    def _seal(self, placement: Placement, *, is_claim: bool = False) -> bytes:
        value: JsonObject = {"server": placement.server, "node": placement.node, "lease": placement.lease}
        if not is_claim:
            value["epoch"] = placement.epoch
        return self._membership.ring.own.seal(self._find_place(placement.key), value)

    def _find_place(self, key: str) -> str:
        return f"{self.name}/{key}"

    async def _parse(self, key: str, entry: BucketEntry) -> Placement:
        """Parse an entry; without a lease if it's forged, or restored from an earlier time."""
        opened = await self._membership.ring.open(self._find_place(key), entry.value)
        fields = {} if opened is None or not opened.seal.may_write(key) else opened.value
        server, node, lease = (str(fields.get(name, "")) for name in ("server", "node", "lease"))
        epoch = fields.get("epoch", 0)
        if opened is None or not isinstance(epoch, int) or opened.seal.author not in {"", node}:
            return Placement(key, "", "", "", 0, entry.revision)
        return Placement(key, server, node, lease, epoch, entry.revision, opened.seal)

    async def find(self, key: str) -> Placement | None:
        """Read a server's placement. It may have ended with its lease."""
        entry = await self._entries.get(key)
        return None if entry is None else await self._parse(key, entry)

    async def claim(self, key: str, server: str) -> Placement | None:
        """Claim a server for this node. `None` if another node owns it, or this one has lost its lease.

        If this node has started draining or become full since, it releases the claim at once.
        """
        members = self._membership
        lease, node = members.info.lease, members.info.node
        claim = Placement(key, server, node, lease, 0)
        try:
            epoch = await self._write(claim, is_claim=True)
            claim = replace(claim, epoch=epoch, revision=epoch, seal=members.ring.own)
            placement = replace(claim, revision=await self._entries.put(key, self._seal(claim), epoch))
        except LostRaceError:
            return None
        if not members.holds(lease):
            return None
        if members.info.draining or members.info.owned >= members.info.capacity:
            await self.release(placement)
            return None
        return placement

    async def _write(self, placement: Placement, *, is_claim: bool) -> int:
        """Write an entry where there's none or an ended one. Return its revision, or raise `LostRaceError`."""
        key, value = placement.key, self._seal(placement, is_claim=is_claim)
        try:
            return await self._entries.put(key, value)
        except LostRaceError:
            found = await self.find(key)
            if found is None:
                raise
            if found.lease and found.lease != placement.lease and not await self._membership.end_lease(found.lease):
                raise
            return await self._entries.put(key, value, found.revision)

    async def restore(self, placement: Placement) -> Placement | None:
        """Check the placement of one of this node's servers, and rewrite it if someone without the key changed it.

        Returns it with its current revision, or `None` if another node owns it with a later epoch.
        """
        while True:
            found = await self.find(placement.key)
            if found is not None and found.epoch > placement.epoch:
                return None
            if found == placement:
                return found
            value = self._seal(placement)
            with suppress(LostRaceError):  # changed again: look again
                revision = await self._entries.put(placement.key, value, None if found is None else found.revision)
                _log.warning("the placement of %s was changed without the key of the cluster", placement.server)
                return replace(placement, revision=revision)

    async def release(self, placement: Placement) -> None:
        """Remove this node's placement so that another can claim the server. Does nothing if it was replaced."""
        with suppress(LostRaceError):
            await self._entries.delete(placement.key, placement.revision)

    async def list_all(self) -> Sequence[Placement]:
        """List all placements by server."""
        found = [await self._parse(key, entry) for key, entry in (await self._entries.read_all()).items()]
        return sorted((one for one in found if one.lease), key=lambda one: (one.server, one.key))
