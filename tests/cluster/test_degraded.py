"""Brokers that are full or slow: each is said, nothing is lost, and leases outlast full ledgers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from nats.errors import OutboundBufferLimitError
from nats.js.errors import APIError
from tests.cluster.test_faults import find_pid
from tests.cluster.test_shared_ledger import open_ledger
from tests.support.broker import KEY, SHORT_LEASE_S, broker_process, name_node, new_cluster
from tests.support.broker_proxy import open_proxy
from tests.support.cluster import LeaseClock, open_members
from tests.support.servers import honest
from tests.support.stores import batch
from tests.support.waiting import until

from induscode.cluster import broker as broker_module
from induscode.cluster.broker import SLOW_S, BrokerHealth, open_broker
from induscode.cluster.contract import ClusterFault, ClusterSettings
from induscode.cluster.jetstream import open_bucket
from induscode.cluster.membership import open_membership
from induscode.cluster.node import open_node
from induscode.cluster.opening import prepare_cluster
from induscode.cluster.report import greet_brokers, read_report

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path

    from tests.support.broker import BrokerProcess

    from induscode.cluster.broker import Broker

pytestmark = [pytest.mark.anyio, pytest.mark.process]
_ACCOUNT = "accounts {{ small: {{ jetstream: {{ max_file: {size} }}, users: [{{user: u, password: p}}] }} }}"


async def test_broker_with_a_greeting_that_nobody_can_parse_is_there() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + b"[" * 60_000 + b"\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        broker: Any = SimpleNamespace(
            settings=SimpleNamespace(brokers=[url]), client=SimpleNamespace(servers=[]), names={}
        )
        [view] = await greet_brokers(broker)
    assert view.state in {"ready", "slow"}  # slow on a busy machine
    assert view.name == ""


@pytest.fixture
def small_account(tmp_path: Path) -> Generator[ClusterSettings]:
    """A broker whose account has a megabyte."""
    config = tmp_path / "nats.conf"
    config.write_text(_ACCOUNT.format(size="1MB"), encoding="utf-8")
    with broker_process(tmp_path / "broker", ("-c", str(config))) as process:
        yield ClusterSettings(brokers=[f"nats://u:p@127.0.0.1:{process.port}"], node="a", key=KEY)


def streams_of(broker: Broker) -> Any:
    """Return the untyped part of the broker's client."""
    return broker.client.jetstream()  # pyright: ignore[reportUnknownMemberType] — untyped options


@asynccontextmanager
async def full_account(broker: Broker) -> AsyncGenerator[None]:
    """Store something else in the account until it takes nothing more, and again in the room of what expires."""
    streams = streams_of(broker)
    await streams.add_stream(name="other", subjects=["other"])
    for size in (50_000, 1_000, 10):
        with pytest.raises(APIError, match="resource limits exceeded"):
            await _publish_for_ever(streams, size)

    enough = asyncio.Event()

    async def keep_full() -> None:
        # Ended by the event: nats-py waits by `asyncio.wait_for`, which may forget that it was cancelled.
        while not enough.is_set():
            with suppress(APIError):
                await streams.publish("other", bytes(10))
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keep_full())
        try:
            yield
        finally:
            enough.set()
    await streams.purge_stream("other")


async def _publish_for_ever(streams: Any, size: int) -> None:
    while True:
        await streams.publish("other", bytes(size))


async def test_full_ledgers_leave_room_for_leases(small_account: ClusterSettings, tmp_path: Path) -> None:
    async with open_broker(small_account) as broker:
        prepared = await prepare_cluster(broker, replicas=1, ledger_bytes=2_000)
        assert prepared.ledger_bytes == 2_000
    async with open_node(small_account) as node, open_ledger(small_account, tmp_path / "ledger") as ledger:
        await ledger.publish(1)
        for number in range(2, 100):
            ledger.store.append(batch(number, run=f"run {number}"))
        with pytest.raises(ClusterFault) as caught:
            await ledger.publish()
        assert (caught.value.state, ledger.broker.state) == ("full", "ready")
        assert await (await open_bucket(node.broker, small_account.leases)).put("another", b"{}")
        # More room, by a second preparation: three quarters of the account.
        prepared = await prepare_cluster(ledger.broker, replicas=1)
        assert (prepared.is_changed, (prepared.ledger_bytes or 0) > 700_000) == (True, True)
        await ledger.publish(100)
        report = await ledger.verify()
        assert (report.problems, report.unpublished) == ([], 0)


