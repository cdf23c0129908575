"""Phases of servers, and rows of the configuration that are held back."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from anyio import to_thread
from tests.deck.mcp.test_additions import CHANGED, DEFINITIONS, boot_with, items, live
from tests.support.stores import stored

from indusagi.interop.protocol_bridge.contract import EndpointPhase, EndpointStatus, RemoteToolRef, SlowStart
from indusagi.interop.protocol_bridge.fleet import FleetEvent
from induscode.boot.plans import ConsentedRows, plan_servers
from induscode.boot.runners import StartAnnouncer
from induscode.cli.terminal import print_status, redirected_status_lines
from induscode.conversations.servers import LateServers, ServerPhases, SessionServers
from induscode.deck.mcp.capability import definition_pin
from induscode.launch.invocation import Invocation
from induscode.servers.config.trust import TrustStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from indusagi.interop.protocol_bridge.endpoint import EndpointEvent
    from induscode.deck.mcp.boot import BootedBridge


def event(kind: EndpointEvent, phase: EndpointPhase, slow: SlowStart | None = None) -> FleetEvent:
    return FleetEvent("github", kind, EndpointStatus("github", phase, 0, slow_start=slow))


def test_a_start_is_described_after_a_second_with_its_cause_until_it_ends() -> None:
    now = [100.0]
    heard: list[FleetEvent] = []
    phases = ServerPhases(heard.append, clock=lambda: now[0])
    assert phases.get_age("github") is None
    phases(event("phase", EndpointPhase.CONNECTING))
    assert phases.describe_starts() == []
    now[0] += 3
    assert phases.describe_starts() == ["starting github 3 s"]
    phases(event("slow_start", EndpointPhase.CONNECTING, SlowStart(True, "npx")))
    assert phases.describe_starts() == ["starting github 3 s: npx may be downloading it"]
    phases(event("phase", EndpointPhase.READY))
    now[0] += 5
    assert (phases.describe_starts(), phases.get_age("github")) == ([], 5)
    phases.forget(["github"])
    assert phases.get_age("github") is None
    assert len(heard) == 3


class _Bridge:
    """Servers of which one comes up when it's told to."""

    def __init__(self) -> None:
        self.woken: list[list[str]] = []
        self.tools: list[tuple[str, str]] = []
        self.late: list[str] = []

    @property
    def capabilities(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, ref=RemoteToolRef(server, name)) for server, name in self.tools]

    def unknown_servers(self) -> list[str]:
        return ["quick", "slow", "down"]

    def awaited_servers(self) -> list[str]:
        return ["quick", "slow"]

    def record_late(self, servers: Iterable[str]) -> None:
        self.late += servers

    async def wake(
        self, servers: Iterable[str], limit_s: float | None = None, *, until_listed: bool = False
    ) -> list[str]:
        self.woken.append([*servers])
        return [server for server in self.woken[-1] if server == "slow" and limit_s == 3.0]

    async def wait_for_required(self) -> None:
        pass


@pytest.mark.anyio
async def test_finding_u1_model_hears_once_of_a_server_that_came_up_late() -> None:
    bridge = _Bridge()
    late = LateServers(cast("BootedBridge", bridge))
    assert await late.wait() == ["server 'slow' is still starting: the model gets its tools once it's up"]
    assert await late.wait() == []
    assert ([*map(sorted, bridge.woken)], bridge.late) == ([["quick", "slow"], ["quick"], [], []], ["slow"])
    bridge.tools = [("quick", "quick__a")]
    assert late.take_notices() == []
    bridge.tools += [("slow", "slow__b"), ("slow", "slow__c")]
    assert late.take_notices() == ["server 'slow' is up now, with the tools slow__b, slow__c"]
    assert late.take_notices() == []
    bridge.tools += [("down", "down__d")]  # it was not waited for: it had not come up the last time
    assert late.take_notices() == ["server 'down' is up now, with the tools down__d"]
    assert late.take_notices() == ()


def test_slow_start_has_a_line_until_the_server_is_up() -> None:
    lines: list[tuple[str, str]] = []
    announce = StartAnnouncer(lambda name, text: lines.append((name, text)))
    announce(event("phase", EndpointPhase.CONNECTING))
    announce(event("slow_start", EndpointPhase.CONNECTING, SlowStart(False, "uvx")))
    announce(event("phase", EndpointPhase.READY))
    announce(event("phase", EndpointPhase.CLOSED))
    assert lines == [("github", "starting (uvx)"), ("github", "")]


def test_status_lines_go_to_the_screen_while_it_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with redirected_status_lines(lines.append):
        print_status("one\nline")
    print_status("after it")
    assert lines == ["one line"]
    assert capfd.readouterr().err == "indus: after it\n"


def test_a_file_of_the_user_inside_the_workspace_is_held_back_in_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "config/indus/mcp.json"
    path.parent.mkdir(parents=True)
    invocation = Invocation(cwd=str(tmp_path))

    def write(command: str) -> None:
        path.write_text(json.dumps({"mcpServers": {"a": {"command": command}}}))

    write("one")
    plan = plan_servers(invocation)
    session = ConsentedRows(str(tmp_path), plan, lambda row: f"see {row.id}", scopes={"given", "user"})
    gateway = ConsentedRows(str(tmp_path), plan, lambda row: f"see {row.id}")
    write("two")
    changed = plan_servers(invocation)
    held = session.hold_back(changed)
    assert ([*held.configs], held.consent["a"]) == ([], "changed")
    assert "(see a)" in str(held.notes[-1])
    assert [*gateway.hold_back(changed).configs] == ["a"]
    store = TrustStore()
    store.approve(changed.rows[0], store.question(changed.rows[0]).digest)
    changed = plan_servers(invocation)
    assert session.hold_back(changed) is changed


def test_a_switched_off_row_is_read_for_a_run_that_switches_it_on(tmp_path: Path) -> None:
    file = tmp_path / "given.json"
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "x", "enabled": False}, "b": {"command": "y"}}}))
    invocation = Invocation(cwd=str(tmp_path), mcp=(str(file),))
    assert [*plan_servers(invocation).configs] == ["b"]
    assert [*plan_servers(invocation, None, ["a"]).configs] == ["a", "b"]


@pytest.mark.anyio
async def test_a_session_takes_over_what_another_process_has_approved(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        ours = await boot_with(store)
        for definition in (DEFINITIONS["tool"], CHANGED):
            ours.enrolment.sync_tools("s", items("tool", definition))
        files: Any = SimpleNamespace(has_changed=lambda: False)
        invocation = Invocation(cwd=str(tmp_path))
        servers = await to_thread.run_sync(SessionServers, invocation, ours, files, ServerPhases())
        assert await servers.apply_changes() == []
        ours.enrolment.sync_tools("s", items("tool", CHANGED))
        assert live(ours.enrolment) == []

        theirs = await boot_with(store)
        theirs.enrolment.sync_tools("s", items("tool", CHANGED))
        assert theirs.enrolment.approve(theirs.enrolment.disabled[0].ref, definition_pin(CHANGED))
        await theirs.aclose()
        assert await servers.apply_changes() == []
        ours.enrolment.sync_tools("s", items("tool", CHANGED))
        assert live(ours.enrolment) == [("tool", "one")]
        await servers.aclose()
        await ours.aclose()
