"""What commands cost: listing from the ledger beside bare Python, one call beside other programs.

The other programs are measured where they are: `INDUS_BENCH_MCPORTER` and `INDUS_BENCH_FASTMCP_CLI`
name their executables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import calls, compare
from bench.process import compile_packages, console_script, python, starts, surroundings
from bench.row import CannotMeasure, Check, Row

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from bench.measure import Pair

_NOTHING = "python -c pass"
_ECHO = Path(__file__).with_name("echo_server.py")
_SERVERS, _TOOLS = 5, 100
_ROUNDS = 11
MCPORTER = "INDUS_BENCH_MCPORTER"
FASTMCP = "INDUS_BENCH_FASTMCP_CLI"
_MANY = """\
import json, sys
tools = [{"name": f"tool{n}", "description": "Do one thing and tell how it went.",
          "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}
         for n in range(int(sys.argv[1]))]
hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
         "serverInfo": {"name": "many", "version": "1"}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        found = {"initialize": hello, "tools/list": {"tools": tools}}.get(message["method"])
        error = {"error": {"code": -32601, "message": "unknown"}}
        body = {"result": found} if found else error
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)
"""


@dataclass(frozen=True, slots=True)
class _Desk:
    """A home and a folder with a configuration, for runs of the program."""

    folder: Path

    def run(self, *command: str) -> None:
        environment = {**surroundings(), "HOME": str(self.folder)}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip() or "it does not say why").splitlines()[-1]
            raise CannotMeasure(f"{' '.join(command[:3])} failed: {last}")


@contextmanager
def _desk(servers: Mapping[str, Sequence[str]]) -> Generator[_Desk]:
    compile_packages()
    with tempfile.TemporaryDirectory() as place:
        desk = _Desk(Path(place))
        rows = {name: {"command": sys.executable, "args": list(arguments)} for name, arguments in servers.items()}
        for file, key in (("servers.json", "servers"), ("mcp.json", "mcpServers")):
            (desk.folder / file).write_text(json.dumps({key: rows}), encoding="utf-8")
        yield desk


def _listing(*command: str) -> Pair:
    """List the tools of servers that were seen once, without starting one."""
    many = {f"many{number}": ("-c", _MANY, str(_TOOLS)) for number in range(_SERVERS)}
    with _desk(many) as desk:
        indus = console_script("indus")
        desk.run(indus, "--mcp", "servers.json", "tools", "list")  # they are seen now
        ours = calls(partial(desk.run, indus, "--mcp", "servers.json", *command))
        return compare(ours, starts(python("-c", "pass")), rounds=_ROUNDS)


def _call(variable: str, *command: str) -> Check:
    """Call one tool of one server, in turns with another program."""
    other = os.environ.get(variable)
    if not other:
        return Check(ok=True, note=f"not compared: {variable} names no program")
    with _desk({"echo": (str(_ECHO),)}) as desk:
        indus = console_script("indus")
        ours = (indus, "--mcp", "servers.json", "call", "echo__echo", "text=hi")
        pair = compare(calls(partial(desk.run, *ours)), calls(partial(desk.run, other, *command)), rounds=_ROUNDS)
    note = f"ours {pair.ours.median * 1000:.0f} ms, theirs {pair.baseline.median * 1000:.0f} ms"
    return Check(pair.ratio < 1, f"{note}: {pair.ratio:.2f} x")


ROWS = (
    Row(
        "tools-from-ledger",
        f"indus tools, {_SERVERS * _TOOLS} tools of {_SERVERS} servers, none started",
        _NOTHING,
        partial(_listing, "tools", "list"),
        budget=30,
    ),
    Row(
        "tools-search",
        f"indus tools search, {_SERVERS * _TOOLS} tools of {_SERVERS} servers, none started",
        _NOTHING,
        partial(_listing, "tools", "search", "do one thing"),
        budget=30,
    ),
    Row(
        "mcp-list",
        f"indus mcp list --no-check, {_SERVERS} servers",
        _NOTHING,
        partial(_listing, "mcp", "list", "--no-check"),
        budget=20,
    ),
    Row(
        "call-mcporter",
        "indus call, one tool of one server",
        f"the mcporter that {MCPORTER} names: the same",
        partial(_call, MCPORTER, "--config", "mcp.json", "call", "echo.echo", "text=hi"),
    ),
    Row(
        "call-fastmcp",
        "indus call, one tool of one server",
        f"the fastmcp that {FASTMCP} names: the same",
        partial(_call, FASTMCP, "call", "mcp.json", "echo", "text=hi"),
    ),
)
