"""Remote tools and ledgers for tests of the deck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.contract import ToolDescriptor
from induscode.deck.mcp.capability import BridgeCapability
from induscode.deck.mcp.ledger import BridgeLedger, EnrollRequest
from induscode.deck.mcp.store.pins import StorePins, load_pins

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.runtime.contract import ToolRunner
    from induscode.deck.mcp.capability import RunRemote
    from induscode.deck.mcp.store.journal import Journal

AT = "2026-11-15T12:00:00.000Z"


def capability(server: str, tool: str, *, version: int = 1, description: str = "A tool.") -> BridgeCapability:
    """Build a remote tool; another version has another schema."""
    schema: JsonObject = {"type": "object", "properties": {f"v{version}": {"type": "string"}}}
    raw: JsonObject = {"name": tool, "description": description, "inputSchema": schema}
    descriptor = ToolDescriptor(f"{server}__{tool}", description, schema)
    return BridgeCapability.from_definition(descriptor, RemoteToolRef(server, tool), raw)


def with_runner(known: BridgeCapability, runner: ToolRunner | RunRemote | None) -> BridgeCapability:
    """Return the same tool with another runner."""
    return BridgeCapability.from_definition(
        known.descriptor, known.ref, known.raw, runner, shares_name=known.shares_name
    )


async def open_pins(journal: Journal, servers: Iterable[ServerConfig]) -> StorePins:
    """Read the approved forms of servers' tools from a journal's store."""
    pins = StorePins(journal)
    await load_pins(pins, journal.store, servers)
    return pins


def request(server: str, tool: str, *, version: int = 1) -> EnrollRequest:
    """Build the request to enrol it."""
    return EnrollRequest(capability(server, tool, version=version), server)


def ledger_of(*tools: tuple[str, str]) -> BridgeLedger:
    """Build a ledger in which these tools are enrolled."""
    ledger = BridgeLedger.empty()
    for tool in tools:
        ledger = ledger.enroll(request(*tool), AT)
    return ledger


def with_raw(known: BridgeCapability, raw: JsonObject) -> BridgeCapability:
    """Return the same tool with another definition."""
    return BridgeCapability.from_definition(known.descriptor, known.ref, raw, known.runner)
