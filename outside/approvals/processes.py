"""Gateways as processes: `indus serve --http`, alone or as the nodes of a cluster. Clients take no questions."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
import httpx2
from tests.support.broker import broker_process

from induscode.cluster.broker import open_broker
from induscode.cluster.contract import ClusterSettings
from induscode.cluster.key import create_key
from induscode.cluster.opening import prepare_cluster
from induscode.gateway.approvals.store import ApprovalStore
from outside.install import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from tests.support.broker import BrokerProcess

    from indusagi.core.json import JsonObject

_TOOL = "effects__append"
_SERVER = ROOT / "outside" / "cluster" / "effect_server.py"
_START_S = 120.0
_CALL_S = 600.0
_LEASE_S = 60.0
_VARIABLES = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
_META: JsonObject = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": _TOOL,
}


class ProcessSite:
    """One gateway, and what its user's commands read."""

    def __init__(self, home: Path, effects: Path, client: httpx2.AsyncClient, url: str) -> None:
        self.store = ApprovalStore(str(home / "indus" / "approvals.db"))
        self._effects, self._client, self._url = effects, client, url

    async def call(self, text: str) -> str:
        """Call the tool."""
        params: JsonObject = {"name": _TOOL, "arguments": {"call": text}, "_meta": _META}
        body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = await self._client.post(self._url, json=body, headers=_HEADERS)
        return answer.text

    async def list_effects(self) -> Sequence[str]:
        """List the texts that took effect."""
        lines = (await anyio.Path(self._effects).read_text("utf-8")).splitlines()
        return [str(json.loads(line)["call"]) for line in lines]


async def start_gateway(home: Path, flags: Sequence[str], env: Mapping[str, str], stack: AsyncExitStack) -> str:
    """Start a gateway, and return its address."""
    words = ["--http", "127.0.0.1:0", "--profile", "none", *flags]
    log = home / "log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "induscode", "serve", *words]
        process = await anyio.open_process(command, env=env, stdout=out, stderr=out, cwd=home)

    async def stop() -> None:
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(30):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()

    stack.push_async_callback(stop)
    with anyio.fail_after(_START_S):
        while (found := re.search(r"serving at (http://\S+)", said := log.read_text("utf-8"))) is None or (
            "native tools" not in said
        ):
            if process.returncode is not None:
                raise RuntimeError(said)
            await anyio.sleep(0.1)
    return f"{found[1].rstrip('/').removesuffix('/mcp')}/mcp"


def build_environment(home: Path) -> dict[str, str]:
    """Build the variables of a gateway, or a command, with a home of its own."""
    return {**os.environ, **dict.fromkeys(_VARIABLES, str(home)), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


@asynccontextmanager
async def open_processes(folder: Path, count: int, wait_s: int) -> AsyncGenerator[Sequence[ProcessSite]]:
    """Open gateways below an empty folder; several are a cluster with one broker."""
    effects, key, sites = folder / "effects", folder / "cluster.key", list[ProcessSite]()
    effects.touch()
    async with AsyncExitStack() as stack:
        broker: BrokerProcess | None = None
        if count > 1:
            broker = stack.enter_context(broker_process(folder / "broker"))
            settings = ClusterSettings(brokers=[broker.url], node="set-up", key=create_key(str(key)))
            async with open_broker(settings) as opened:
                await prepare_cluster(opened, replicas=1, lease_s=_LEASE_S)
        limits = httpx2.Limits(max_connections=None)
        client = await stack.enter_async_context(httpx2.AsyncClient(timeout=_CALL_S, limits=limits, trust_env=False))
        for name in "abc"[:count]:
            home = folder / name
            (home / "indus").mkdir(parents=True, mode=0o700)
            (home / "servers.json").write_text(
                json.dumps(
                    {
                        "mcpServers": {
                            "effects": {"command": sys.executable, "args": [str(_SERVER), "effects", str(effects)]}
                        }
                    }
                ),
                "utf-8",
            )
            rule = {"effect": "ask", "rule": _TOOL, "workspace": None, "server": None, "pin": None}
            (home / "indus" / "permissions.json").write_text(json.dumps({"version": 1, "rules": [rule]}), "utf-8")
            (home / "indus" / "settings.json").write_text(json.dumps({"approvals.wait_s": wait_s}), "utf-8")
            env = build_environment(home)
            flags = ["--no-token", "--approvals", "ask", "--mcp", str(home / "servers.json")]
            if broker is not None:
                flags += ["--cluster", broker.url, "--node", name, "--cluster-key", str(key)]
            sites.append(ProcessSite(home, effects, client, await start_gateway(home, flags, env, stack)))
        yield sites
        for site in sites:
            site.store.close()
