"""Servers of a fleet that are there but not started: asleep until needed, or not consented to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.opened import QUICK
from tests.support.servers import diary, honest

from indusagi.capabilities.local import make_local_context
from indusagi.interop import BridgeConfig, EndpointPhase, ProtocolFault, StdioServerConfig
from indusagi.interop.protocol_bridge.bridge import MountedTool
from indusagi.interop.protocol_bridge.contract import RemoteTool, RemoteToolRef
from indusagi.interop.protocol_bridge.fleet import start_server_fleet
from indusagi.runtime.contract import ToolDescriptor

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.process]


def echo_of(server: str) -> RemoteTool:
    return RemoteTool(RemoteToolRef(server, "echo"), ToolDescriptor(f"{server}__echo", "Echo.", {"type": "object"}))


async def test_sleeping_server_is_registered_and_not_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = BridgeConfig((honest("--log", log, id="a"), honest(id="b")))
    fleet = await start_server_fleet(config, supervision=QUICK, waiting={"a": "asleep"})
    try:
        phases = {name: status.phase for name, status in fleet.status().items()}
        assert phases == {"a": EndpointPhase.IDLE, "b": EndpointPhase.READY}
        assert diary(log, "start") == []
        await fleet.wake("a")
        assert fleet.status()["a"].phase is EndpointPhase.READY
        await fleet.wake("a")
        assert len(diary(log, "start")) == 1
    finally:
        await fleet.tear_down()


async def test_call_wakes_the_server_and_callers_share_one_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = BridgeConfig((honest("--log", log, id="a"),))
    fleet = await start_server_fleet(config, supervision=QUICK, waiting={"a": "asleep"})
    tool = MountedTool(fleet, echo_of("a")).tool
    ctx = make_local_context(tmp_path)
    answers: list[bool] = []

    async def ask() -> None:
        answers.append((await tool.run({"text": "hi"}, ctx)).is_error)

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
        assert answers == [False] * 5
        assert len(diary(log, "start")) == 1
    finally:
        await fleet.tear_down()


async def test_untrusted_server_is_never_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = BridgeConfig((honest("--log", log, id="a"),))
    fleet = await start_server_fleet(config, supervision=QUICK, waiting={"a": "untrusted"})
    try:
        assert (fleet.status()["a"].trust, fleet.status()["a"].phase) == ("untrusted", "idle")
        await fleet.wake("a")
        outcome = await MountedTool(fleet, echo_of("a")).tool.run({}, make_local_context(tmp_path))
        assert outcome.details["code"] == "not_connected"
        with pytest.raises(ProtocolFault) as caught:
            await fleet.restart("a")
        assert caught.value.detail.reason == "untrusted"
        await fleet.spin_up()
        assert fleet.status()["a"].trust == "untrusted"
        assert diary(log, "start") == []
    finally:
        await fleet.tear_down()


async def test_server_can_join_and_leave_a_running_fleet(tmp_path: Path) -> None:
    fleet = await start_server_fleet(BridgeConfig((honest(id="a"),)), supervision=QUICK)
    try:
        await fleet.add(honest(id="b"))
        await fleet.add(honest(id="c"), waiting="asleep")
        await fleet.add(StdioServerConfig("a", "no-such-command"))
        phases = {name: str(status.phase) for name, status in fleet.status().items()}
        assert phases == {"a": "faulted", "b": "ready", "c": "idle"}
        await fleet.remove("b")
        assert list(fleet.status()) == ["a", "c"]
        with pytest.raises(ProtocolFault):
            await fleet.remove("b")
    finally:
        await fleet.tear_down()
