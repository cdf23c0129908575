"""What the store knows of servers that an earlier run has seen; no server is started for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.interop.protocol_bridge.client.items import read_instructions, read_items
from indusagi.interop.protocol_bridge.client.tools import read_tools
from induscode.deck.mcp.config.trust import server_identity
from induscode.deck.mcp.store.pins import read_definitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.faults import Note
    from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteTool, ServerConfig
    from induscode.deck.mcp.store import LedgerStore


async def read_known_tools(
    store: LedgerStore, servers: Iterable[ServerConfig]
) -> tuple[Mapping[str, Sequence[RemoteTool]], Sequence[Note]]:
    """Read the tools of servers seen before from the store, in the form a listing gives them."""
    configs = {config.id: config for config in servers}
    known: dict[str, Sequence[RemoteTool]] = {}
    notes: list[Note] = []
    for server, rows in (await read_definitions(store, configs.values())).items():
        # In a thread: hundreds of schemas take a while to be prepared for a model.
        known[server], remarks = await to_thread.run_sync(read_tools, [*rows], configs[server])
        notes.extend(remarks)
    return known, notes


async def read_known_items(
    store: LedgerStore, servers: Iterable[ServerConfig], kind: ItemKind
) -> Mapping[str, Sequence[RemoteTool]]:
    """Read the items of a kind of servers seen before from the store, in the form a listing gives them."""
    configs = {config.id: config for config in servers}
    known: dict[str, Sequence[RemoteTool]] = {}
    for server, rows in (await read_definitions(store, configs.values(), kind)).items():
        if kind == "instructions":
            text = rows[0].get("instructions") if rows else None
            known[server] = read_instructions(text if isinstance(text, str) else None, configs[server])
        else:
            known[server], _ = read_items(kind, [*rows], configs[server])
    return known


async def find_started_before(store: LedgerStore, servers: Iterable[ServerConfig]) -> Sequence[ServerConfig]:
    """Find the servers that came up with their present configuration and have not timed out since.

    A server whose start timed out may have to download its program again: it is left out.
    """
    up: dict[object, int] = {}
    for op in ("list", "ready"):
        for row in await store.latest(op):
            identity = row.facts.get("identity")
            up[identity] = max(row.position, up.get(identity, 0))
    late = {row.facts.get("identity"): row.position for row in await store.latest("fault")}
    return [config for config in servers if (key := server_identity(config)) in up and up[key] > late.get(key, 0)]
