"""Gateways to attack, as processes, and the clients that attack them over HTTP."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from outside.flow.shapes import REMOTE, read_tools

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_SERVER: Final = Path(__file__).with_name("server.py")
_MODERN: Final = "2026-07-28"
_LEGACY: Final = "2025-06-18"
_META: Final = "io.modelcontextprotocol"
_START_S: Final = 120


def write_configuration(folder: Path, *, confirmed: bool = False) -> None:
    """Write the servers of all shapes, a view that renames their tools, and the labels if they're `confirmed`."""
    servers: dict[str, list[dict[str, Any]]] = {}
    for tool in read_tools().values():
        definition = {key: value for key, value in tool.items() if key != "server"}
        definition["inputSchema"]["properties"]["nonce"] = {"type": "string"}
        servers.setdefault(tool["server"], []).append(definition)
    rows: dict[str, Any] = {
        name: {
            "command": sys.executable,
            "args": ["-I", "-S", str(_SERVER), name, str(folder / "calls.txt"), json.dumps(tools)],
            "env": {"API_TOKEN": "x"} if name in REMOTE else {},
            **({"labels": ["private", "untrusted", "outward"]} if confirmed else {}),
        }
        for name, tools in servers.items()
    }
    (folder / "calls.txt").touch()
    (folder / "mcp.json").write_text(json.dumps({"servers": rows}), encoding="utf-8")
    renamed = {
        f"{name}__{tool['name']}": f"t_{name}_{tool['name']}" for name, tools in servers.items() for tool in tools
    }
    settings = {"serve.views": {"all": {"servers": ["*"], "rename": renamed}}, "approvals.mode": "deny"}
    target = folder / "config" / "indus"
    target.mkdir(parents=True)
    (target / "settings.json").write_text(json.dumps(settings), encoding="utf-8")


@contextmanager
def serve(folder: Path, *flags: str) -> Generator[str]:
    """Run a gateway, and give its address."""
    environ = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    environ |= {"XDG_STATE_HOME": str(folder / f"state{'-'.join(flags)}"), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "induscode", "serve", "--http", "127.0.0.1:0", "--no-token", "--page", "off"]
    process = subprocess.Popen(
        [*command, "--mcp", str(folder / "mcp.json"), *flags],
        cwd=folder, env=environ, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            found = re.search(r"http://127\.0\.0\.1:\d+/mcp", lines.get(timeout=_START_S))
            if found is not None:
                yield found[0]
                return
    finally:
        process.terminate()
        process.wait(60)


@dataclass
class Client:
    """One client, with a session or without."""

    url: str
    name: str
    is_modern: bool = False
    _session: str = ""
    _ids: int = field(default=0)

    def open(self) -> Client:
        """Send the handshake, if this revision has one."""
        if not self.is_modern:
            info = {"name": self.name, "version": "1"}
            self.ask("initialize", {"protocolVersion": _LEGACY, "capabilities": {}, "clientInfo": info})
        return self

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the whole answer."""
        self._ids += 1
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if self.is_modern:
            headers |= {"mcp-protocol-version": _MODERN, "mcp-method": method}
            headers |= {"mcp-name": params.get("name", params.get("uri", ""))} if len(params) else {}
            meta = {
                "protocolVersion": _MODERN,
                "clientCapabilities": {},
                "clientInfo": {"name": self.name, "version": "1"},
            }
            params = {**params, "_meta": {f"{_META}/{key}": value for key, value in meta.items()}}
        elif self._session:
            headers |= {"mcp-session-id": self._session, "mcp-protocol-version": _LEGACY}
        body = json.dumps({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}).encode()
        request = urllib.request.Request(self.url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                self._session = reply.headers.get("mcp-session-id", self._session)
                text = reply.read().decode()
        except urllib.error.HTTPError as exc:
            return {"error": exc.read().decode()}
        lines = [line[5:] for line in text.splitlines() if line.startswith("data:")] or [text]
        return next(found for line in lines if "result" in (found := json.loads(line)) or "error" in found)

    def call(self, name: str, nonce: str = "", **more: Any) -> dict[str, Any]:
        """Call a tool."""
        return self.ask("tools/call", {"name": name, "arguments": {"nonce": nonce, **more} if nonce else more})


def read_calls(folder: Path) -> Sequence[str]:
    """Read what the servers have written down: tool and nonce of each call."""
    return (folder / "calls.txt").read_text("utf-8").splitlines()
