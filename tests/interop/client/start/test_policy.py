"""How long a start may take, and which commands may be downloading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.interop import ServerLimits, StartHistory, StartPolicy, StdioServerConfig, StreamableHttpServerConfig
from indusagi.interop.protocol_bridge.client.start.package_managers import find_package_manager

POLICY = StartPolicy()


def config(*argv: str, connect_s: float | None = None) -> StdioServerConfig:
    return StdioServerConfig("s", argv[0], argv[1:], limits=ServerLimits(connect_s=connect_s))


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["npx", "-y", "a"], "npx"),
        (["/usr/local/bin/npx", "a"], "npx"),
        ([r"C:\Program Files\nodejs\npx.cmd", "a"], "npx"),
        (["NPX.CMD", "a"], "npx"),
        (["npm", "exec", "--yes", "a"], "npm"),
        (["npm", "--silent", "x", "a"], "npm"),
        (["pnpm", "dlx", "a"], "pnpm"),
        (["yarn", "dlx", "a"], "yarn"),
        (["bunx", "a"], "bunx"),
        (["bun", "x", "a"], "bun"),
        (["uvx", "a"], "uvx"),
        (["uv", "tool", "run", "a"], "uv"),
        (["uv", "--directory", "/x", "run", "a"], "uv"),
        (["pipx", "run", "a"], "pipx"),
        (["python3.12", "-m", "pipx", "run", "a"], "pipx"),
        (["python", "-m", "uv", "run", "a"], "uv"),
        (["docker", "run", "-i", "a"], "docker"),
        (["docker", "--context", "x", "run", "a"], "docker"),
        (["podman", "container", "run", "a"], "podman"),
        (["deno", "run", "-A", "npm:a"], "deno"),
        (["go", "run", "x@latest"], "go"),
        (["sh", "-c", "npx -y a"], "npx"),
        (["bash", "-lc", "cd /x && exec uvx a"], "uvx"),
        (["bash", "--login", "-c", "A=1 B='2 3' npx a | tee x"], "npx"),
        (["sh", "-c", "npx 'unclosed"], "npx"),
        (["busybox", "sh", "-c", "npx a"], "npx"),
        (["cmd", "/c", "npx", "-y", "a"], "npx"),
        (["cmd.exe", "/d", "/s", "/C", "npx -y a"], "npx"),
        (["pwsh", "-NoProfile", "-Command", "npx -y a"], "npx"),
        (["env", "A=1", "npx", "a"], "npx"),
        (["/usr/bin/env", "-i", "-u", "X", "uvx", "a"], "uvx"),
        (["env", "-S", "npx -y a"], "npx"),
        (["nice", "-n", "5", "timeout", "60", "npx", "a"], "npx"),
        (["mise", "exec", "node@22", "--", "npx", "a"], "npx"),
        (["node", "/usr/lib/node_modules/npm/bin/npx-cli.js", "-y", "a"], "npx"),
        (["node", "--no-warnings", "/x/npm-cli.js", "exec", "a"], "npm"),
        # What runs what is there already.
        (["python", "server.py"], None),
        (["python", "-m", "server", "npx"], None),
        (["node", "server.js", "npx"], None),
        (["node"], None),
        (["npm", "test"], None),
        (["uv", "pip", "list"], None),
        (["docker", "ps"], None),
        (["./npx-like", "a"], None),
        (["sh", "server.sh"], None),
        (["sh", "-c", "echo npx"], None),
        (["sh", "-c"], None),
        (["cmd"], None),
        (["env"], None),
        (["sudo", "-E", "server"], None),
        (["A=1"], None),
        (["bash", "-c", 'bash -c \'bash -c "bash -c \\"bash -c \\\\\\"x\\\\\\"\\""\''], None),
    ],
)
def test_finding_b1_a_package_manager_is_known_however_it_is_started(argv: list[str], name: str | None) -> None:
    found = find_package_manager(argv[0], argv[1:])
    assert (None if found is None else found.name) == name


@given(st.lists(st.text(), min_size=1, max_size=6))
def test_any_command_line_is_accepted(argv: list[str]) -> None:
    found = find_package_manager(argv[0], argv[1:])
    assert found is None or found.name


def test_finding_b1_a_first_start_has_a_minute_and_is_extended_up_to_a_cap() -> None:
    plain = POLICY.allow(config("server"), seen_up=False)
    assert (plain.limit_s, plain.cap_s, plain.first, plain.package_manager) == (60, 120, True, None)
    npx = POLICY.allow(config("npx", "-y", "a"), seen_up=False)
    assert (npx.limit_s, npx.cap_s, npx.first, npx.package_manager) == (60, 300, True, "npx")
    # What a container engine downloads, another process does.
    docker = POLICY.allow(config("docker", "run", "a"), seen_up=False)
    assert (docker.limit_s, docker.cap_s) == (300, 300)


@pytest.mark.parametrize("argv", [["server"], ["npx", "a"], ["docker", "run", "a"]])
def test_finding_b1_a_later_start_keeps_ten_seconds(argv: list[str]) -> None:
    later = POLICY.allow(config(*argv), seen_up=True)
    assert (later.limit_s, later.cap_s, later.first) == (10, 10, False)
    assert later.patient_next


@pytest.mark.parametrize("seen_up", [True, False])
@pytest.mark.parametrize("stated", [3.0, 10.0, 400.0])
def test_finding_b1_a_limit_that_is_stated_wins(seen_up: bool, stated: float) -> None:
    allowed = POLICY.allow(config("npx", "a", connect_s=stated), seen_up=seen_up)
    assert (allowed.limit_s, allowed.cap_s) == (stated, stated)
    assert not allowed.patient_next


def test_remote_server_has_the_later_start_limit() -> None:
    remote = StreamableHttpServerConfig("s", "http://127.0.0.1:9/mcp")
    allowed = POLICY.allow(remote, seen_up=False)
    assert (allowed.limit_s, allowed.cap_s, allowed.first) == (10, 10, False)
    assert StartHistory().was_up(remote)


def test_start_digest_covers_command_arguments_environment_and_directory() -> None:
    history = StartHistory()
    one = StdioServerConfig("a", "x", ["y"], {"K": "1"}, cwd="/")
    history.record_up(one)
    assert history.was_up(StdioServerConfig("another id", "x", ["y"], {"K": "1"}, cwd="/"))
    for other in (
        StdioServerConfig("a", "x", ["z"], {"K": "1"}, cwd="/"),
        StdioServerConfig("a", "x", ["y"], {"K": "2"}, cwd="/"),
        StdioServerConfig("a", "x", ["y"], {"K": "1"}),
    ):
        assert not history.was_up(other)
    history.record_timeout(one)
    assert not history.was_up(one)
    remote = StreamableHttpServerConfig("s", "http://127.0.0.1:9/mcp")
    history.record_up(remote)
    history.record_timeout(remote)
    assert history.was_up(remote)
