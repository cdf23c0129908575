"""Who is compared: our gateway, a direct call, and the gateways of others that are installed.

An environment variable names the executable of each of the others (of FastMCP, a Python that has
it). What one of them cannot do is said in its remark, and in the table.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bridge import FASTMCP
from bench.gateway.client import LOG
from bench.process import compile_packages, console_script, surroundings
from bench.row import CannotMeasure

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

MCP_PROXY = "INDUS_BENCH_MCP_PROXY"
MCP_PIN = "INDUS_BENCH_MCP_PIN"
ECHO = str(Path(__file__).parents[1] / "echo_server.py")
TOOLS = 10
"""Tools of one server, as servers have them."""
_SERVER = ["-I", "-S", ECHO, str(TOOLS)]
_CONFIG = "mcp.json"
_PREPARE_S = 60
_FASTMCP_PROXY = """\
import json, sys
from fastmcp.server import create_proxy
with open(sys.argv[1]) as file:
    create_proxy(json.load(file)).run(show_banner=False)
"""


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder with a configuration of so many servers, and a home, for one run of a gateway."""

    folder: str
    count: int

    @property
    def config(self) -> str:
        """The file that names the servers."""
        return os.path.join(self.folder, _CONFIG)

    def env(self) -> dict[str, str]:
        """Give the environment of a run here."""
        kept = {key: value for key, value in surroundings().items() if not key.startswith("XDG_")}
        return {**kept, "HOME": self.folder}

    def run(self, *command: str) -> None:
        """Do something before the gateway starts.

        Raises:
            CannotMeasure: It failed.
        """
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PREPARE_S,
            check=False,
        )
        if done.returncode:
            raise CannotMeasure(f"{command[0]} failed: {done.stderr.strip()[-200:]}")

    def complaints(self) -> str:
        """Give the last of what a gateway wrote to standard error here."""
        try:
            text = Path(self.folder, LOG).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return text.strip()[-300:]


@contextmanager
def new_desk(count: int) -> Generator[Desk]:
    """Make a folder for a run, and remove it."""
    compile_packages()
    # A gateway that is told to end may still write: what cannot be removed then is left behind.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        desk = Desk(folder, count)
        rows = {f"s{n}": {"command": sys.executable, "args": _SERVER} for n in range(count)}
        Path(desk.config).write_text(json.dumps({"mcpServers": rows}), encoding="utf-8")
        yield desk


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to reach the tools of several servers."""

    name: str
    command: Callable[[Desk, int], list[str]]
    """Given a desk, and a port for those that listen."""
    tool: str = "s{n}__echo"
    """How the tool `echo` of server `n` is named."""
    path: str | None = None
    """Over HTTP: where; with `{n}` if every server has an address of its own."""
    prepare: Callable[[Desk], None] | None = None
    """Done once, before it starts for the first time."""
    variable: str | None = None
    """The environment variable that names the executable."""
    keeps_home: bool = False
    """Whether it finds at its start what the last run has left."""
    starts_servers_again: bool = False
    """Whether every call starts all servers, so that callers at once would start a thousand."""
    remark: str = ""

    @property
    def installed(self) -> bool:
        """Whether it can be measured here."""
        return self.variable is None or bool(os.environ.get(self.variable))

    @property
    def apart(self) -> bool:
        """Whether every server has an address of its own, so that nothing is aggregated."""
        return self.path is not None and "{n}" in self.path

    def paths(self, count: int) -> list[str]:
        """Give the addresses at which all tools are found together."""
        assert self.path is not None
        return [self.path.format(n=n) for n in range(count)] if self.apart else [self.path]


def free_port() -> int:
    """Find a free port of this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def _find_executable(variable: str) -> str:
    return os.environ[variable]


def _serve(desk: Desk, *more: str) -> list[str]:
    # The others have no tools of their own.
    return [console_script("indus"), "serve", "--profile", "none", "--mcp", desk.config, *more]


def _write_approval(desk: Desk) -> None:
    desk.run(_find_executable(MCP_PIN), "approve", "--no-user-configs", "--probe", "--yes", desk.folder)


def write_record_setting(desk: Desk, record: str) -> None:
    """Switch the records of calls on or off for the gateways of a desk."""
    write_settings(desk, {"calls.record": record})


def write_settings(desk: Desk, settings: dict[str, object]) -> None:
    """Write the user's settings for the gateways of a desk."""
    path = Path(desk.folder, ".config", "indus", "settings.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings), encoding="utf-8")


DIRECT = Contender(
    "direct", lambda _desk, _port: [sys.executable, *_SERVER], tool="echo", remark="one server, nothing in between"
)
OURS = Contender("indus serve", lambda desk, _: _serve(desk))
OURS_AGAIN = Contender(
    "indus serve, again",
    lambda desk, _: _serve(desk),
    keeps_home=True,
    remark="has seen these servers before: lists from its ledger",
)
OURS_HTTP = Contender(
    "indus serve --http", lambda desk, port: _serve(desk, "--http", f"127.0.0.1:{port}", "--no-token"), path="/mcp"
)
FASTMCP_PROXY = Contender(
    "FastMCP 4 proxy",
    lambda desk, _: [_find_executable(FASTMCP), "-c", _FASTMCP_PROXY, desk.config],
    tool="s{n}_echo",
    variable=FASTMCP,
    starts_servers_again=True,
    remark="starts every server again for every call",
)
MCP_PIN_GATEWAY = Contender(
    "mcp-pin gateway",
    lambda desk, _: [_find_executable(MCP_PIN), "gateway", "--no-user-configs", "--quiet", desk.folder],
    prepare=_write_approval,
    variable=MCP_PIN,
)
OURS_RECORDED = Contender(
    "indus serve, records on", lambda desk, _: _serve(desk), prepare=lambda desk: write_record_setting(desk, "on")
)
OURS_UNRECORDED = Contender(
    "indus serve, records off", lambda desk, _: _serve(desk), prepare=lambda desk: write_record_setting(desk, "off")
)
MCP_PIN_LOGGED = Contender(
    "mcp-pin gateway, with its log",
    lambda desk, port: [*MCP_PIN_GATEWAY.command(desk, port), "--log", os.path.join(desk.folder, "calls.log")],
    prepare=_write_approval,
    variable=MCP_PIN,
)
MCP_PROXY_HTTP = Contender(
    "mcp-proxy",
    lambda desk, port: [
        *(_find_executable(MCP_PROXY), "--port", str(port)),
        *("--log-level", "ERROR", "--named-server-config", desk.config),
    ],
    tool="echo",
    path="/servers/s{n}/mcp",
    variable=MCP_PROXY,
    remark="HTTP in front of stdio servers, an address for each: aggregates nothing",
)
CONTENDERS = (DIRECT, OURS, OURS_AGAIN, FASTMCP_PROXY, MCP_PIN_GATEWAY, OURS_HTTP, MCP_PROXY_HTTP)
RECORDING = (DIRECT, OURS_RECORDED, OURS_UNRECORDED, MCP_PIN_LOGGED, MCP_PIN_GATEWAY)
"""What a record of each call costs, here and elsewhere."""
RIVALS = ((OURS, FASTMCP_PROXY), (OURS, MCP_PIN_GATEWAY), (OURS_HTTP, MCP_PROXY_HTTP), (OURS_RECORDED, MCP_PIN_LOGGED))
"""Who must be ahead of whom; each over the same transport."""
