"""Which servers were seen up with the configuration they have now, as the ledger remembers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from induscode.deck.mcp.config.trust import server_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.deck.mcp.store import LedgerStore


async def find_seen_up(store: LedgerStore, servers: Iterable[ServerConfig]) -> Sequence[ServerConfig]:
    """Find the servers that came up before and have not taken too long to start since.

    A server whose start timed out may have to download its program anew: it is not among them.
    """
    up: dict[object, int] = {}
    for op in ("list", "ready"):
        for row in await store.latest(op):
            key = row.facts.get("identity")
            up[key] = max(row.position, up.get(key, 0))
    late = {row.facts.get("identity"): row.position for row in await store.latest("fault")}
    return [config for config in servers if (key := server_identity(config)) in up and up[key] > late.get(key, 0)]
