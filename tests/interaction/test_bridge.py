"""The bridge as its documentation shows it, against real server processes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.interaction.requirements import requirement
from tests.support.servers import diary, fault, honest

from indusagi.interop import (
    FAULT_KINDS,
    BridgeConfig,
    EndpointPhase,
    ProtocolFault,
    ServerFleetImpl,
    StdioServerConfig,
    create_server_endpoint,
    is_protocol_fault,
    is_terminal_phase,
    is_usable_phase,
    mount_protocol_bridge,
    normalize_schema,
    protocol_fault,
    start_server_fleet,
)
from indusagi.runtime import ToolCall

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.process]

DOCUMENTED = """
    mount_protocol_bridge MountedProtocolBridge create_server_endpoint ServerEndpointImpl
    start_server_fleet ServerFleetImpl normalize_schema ProtocolFault protocol_fault
    is_protocol_fault is_usable_phase is_terminal_phase qualify_tool_name QUALIFIER ServerEndpoint
    ServerFleet EndpointPhase FaultKind StdioServerConfig SseServerConfig ServerConfig
    TransportKind BridgeConfig RemoteToolRef RemoteTool RemoteCallResult EndpointStatus FleetStatus
    MountedBridge InjectedTransport CLIENT_NAME CLIENT_VERSION FaultCause
    StreamableHttpServerConfig FAULT_KINDS
"""


@requirement("interop/public-exports/import")
def test_documented_names_are_importable() -> None:
    module = importlib.import_module("indusagi.interop")
    assert [name for name in DOCUMENTED.split() if not hasattr(module, name)] == []


@requirement("interop/mounting/snippet", "mcp-page/naming")
async def test_bridge_is_mounted_called_inspected_and_torn_down() -> None:
    config = BridgeConfig(servers=(honest(id="fs"), StdioServerConfig("gone", "no-such-command")))
    mounted = await mount_protocol_bridge(config)
    try:
        names = [descriptor.name for descriptor in mounted.box.descriptors()]
        assert "fs__echo" in names
        assert all(name.startswith("fs__") for name in names)
        outcome = await mounted.box.runner.run(ToolCall("1", "fs__echo", {"text": "hi"}))
        assert outcome.output == "hi"
        status = mounted.fleet.status()
        assert (status["fs"].phase, status["fs"].tool_count) == (EndpointPhase.READY, len(names))
        assert status["gone"].fault is not None
    finally:
        await mounted.fleet.tear_down()


@requirement("interop/endpoint/snippet")
async def test_endpoint_can_be_used_without_a_fleet() -> None:
    endpoint = create_server_endpoint(honest(id="echo"))
    assert endpoint.phase == EndpointPhase.IDLE
    try:
        await endpoint.open()
        assert is_usable_phase(endpoint.phase)
        tools = await endpoint.list_tools()
        assert (tools[0].descriptor.name, tools[0].ref.name) == ("echo__echo", "echo")
        result = await endpoint.invoke("echo", {"text": "hi"})
        assert (result.is_error, result.content) == (False, ({"type": "text", "text": "hi"},))
    finally:
        await endpoint.close()
    assert endpoint.phase == EndpointPhase.CLOSED


@requirement("interop/endpoint/single-flight")
async def test_concurrent_openings_share_one_attempt(tmp_path: Path) -> None:
    log = tmp_path / "log"
    endpoint = create_server_endpoint(fault("slow-start", 0.2, "--log", log))
    with anyio.move_on_after(0.02):
        await endpoint.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(endpoint.open)
        tasks.start_soon(endpoint.open)
    assert is_usable_phase(endpoint.phase)
    await endpoint.close()
    assert len(diary(log, "start")) == 1


@requirement("interop/endpoint/single-shot")
async def test_endpoint_opens_once() -> None:
    closed = create_server_endpoint(honest())
    await closed.open()
    await closed.close()
    with pytest.raises(ProtocolFault) as caught:
        await closed.open()
    assert caught.value.kind == "not_connected"
    faulted = create_server_endpoint(StdioServerConfig("x", "no-such-command"))
    kinds: list[str] = []
    for _ in range(2):
        with pytest.raises(ProtocolFault) as caught:
            await faulted.open()
        kinds.append(caught.value.kind)
    assert kinds == ["spawn_failed", "spawn_failed"]


@requirement("interop/fleet/isolation", "interop/fleet/last-id-wins", "interop/fleet/spin-up")
async def test_fleet_keeps_every_server_with_its_fault() -> None:
    with pytest.raises(ProtocolFault, match="never started"):
        await ServerFleetImpl().spin_up()
    bad = StdioServerConfig("bad", "no-such-command")
    other = StdioServerConfig("bad", "no-such-command-either")
    fleet = await start_server_fleet(BridgeConfig((bad, other, honest(id="a"))))
    try:
        assert list(fleet.status()) == ["bad", "a"]
        assert fleet.status()["bad"].phase is EndpointPhase.FAULTED
        assert fleet.status()["a"].phase is EndpointPhase.READY
        assert len(fleet.notes) == 1
    finally:
        await fleet.tear_down()


@requirement("interop/schema/snippet")
def test_a_schema_is_reduced_as_documented() -> None:
    raw = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "path": {"type": "string", "default": "/tmp"},
            "tags": {"type": "array", "items": [{"type": "string"}, {"type": "number"}]},
        },
        "required": ["path", "missing"],
    }
    assert normalize_schema(raw) == {
        "type": "object",
        "properties": {"path": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["path"],
    }


@requirement("interop/faults/by-site")
async def test_fault_kind_follows_from_its_site() -> None:
    assert FAULT_KINDS == ("transport", "protocol", "timeout", "tool_error", "not_connected", "spawn_failed")
    endpoint = create_server_endpoint(honest())
    kinds: list[str] = []
    for work in (lambda: endpoint.invoke("echo", {}), endpoint.list_tools):
        with pytest.raises(ProtocolFault) as caught:
            await work()
        kinds.append(caught.value.kind)
    await endpoint.open()
    with pytest.raises(ProtocolFault) as caught:
        await endpoint.invoke("refuse", {})
    kinds.append(caught.value.kind)
    await endpoint.close()
    assert kinds == ["not_connected", "not_connected", "tool_error"]


@requirement("interop/faults/cause")
def test_fault_has_message_and_cause() -> None:
    cause = OSError("pipe")
    fault = protocol_fault("transport", "lost", cause)
    assert is_protocol_fault(fault)
    assert (str(fault), fault.kind, fault.cause, fault.__cause__) == ("lost", "transport", cause, cause)
    assert not is_protocol_fault(cause)


@requirement("interop/phases")
def test_there_are_six_phases() -> None:
    assert [phase.value for phase in EndpointPhase] == ["idle", "connecting", "ready", "closing", "closed", "faulted"]
    assert [phase.value for phase in EndpointPhase if is_usable_phase(phase)] == ["ready"]
    assert [phase.value for phase in EndpointPhase if is_terminal_phase(phase)] == ["closed", "faulted"]
