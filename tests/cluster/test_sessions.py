"""Requests for sessions of other nodes: what the client learns when the other node does not answer."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import h11
import pytest
from tests.support.broker import KEY, BrokerProcess, name_node, new_cluster, silent_broker

from indusagi.interop.protocol_bridge.host.http.request import HttpRequest
from induscode.cluster.node import open_node
from induscode.cluster.sessions import ClusterSessions, SealedIds

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from induscode.cluster.node import ClusterNode

pytestmark = [pytest.mark.anyio, pytest.mark.process]


class Client:
    """The connection of a client, which waits for a response in one piece."""

    def __init__(self) -> None:
        self.writable = self.room = asyncio.Event()
        self.response: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    def send_response(self, status: int, body: bytes = b"", headers: object = ()) -> None:
        self.response.set_result((status, json.loads(body)["error"]["message"]))


async def forward(node: ClusterNode, instance: str) -> Client:
    """Send a request for a session of another node to this one."""
    client: Any = Client()
    target = h11.Request(method="POST", target="/mcp", headers=[(b"host", b"x")])
    sessions = ClusterSessions(node)
    found = sessions.find_node(SealedIds(instance, KEY.derive("session ids")).seal("session"))
    assert found == instance
    sessions.forward(HttpRequest(client, target), instance)
    return client


async def test_session_of_a_node_that_does_not_answer_is_unknown_and_nothing_is_sent_to_it(
    broker: BrokerProcess,
) -> None:
    async with open_node(name_node(await new_cluster(broker), "one")) as node:
        received: list[bytes] = []

        async def stay_silent(message: Msg) -> None:
            received.append(message.data)

        settings, broker_client = node.broker.settings, node.broker
        # As for a process that was stopped: the broker has its subscriptions.
        await broker_client.subscribe(settings.subject("node", "stopped"), stay_silent)
        await broker_client.subscribe(settings.subject("http", "stopped"), stay_silent)
        with silent_broker():
            status, message = await (await forward(node, "stopped")).response
        assert (status, message) == (404, "there is no such session: its node does not answer; send initialize again")
        assert not any(b"POST" in data for data in received)
        status, message = await (await forward(node, "gone")).response
        assert (status, message.partition(";")[0]) == (404, "there is no such session: its node is not there any more")


async def test_request_that_was_sent_to_a_node_that_is_lost_has_an_unknown_outcome(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    async with open_node(name_node(settings, "one")) as node:
        sent = asyncio.Event()

        async def take(_: Msg) -> None:
            sent.set()

        async with open_node(name_node(settings, "two")) as other:
            instance = other.info.instance
            await other.broker.subscribe(settings.subject("http", instance), take)
            client = await forward(node, instance)
            await sent.wait()
        status, message = await client.response
        assert status == 404
        assert "has left the cluster; whether the request took effect is unknown" in message
