"""A server whose tools each use one thing that a sandbox may keep from it: a host, a file, a service, a program."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path


def fetch() -> None:
    """Ask for a host."""
    with suppress(OSError):
        urllib.request.urlopen("https://api.learned.invalid/x", timeout=5)


def save() -> None:
    """Write into the workspace, if that's writable."""
    if os.access(".", os.W_OK):
        Path("report.txt").write_text("x", "utf-8")


def direct() -> None:
    """Connect to an address."""
    with suppress(OSError):
        socket.create_connection(("192.0.2.7", 443), 5)


def local() -> None:
    """Connect to a service of its own, and to one of this machine."""
    with suppress(OSError), socket.create_server(("127.0.0.1", 0)) as own:
        socket.create_connection(own.getsockname(), 5).close()
        socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), 5)


TOOLS = {
    "fetch": fetch,
    "save": save,
    "direct": direct,
    "local": local,
    "notes": lambda: os.listdir(Path.home() / "notes"),
    "key": lambda: (Path.home() / ".ssh/id_ed25519").read_text("utf-8"),
    "run": lambda: subprocess.run(["uname"], check=False),
}

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    result: dict[str, object] = {}
    if asked["method"] == "initialize":
        facts: dict[str, object] = {"serverInfo": {"name": "s", "version": "1"}, "capabilities": {"tools": {}}}
        result = {**facts, "protocolVersion": asked["params"]["protocolVersion"]}
    elif asked["method"] == "tools/list":
        schema = {"inputSchema": {"type": "object"}}
        result = {"tools": [{"name": name, **schema, "annotations": {"readOnlyHint": name == "run"}} for name in TOOLS]}
    elif asked["method"] == "tools/call":
        try:
            TOOLS[asked["params"]["name"]]()
            result = {"content": []}
        except OSError as exc:
            result = {"content": [{"type": "text", "text": str(exc)}], "isError": True}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}) + "\n")
    sys.stdout.flush()