async def test_full_account_is_said_by_all_and_left_when_there_is_room(
    small_account: ClusterSettings, tmp_path: Path
) -> None:
    clock = LeaseClock()
    async with open_broker(small_account) as other:
        await prepare_cluster(other, replicas=1, lease_s=SHORT_LEASE_S)
        notes: list[str] = []
        async with open_node(small_account, clock) as node, open_ledger(small_account, tmp_path / "ledger") as ledger:
            node.on_note.add(notes.append)
            async with full_account(other):
                await until(lambda: node.broker.state == "full")
                clock.pass_lease()
                assert not node.membership.is_held()
                await node.membership.list_silent()  # reads go on, and do not make it any less full
                assert node.broker.state == "full"
                assert any("has lost its lease" in note and "no storage left" in note for note in notes)
                with pytest.raises(ClusterFault, match="resource limits exceeded"):
                    await ledger.publish(1)
                async with open_membership(other, observer=True) as seen:
                    await until(lambda: bool(seen.list_waiting()))
                    report = await read_report(other, seen)
                assert report.state == "full"
                assert any(
                    "node 'a' runs and has no lease: the brokers have no storage" in x for x in report.list_problems()
                )
            await until(node.membership.is_held)
            assert node.broker.state in {"ready", "slow"}
            # Said once each, however many requests were refused.
            assert len(notes) < 10
            await ledger.publish()
            assert (await ledger.verify()).problems == []


def test_missing_answers_are_blamed_on_slow_round_trips_or_on_the_majority() -> None:
    health = BrokerHealth("leases")
    assert health.take_silence() == "partitioned"
    health.take_answer(0.0)
    health.round_trip_s = 2 * SLOW_S
    assert (health.state, health.take_silence()) == ("slow", "slow")
    health.round_trip_s = 0.0
    health.take_answer(0.0)
    assert health.state == "ready"
    health.take_failure("full", "leases")
    health.take_answer(0.0)
    assert health.state == "full"
    health.take_answer(0.0, "other")
    assert health.state == "full"
    health.take_answer(0.0, "leases")
    assert health.state == "ready"
    # Without a majority some reads are answered.
    assert health.take_silence("leases") == "partitioned"
    health.take_answer(0.0)
    assert health.state == "partitioned"
    health.take_answer(0.0, "leases")
    assert health.state == "ready"
    # Some requests for a bucket that is not there are answered, others are not.
    assert health.take_silence("leases") == "partitioned"
    health.take_failure("missing")
    assert (health.state, health.take_silence("leases"), health.take_silence()) == ("missing",) * 3
    assert health.state == "missing"
    health.take_answer(0.0, "leases")
    assert health.state == "ready"
    health.connect(is_connected=False)
    assert health.state == "away"
    health.connect(is_connected=True)
    # One late answer among many is no slow broker.
    health.take_answer(SLOW_S)
    assert health.state == "ready"
    health.take_unread()
    assert health.state == "slow"


async def test_messages_that_come_faster_than_they_are_read_are_said(broker: BrokerProcess) -> None:
    async with open_broker(await new_cluster(broker)) as opened:
        states: list[str] = []
        opened.on_state.add(states.append)
        client: Any = opened.client
        await client.subscribe("crowded", pending_msgs_limit=1)
        for _ in range(3):
            await client.publish("crowded", b"x")
        await until(lambda: "slow" in states)


@pytest.mark.parametrize("failure", [ConnectionResetError("reset"), OutboundBufferLimitError()])
async def test_connection_that_takes_nothing_is_a_fault(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise failure

    async with open_broker(await new_cluster(broker)) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(opened.client, "publish", fail)
            with pytest.raises(ClusterFault, match="nothing can be sent"):
                await opened.publish("x", b"x")


async def test_slow_broker_is_named_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "_MEASURE_EVERY_S", 0.1)
    for module in ("broker", "report"):
        monkeypatch.setattr(f"induscode.cluster.{module}.SLOW_S", SLOW_S / 2)
    with broker_process(tmp_path) as process:
        settings = await new_cluster(process)
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(open_proxy([process.port]))
            named = [replace(name_node(settings, name), brokers=proxy.urls) for name in "ab"]
            members = await stack.enter_async_context(open_members(named, [honest()]))
            former = await find_pid(members[0])
            assert former is not None
            leases = [member.node.info.lease for member in members]
            proxy.delay_s = 0.15
            brokers = [member.node.broker for member in members]
            await until(lambda: all(broker.state == "slow" for broker in brokers))
            assert [await find_pid(member) for member in members] == [former, former]
            proxy.delay_s = SLOW_S
            found = await read_report(brokers[0], members[0].node.membership)
            assert found.summary.startswith("slow: they answer slowly")
            assert any("is slow: " in problem for problem in found.list_problems())
            await proxy.release()

            async def are_ready() -> bool:  # by the average of their answers
                for broker in brokers:
                    await broker.read_storage()
                return all(broker.state == "ready" for broker in brokers)

            await until(are_ready)
            assert all(member.node.membership.holds(lease) for member, lease in zip(members, leases, strict=True))
