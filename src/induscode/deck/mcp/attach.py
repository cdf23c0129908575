"""Servers in, cards out: mount and enrol, withdraw, and what is told about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from indusagi.core.notes import Note
from indusagi.interop.protocol_bridge.contract import (
    BridgeConfig,
    FleetStatus,
    ProtocolFault,
    RemoteTool,
    ServerConfig,
)
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl, Waiting
from indusagi.interop.protocol_bridge.handlers import Handlers
from indusagi.interop.protocol_bridge.supervision import Supervision
from induscode.deck.contract import (
    Capability,
    CapabilityCard,
    DeckContext,
    DeckFault,
    capability_id,
)
from induscode.deck.mcp.capability import BridgeCapability
from induscode.deck.mcp.drift import DisabledTool
from induscode.deck.mcp.enrolment import Enrolment, EventSink, PinBook, iso_now
from induscode.deck.mcp.ledger import BridgeLedger

_SUMMARY_CHARS = 100


@dataclass(frozen=True, slots=True)
class AttachResult:
    """What came of attaching servers."""

    ledger: BridgeLedger
    """With the tools of those that came up."""
    fleet: ServerFleetImpl | None
    """The caller's to tear down; None if there was nothing to attach."""
    status: FleetStatus | None
    enrolled: int
    fault: DeckFault | None = None
    """What made the configuration as a whole unusable; a server's own fault is in the status."""
    enrolment: Enrolment | None = field(default=None, compare=False, kw_only=True)
    """Follows the fleet from here on: its ledger is the one to read later."""
    notes: Sequence[Note] = field(default=(), kw_only=True)


def bridge_config(servers: Iterable[ServerConfig]) -> BridgeConfig:
    """Make a configuration of servers."""
    return BridgeConfig(tuple(servers))


async def attach_bridge_capabilities(
    ledger: BridgeLedger,
    config: BridgeConfig,
    *,
    pins: PinBook | None = None,
    sink: EventSink | None = None,
    waiting: Mapping[str, Waiting] | None = None,
    known: Mapping[str, Sequence[RemoteTool]] | None = None,
    disabled: Mapping[str, Sequence[DisabledTool]] | None = None,
    supervision: Supervision | None = None,
    handlers: Handlers | None = None,
    lasting: bool = False,
) -> AttachResult:
    """Connect to servers and enrol their tools; the ledger that is given stays as it is.

    A server that fails contributes nothing and says why in the status. Without servers nothing is
    started, and the ledger itself comes back, unless the fleet is `lasting` and may get some later.
    Those that are `waiting` are not started either; what is `known` of their tools is enrolled, and
    the first call of one starts its server. Tools that were `disabled` when they were seen last are
    told as such until their server lists its tools.
    """
    if not config.servers and not lasting:
        return AttachResult(ledger, None, None, 0)
    fleet = ServerFleetImpl(supervision=supervision, handlers=handlers)
    # Before anything starts, so that it hears of servers that come up or fail at once.
    enrolment = Enrolment(fleet, ledger, pins=pins, sink=sink)
    await fleet.start(config, waiting=waiting)
    await enrolment.take_all(known, disabled)
    after = enrolment.ledger
    return AttachResult(
        after,
        fleet,
        enrolment.status(),
        after.next_seq - ledger.next_seq,
        enrolment=enrolment,
        notes=(*fleet.notes, *enrolment.notes),
    )


async def detach_bridge(
    ledger: BridgeLedger,
    fleet: ServerFleetImpl,
    servers: Sequence[str] | None = None,
) -> BridgeLedger:
    """Retire the tools of servers and close these; all of them if none are named.

    Servers that are not named go on; names that nobody has change nothing.
    """
    at = iso_now()
    for server in fleet.status() if servers is None else servers:
        ledger = ledger.withdraw_server(server, at)
    if servers is None:
        await fleet.tear_down()
        return ledger
    for server in servers:
        try:
            await fleet.stop(server)
        except ProtocolFault:
            continue  # there is none of this name: its tools are retired all the same
    return ledger


def bridge_capability_card(capability: BridgeCapability) -> CapabilityCard:
    """Give a remote tool as a row of the catalog. It is in no profile, and is built already."""

    def build(_: DeckContext) -> Capability:
        return capability

    first = capability.description.strip().partition("\n")[0][:_SUMMARY_CHARS]
    title = capability.descriptor.title or capability.label
    return CapabilityCard(capability_id(capability.name), title, first, (), build)


def bridge_status(fleet: ServerFleetImpl) -> FleetStatus:
    """Tell how every server is."""
    return fleet.status()


def bridge_tool_names(ledger: BridgeLedger) -> Sequence[str]:
    """List the names of the tools that are enrolled."""
    return tuple(capability.name for capability in ledger.live_capabilities())


def bridge_tool_counts(ledger: BridgeLedger) -> Mapping[str, int]:
    """Tell how many tools each server has enrolled."""
    return ledger.snapshot.by_server
