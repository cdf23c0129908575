"""Handles of tasks in a cluster: any node can open one, and none is stored.

A handle is what a gateway has to know about a task (server, the server's own id, owner, time of creation), sealed with
the key of the cluster: a client can neither read it, nor make one up, nor change whose it is. It outlives the node that
made it. A handle names its server by the digest of the row: nodes whose rows differ do not share tasks. The node that
made a task has the open record of its call, and is told when another one sees the task's end.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.cluster.contract import ClusterFault
from induscode.cluster.key import UnsealedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.cluster.key import ClusterKey
    from induscode.cluster.node import ClusterNode

_log = logging.getLogger(__name__)

_PREFIX = "t1."
_LONGEST_CHARS = 8_192
"""Of a handle; one of the longest id that is accepted from a server is shorter."""


@record
class SealedTask:
    """What a handle says."""

    server: str
    """The id of the server in the configuration."""
    server_key: str
    """A digest of its row."""
    own: str
    """The server's own id of the task."""
    owner: str
    """Digest of the client's token or principal."""
    created: float
    """When the server has created it, by the server's clock; 0: unknown."""
    expires_ms: int
    instance: str
    """The node that made it."""


class TaskHandles:
    """Seals and opens the handles of one node's clients."""

    def __init__(self, node: ClusterNode, key: ClusterKey) -> None:
        self._node = node
        self._key = key
        self._place = f"{node.broker.settings.prefix} task"

    @property
    def instance(self) -> str:
        """The name of this node's process."""
        return self._node.info.instance

    def identify_server(self, config: ServerConfig) -> str:
        """Return the digest of a server's row: nodes with equal rows have the same server."""
        if isinstance(config, StdioServerConfig):
            return self._node.find_target(config).key
        return hashlib.sha256(json.dumps([config.id, config.url]).encode()).hexdigest()[:32]

    def build(self, config: ServerConfig, own: str, owner: str, created: float, expires_ms: int) -> SealedTask:
        """Describe a new task of a client of this node."""
        return SealedTask(config.id, self.identify_server(config), own, owner, created, expires_ms, self.instance)

    def seal(self, task: SealedTask) -> str:
        """Return the handle of a task."""
        fields = (task.server, task.server_key, task.own, task.owner, task.created, task.expires_ms, task.instance)
        sealed = self._key.seal(self._place, compact_json([*fields]).encode())
        return _encode(sealed)

    def unseal(self, handle: str) -> SealedTask | None:
        """Return what a handle says; None if it was not sealed by a node of this cluster."""
        if not handle.startswith(_PREFIX) or len(handle) > _LONGEST_CHARS:
            return None
        text = handle.removeprefix(_PREFIX)
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            if _encode(sealed) != handle:  # a decoder accepts several spellings, and each would be a task of its own
                return None
            return SealedTask(*json.loads(self._key.unseal(self._place, sealed)))
        except (UnsealedError, binascii.Error, ValueError, TypeError):
            return None

    async def report_end(self, handle: str, instance: str) -> None:
        """Tell the node that made a task that it has ended; a node that is gone has recorded the call already."""
        members = self._node.membership
        try:
            await members.requests.tell(instance, members.find_seal(instance), {"op": "task", "key": handle})
        except ClusterFault as fault:
            _log.debug("the end of a task was not reported: %s", fault)

    def follow(self, look: Callable[[str], None]) -> None:
        """Call `look` with each handle of this node whose task another one has seen to have ended."""
        self._node.on_task_end = look


def _encode(sealed: bytes) -> str:
    return _PREFIX + base64.urlsafe_b64encode(sealed).decode().rstrip("=")
