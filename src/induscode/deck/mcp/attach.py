"""Attaches and detaches servers: connects, enrols their tools, and reports status and counts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import cast

from indusagi.core.faults import Note, describe_error
from indusagi.core.records import record
from indusagi.core.time import iso_utc
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.start import Supervision
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
from induscode.deck.mcp.enrolment import Enrolment
from induscode.deck.mcp.ledger import BridgeLedger, BridgeOp
from induscode.deck.mcp.store.journal import Journal
from induscode.deck.mcp.store.pins import StorePins

_log = logging.getLogger(__name__)
_SUMMARY_CHARS = 100


@record
class AttachResult:
    """The result of attaching servers."""

    ledger: BridgeLedger
    """Includes the tools of servers that came up."""
    fleet: ServerFleetImpl | None
    """For the caller to tear down. `None` without servers."""
    status: FleetStatus | None
    enrolled: int
    fault: DeckFault | None = None
    """Describes the invalid part of the configuration. Server faults are in the status."""
    enrolment: Enrolment | None = field(default=None, compare=False, kw_only=True)
    """Follows the fleet from here on; its ledger is the current one."""
    notes: Sequence[Note] = field(default=(), kw_only=True)


def bridge_config(servers: Iterable[ServerConfig]) -> BridgeConfig:
    """Build a bridge configuration."""
    return BridgeConfig(tuple(servers))


async def attach_bridge_capabilities(
    ledger: BridgeLedger,
    config: BridgeConfig,
    *,
    pins: StorePins | None = None,
    sink: Journal | None = None,
    supervision: Supervision | None = None,
    handlers: Handlers | None = None,
) -> AttachResult:
    """Connect to servers and enrol their tools, without changing the `ledger` passed in.

    A failed server contributes no tools; the status has its fault. Without servers, nothing starts and the result has
    the same `ledger`. Invalid server configurations are skipped and reported in the result's `fault`.
    """
    config, fault = _check_config(config)
    if not config.servers:
        return AttachResult(ledger, None, None, 0, fault)
    fleet = ServerFleetImpl(supervision=supervision, handlers=handlers)
    # Follow the fleet before anything starts: a server may come up or fail immediately.
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
    """Drop invalid server configurations and report them in the fault."""
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


async def detach_bridge(ledger: BridgeLedger, fleet: ServerFleet, servers: Sequence[str] | None = None) -> BridgeLedger:
    """Retire the tools of servers (by default all) and close them.

    Ignores unknown names. The tools are retired even if closing fails.
    """
    now = iso_utc()
    for server in fleet.status() if servers is None else servers:
        ledger = ledger.withdraw_server(server, now)
    try:
        if servers is None:
            await fleet.tear_down()
        else:
            for server in servers:
                stop, endpoint = getattr(fleet, "stop", None), fleet.endpoint(server)
                with suppress(ProtocolFault):  # unknown server; its tools are retired anyway
                    if stop is not None:
                        await stop(server)
                    elif endpoint is not None:
                        await endpoint.close()
    except Exception as exc:  # noqa: BLE001 — boundary: the fleet may be third-party code
        _log.warning("a fleet could not be closed: %s", describe_error(exc))
    return ledger


def bridge_capability_card(capability: BridgeCapability) -> CapabilityCard:
    """Build the catalog row of a remote tool, outside all profiles."""

    def build(_: DeckContext) -> Capability:
        return capability

    first = capability.description.strip().partition("\n")[0][:_SUMMARY_CHARS]
    title = capability.descriptor.title or capability.label
    return CapabilityCard(capability_id(capability.name), title, first, (), build)


def bridge_status(fleet: ServerFleet) -> FleetStatus:
    """Return the status of every server."""
    return fleet.status()


def bridge_tool_names(ledger: BridgeLedger) -> Sequence[str]:
    """List the names of the enrolled tools."""
    return tuple(capability.name for capability in ledger.live_capabilities())


def bridge_tool_counts(ledger: BridgeLedger) -> Mapping[str, int]:
    """Count the enrolled tools of each server."""
    return ledger.snapshot.by_server
