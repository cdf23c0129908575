"""Opening endpoints and fleets for the length of a block."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from indusagi.interop import (
    BridgeConfig,
    ProtocolFault,
    ServerConfig,
    ServerFleetImpl,
    Supervision,
    create_server_endpoint,
    mount_protocol_bridge,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.core.json import JsonValue
    from indusagi.interop import Handlers, MountedProtocolBridge, RemoteCallResult, ServerEndpointImpl

QUICK = Supervision(first_s=0.05, jitter=0, longest_s=0.2, open_s=0.3, window_s=30)
"""Rules that bring a server back within a test."""


@asynccontextmanager
async def opened(config: ServerConfig, handlers: Handlers | None = None) -> AsyncGenerator[ServerEndpointImpl]:
    """Open an endpoint, and close it."""
    endpoint = create_server_endpoint(config, handlers=handlers)
    try:
        await endpoint.open()
        yield endpoint
    finally:
        await endpoint.close()


@asynccontextmanager
async def fleet_of(*configs: ServerConfig, supervision: Supervision = QUICK) -> AsyncGenerator[ServerFleetImpl]:
    """Start a fleet, and tear it down."""
    fleet = ServerFleetImpl(supervision=supervision)
    try:
        await fleet.start(BridgeConfig(configs))
        yield fleet
    finally:
        await fleet.tear_down()


@asynccontextmanager
async def mounted(*configs: ServerConfig, supervision: Supervision = QUICK) -> AsyncGenerator[MountedProtocolBridge]:
    """Mount a bridge, and tear its fleet down."""
    bridge = await mount_protocol_bridge(BridgeConfig(configs), supervision=supervision)
    try:
        yield bridge
    finally:
        await bridge.fleet.tear_down()


async def fault_of_opening(config: ServerConfig) -> ProtocolFault:
    """Open an endpoint that cannot be opened, and give the fault."""
    endpoint = create_server_endpoint(config)
    try:
        with pytest.raises(ProtocolFault) as caught:
            await endpoint.open()
        return caught.value
    finally:
        await endpoint.close()


async def attempt(
    endpoint: ServerEndpointImpl, name: str, arguments: JsonValue = None, **options: Any
) -> RemoteCallResult | ProtocolFault:
    """Call a tool, and give what came of it: the answer or the fault."""
    try:
        return await endpoint.invoke(name, arguments, **options)
    except ProtocolFault as failure:
        return failure


async def fault_of_call(endpoint: ServerEndpointImpl, name: str = "fault") -> ProtocolFault:
    """Call a tool that fails, and give the fault."""
    with pytest.raises(ProtocolFault) as caught:
        await endpoint.invoke(name, {})
    return caught.value
