"""What two nodes of a cluster share: principals, rules, servers, approvals, call records and ledgers."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
from tests.commands.helpers import configured, project_file, row
from tests.commands.serving import serving
from tests.gateway.test_auth import request
from tests.gateway.test_cluster import call as call_modern
from tests.support.broker import broker_process
from tests.support.issuer import running_issuer
from tests.support.scripts import run
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from tests.commands.serving import Gateway

pytestmark = pytest.mark.process


@contextmanager
def node(name: str, folder: Path, *words: str, cwd: Path | None = None, **variables: str) -> Generator[Gateway]:
    """Run a node with a state directory of its own, and the key of the cluster."""
    state = folder / name
    (state / "indus").mkdir(parents=True)
    shutil.copy(Path(os.environ["HOME"]) / ".local/state/indus/cluster.key", state / "indus")
    flags = ("--http", "127.0.0.1:0", "--profile", "none", "--node", name)
    with serving(*flags, *words, cwd=cwd or folder, XDG_STATE_HOME=str(state), **variables) as gateway:
        yield gateway


async def find_url(gateway: Gateway) -> str:
    await until(lambda: "native tools" in gateway.said())
    found = re.search(r"serving at (\S+)", gateway.said())
    assert found is not None
    return found[1]


async def test_nodes_share_servers_rules_records_and_ledgers(tmp_path: Path) -> None:
    servers = configured(tmp_path / "servers.json", {"one": row()})
    pushed = tmp_path / "pushed.json"
    pushed.write_text(json.dumps({"mcpServers": {"two": row(env={"TOKEN": "a-secret-value"})}}), encoding="utf-8")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"deny": ["one__* @bob"]}), encoding="utf-8")
    async with running_issuer() as issuer, httpx2.AsyncClient(timeout=60, verify=False) as client:
        with broker_process(tmp_path / "broker") as broker:
            where = ("--cluster", broker.url)

            async def command(*words: str) -> str:
                done = await anyio.to_thread.run_sync(lambda: run(*words, *where, cwd=tmp_path))
                assert done.returncode == 0, done.stderr
                return done.stdout

            async def call(url: str, tool: str, sub: str) -> dict[str, Any]:
                token = issuer.mint(url, sub=sub)
                answer = await request(client, url, token, "tools/call", name=tool, arguments={})
                return answer.json().get("result", {})  # an unknown tool is an error of the protocol

            await command("cluster", "init")
            flags = (*where, "--auth", issuer.url, "--mcp", str(servers))
            with node("a", tmp_path, *flags) as first, node("b", tmp_path, *flags) as second:
                urls = [await find_url(first), await find_url(second)]
                # A node holds tools back until it has all pins of the node that listed the server first.
                await _until_approved(partial(call, tool="one__pid", sub="alice"), urls)
                # The principal counts at the node that the client has chosen, wherever the server runs.
                for sub in ("alice", "bob"):
                    processes = [await call(url, "one__pid", sub) for url in urls]
                    assert processes[0].get("structuredContent") == processes[1].get("structuredContent"), processes
                await command("cluster", "config", "rules", str(rules))
                for url in urls:
                    await _until(lambda url=url: _is_denied(call(url, "one__pid", "bob")))
                    assert await _succeeds(call(url, "one__pid", "alice"))
                await command("cluster", "config", "push", str(pushed), "--yes")
                for url in urls:
                    await _until(lambda url=url: _succeeds(call(url, "two__pid", "bob")))
                await command("cluster", "config", "remove", "two")
                for gateway in (first, second):
                    await until(lambda gateway=gateway: "removed two" in gateway.said())
            calls = json.loads(await command("calls", "--json"))["calls"]
            seen = {(one["node"], one["principal"], one["outcome"]) for one in calls}
            assert {(node, "bob", "denied") for node in "ab"} | {(node, "alice", "ok") for node in "ab"} <= seen
            shown = json.loads(await command("cluster", "verify", "--json"))
            assert sorted(chain["node"] for chain in shown["chains"]) == ["a", "b"]
            assert (shown["ok"], shown["anchors"] >= 1) == (True, True)
            for name in "ab":
                ledger = run("ledger", "export", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / name)).stdout
                assert '"principal":"bob"' in ledger.replace(" ", "")
        for path in (tmp_path / "broker").rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert b"a-secret-value" not in data
                assert b"alice" not in data


async def test_consent_of_one_node_reaches_equal_rows_of_the_other_until_it_is_withdrawn(tmp_path: Path) -> None:
    """Two users on two machines, as far as files go: each has a home and a project of its own."""
    projects = {name: tmp_path / f"project-{name}" for name in "ab"}
    for name, project in projects.items():
        other = row("--era", "legacy") if name == "a" else row("--era", "modern")
        configured(project_file(project), {"same": row(), "other": other})
    with broker_process(tmp_path / "broker") as broker:
        where = ("--cluster", broker.url)
        done = await anyio.to_thread.run_sync(lambda: run("cluster", "init", *where, cwd=tmp_path))
        assert done.returncode == 0, done.stderr

        def use(name: str, *words: str) -> None:
            state = str(tmp_path / name)
            done = run(*words, cwd=projects[name], XDG_STATE_HOME=state, HOME=str(tmp_path / f"home-{name}"))
            assert done.returncode == 0, done.stderr

        with (
            node("a", tmp_path, *where, "--no-token", cwd=projects["a"], HOME=str(tmp_path / "home-a")) as first,
            node("b", tmp_path, *where, "--no-token", cwd=projects["b"], HOME=str(tmp_path / "home-b")) as second,
        ):
            urls = [await find_url(first), await find_url(second)]

            async def list_tools(url: str) -> set[str]:
                async with httpx2.AsyncClient(timeout=60) as client:
                    answer = await request(client, url, "none", "tools/list")
                return {tool["name"].partition("__")[0] for tool in answer.json()["result"]["tools"]}

            async def serves(url: str, *servers: str) -> bool:
                return await list_tools(url) == {*servers}

            assert [await list_tools(url) for url in urls] == [set(), set()]
            await anyio.to_thread.run_sync(use, "a", "mcp", "trust", "same", "other", "--yes")
            await _until(lambda: serves(urls[0], "same", "other"))
            await _until(lambda: serves(urls[1], "same"))
            # Both were shared at once: the row that differs has not come later.
            await anyio.to_thread.run_sync(use, "a", "mcp", "untrust", "same")
            await _until(lambda: serves(urls[0], "other"))
            await _until(lambda: serves(urls[1]))


async def _is_denied(calling: Awaitable[dict[str, Any]]) -> bool:
    return "it is denied" in (await calling)["content"][0]["text"]


async def _succeeds(calling: Awaitable[dict[str, Any]]) -> bool:
    return not (await calling).get("isError", True)


async def _until_approved(call: Callable[[str], Awaitable[dict[str, Any]]], urls: Sequence[str]) -> None:
    for url in urls:
        await _until(lambda url=url: _succeeds(call(url)))


async def _until(check: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(400):
        if await check():
            return
        await anyio.sleep(0.05)
    raise AssertionError("it did not happen")


async def test_a_client_without_sessions_has_one_join_at_both_nodes(tmp_path: Path) -> None:
    labels = {"echo": ["untrusted"], "add": ["private"], "pid": ["outward"]}
    servers = configured(tmp_path / "servers.json", {"one": {**row(), "labels": labels}})
    with broker_process(tmp_path / "broker") as broker:
        where = ("--cluster", broker.url)
        assert run("cluster", "init", *where, cwd=tmp_path).returncode == 0
        flags = (*where, "--mcp", str(servers), "--flow", "deny", "--no-token")
        with node("a", tmp_path, *flags) as first, node("b", tmp_path, *flags) as second:
            one, two = [await find_url(first), await find_url(second)]

            async def make(url: str, tool: str, **arguments: Any) -> dict[str, Any]:
                return (await anyio.to_thread.run_sync(call_modern, url, tool, arguments)).get("result", {})

            for url in (one, two):
                await _until(lambda url=url: _succeeds(make(url, "one__pid")))
            assert await _succeeds(make(one, "one__echo", text="x"))
            assert await _succeeds(make(two, "one__add", a=1, b=2))
            refused = await make(one, "one__pid")
            assert "flow guard: add of server 'one'" in refused["content"][0]["text"]
