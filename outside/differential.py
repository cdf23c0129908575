"""`python -m outside.differential`: the gateway compared with the relay, on servers that others wrote.

The relay (`indus serve --transparent`) passes every byte on, so it is the oracle: what the gateway lists and returns,
with its names and URIs turned back, must be the same. Ends with 1 if something differs, with 2 if nothing could be
installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object
from indusagi.interop import ProtocolFault, StdioServerConfig, create_server_endpoint
from indusagi.interop.protocol_bridge.client.skills import ITEM_LISTS
from indusagi.interop.protocol_bridge.contract import LISTED_KINDS
from indusagi.interop.protocol_bridge.uris import UriMap
from outside.host import agreeable
from outside.install import CannotInstall, find_node, node_packages, python_commands
from outside.remote import pages
from outside.say import complain, say
from outside.servers import make_scratch, node_servers, python_servers, restarted_servers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop import ServerEndpointImpl
    from indusagi.interop.protocol_bridge.client.skills import ItemList
    from outside.servers import Server

_ERA_FIELDS = frozenset({"resultType", "ttlMs", "cacheScope"})
_SERVER_INFO = "io.modelcontextprotocol/serverInfo"
_WORDS = 200
_LISTED_S = 60.0
_MOST = 25
"""Resources and prompts that are read of one server."""


class Comparison:
    """One server behind the gateway and behind the relay."""

    def __init__(self, server: str, gateway: ServerEndpointImpl, relay: ServerEndpointImpl) -> None:
        self.differences: list[str] = []
        self.compared = 0
        self._server = server
        self._gateway = gateway
        self._relay = relay
        self._uris = UriMap(server)
        self._began = asyncio.get_running_loop().time()

    async def compare(self, calls: Sequence[tuple[str, JsonObject]] = ()) -> None:
        """Compare lists, resources, prompts, completions, errors and some calls."""
        facts = [endpoint.facts for endpoint in (self._gateway, self._relay)]
        words = [(one.instructions or "").split() if one is not None else [] for one in facts]
        # Long ones are cut.
        if not {*words[1][:_WORDS]} <= {*words[0]}:
            self.differences.append(f"instructions: {words[1]} is not part of {words[0]}")
        listed = {kind: await self._list(kind) for kind in ("tool", *LISTED_KINDS)}
        for row in listed["resource"][:_MOST]:
            uri = str(row["uri"])
            await self._request("resources/read", {"uri": self._uris.to_host(uri)}, {"uri": uri})
        for row in listed["prompt"][:_MOST]:
            await self._compare_prompt(row)
        missing = "missing:///nothing"
        await self._request("resources/read", {"uri": self._uris.to_host(missing)}, {"uri": missing}, codes=False)
        for tool, arguments in calls:
            name = f"{self._server}__{tool}"
            await self._request(
                "tools/call", {"name": name, "arguments": arguments}, {"name": tool, "arguments": arguments}
            )

    async def _list(self, kind: str) -> list[JsonObject]:
        how = next(how for name, how in ITEM_LISTS.items() if name == kind)
        loop = asyncio.get_running_loop()
        direct = await self._read_rows(self._relay, how)
        expected = _strip([*direct])
        while True:
            ours = _strip([self._turn_back(row) for row in await self._read_rows(self._gateway, how)])
            # Until its server is up, a gateway lists what it knows from the last start.
            if _to_text(ours) == _to_text(expected) or loop.time() - self._began > _LISTED_S:
                break
            await asyncio.sleep(0.1)
        self._note(how.method, ours, expected)
        return direct

    async def _read_rows(self, endpoint: ServerEndpointImpl, how: ItemList) -> list[JsonObject]:
        if endpoint.facts is None or not endpoint.facts.offers(how.capability):
            return []
        try:
            listed = await endpoint.list_all(how.method, how.key)
        except ProtocolFault as fault:
            if fault.detail.rpc_code != -32601:
                self.differences.append(f"{how.method}: {fault}")
            return []
        return [row for row in listed if is_json_object(row)]

    async def _compare_prompt(self, row: JsonObject) -> None:
        name, values = str(row["name"]), row.get("arguments")
        rows = [one for one in (values if isinstance(values, list) else []) if is_json_object(one)]
        arguments: JsonObject = {str(one["name"]): "1" for one in rows}
        ours = f"{self._server}__{name}"
        await self._request(
            "prompts/get", {"name": ours, "arguments": arguments}, {"name": name, "arguments": arguments}
        )
        for one in rows:
            argument: JsonObject = {"name": one["name"], "value": ""}
            refs: list[JsonObject] = [{"type": "ref/prompt", "name": each} for each in (ours, name)]
            asked, direct = ({"ref": ref, "argument": argument} for ref in refs)
            await self._request("completion/complete", {**asked}, {**direct})

    async def _request(self, method: str, ours: JsonObject, direct: JsonObject, *, codes: bool = True) -> None:
        results: list[JsonObject] = [await _try(self._gateway, method, ours), await _try(self._relay, method, direct)]
        results[0] = self._turn_back(results[0])
        if not codes:  # the era of the client decides which code it is
            results = [{"failed": "error" in result} for result in results]
        self._note(f"{method} {compact_json(direct)}", *map(_strip, results))

    def _turn_back(self, value: JsonObject) -> JsonObject:
        """Turn names and URIs of the gateway into those of the server."""

        def turn(inner: JsonValue) -> JsonValue:
            if isinstance(inner, str):
                own = self._uris.to_server(inner)
                return inner.removeprefix(f"{self._server}__") if own is None else own
            if isinstance(inner, list):
                return [turn(one) for one in inner]
            return {key: turn(one) for key, one in inner.items()} if isinstance(inner, dict) else inner

        turned = turn(value)
        assert is_json_object(turned)
        return turned

    def _note(self, what: str, ours: JsonValue, direct: JsonValue) -> None:
        self.compared += 1
        if _to_text(ours) != _to_text(direct):
            self.differences.append(
                f"{what}:\n  gateway {compact_json(ours)[:600]}\n  relay   {compact_json(direct)[:600]}"
            )


def _to_text(value: JsonValue) -> str:
    return compact_json(value, sort_keys=True)


def _strip(value: JsonValue) -> JsonValue:
    """Drop what belongs to the era of a client, and who answers."""
    if isinstance(value, list):
        return [_strip(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _strip(one) for key, one in value.items() if key not in _ERA_FIELDS and key != _SERVER_INFO}
    if kept.get("_meta") == {}:
        del kept["_meta"]
    if kept.get("isError") is False:
        del kept["isError"]
    return kept


async def _try(endpoint: ServerEndpointImpl, method: str, params: JsonObject) -> JsonObject:
    try:
        return await endpoint.request(method, params)
    except ProtocolFault as fault:
        return {"error": fault.detail.rpc_code}


async def compare_server(
    server: str,
    command: Sequence[str],
    folder: Path,
    calls: Sequence[tuple[str, JsonObject]] = (),
    env: Mapping[str, str] | None = None,
) -> Comparison:
    """Put a server behind a gateway and behind a relay, and compare the two."""
    config = folder / f"{server}.json"
    row = {"command": command[0], "args": [*command[1:]], "env": dict(env or {})}
    config.write_text(json.dumps({"mcpServers": {server: row}}), "utf-8")
    state = {name: str(folder) for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    variables = {**os.environ, **state}
    serve = ["-m", "induscode", "serve", "--mcp", str(config)]
    async with AsyncExitStack() as stack:
        endpoints: list[ServerEndpointImpl] = []
        gateway = ("gateway", ("--profile", "none", "--search", "off"))
        # The first start of the gateway learns the instructions, which the handshake of the second one has.
        for name, flags in (gateway, gateway, ("relay", ("--transparent", server))):
            one = StdioServerConfig(name, sys.executable, [*serve, *flags], variables, cwd=str(folder))
            endpoint = create_server_endpoint(one, handlers=agreeable())
            stack.push_async_callback(endpoint.close)
            await endpoint.open()
            endpoints.append(endpoint)
            if name == "gateway":
                await _wait_for_tools(endpoint)
        await endpoints.pop(0).close()
        comparison = Comparison(server, *endpoints)
        await comparison.compare(calls)
    return comparison


async def _wait_for_tools(gateway: ServerEndpointImpl) -> None:
    """Wait until a gateway lists the tools of a server that starts slowly."""
    async with asyncio.timeout(_LISTED_S):
        while not await gateway.list_all("tools/list", "tools"):  # noqa: ASYNC110 — it is another process
            await asyncio.sleep(0.2)


def main(arguments: Sequence[str]) -> int:
    """Compare all servers, or those that are named, and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.differential", description=__doc__)
    parser.add_argument("server", nargs="*", help="the servers to compare; all of them by default")
    wanted: list[str] = parser.parse_args(arguments).server
    try:
        with tempfile.TemporaryDirectory() as folder, pages(Path(folder)) as address:
            # Some servers compare a path with what it really is: a link on the way would confuse them.
            scratch = Path(folder).resolve()
            make_scratch(scratch)
            servers = [server for server in _list_servers(scratch, address) if not wanted or server.id in wanted]
            return asyncio.run(_compare_all(servers, scratch))
    except CannotInstall as exc:
        complain(f"outside.differential: {exc}")
        return 2


def _list_servers(scratch: Path, address: str) -> list[Server]:
    node = find_node()
    if node is None:
        raise CannotInstall("no node 22 or newer with npm; run `make setup`, or install one")
    commands, modern = python_commands("servers"), python_commands("modern")
    varied, unordered = python_commands("varied"), python_commands("unordered")
    return [
        *python_servers(commands, modern, scratch, f"{address}/note.txt"),
        *node_servers(node.path, node_packages(node), scratch),
        *restarted_servers(varied, unordered, node.path, node_packages(node), scratch),
    ]


async def _compare_all(servers: Sequence[Server], scratch: Path) -> int:
    failed = 0
    for server in servers:
        home = scratch / f"home-{server.id}"
        await asyncio.to_thread(home.mkdir)
        calls = [(call.tool, call.arguments) for call in server.calls if not call.steps]
        # Both have a process of the server: sets must have the same order in both.
        env = {**server.env, "PYTHONHASHSEED": "0"}
        compared = await compare_server(server.id, server.command, home, calls, env)
        failed += bool(compared.differences)
        say(f"{server.id}: {compared.compared} compared, {len(compared.differences)} differ")
        for line in compared.differences:
            say(f"  {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
