"""The view of the cluster with brokers that are away: it names them, and does not wait for them."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.broker import broker_process, new_cluster, silent_broker
from tests.support.cluster import LeaseClock
from tests.support.waiting import LIMIT_S, until

from induscode.cluster.node import open_node
from induscode.gateway.page.html import render
from induscode.gateway.page.views.cluster import show_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from induscode.cluster.node import ClusterNode

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def show(node: ClusterNode) -> str:
    page = cast("Any", SimpleNamespace(source=SimpleNamespace(node=node)))
    async with asyncio.timeout(LIMIT_S):
        return render((await show_cluster(page)).content)


async def test_brokers_that_are_away_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("induscode.cluster.broker.SLOW_S", 600.0)  # a busy machine answers slowly
    clock = LeaseClock()
    with broker_process(tmp_path / "one") as broker, broker_process(tmp_path / "gone") as gone, ExitStack() as stack:
        settings = await new_cluster(broker)
        async with open_node(settings, clock) as node:
            # It is not connected to the second one, which is none of this cluster.
            node.broker.settings = replace(settings, brokers=[broker.url, gone.url])
            text = await show(node)
            assert "Brokers: ready." in text
            assert "is away" not in text
            gone.stop()
            text = await show(node)
            assert f"({gone.url.removeprefix('nats://')}) is away: nothing listens there" in text
            assert "Brokers: ready." in text
            broker.stop()
            await until(lambda: not node.broker.is_connected)
            clock.pass_lease()
            assert not node.membership.is_held()
            stack.enter_context(silent_broker())
            text = await show(node)
            for sentence in (
                "Brokers: away: they are away",
                "this node has no lease, and runs no server",
                f"({broker.url.removeprefix('nats://')}) is away: nothing listens there",
                "No node has a lease.",
                "They are not known: the brokers do not answer.",
            ):
                assert sentence in text
