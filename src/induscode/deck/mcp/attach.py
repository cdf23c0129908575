"""Servers in, cards out: mount and enrol, withdraw, and what is told about it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

from indusagi.core.faults import describe_error
from indusagi.core.notes import Note
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.supervision import Supervision
from indusagi.interop.protocol_bridge.contract import (
    BridgeConfig,
    FleetStatus,
    ProtocolFault,
    ServerConfig,
    ServerFleet,
    find_config_problem,
)
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
from induscode.deck.contract import BridgeFault, Capability, CapabilityCard, DeckContext, DeckFault, capability_id
from induscode.deck.mcp.capability import BridgeCapability
from induscode.deck.mcp.enrolment import Enrolment, EventSink, PinChecker, iso_now
from induscode.deck.mcp.ledger import BridgeLedger, BridgeOp

_log = logging.getLogger(__name__)
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
    """What of the configuration cannot be used; a server's own fault is in the status."""
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
    pins: PinChecker | None = None,
    sink: EventSink | None = None,
    supervision: Supervision | None = None,
    handlers: Handlers | None = None,
) -> AttachResult:
    """Connect to servers and enrol their tools; the `ledger` passed in stays as it is.

    A server that fails contributes no tools, and its fault is in the status. Without servers nothing is started and
    the same `ledger` comes back. An invalid server configuration is left out and named in the result's `fault`.
    """
    config, fault = _check_config(config)
    if not config.servers:
        return AttachResult(ledger, None, None, 0, fault)
    fleet = ServerFleetImpl(supervision=supervision, handlers=handlers)
    # Follows the fleet before anything starts: a server may come up or fail at once.
    enrolment = Enrolment(fleet, ledger, pins=pins, sink=sink)
    await fleet.start(config)
    await enrolment.sync_all()
    after = enrolment.ledger
    return AttachResult(
        after,
        fleet,
        enrolment.status(),
        sum(entry.op is BridgeOp.ENROLL for entry in after.since(ledger.next_seq)),
        fault,
        enrolment=enrolment,
        notes=(*fleet.notes, *enrolment.notes),
    )


def _check_config(config: BridgeConfig) -> tuple[BridgeConfig, BridgeFault | None]:
    """Leave out what is not the description of a server, and say so in a fault."""
    servers: object = getattr(config, "servers", None)
    if not isinstance(servers, tuple):
        return BridgeConfig(), BridgeFault(f"{type(config).__name__} is not a configuration")
    usable: list[ServerConfig] = []
    problems: list[str] = []
    for number, server in enumerate(cast("tuple[ServerConfig, ...]", servers), start=1):
        problem = find_config_problem(server)
        if problem is None:
            usable.append(server)
        else:
            problems.append(f"server {number} of the configuration was left out: {problem}")
    if not problems:
        return config, None
    return BridgeConfig(usable), BridgeFault("; ".join(problems))


@runtime_checkable
class StoppableFleet(Protocol):
    """A fleet that can close one of its servers for good."""

    async def stop(self, server: str) -> None:
        """Close a server and leave it closed.

        Raises:
            ProtocolFault: There is no server of this id.
        """
        ...


async def detach_bridge(ledger: BridgeLedger, fleet: ServerFleet, servers: Sequence[str] | None = None) -> BridgeLedger:
    """Retire the tools of servers and close these; all of them if none are named.

    Servers that are not named go on; a name that no server has changes nothing. Closing is done as
    well as the fleet can: the tools are retired whatever it does.
    """
    at = iso_now()
    for server in fleet.status() if servers is None else servers:
        ledger = ledger.withdraw_server(server, at)
    try:
        if servers is None:
            await fleet.tear_down()
        else:
            for server in servers:
                await _close_server(fleet, server)
    except Exception as exc:  # noqa: BLE001 — boundary: a fleet that is not ours
        _log.warning("a fleet could not be closed: %s", describe_error(exc))
    return ledger


async def _close_server(fleet: ServerFleet, server: str) -> None:
    try:
        if isinstance(fleet, StoppableFleet):
            await fleet.stop(server)
        elif (endpoint := fleet.endpoint(server)) is not None:
            await endpoint.close()
    except ProtocolFault:
        return  # there is none of this name: its tools are retired all the same


def bridge_capability_card(capability: BridgeCapability) -> CapabilityCard:
    """Give a remote tool as a row of the catalog. It is in no profile, and is built already."""

    def build(_: DeckContext) -> Capability:
        return capability

    first = capability.description.strip().partition("\n")[0][:_SUMMARY_CHARS]
    title = capability.descriptor.title or capability.label
    return CapabilityCard(capability_id(capability.name), title, first, (), build)


def bridge_status(fleet: ServerFleet) -> FleetStatus:
    """Tell how every server is."""
    return fleet.status()


def bridge_tool_names(ledger: BridgeLedger) -> Sequence[str]:
    """List the names of the tools that are enrolled."""
    return tuple(capability.name for capability in ledger.live_capabilities())


def bridge_tool_counts(ledger: BridgeLedger) -> Mapping[str, int]:
    """Tell how many tools each server has enrolled."""
    return ledger.snapshot.by_server
