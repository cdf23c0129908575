"""Servers in a sandbox, through an endpoint: they start, answer and end as without one."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.opened import fault_of_opening, opened
from tests.support.sandboxes import skip_without
from tests.support.servers import SERVERS, STEADY, honest
from tests.support.waiting import is_alive, until

from indusagi.capabilities.sandbox.profile import ServerProfile, parse_profile
from indusagi.core.json import is_json_object
from indusagi.interop import ProtocolFault, StdioServerConfig, create_server_endpoint

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonValue

pytestmark = [pytest.mark.anyio, pytest.mark.process]


def find_nothing(_: str) -> tuple[tuple[str, ...], str]:
    """Find no bubblewrap."""
    return (), "none"


def sandboxed(profile: JsonValue, folder: Path) -> StdioServerConfig:
    """Configure the server without faults, in a sandbox, with a folder as its workspace."""
    return replace(honest(limits=STEADY), sandbox=parse_profile(profile), cwd=str(folder))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a home of the test."""
    folder = tmp_path / "home/project"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return folder


@pytest.mark.parametrize("profile", ["standard", "strict", {"profile": "strict", "hosts": ["api.example:443"]}])
async def test_a_server_works_and_ends_in_its_sandbox(profile: JsonValue, project: Path) -> None:
    skip_without("bubblewrap")
    async with opened(sandboxed(profile, project)) as endpoint:
        result = await endpoint.invoke("echo", {"text": "hello"})
        assert result.content == ({"type": "text", "text": "hello"},)
        inner = await endpoint.invoke("pid", {})
        assert is_json_object(inner.content[0])
        assert int(str(inner.content[0]["text"])) < 100
        processes = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_ours(pid)]
        assert processes != []
    await until(lambda: not any(is_alive(pid) for pid in processes))
    assert [*(project.parent.parent / "temporary").iterdir()] == []


async def test_a_package_manager_may_clean_up_when_its_start_is_interrupted(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without("bubblewrap")
    (tmp_path / "managers").mkdir()
    npx = tmp_path / "managers/npx"
    npx.write_text("#!/bin/sh\ntrap 'sleep 0.3; rm ~/lock; exit 1' INT\ntouch ~/lock\nwhile :; do sleep 0.1; done\n")
    npx.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npx.parent}{os.pathsep}{os.environ['PATH']}")
    home = tmp_path / "own"
    profile = ServerProfile(home=str(home))
    config = StdioServerConfig("s", "npx", ["-y", "s"], cwd=str(project), sandbox=profile, limits=STEADY)
    endpoint = create_server_endpoint(config)

    async def open_in_vain() -> None:
        with pytest.raises(ProtocolFault):
            await endpoint.open()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_in_vain)
        await until((home / "lock").exists)
        await endpoint.close()
    assert not (home / "lock").exists()


def _is_ours(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return str(SERVERS / "honest.py").encode() in file.read()
    except OSError:
        return False


async def test_a_profile_that_cannot_be_held_keeps_the_server_from_starting(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indusagi.capabilities.sandbox.backend._find_bubblewrap", find_nothing)
    monkeypatch.setattr("indusagi.capabilities.sandbox.backend._find_landlock", lambda: (0, "none"))
    failure = await fault_of_opening(sandboxed("standard", project))
    assert (failure.kind, failure.detail.reason) == ("spawn_failed", "refused")
    assert "there's no bubblewrap" in str(failure)
    assert not (project.parent / ".local").exists()


async def test_the_log_of_a_server_names_the_hosts_it_was_kept_from(project: Path) -> None:
    skip_without("bubblewrap")
    script = """
import os, sys, urllib.request
proxy = urllib.request.ProxyHandler({"http": os.environ["ALL_PROXY"]})
try:
    urllib.request.build_opener(proxy).open("http://evil.example/", timeout=30)
except OSError as exc:
    sys.exit(f"no way: {exc}")
"""
    profile = parse_profile({"hosts": ["api.example"]})
    config = StdioServerConfig("lib", "python3", ["-c", script], sandbox=profile, cwd=str(project), limits=STEADY)
    failure = await fault_of_opening(config)
    refused = 'indus: the sandbox refused evil.example:80; to allow it, add "evil.example:80" to "hosts"'
    assert any(line.startswith(refused) for line in failure.detail.stderr), failure.detail.stderr
    refused = 'evil.example:80 isn\'t one of the "hosts" of this server\'s "sandbox"'
    assert f"no way: HTTP Error 403: {refused}" in failure.detail.stderr


async def test_a_local_service_of_the_profile_is_reached_without_a_proxy(project: Path) -> None:
    skip_without("bubblewrap")

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello from outside")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as service:
        port = service.sockets[0].getsockname()[1]
        script = f"""
import socket, sys
with socket.create_connection(("127.0.0.1", {port})) as service:
    sys.exit(service.makefile().read())
"""
        profile = parse_profile({"profile": "strict", "hosts": [f"localhost:{port}", "localhost:1"]})
        config = StdioServerConfig("lib", "python3", ["-c", script], sandbox=profile, cwd=str(project), limits=STEADY)
        failure = await fault_of_opening(config)
    offered = "indus: the sandbox can't offer localhost:1 to the server: Permission denied"
    assert failure.detail.stderr == (offered, "hello from outside")


async def test_a_missing_command_is_said_as_without_a_sandbox(project: Path) -> None:
    skip_without("bubblewrap")
    config = StdioServerConfig("lib", "no-such-command", sandbox=parse_profile("standard"), cwd=str(project))
    failure = await fault_of_opening(config)
    assert "the command 'no-such-command' was not found" in str(failure)
    assert failure.detail.reason == "not_found"


HOGS = {
    "memory": "hold = bytearray(b'x') * (200 << 20)",
    "processes": "import threading; [threading.Thread(target=time.sleep, args=(1000,)).start() for _ in range(40)]",
    "disk": "[open(os.path.expanduser(f'~/{n}'), 'wb').write(bytes(1 << 20)) for n in range(60)]",
}


@pytest.mark.parametrize("key", HOGS)
async def test_a_server_that_exceeds_a_limit_is_ended_and_the_fault_names_the_key(key: str, project: Path) -> None:
    skip_without("bubblewrap")
    profile = parse_profile({"limits": {"memory": "120M", "processes": 32, "disk": "40M"}})
    script = f"import os, time\n{HOGS[key]}\ntime.sleep(1000)"
    config = StdioServerConfig("lib", "python3", ["-c", script], sandbox=profile, cwd=str(project), limits=STEADY)
    failure = await fault_of_opening(config)
    assert f'to allow more, raise "{key}" in the "limits" of its "sandbox"' in str(failure)
    assert failure.detail.reason == "exited"


async def test_the_kernel_limits_the_size_of_a_file_and_the_processes_of_a_namespace(project: Path) -> None:
    skip_without("bubblewrap")
    profile = parse_profile({"profile": "strict", "limits": {"processes": 64, "disk": "1M"}})
    script = """
import os, resource, sys
try:
    open("/tmp/large", "wb").write(bytes(2 << 20))
except OSError as exc:
    print(exc.strerror, file=sys.stderr)
print(resource.getrlimit(resource.RLIMIT_NPROC), open("/proc/self/oom_score_adj").read(), file=sys.stderr)
try:
    open("/dev/new", "w")
except OSError as exc:
    sys.exit(exc.strerror)
"""
    config = StdioServerConfig("lib", "python3", ["-c", script], sandbox=profile, cwd=str(project), limits=STEADY)
    failure = await fault_of_opening(config)
    assert failure.detail.stderr == ("File too large", "(64, 64) 1000", "Read-only file system")
