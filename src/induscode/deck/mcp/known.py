"""Reads stored facts about servers from earlier runs, without starting any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from induscode.deck.mcp.capability import read_definitions
from induscode.deck.mcp.store.journal import LATE
from induscode.deck.mcp.store.pins import read_pinned
from induscode.servers.config.trust import server_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.faults import Note
    from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteTool, ServerConfig
    from induscode.deck.mcp.store import LedgerStore


async def read_known_tools(
    store: LedgerStore, servers: Iterable[ServerConfig], kind: ItemKind = "tool"
) -> tuple[Mapping[str, Sequence[RemoteTool]], Sequence[Note]]:
    """Read the tools (or other items) of known servers, in the form a listing returns them."""
    configs = {config.id: config for config in servers}
    known: dict[str, Sequence[RemoteTool]] = {}
    notes: list[Note] = []
    for server, rows in (await read_pinned(store, configs.values(), kind)).items():
        # In a thread: preparing hundreds of schemas for a model takes a while.
        known[server], remarks = await to_thread.run_sync(read_definitions, kind, rows, configs[server])
        notes.extend(remarks)
    return known, notes


async def find_started_before(store: LedgerStore, servers: Iterable[ServerConfig]) -> Sequence[ServerConfig]:
    """Find the servers that came up with their current configuration and haven't timed out since.

    A server that timed out on start may have to download its program again, so it doesn't count.
    """
    up = await _find_last_up(store)
    faults = await store.latest("fault")
    late = {row.facts.get("identity"): row.position for row in faults if row.facts.get("subject") == "timeout"}
    return [config for config in servers if (key := server_identity(config)) in up and up[key] > late.get(key, 0)]


async def find_down_before(store: LedgerStore, servers: Iterable[ServerConfig]) -> Sequence[str]:
    """Find the servers that failed to start, or were too late, and haven't come up since.

    An interrupted start doesn't count: a client may kill a first gateway right away and continue with a second one.
    """
    up = await _find_last_up(store)
    late = [row for row in await store.latest("connect") if row.facts.get("subject") == LATE]
    down: dict[object, int] = {}
    for row in (*late, *await store.latest("fault")):
        identity = row.facts.get("identity")
        down[identity] = max(row.position, down.get(identity, 0))
    identities = {config.id: server_identity(config) for config in servers}
    return [server for server, key in identities.items() if down.get(key, 0) > up.get(key, 0)]


async def _find_last_up(store: LedgerStore) -> Mapping[object, int]:
    """Find the ledger position where each server was last up."""
    up: dict[object, int] = {}
    for op in ("list", "ready"):
        for row in await store.latest(op):
            identity = row.facts.get("identity")
            up[identity] = max(row.position, up.get(identity, 0))
    return up
