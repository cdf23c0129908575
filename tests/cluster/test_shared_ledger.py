"""Ledgers of nodes in a stream of a real broker: spooled, published in order, anchored and verified."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import DiscardPolicy, StreamConfig
from tests.support.broker import (
    CONNECT_S,
    KEY,
    BrokerProcess,
    broker_process,
    name_node,
    new_cluster,
    refused_connections,
)
from tests.support.stores import batch, run_sql, store_file, stored
from tests.support.waiting import until

from induscode.cluster.broker import Broker, open_broker
from induscode.cluster.contract import ClusterFault, ClusterSettings
from induscode.cluster.jetstream import Stream
from induscode.cluster.key import ClusterKey
from induscode.cluster.node import open_node
from induscode.cluster.opening import prepare_cluster
from induscode.cluster.shared.ledger import LedgerAuditor, LedgerPublisher, verify_cluster
from induscode.cluster.shared.state import keep_running
from induscode.cluster.shared.table import open_table
from induscode.deck.mcp.store.events import Retention
from induscode.deck.mcp.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from induscode.cluster.shared.ledger import ClusterReport
    from induscode.deck.mcp.store import LedgerStore

pytestmark = [pytest.mark.anyio, pytest.mark.process]


class LedgerNode:
    """A ledger with its publisher and auditor."""

    def __init__(self, broker: Broker, settings: ClusterSettings, store: LedgerStore) -> None:
        assert settings.key is not None
        self.notes: list[str] = []
        self.counts: list[int] = []
        self.broker, self.store = broker, store
        self.stream = Stream(broker, settings.ledger)
        self.publisher = LedgerPublisher(
            self.stream, settings, settings.key, store, self.notes.append, broker.payload_bytes, self.counts.append
        )
        self.auditor = LedgerAuditor(self.stream, settings, settings.key, self.notes.append)

    async def publish(self, *numbers: int, run: str = "r1") -> None:
        for number in numbers:
            self.store.append(batch(number, run=run))
        assert await self.store.flush()
        await self.publisher.publish_all()

    async def verify(self) -> ClusterReport:
        return await verify_cluster(self.broker, self.store)

    async def list_problems(self) -> list[str]:
        return [str(problem) for problem in (await self.verify()).problems]


def streams_of(node: LedgerNode) -> Any:
    """Return the untyped part of the broker's client."""
    return node.broker.client.jetstream()  # pyright: ignore[reportUnknownMemberType] — untyped options


@asynccontextmanager
async def open_ledger(settings: ClusterSettings, folder: Path) -> AsyncGenerator[LedgerNode]:
    async with open_broker(settings) as broker, stored(folder) as store:
        yield LedgerNode(broker, settings, store)


