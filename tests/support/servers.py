"""Configurations of the servers in `tests/servers`, and limits under which they are tested."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.support.scripts import ROOT

from indusagi.interop.protocol_bridge.contract import (
    ServerLimits,
    SseServerConfig,
    StdioServerConfig,
    StreamableHttpServerConfig,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.http_peer import HttpServer

SERVERS = ROOT / "tests" / "servers"
HONEST_TOOLS = (
    "echo", "add", "media", "fail", "refuse", "env", "pid", "big", "slow", "mutate", "grow", "ask",
)  # fmt: skip
"""What the honest server lists before the tools it was told to generate."""

STEADY_S = 60.0
STEADY = ServerLimits(
    connect_s=STEADY_S,
    probe_s=2.0,
    list_s=STEADY_S,
    call_idle_s=STEADY_S,
    call_hard_s=STEADY_S,
    close_s=0.3,
    relist_gap_s=0.1,
)
"""Limits that a busy machine keeps, apart from the time that a process has to end by itself."""
SHORT_START = replace(STEADY, connect_s=0.1, probe_s=0.02, list_s=0.1)
"""For servers that never come up or never list: it does not matter then why they are late."""


def honest(
    *flags: object, id: str = "honest", limits: ServerLimits | None = None, env: Mapping[str, str] | None = None
) -> StdioServerConfig:
    """Configure the server without faults; the flags are those of its file."""
    return _script("honest.py", flags, id, limits or ServerLimits(), env or {})


def fault(mode: str, *args: object, id: str | None = None, limits: ServerLimits | None = None) -> StdioServerConfig:
    """Configure a server with that fault; the modes and their words are those of its file."""
    return _script("fault.py", (mode, *args), id or mode, limits or STEADY, {})


def hidden(hide: str = "", *, id: str = "h") -> StdioServerConfig:
    """Configure the server that hides a character (JSON escapes) in all that it says."""
    return _script("hidden.py", ("--hide", hide) if hide else (), id, ServerLimits(), {})


def remote(
    server: HttpServer,
    *,
    id: str = "remote",
    limits: ServerLimits | None = None,
    headers: Mapping[str, str] | None = None,
) -> StreamableHttpServerConfig:
    """Configure a server that runs behind HTTP."""
    return StreamableHttpServerConfig(id, server.url, headers or {}, limits=limits or STEADY)


def remote_sse(server: HttpServer, *, id: str = "remote", limits: ServerLimits | None = None) -> SseServerConfig:
    """Configure a server that runs behind the old HTTP transport."""
    return SseServerConfig(id, server.url, limits=limits or STEADY)


def diary(path: Path, event: str = "") -> list[str]:
    """Read what a server wrote to the file of its `--log`: the lines of an event, without it.

    `diary(path, "start")` gives the process ids of its starts, `diary(path, "heard tools/list")`
    the ids of these requests, `diary(path, "child")` and `diary(path, "cancelled")` likewise.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line[len(event) :].strip() for line in lines if line.startswith(event)]


def _script(
    name: str, args: tuple[object, ...], server: str, limits: ServerLimits, env: Mapping[str, str]
) -> StdioServerConfig:
    # Isolated and without site packages: it starts in half the time.
    argv = ["-I", "-S", str(SERVERS / name), *map(str, args)]
    return StdioServerConfig(server, sys.executable, argv, env, limits=limits)
