"""Every store of the ledger: a file, memory, and the ledger of a node of a cluster with its broker there or away."""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.support.broker import BrokerProcess, broker_process, name_node, new_cluster, silent_broker
from tests.support.deck import AT
from tests.support.stores import batch, stored

from induscode.cluster.node import open_node
from induscode.cluster.shared.state import open_shared_state
from induscode.deck.mcp.store import memory_store
from induscode.deck.mcp.store.events import Batch, Event, Retention

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path

    from induscode.deck.mcp.store import LedgerStore

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as process:
        yield process


@asynccontextmanager
async def open_cluster_store(broker: BrokerProcess, folder: Path) -> AsyncGenerator[LedgerStore]:
    settings = await new_cluster(broker)
    async with stored(folder) as local, open_node(name_node(settings, "one")) as node:
        shared = await open_shared_state(node)
        assert shared is not None
        async with shared.share_store(local):
            yield local


@pytest.fixture(params=["file", "memory", "cluster"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, broker: BrokerProcess) -> AsyncGenerator[LedgerStore]:
    if request.param == "file":
        async with stored(tmp_path) as store:
            yield store
    elif request.param == "memory":
        store = await memory_store()
        yield store
        await store.aclose()
    else:
        async with open_cluster_store(broker, tmp_path) as store:
            yield store


async def test_what_was_appended_is_read(store: LedgerStore) -> None:
    for number in (1, 2):
        store.append(batch(number, run="a"))
        store.append(batch(number, run="b"))
    assert await store.flush() is (store.path is not None)
    assert [(row.seq, row.facts["tool"]) for row in await store.rows("a")] == [(1, "t1"), (2, "t2")]
    assert [run.run for run in await store.runs()] == ["a", "b"]
    latest = await store.latest("pin")
    assert [(row.run, row.subject) for row in latest] == [("b", "s1"), ("b", "s2")]
    assert await store.latest("list") == ()
    address = str(latest[0].facts["definition"])
    assert await store.documents([address, "nowhere"]) == {address: '{"number":1}'}
    assert (await store.verify(), store.notes) == ((), ())


async def test_store_of_a_node_goes_on_without_its_broker(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker") as own, ExitStack() as stack:
        async with open_cluster_store(own, tmp_path) as store:
            own.stop()
            stack.enter_context(silent_broker())
            await test_what_was_appended_is_read(store)


async def test_batch_that_cannot_be_built_is_noted_and_the_next_is_written(store: LedgerStore) -> None:
    def broken() -> Batch:
        raise ValueError("no such event")

    store.append(broken)
    store.append(lambda: Batch((Event("a", AT, "fault", {"server": "x"}),)))
    assert [row.op for row in await store.rows("a")] == ["fault"]
    assert "no such event" in str(store.notes[0])


async def test_old_runs_are_removed_and_what_applies_stays(store: LedgerStore) -> None:
    for run in "abc":
        store.append(batch(1, run=run))
    store.append(batch(2, run="b"))
    pruned = await store.prune(Retention(runs=1, days=10_000), "c")
    if store.path is not None and pruned is None:
        return  # the rows of a node wait for the broker
    assert pruned is not None
    assert {row.subject for row in await store.latest("pin")} == {"s1", "s2"}
    assert await store.verify() == ()