async def test_rows_of_all_nodes_are_verified_and_compared(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = await new_cluster(broker)
    one, two = name_node(settings, "one"), name_node(settings, "two")
    async with open_ledger(one, tmp_path / "1") as first, open_ledger(two, tmp_path / "2") as second:
        Journal(first.store, run="r1", node="one")
        await first.publish(1, 2)
        await second.publish(1, run="personal")
        assert await first.auditor.anchor()
        assert not await first.auditor.anchor()  # nothing has changed
        await second.publish(2, run="personal")
        assert await second.auditor.anchor()
        report = await first.verify()
        assert report.problems == []
        assert (report.anchors, report.own_rows, report.unpublished) == (2, 3, 0)
        nodes = {state.node: (state.head.position, state.withheld) for state in report.chains.values()}
        # The rows of a person's own runs are published as digests.
        assert nodes == {"one": (3, 0), "two": (2, 2)}
    async with open_ledger(one, tmp_path / "1") as again:
        await again.publish(3)
        assert await again.auditor.anchor()  # goes on after the last anchor
        report = await again.verify()
        assert (report.problems, report.own_rows, len(report.chains)) == ([], 4, 2)


async def test_two_processes_publish_one_file_once(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A disk that takes longer moves the ledger to memory, with one row more: the one that says so.
    monkeypatch.setattr("indusagi.core.sqlite.BUSY_S", 60.0)
    settings = await new_cluster(broker)
    async with open_ledger(settings, tmp_path) as one, open_ledger(settings, tmp_path) as other:
        running = [asyncio.create_task(keep_running(node.publisher.run)) for node in (one, other)]  # noqa: TID251 — awaited below
        for number in range(1, 30):
            (one if number % 2 else other).store.append(batch(number))

        async def is_published() -> bool:
            part = await one.store.read_part(None, 0, 0)
            return part is not None and part.head.position == 29 and not part.unpublished

        await until(is_published)
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        report = await one.verify()
        assert [*one.store.notes, *other.store.notes] == []
        assert (report.problems, report.own_rows) == ([], 29)


async def test_rows_wait_in_the_file_while_the_broker_is_away(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker") as broker:
        settings = await new_cluster(broker)
        async with open_ledger(settings, tmp_path) as node:
            counts = node.counts
            running = asyncio.create_task(keep_running(node.publisher.run))  # noqa: TID251 — awaited below
            await until(lambda: counts == [0])
            await asyncio.to_thread(broker.stop)
            for number in range(1, 700):
                node.store.append(batch(number))
            assert await node.store.flush()
            await until(lambda: counts[-1] == 699)
            # Old runs that were not published stay in the file.
            assert await node.store.prune(Retention(runs=1, days=180), "r2") is None
            await asyncio.to_thread(broker.start)
            node.publisher.forget()
            await until(lambda: counts[-1] == 0)
            running.cancel()
            await asyncio.wait({running})
            report = await node.verify()
            assert (report.problems, report.own_rows) == ([], 699)


async def test_restored_copy_of_a_ledger_begins_a_new_chain(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = await new_cluster(broker)
    async with open_ledger(settings, tmp_path) as node:
        await node.publish(1, 2)
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    async with open_ledger(settings, tmp_path) as node:
        await node.publish(3, 4)
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "backup", tmp_path / "state")
    async with open_ledger(settings, tmp_path) as node:
        assert "row 3: the file of this machine ends with row 2, the stream with 4" in (await node.list_problems())[0]
        await node.publish(5)
        assert "it is an older copy" in node.notes[0]
        report = await node.verify()
        assert len(report.chains) == 2
        assert [problem.message for problem in report.problems] == [
            f"it replaces chain {next(iter(report.chains))}: its file ends with row 3, and 4 were published: "
            "it is an older copy"
        ]
        assert report.own_rows == 3


async def test_rewritten_file_and_copied_file_do_not_continue_the_chain(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = await new_cluster(broker)
    async with open_ledger(settings, tmp_path) as node:
        await node.publish(1, 2)
    shutil.copytree(tmp_path / "state", tmp_path / "clone" / "state")
    async with open_ledger(settings, tmp_path) as node, open_ledger(settings, tmp_path / "clone") as clone:
        await node.publish(3)
        await clone.publish(4)
        assert "the file was copied or rewritten" in clone.notes[0]
        assert (await node.verify()).own_rows == 3
        assert (await clone.verify()).own_rows == 3
    run_sql(store_file(tmp_path), "UPDATE events SET digest = 'x' WHERE position = 2")
    async with open_ledger(settings, tmp_path) as node:
        problems = await node.list_problems()
        assert any("row 2: the file of this machine has another row" in problem for problem in problems)


async def test_writers_without_the_key_are_named_and_change_nothing(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = await new_cluster(broker)
    async with open_ledger(settings, tmp_path) as node:
        await node.publish(1, 2)
        assert await node.auditor.anchor()
        chain = (await node.verify()).own_chain
        subject = settings.subject("ledger.chain", chain)
        first = await node.stream.read_at(1)
        assert first is not None
        foreign = ClusterKey(bytes(32)).seal(subject, b"{}")
        for data in (b"nonsense", b"", foreign, first.data):
            await node.stream.publish(subject, data)
        await node.stream.publish(settings.subject("ledger.anchor"), b"nonsense")
        node.publisher.forget()
        await node.publish(3)
        await node.publish(4)
        report = await node.verify()
        assert report.own_rows == 4
        text = "\n".join(map(str, report.problems))
        for number in (3, 4, 5, 7):
            assert f"message {number}: a message" in text
        assert "message 6: the chain begins a second time: the message was repeated or inserted" in text
        await node.auditor.read_new()
        assert any("indus cluster verify" in note for note in node.notes)


async def test_removed_messages_are_noticed_and_published_again(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = replace(await new_cluster(broker), prefix=f"open{tmp_path.name[-1]}x")
    async with open_ledger(settings, tmp_path) as node:
        api = streams_of(node)
        # `indus cluster init` makes a stream whose messages cannot be removed.
        await api.add_stream(StreamConfig(name=settings.ledger, subjects=[f"{settings.prefix}.ledger.>"]))
        await prepare_cluster(node.broker, replicas=1)
        await node.publish(1, 2)
        await node.publish(3)
        assert await node.auditor.anchor()
        await api.delete_msg(settings.ledger, 2)
        problems = "\n".join(await node.list_problems())
        assert "message 2: the message was removed" in problems
        assert "row 3: anchor 1 has seen this row, and the stream ends with row 2" in problems
        assert "row 3: this machine has published it, and the stream ends with row 2" in problems
        node.publisher.forget()
        await node.publish(4)
        assert "has lost rows 3 to 3" in node.notes[0]
        report = await node.verify()
        assert report.own_rows == 4
        assert [problem.number for problem in report.problems] == [2]
    closed = await new_cluster(broker)
    async with open_ledger(closed, tmp_path / "other") as other:
        await other.publish(1)
        for removal in (streams_of(other).delete_msg(closed.ledger, 1), streams_of(other).purge_stream(closed.ledger)):
            with pytest.raises(ClusterFault):
                await other.broker.run("removal", removal)
        assert (await other.verify()).own_rows == 1
        await other.broker.run("removal", streams_of(other).purge_stream(closed.calls))


async def test_full_stream_refuses_and_the_rows_wait(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = replace(await new_cluster(broker), prefix="full")
    async with open_ledger(settings, tmp_path) as node:
        config = StreamConfig(
            name=settings.ledger, subjects=["full.ledger.>"], max_bytes=2_000, discard=DiscardPolicy.NEW
        )
        await streams_of(node).add_stream(config)
        await node.publish(1)
        for number in range(2, 50):
            node.store.append(batch(number, run=f"run {number}"))
        with pytest.raises(ClusterFault) as caught:
            await node.publish()
        assert caught.value.state == "full"
        config.max_bytes = 1_000_000
        await streams_of(node).update_stream(config)
        await node.publish(50)
        report = await node.verify()
        assert (report.problems, report.unpublished) == ([], 0)


async def test_tenants_with_accounts_of_their_own_see_nothing_of_each_other(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    accounts = ", ".join(
        f"{name}: {{ jetstream: enabled, users: [{{user: {name}, password: {name}}}] }}" for name in ("red", "blue")
    )
    config.write_text(f"accounts {{ {accounts} }}", encoding="utf-8")
    with broker_process(tmp_path / "broker", ("-c", str(config))) as process:
        where = f"127.0.0.1:{process.port}"
        red, blue = (
            ClusterSettings(brokers=[f"nats://{where}"], node="same", key=KEY, credentials=login, connect_s=CONNECT_S)
            for login in ("red:red", "blue:blue")
        )
        # The broker says why and hangs up. If it does while we still write, the system may drop its last words.
        refusal = "it refuses this user|Connection reset"
        with pytest.raises(ClusterFault, match=refusal), refused_connections():
            async with open_broker(replace(red, credentials="")):
                pass
        for settings in (red, blue):
            async with open_broker(settings) as opened:
                await prepare_cluster(opened, replicas=1)
        # Two nodes of one name: each account is a cluster of its own.
        async with open_node(red) as one, open_node(blue) as other:
            await other.membership.ask_nodes()
            assert [info.instance for info in other.membership.list_nodes()] == [other.info.instance]
            assert one.info.instance != other.info.instance
            async with open_ledger(red, tmp_path / "red") as ours, open_ledger(blue, tmp_path / "blue") as theirs:
                await ours.publish(1, 2)
                assert len((await ours.verify()).chains) == 1
                assert (await theirs.verify()).chains == {}
                table = await open_table(one.broker, ours.notes.append)
                await table.put(table.build_key("server", "a"), {"name": "a"})
                assert (await open_table(other.broker, theirs.notes.append)).list("server") == {}
