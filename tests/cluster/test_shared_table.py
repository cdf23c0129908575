"""What nodes share: changes reach all of them at once, and entries of others than nodes change nothing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.broker import KEY, BrokerProcess, name_node, new_cluster, silent_broker
from tests.support.broker_proxy import open_proxy
from tests.support.deck import open_pins
from tests.support.stores import stored
from tests.support.waiting import until

from indusagi.core.json import compact_json
from indusagi.interop.protocol_bridge.contract import RemoteToolRef, StdioServerConfig
from induscode.cluster.broker import open_broker
from induscode.cluster.contract import ClusterFault
from induscode.cluster.jetstream import Stream, open_bucket
from induscode.cluster.key import ClusterKey
from induscode.cluster.node import open_node
from induscode.cluster.opening import prepare_cluster
from induscode.cluster.shared.state import (
    CallPublisher,
    SharedState,
    SharedTrust,
    find_used_project,
    open_shared_state,
    read_calls,
)
from induscode.cluster.shared.table import SharedTable, open_table
from induscode.deck.mcp.store.journal import Journal
from induscode.servers.config.rows import Origin, parse_row
from induscode.servers.config.trust import server_identity

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from indusagi.core.json import JsonObject
    from induscode.cluster.broker import Broker
    from induscode.cluster.contract import ClusterSettings
    from induscode.deck.mcp.store import LedgerStore
    from induscode.servers.config.rows import ServerRow

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@asynccontextmanager
async def open_tables(settings: ClusterSettings) -> AsyncGenerator[tuple[SharedTable, SharedTable, Broker, list[str]]]:
    """Open the table of two nodes; the second follows it. Gives its notes too."""
    notes: list[str] = []
    async with open_broker(settings) as one, open_broker(settings) as two:
        writer, reader = await open_table(one, notes.append), await open_table(two, notes.append)
        running = asyncio.create_task(reader.run())  # noqa: TID251 — awaited below
        try:
            yield writer, reader, one, notes
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_change_reaches_the_other_nodes(broker: BrokerProcess) -> None:
    async with open_tables(await new_cluster(broker)) as (writer, reader, _, notes):
        changes: list[frozenset[str]] = []
        reader.on_change.add(changes.append)
        key = writer.build_key("server", "secret name")
        assert "secret" not in key
        await writer.put(key, {"name": "a"})
        await until(lambda: reader.list("server") == {key: {"name": "a"}})
        await reader.put(key, {"name": "b"})
        await writer.load()
        assert writer.list("server") == {key: {"name": "b"}}
        await writer.put(key, None)
        await until(lambda: not reader.list("server"))
        await writer.put(key, {"name": "c"})
        await until(lambda: bool(reader.list("server")))
        assert (frozenset({key}) in changes, notes) == (True, [])
        with pytest.raises(ClusterFault, match="too large"):
            await writer.put(key, {"noise": "".join(map(str, range(300_000)))})


async def test_entries_without_the_key_or_from_the_past_are_ignored(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    async with open_tables(settings) as (writer, reader, opened, notes):
        key = writer.build_key("server", "a")
        bucket: Any = await opened.client.jetstream().key_value(settings.shared)  # pyright: ignore[reportUnknownMemberType] — untyped options
        await writer.put(key, {"name": "old"})
        old = (await bucket.get(key)).value
        await writer.put(key, {"name": "new"})
        await until(lambda: reader.list("server") == {key: {"name": "new"}})
        place = f"{settings.shared}/{key}"
        hostile = (
            b"{}",
            b"\x01" * 500_000,
            ClusterKey(bytes(32)).seal(place, b"{}"),
            KEY.seal(f"{settings.shared}/server.other", compact_json({"version": 1, "value": {}}).encode()),
            KEY.seal(place, b"[" * 100_000),
            KEY.seal(place, b'{"value":{}}'),
            old,
        )
        for data in hostile:
            await bucket.put(key, data)
            await reader.load()
        await bucket.delete(key)
        await reader.load()
        assert reader.list("server") == {key: {"name": "new"}}
        text = "\n".join(notes)
        for reason in ("not sealed with the key", "it is not sealed", "older than", "removed from the broker"):
            assert reason in text
        # A node can still change it.
        await writer.put(key, {"name": "newest"})
        await until(lambda: reader.list("server") == {key: {"name": "newest"}})


async def test_bucket_that_was_lost_gets_the_entries_of_a_node_that_runs(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    async with open_tables(settings) as (writer, reader, opened, notes):
        kept, removed, new = (writer.build_key("server", name) for name in ("kept", "removed", "new"))
        await writer.put(kept, {"name": "kept"})
        await writer.put(removed, {"name": "removed"})
        await until(lambda: {*reader.list("server")} == {kept, removed})
        await writer.put(removed, None)
        await until(lambda: [*reader.list("server")] == [kept])
        bucket = await open_bucket(opened, settings.shared)
        await opened.client.jetstream().delete_key_value(settings.shared)  # pyright: ignore[reportUnknownMemberType] — untyped options
        with pytest.raises(ClusterFault, match="indus cluster init"):  # not as if the entry were missing alone
            await bucket.get(kept)
        await prepare_cluster(opened, replicas=1)
        # Its number is lower than those that the reader has seen.
        await writer.put(new, {"name": "new"})
        await until(lambda: {*reader.list("server")} == {kept, new})
        await until(lambda: "the brokers had lost what the nodes share: 2 entries written again" in notes)
        later = await open_table(opened, notes.append)
        assert {*later.list("server")} == {kept, new}
        await writer.put(kept, {"name": "changed"})
        await until(lambda: reader.list("server")[kept] == {"name": "changed"})


@asynccontextmanager
async def open_states(settings: ClusterSettings, folder: Path) -> AsyncGenerator[list[tuple[SharedState, LedgerStore]]]:
    """Open the shared states of two nodes, each with its ledger."""
    async with AsyncExitStack() as stack:
        states: list[tuple[SharedState, LedgerStore]] = []
        for name in ("one", "two"):
            local = await stack.enter_async_context(stored(folder / name))
            node = await stack.enter_async_context(open_node(name_node(settings, name)))
            state = await open_shared_state(node)
            assert state is not None
            await stack.enter_async_context(state.share_store(local))
            states.append((state, local))
        yield states


async def test_definition_approved_at_one_node_is_approved_at_all(broker: BrokerProcess, tmp_path: Path) -> None:
    server = StdioServerConfig(id="s", command="server")
    tool = RemoteToolRef("s", "t")
    first: JsonObject = {"name": "t", "description": "first"}
    changed: JsonObject = {"name": "t", "description": "changed"}
    third: JsonObject = {"name": "t", "description": "third"}
    async with open_states(await new_cluster(broker), tmp_path) as ((one, one_store), (two, two_store)):
        for state in (one, two):
            assert state.pins is not None
            state.pins.identities = lambda: [server_identity(server)]
        heard = asyncio.Event()
        two.on_pins.add(heard.set)
        pins = await open_pins(Journal(one_store, [server], node="one"), [server])
        assert pins.judge(tool, first).drift is None
        pins.approve(tool, changed)
        async with asyncio.timeout(60):
            while len(two.table.list("pin")) < 2:
                heard.clear()
                await heard.wait()
        others = await open_pins(Journal(two_store, [server], node="two"), [server])
        # The first definition of the one node is the first one of the other.
        assert others.judge(tool, first).drift is None
        assert others.judge(tool, changed).drift is None
        drift = others.judge(tool, third).drift
        assert drift is not None
        assert drift.before is not None


async def test_consent_holds_at_all_nodes_until_it_is_revoked(broker: BrokerProcess, tmp_path: Path) -> None:
    async with open_tables(await new_cluster(broker)) as (writer, reader, _, _notes):
        one = SharedTrust(writer, KEY, "one", str(tmp_path / "one.json"))
        two = SharedTrust(reader, KEY, "two", str(tmp_path / "two.json"))
        fields: JsonObject = {"command": "server", "env": {"TOKEN": "secret"}}
        here = parse_row("a", fields, Origin("/one/.mcp.json", "project", "claude-code"))
        there = parse_row("a", fields, Origin("/two/.mcp.json", "project", "claude-code"))
        other = parse_row("a", {**fields, "args": ["--all"]}, Origin("/two/.mcp.json", "project", "claude-code"))
        in_thread = asyncio.to_thread
        await in_thread(one.approve, here, (await in_thread(one.question, here)).digest)
        assert await in_thread(one.consent, here) == "trusted"
        await one.share()
        await until(lambda: bool(reader.list("consent")))
        assert await in_thread(two.consent, there) == "trusted"
        assert await in_thread(two.consent, other) == "unknown"
        await in_thread(one.revoke, "/one/.mcp.json", "a")
        assert await in_thread(one.consent, here) == "unknown"
        await one.share()
        await until(lambda: not reader.list("consent"))
        assert await in_thread(two.consent, there) == "unknown"


@pytest.mark.parametrize(
    ("fields", "is_local"),
    [
        ({"command": "npx", "args": ["-y", "@org/server@1.2.3", "--port=80"]}, False),
        ({"url": "https://example.org/mcp"}, False),
        ({"command": "/usr/bin/server", "args": ["/srv/data"]}, False),
        ({"command": "node", "args": ["server.js"]}, True),
        ({"command": "node", "args": ["--import=server.js"]}, True),
        ({"command": "python", "args": ["-m", "package.module"]}, True),
        ({"command": "server.js"}, True),
        ({"command": "./gone"}, True),
        ({"command": "sh", "args": ["-c", "exec node server.js"]}, True),
        ({"command": "node", "args": ["${HERE}/x.js"]}, True),
        ({"command": "server", "cwd": "package"}, True),
        ({"url": "https://example.org/mcp", "headersHelper": "node server.js"}, True),
    ],
)
def test_finding_x7_consent_to_what_a_project_runs_is_none_to_an_equal_row_elsewhere(
    tmp_path: Path, fields: JsonObject, is_local: bool
) -> None:
    rows: list[ServerRow] = []
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "package").mkdir(parents=True)
        (folder / "server.js").write_text(name)
        rows.append(parse_row("a", fields, Origin(str(folder / ".mcp.json"), "project", "claude-code")))
    found = [find_used_project(row) for row in rows]
    assert found == ([str(tmp_path / "one"), str(tmp_path / "two")] if is_local else [None, None])
    digests = {SharedTrust(cast("Any", None), KEY, "one")._digest(row) for row in rows}
    assert len(digests) == (2 if is_local else 1)


async def test_call_records_of_all_nodes_are_read_newest_first(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    async with open_broker(name_node(settings, "one")) as one, open_broker(name_node(settings, "two")) as two:
        publishers = [CallPublisher(opened, KEY) for opened in (one, two, one)]
        for number, publisher in enumerate(publishers):
            publisher.put([(number, "x"), (number, "y")])
            await publisher.publish_all()
        await one.client.publish(settings.subject("calls", "bad"), b"nonsense")
        await one.client.flush()
        found = [(node, *row) async for node, row in read_calls(one, 2)]
        assert found[0] == ("one", 2, "y")
        assert [node for node, *_ in found] == ["one", "one", "two", "two", "one", "one"]


async def test_call_records_that_the_broker_did_not_answer_for_are_read_once(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    async with open_proxy([broker.port]) as proxy, open_broker(settings) as reader:
        async with open_broker(replace(settings, brokers=proxy.urls)) as writer:
            calls = CallPublisher(writer, KEY)
            calls.put([(1, "x")])
            proxy.hold("down")
            with pytest.raises(ClusterFault, match="no answer in time"), silent_broker():
                await calls.publish_all()
            calls.put([(2, "y")])
            await proxy.release()
            await until(lambda: _publishes(calls))
        stream = Stream(reader, settings.calls)
        first = await stream.read_at(1)
        assert first is not None
        await stream.publish(first.subject, first.data)
        assert [row async for _, row in read_calls(reader, 2)] == [[1, "x"], [2, "y"]]


async def test_call_records_that_wait_are_published_when_a_node_ends(broker: BrokerProcess) -> None:
    async with open_proxy([broker.port]) as proxy, open_broker(await new_cluster(broker)) as reader:
        async with open_broker(replace(reader.settings, brokers=proxy.urls)) as writer:
            calls = CallPublisher(writer, KEY)
            calls.put([(1, "x")])
            await calls.close()
            assert [row async for _, row in read_calls(reader, 2)] == [[1, "x"]]
            calls.put([(2, "y")])
            proxy.cut()
            await until(lambda: not writer.is_connected)
            await calls.close()  # they stay in the database of the node
        assert [row async for _, row in read_calls(reader, 2)] == [[1, "x"]]


async def _publishes(calls: CallPublisher) -> bool:
    try:
        await calls.publish_all()
    except ClusterFault:
        return False
    return True
