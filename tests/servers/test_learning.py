"""Learning a server's behaviour, with a real server in bubblewrap."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.sandboxes import offer_bubblewrap, skip_without
from tests.support.servers import SERVERS

from indusagi.capabilities.sandbox.profile import format_profile
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.servers.learning import learn_behaviour

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StdioServerConfig:
    """A server in a directory of its own, started in a project of a home with notes and a key."""
    home = tmp_path / "home"
    for name in ("notes/today.md", ".ssh/id_ed25519", "project/README.md", "servers/server.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    (home / "servers/server.py").write_text((SERVERS / "curious.py").read_text("utf-8"))
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    offer_bubblewrap(tmp_path / "bin", monkeypatch)
    skip_without("bubblewrap")
    argv = ("-I", "-S", str(home / "servers/server.py"))
    return StdioServerConfig("lib", sys.executable, argv, cwd=str(home / "project"))


async def test_what_a_server_used_becomes_the_smallest_profile_that_works(config: StdioServerConfig) -> None:
    run = await learn_behaviour(config, [("fetch", {}), ("save", {}), ("direct", {})])
    assert run.note == ""
    assert [(call.tool, call.failure) for call in run.calls] == [
        ("fetch", None),
        ("save", None),
        ("direct", None),
        ("run", None),
    ]
    assert format_profile(run.profile) == {"profile": "strict", "write": ["."], "hosts": ["api.learned.invalid:443"]}
    assert "uname" in run.behaviour.programs
    assert any("192.0.2.7:443" in str(one) for one in run.refusals)  # it ignores the proxy


async def test_a_service_of_this_machine_is_told_and_the_servers_own_is_not(config: StdioServerConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        target = f"localhost:{service.getsockname()[1]}"
        config = replace(config, env={"PORT": target.partition(":")[2]})
        run = await learn_behaviour(config, [("local", {})])
        assert [(one.target, one.key) for one in run.refusals] == [(target, "hosts")]
        config = replace(config, sandbox=replace(run.profile, hosts=(target,)))
        run = await learn_behaviour(config, [("local", {})])
    assert run.refusals == ()
    assert run.profile.hosts == (target,)


async def test_your_files_are_proposed_not_given_and_credentials_neither(config: StdioServerConfig) -> None:
    run = await learn_behaviour(config, [("notes", {}), ("key", {})])
    assert [call.failure is None for call in run.calls] == [False, False, True]
    assert run.is_blocked
    assert format_profile(run.profile) == {"profile": "strict", "read": ["~/notes"], "hosts": []}
    assert [(one.target, one.key) for one in run.refusals if one.reason] == [("~/.ssh/id_ed25519", "read")]
