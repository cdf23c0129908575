"""Where servers run: the same answer at every node, in proportion to capacity, with few moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.support.servers import honest

from indusagi.capabilities.sandbox.profile import parse_profile
from induscode.cluster.contract import NodeInfo
from induscode.cluster.placement import ServerTarget, build_replica_key, find_replica, find_target, rank_nodes

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)
KEYS = [f"key-{number}" for number in range(300)]


def make_nodes(names: list[str], **fields: int) -> list[NodeInfo]:
    return [NodeInfo(node=name, instance=f"i-{name}", capacity=fields.get(name, 64)) for name in names]


@given(names=NAMES, joining=st.sampled_from("xyz"))
def test_order_of_nodes_is_the_same_everywhere_and_a_new_node_moves_servers_to_itself_only(
    names: list[str], joining: str
) -> None:
    nodes, more = make_nodes(names), make_nodes([*names, joining])
    for key in KEYS[:20]:
        target = ServerTarget(key)
        before = rank_nodes(target, nodes)[0]
        assert rank_nodes(target, nodes[::-1])[0] == before
        assert rank_nodes(target, more)[0].node in {before.node, joining}


def test_servers_are_spread_by_capacity() -> None:
    nodes = make_nodes(["small", "large"], small=20, large=60)
    counts = Counter(rank_nodes(ServerTarget(key), nodes)[0].node for key in KEYS)
    assert 2 < counts["large"] / counts["small"] < 4.5


def test_full_draining_and_foreign_nodes_are_left_out() -> None:
    one, two, three, four = make_nodes(["one", "two", "three", "four"])
    nodes = [replace(one, owned=64), replace(two, draining=True), replace(three, role="doors"), four]
    assert rank_nodes(ServerTarget("k"), nodes) == [four]
    assert rank_nodes(ServerTarget("k", only_node="one"), nodes) == []


def test_affinity_prefers_nodes_that_have_room() -> None:
    near, far = make_nodes(["gpu-1", "cpu-1"])
    targets = [ServerTarget(key, affinity="gpu-*") for key in KEYS]
    assert {rank_nodes(target, [far, near])[0] for target in targets} == {near}
    assert {rank_nodes(target, [far, replace(near, owned=64)])[0] for target in targets} == {far}


def test_a_server_is_only_placed_where_its_sandbox_is() -> None:
    nodes = make_nodes(["old", "landlock", "bubblewrap", "docker"])
    for number, held in enumerate(("", "standard", "standard strict hosts", "docker")):
        nodes[number] = replace(nodes[number], sandboxes=held)

    def list_able(value: JsonValue) -> set[str]:
        target = find_target(replace(honest(), sandbox=parse_profile(value)), nodes[0])
        return {node.node for node in rank_nodes(target, nodes)}

    assert list_able("off") == {node.node for node in nodes}
    assert list_able("standard") == {"landlock", "bubblewrap"}
    narrow: list[JsonValue] = ["strict", {"hosts": ["h"]}, {"hosts": []}, {"profile": "strict", "hosts": ["h"]}]
    for value in narrow:
        assert list_able(value) == {"bubblewrap"}, value
    assert list_able({"hosts": ["*"]}) == {"landlock", "bubblewrap"}
    assert list_able({"container": "docker", "image": f"a@sha256:{'0' * 64}"}) == {"docker"}
    assert NodeInfo.parse({"node": "n", "instance": "i", "role": "all", "sandboxes": ["strict"]}) == NodeInfo(
        node="n", instance="i"
    )
    bare, strict = honest(), replace(honest(), sandbox=parse_profile("strict"))
    assert find_target(bare, nodes[0]).key != find_target(strict, nodes[0]).key


def test_equal_rows_are_one_server_and_offers_belong_to_their_node() -> None:
    one, two = make_nodes(["one", "two"])
    assert find_target(honest(), one) == find_target(honest(env={"INDUS_SERVED_BY": "x"}), two)
    assert find_target(honest(), one) != find_target(honest(env={"TOKEN": "x"}), one)
    laptop = replace(one, node="ada", role="offers")
    named = replace(honest(id="ada-db"), command="cluster:ada/honest", args=())
    assert find_target(honest(), laptop) == find_target(named, two)
    assert find_target(named, two).only_node == "ada"


def test_replicas_are_numbered_by_the_keys_of_their_placements() -> None:
    keys = [build_replica_key("k" * 32, number) for number in (1, 2, 3)]
    assert (keys[0], len({*keys})) == ("k" * 32, 3)
    assert [find_replica(key) for key in keys] == [1, 2, 3]
    assert find_replica("k-x") == 1
