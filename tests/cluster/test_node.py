"""Servers of a cluster through real brokers: calls to an owner elsewhere, moves, and owners that are gone."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from nats.js.errors import KeyWrongLastSequenceError
from tests.support.broker import KEY, SHORT_LEASE_S, BrokerProcess, broker_process, name_node, new_cluster
from tests.support.cluster import LeaseClock, end_leases, open_members, open_pair
from tests.support.sandboxes import skip_without
from tests.support.servers import fault, honest
from tests.support.waiting import until

from indusagi.capabilities.sandbox.profile import parse_profile
from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.contract import EndpointPhase, ProtocolFault
from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
from induscode.boot.plans import build_fault_note
from induscode.cluster import server_sessions
from induscode.cluster.broker import open_broker
from induscode.cluster.client import BrokerClient
from induscode.cluster.contract import ClusterFault, ClusterSettings, LostRaceError
from induscode.cluster.jetstream import Bucket
from induscode.cluster.key import ClusterKey
from induscode.cluster.node import open_node
from induscode.cluster.server_sessions import open_session

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cluster import Member

    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolProgress

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def read_pid(member: Member) -> str:
    result = await member.endpoint().invoke("pid", {})
    return json.dumps(result.content)


async def test_two_nodes_use_one_process(broker: BrokerProcess) -> None:
    async with open_pair(await new_cluster(broker), honest()) as (owner, other):
        assert await read_pid(owner) == await read_pid(other)
        ours, theirs = await owner.endpoint().list_tools(), await other.endpoint().list_tools()
        assert [tool.raw for tool in ours] == [tool.raw for tool in theirs]
        assert other.endpoint().facts == owner.endpoint().facts
        placement = (await other.node.placements.list_all())[0]
        assert (placement.server, placement.node) == ("honest", owner.node.info.node)
    # Every lease and placement was released.


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_forwarded_call_has_progress_questions_and_large_results(broker: BrokerProcess, era: str) -> None:
    async def answer(params: JsonObject) -> JsonObject:
        return {"action": "accept", "content": {"name": "Ada"}}

    flags = ("--era", era)
    async with open_pair(await new_cluster(broker), honest(*flags), Handlers(elicit=answer)) as (_, other):
        endpoint = other.endpoint()
        assert endpoint.facts is not None
        assert endpoint.facts.era == era
        seen: list[ToolProgress] = []
        await endpoint.invoke("slow", {"seconds": 0.1, "progress": 3}, on_progress=seen.append)
        assert [progress.done for progress in seen] == [1, 2, 3]
        asked = await endpoint.invoke("ask", {"method": "elicitation/create"})
        assert asked.structured == {"action": "accept", "content": {"name": "Ada"}}
        size = 3 * other.node.broker.payload_bytes
        big = await endpoint.invoke("big", {"bytes": size})
        assert big.content == ({"type": "text", "text": "x" * size},)
        with pytest.raises(ProtocolFault, match="unknown tool") as caught:
            await endpoint.invoke("nothing", {})
        assert caught.value.detail.rpc_code == -32602


async def test_cancelled_call_is_cancelled_at_the_owner(broker: BrokerProcess) -> None:
    async with open_pair(await new_cluster(broker), honest()) as (owner, other):
        cancel = CancelToken()

        def stop(_: ToolProgress) -> None:
            cancel.cancel("enough")

        with pytest.raises(ProtocolFault, match="cancelled") as caught:
            await other.endpoint().invoke("slow", {"seconds": 30, "progress": 300}, cancel=cancel, on_progress=stop)
        assert caught.value.detail.reason == "cancelled"
        await until(lambda: any("cancelled" in line for line in owner.endpoint().read_log()))


async def test_changed_tools_reach_every_node(broker: BrokerProcess) -> None:
    server = honest()
    hasty = replace(server, limits=replace(server.limits, relist_gap_s=0.05))
    async with open_pair(await new_cluster(broker), hasty) as (owner, other):
        await owner.endpoint().invoke("mutate", {"kind": "add"})

        def sees_extra(member: Member) -> bool:
            return any(tool.ref.name == "extra" for tool in member.endpoint().known_tools or ())

        await until(lambda: sees_extra(owner) and sees_extra(other))


async def test_call_is_cut_off_when_its_server_ends_and_goes_on_elsewhere(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The owner accepts the server again, and then doesn't run it.
    monkeypatch.setattr(server_sessions, "_CLAIM_TIMEOUT_S", 0.2)
    async with open_pair(await new_cluster(broker), honest()) as (owner, other):
        began = asyncio.Event()
        endpoint = other.endpoint()
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(_call_slowly(other, began))
            await began.wait()
            await owner.fleet.tear_down()
        fault = call.result()
        assert fault.detail.reason == "outcome_unknown"
        assert endpoint.phase is EndpointPhase.FAULTED
        await until(lambda: other.owns and other.endpoint().phase is EndpointPhase.READY)
        assert await read_pid(other)


async def _call_slowly(member: Member, began: asyncio.Event) -> ProtocolFault:
    with pytest.raises(ProtocolFault) as caught:
        await member.endpoint().invoke("slow", {"seconds": 30, "progress": 300}, on_progress=lambda _: began.set())
    return caught.value


async def test_drained_node_keeps_no_server(broker: BrokerProcess) -> None:
    async with open_pair(await new_cluster(broker), honest()) as (owner, other):
        assert await other.node.membership.ask(owner.node.info.instance, {"op": "drain"}) == {"owned": 1}
        await until(lambda: other.owns and not owner.owns)
        await until(lambda: owner.endpoint().phase is EndpointPhase.READY)
        assert await read_pid(owner) == await read_pid(other)


def _names_all_nodes(member: Member) -> bool:
    fault = str(member.endpoint("strict").status().fault)
    needed = "server 'strict': no node has the sandbox 'strict' that its row needs: "
    return all(part in fault for part in (needed, "'able' has standard", "'former' has docker", "'unable' has none"))


async def test_server_runs_where_its_sandbox_is_and_nowhere_if_no_node_has_it(broker: BrokerProcess) -> None:
    skip_without("landlock")
    settings = await new_cluster(broker)
    able = replace(name_node(settings, "able"), sandboxes="standard")
    unable, former = name_node(settings, "unable"), replace(name_node(settings, "former"), sandboxes="docker")
    profiles = {name: parse_profile(name) for name in ("standard", "strict")}
    servers = [replace(honest(id=name), sandbox=profile) for name, profile in profiles.items()]
    async with open_members([unable, former, able], servers) as members:
        for member in members:
            assert await member.endpoint("standard").list_tools()
            await until(partial(_names_all_nodes, member))
        assert [member.owns for member in members] == [False, False, True]


async def test_node_owns_no_more_servers_than_it_has_room_for(broker: BrokerProcess) -> None:
    node = replace(name_node(await new_cluster(broker), "one"), capacity=1)
    servers = [honest(id=name) for name in ("first", "second", "third")]
    async with open_members([node], servers) as (member,):

        def list_ready() -> list[str]:
            return [one.id for one in servers if member.endpoint(one.id).phase is EndpointPhase.READY]

        await until(lambda: bool(list_ready()))
        ready = list_ready()
        assert (len(ready), member.node.info.owned) == (1, 1)
        other = member.endpoint(next(one.id for one in servers if one.id not in ready))
        await until(lambda: other.phase is not EndpointPhase.CONNECTING)  # the owner may ask once more for room
        with pytest.raises(ProtocolFault, match="no node may run it now: all are full"):
            await other.invoke("pid", {})


async def test_server_that_is_claimed_while_its_node_begins_to_drain_is_given_up(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Bucket.put
    async with open_node(name_node(await new_cluster(broker), "one")) as node:

        async def put_late(self: Bucket, key: str, value: bytes, revision: int | None = None) -> int:
            written = await put(self, key, value, revision)
            node.membership.info = replace(node.info, draining=revision is None or node.info.draining)
            return written

        monkeypatch.setattr(Bucket, "put", put_late)
        assert await node.placements.claim("key", "server") is None
        assert await node.placements.find("key") is None


async def test_server_of_a_node_with_a_lease_is_claimed_by_that_node_alone(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    async with open_node(name_node(settings, "one")) as one, open_node(name_node(settings, "two")) as two:
        first = await one.placements.claim("key", "server")
        assert first is not None
        assert await two.placements.claim("key", "server") is None
        assert await two.placements.find("key") == await one.placements.find("key")
        second = await one.placements.claim("key", "server")
        assert second is not None
        assert second.epoch > first.epoch
        # Its entry is as it should be, whichever revision the node knows.
        restored = await one.placements.restore(replace(second, revision=first.revision))
        assert restored is not None
        assert restored.revision == second.revision
        await one.placements.release(second)
        third = await two.placements.claim("key", "server")
        assert third is not None
        assert (third.node, third.epoch > second.epoch) == ("two", True)


async def test_node_without_its_lease_ends_its_servers_before_it_answers(broker: BrokerProcess) -> None:
    """As after a sleep: the clock has jumped past the end of the lease, and a response waits in the pipe."""
    settings, clock = await new_cluster(broker, SHORT_LEASE_S), LeaseClock()
    async with open_members([name_node(settings, "sleeper")], [honest()], clock=clock) as (member,):
        [placement] = await member.node.placements.list_all()
        epoch = placement.epoch
        endpoint = member.endpoint()
        with pytest.raises(ProtocolFault) as caught:
            await endpoint.invoke("slow", {"seconds": 0.2, "progress": 1}, on_progress=lambda _: clock.pass_lease())
        assert caught.value.detail.reason == "outcome_unknown"
        assert endpoint.phase is EndpointPhase.FAULTED
        await end_leases(settings, placement.lease)
        await until(lambda: member.endpoint().phase is EndpointPhase.READY)
        assert (await member.node.placements.list_all())[0].epoch > epoch
        # Under another lease the server isn't this node's any more, whoever was told of the loss.
        endpoint, membership = member.endpoint(), member.node.membership
        membership.info = replace(membership.info, lease="another")
        with pytest.raises(ProtocolFault):
            await endpoint.invoke("pid", {})


async def test_server_that_was_starting_when_the_lease_was_lost_is_not_run(broker: BrokerProcess) -> None:
    """The node has another lease a moment later, under which another node may own the server."""
    clock = LeaseClock()
    async with open_node(name_node(await new_cluster(broker, SHORT_LEASE_S), "sleeper"), clock) as node:
        endpoint = ServerEndpointImpl(fault("slow-start", 20, id="slow"), open_session=partial(open_session, node))
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(_find_fault(endpoint))
            await until(lambda: node.info.owned == 1)
            clock.pass_lease()
            assert not node.membership.is_held()
            await until(lambda: not node.info.owned)
        assert "its node has lost its lease" in str(opening.result())


async def _find_fault(endpoint: ServerEndpointImpl) -> ProtocolFault:
    with pytest.raises(ProtocolFault) as caught:
        await endpoint.open()
    return caught.value


async def test_lost_broker_cuts_calls_off_and_is_found_again(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        settings, clock = await new_cluster(broker, SHORT_LEASE_S), LeaseClock()
        async with open_pair(settings, honest(), clock=clock) as (owner, other):
            leases = [member.node.info.lease for member in (owner, other)]
            notes: list[str] = []
            owner.node.on_note.add(notes.append)
            began = asyncio.Event()
            cut = [owner.endpoint(), other.endpoint()]
            async with asyncio.TaskGroup() as tasks:
                call = tasks.create_task(_call_slowly(other, began))
                await began.wait()
                await asyncio.to_thread(broker.stop)
            assert call.result().detail.reason == "outcome_unknown"
            # Its own clients go on for the moment; then the node has no lease any more.
            await until(lambda: any("are away" in note for note in notes))
            assert await read_pid(owner)
            clock.pass_lease()
            assert not any(member.node.membership.is_held() for member in (owner, other))
            assert any("has lost its lease" in note for note in notes)
            await until(lambda: all(endpoint.phase is EndpointPhase.FAULTED for endpoint in cut))
            faults = [endpoint.status().fault for endpoint in cut]
            remedies = [None if fault is None else build_fault_note("honest", fault).remedy for fault in faults]
            assert remedies == ["indus cluster status"] * 2
            await asyncio.to_thread(broker.start)
            await end_leases(settings, *leases)
            for member in (owner, other):
                await until(lambda member=member: member.endpoint().phase is EndpointPhase.READY)
            assert await read_pid(owner) == await read_pid(other)
            # The server may be ready before: on the other node, which has a lease already.
            await until(lambda: notes[-1] == "this node has a lease again")
            assert notes[-2] == "the brokers of the cluster answer again"


@pytest.mark.parametrize("is_refused", [False, True])
async def test_cancelled_request_stays_cancelled_when_its_answer_comes_at_the_same_moment(
    broker: BrokerProcess, is_refused: bool
) -> None:
    """`asyncio.wait_for`, with which the client of the broker waits, forgets it before Python 3.12."""
    late: list[bool] = []
    async with open_broker(await new_cluster(broker)) as opened:

        async def ask(answer: asyncio.Future[str]) -> None:
            with suppress(LostRaceError):
                await opened.run("it", asyncio.wait_for(answer, 5))

        for steps in range(8):  # of the loop, between the answer and the cancellation
            async with asyncio.TaskGroup() as tasks:
                answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                task = tasks.create_task(ask(answer))
                await asyncio.sleep(0)
                if is_refused:
                    answer.set_exception(KeyWrongLastSequenceError())
                else:
                    answer.set_result("yes")
                for _ in range(steps):
                    await asyncio.sleep(0)
                late.append(not task.cancel())
            assert task.cancelled() is not late[-1]
    assert late[0] is False
    assert late[-1] is True


async def test_connecting_ends_though_the_client_forgets_that_it_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget_cancellation(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("it failed at the same moment") from None

    monkeypatch.setattr(BrokerClient, "_connect_to_server", forget_cancellation)
    settings = ClusterSettings(brokers=["nats://127.0.0.1:1"], node="x", connect_s=0.1)
    with pytest.raises(ClusterFault, match="no broker can be used"):
        async with open_broker(settings):
            pass


async def test_second_node_of_a_name_is_refused(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    async with open_node(name_node(settings, "same")):
        with pytest.raises(ClusterFault, match="there is a node named 'same' already"):
            async with open_node(name_node(settings, "same")):
                pass


async def test_cluster_that_was_not_prepared_says_so(broker: BrokerProcess) -> None:
    settings = ClusterSettings(brokers=[broker.url], node="x", prefix="unprepared", key=KEY)
    with pytest.raises(ClusterFault, match="indus cluster init") as caught:
        async with open_node(settings):
            pass
    assert caught.value.state == "missing"


async def test_absent_broker_is_named() -> None:
    settings = ClusterSettings(brokers=["nats://user:secret@127.0.0.1:1"], node="x", connect_s=0.1)
    with pytest.raises(ClusterFault, match=r"no broker can be used at nats://127\.0\.0\.1:1") as caught:
        async with open_node(settings):
            pass
    assert caught.value.state == "away"
    assert "secret" not in str(caught.value)


async def test_node_with_another_key_is_refused(broker: BrokerProcess) -> None:
    settings = replace(await new_cluster(broker), key=ClusterKey(bytes(32)))
    with pytest.raises(ClusterFault, match="another key"):
        async with open_node(settings):
            pass
    for role in ("all", "offers"):
        with pytest.raises(ClusterFault, match="--cluster-key"):
            async with open_node(replace(settings, key=None, role=role)):
                pass
