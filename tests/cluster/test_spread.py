"""The transport over several replicas, without a broker: where a frame goes, and what the loss of a replica means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from indusagi.interop.protocol_bridge.client.handlers import MOVED, Handlers
from indusagi.interop.protocol_bridge.client.session import LISTEN_PREFIX
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.transport import BaseTransport, TransportEnd, encode_frame
from induscode.cluster.contract import ClusterFault
from induscode.cluster.placement import ServerTarget
from induscode.cluster.server_sessions import ReplicatedServer, SpreadTransport

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.anyio
CLOSED = FaultDetail(reason="closed")


class Replica(BaseTransport):
    """The channel to a replica, which records the ids that are sent to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []
        self.is_closed = False

    def send(self, frame: JsonObject) -> None:
        self.sent.append(frame.get("id", frame.get("method")))

    def say(self, **frame: Any) -> None:
        """Send a frame as the broker carries it."""
        self.deliver(encode_frame({"jsonrpc": "2.0", **frame}))

    async def close(self) -> None:
        self.is_closed = True


class Stage:
    """A server with replicas, and what has come from them."""

    def __init__(self, *names: str) -> None:
        self.transport = SpreadTransport()
        self.replicas = {name: self.add(name) for name in names}
        self.received: list[Any] = []
        self.ends: list[TransportEnd] = []
        self.transport.attach(self.received.append, self.ends.append)

    def add(self, name: str) -> Replica:
        replica: Any = Replica()
        self.transport.add(name, replica)
        return replica

    def ask(self, *ids: int | str) -> None:
        for identity in ids:
            self.transport.send({"jsonrpc": "2.0", "id": identity, "method": "tools/call"})

    def notify(self, method: str, **params: Any) -> None:
        self.transport.send({"jsonrpc": "2.0", "method": method, "params": params})


async def test_request_goes_to_the_replica_with_the_fewest_open_ones() -> None:
    stage = Stage("a", "b")
    one, two = stage.replicas.values()
    stage.ask(1, 2, 3, 4)
    assert (one.sent, two.sent) == ([1, 3], [2, 4])
    two.say(id=2, result={})
    two.say(id=4, result={})
    stage.ask(5, 6)
    assert (one.sent, two.sent) == ([1, 3], [2, 4, 5, 6])
    assert [frame["id"] for frame in stage.received] == [2, 4]


async def test_replica_that_moves_gets_no_more_requests_until_it_is_back() -> None:
    stage = Stage("a", "b")
    one, two = stage.replicas.values()
    stage.ask(1)
    one.say(id=1, error={"code": MOVED, "message": "it moves"})
    stage.ask(2, 3)
    assert (one.sent, two.sent) == ([1], [2, 3])
    # The replica that is started under its name elsewhere is another one.
    one.finish("has moved", CLOSED)
    again = stage.add("a")
    stage.ask(4)
    assert (again.sent, two.sent) == ([4], [2, 3])


async def test_cancellations_and_answers_find_their_replica_and_other_notifications_reach_all() -> None:
    stage = Stage("a", "b")
    one, two = stage.replicas.values()
    stage.ask(1, 2)
    stage.notify("notifications/cancelled", requestId=2)
    stage.notify("notifications/roots/list_changed")
    two.say(id=7, method="ping")
    two.say(id="x", method="ping")
    for frame in stage.received:
        stage.transport.send({"jsonrpc": "2.0", "id": frame["id"], "result": {}})
    changed = "notifications/roots/list_changed"
    assert (one.sent, two.sent) == ([1, changed], [2, "notifications/cancelled", changed, 7, "x"])
    one.say(method="notifications/tools/list_changed")
    assert stage.received[-1]["method"] == "notifications/tools/list_changed"


@pytest.mark.parametrize("data", [b"no JSON", b"[" * 100_000, b"[1]", 1])
async def test_frame_that_is_no_message_is_left_to_the_connection(data: Any) -> None:
    stage = Stage("a")
    stage.replicas["a"].deliver(data)
    assert len(stage.received) == 1


async def test_lost_replica_fails_its_own_requests_and_the_last_one_ends_the_transport() -> None:
    stage, listening = Stage("a", "b"), f"{LISTEN_PREFIX}1"
    one, two = stage.replicas.values()
    stage.ask(1, 2, listening)
    one.finish("was stopped", CLOSED)
    failed = {frame["id"]: frame for frame in stage.received}
    assert failed[1]["error"]["message"] == "its replica was stopped"
    assert failed[listening]["result"] == {"resultType": "complete"}
    assert (stage.transport.detail(1), stage.transport.detail(1), stage.transport.detail(2)) == (CLOSED, None, None)
    assert (stage.transport.losses, [*stage.transport.channels], stage.ends) == (1, ["b"], [])
    two.finish("has left", CLOSED)
    assert stage.ends == [TransportEnd("has left", CLOSED)]


async def test_requests_wait_for_the_replica_of_this_node() -> None:
    stage = Stage("a")
    stage.transport.keep(is_kept=True)
    stage.replicas["a"].finish("has left", CLOSED)
    stage.ask(1, 2)
    stage.notify("notifications/cancelled", requestId=1)
    own = stage.add("own")
    assert (own.sent, stage.ends) == ([2], [])
    stage.transport.keep(is_kept=False)  # there is one now
    assert stage.ends == []
    await stage.transport.close()
    assert own.is_closed
    stage.transport.keep(is_kept=True)
    own.finish("was stopped", CLOSED)
    stage.transport.keep(is_kept=False)
    assert stage.ends == [TransportEnd("was stopped", CLOSED)]


async def test_fault_of_the_broker_while_replicas_are_looked_up_is_the_fault_itself() -> None:
    """Whoever follows the replicas expects it, and looks again."""

    async def find(key: str) -> None:
        raise ClusterFault("away", f"{key} could not be read")

    node: Any = SimpleNamespace(broker=SimpleNamespace(settings=None), membership=None, placements=None)
    node.placements = SimpleNamespace(find=find)
    config: Any = SimpleNamespace(replicas=2, id="s")
    server = ReplicatedServer(node, ServerTarget("key"), config, Handlers())
    with pytest.raises(ClusterFault, match="key could not be read"):
        await server._connect_all(session=cast("Any", None))
