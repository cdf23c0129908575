"""A ledger without its past: the same deck, which goes on in the same way, for ever."""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.deck import AT, capability, ledger_of, request
from tests.support.opened import QUICK
from tests.support.servers import HONEST_TOOLS, STEADY, honest
from tests.support.stores import stored
from tests.support.waiting import until

from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.deck.contract import BridgeFault
from induscode.deck.mcp import enrolment as enrolment_module
from induscode.deck.mcp.boot import BootOptions, boot_bridge
from induscode.deck.mcp.capability import definition_pin
from induscode.deck.mcp.enrolment import LONGEST_LOG
from induscode.deck.mcp.ledger import BridgeEntry, BridgeLedger, EnrollRequest, content_key_of
from induscode.deck.mcp.store import memory_store
from induscode.deck.mcp.store.history import read_ledger_log
from induscode.servers.plan import ServerPlan

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from indusagi.interop import ServerConfig
    from indusagi.interop.protocol_bridge.contract import RemoteTool
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.deck.mcp.enrolment import Enrolment
    from induscode.deck.mcp.store import LedgerStore

Step = tuple[str, str, str, int]

# -- the value --------------------------------------------------------------------------------


def test_a_compacted_tool_stays_live_in_its_place_and_leaves_the_log() -> None:
    whole = ledger_of(("b", "x"), ("a", "y"), ("b", "z")).enroll(request("b", "x", version=2), AT)
    short = whole.compact()
    assert (short.log, short.events, short.folded, short.next_seq) == ((), 0, 5, 6)
    assert short.snapshot == whole.snapshot
    assert [one.name for one in short.live_capabilities()] == ["b__x", "a__y", "b__z"]
    assert list(short.snapshot.by_server.items()) == [("b", 2), ("a", 1)]
    assert short.live_capabilities_for_server("b") == whole.live_capabilities_for_server("b")
    assert (whole.events, whole.folded) == (5, 0)
    assert repr(short) == "BridgeLedger(0 events, next 6)"


def test_events_from_a_number_on_are_kept_and_asking_for_others_is_a_fault() -> None:
    short = ledger_of(("a", "x"), ("a", "y"), ("a", "z")).compact(3)
    assert [entry.seq for entry in short.log] == [3]
    assert short.since(3) == short.log
    for gone in (0, 2):
        with pytest.raises(BridgeFault, match=f"events {gone} to 2"):
            short.since(gone)
    assert ledger_of(("a", "x")).since(0) == ledger_of(("a", "x")).log


def test_with_nothing_to_fold_in_it_is_the_same_ledger() -> None:
    ledger = ledger_of(("a", "x"))
    assert ledger.compact(1) is ledger
    short = ledger.compact()
    assert short.compact() is short
    assert BridgeLedger.empty().compact().next_seq == 1


def test_ledgers_without_a_log_are_equal_only_if_they_hold_the_same_deck() -> None:
    assert ledger_of(("a", "x")).compact() == ledger_of(("a", "x")).compact()
    assert ledger_of(("a", "x")).compact() != ledger_of(("a", "y")).compact()
    assert ledger_of(("a", "x")).compact() != ledger_of(("a", "x"))
    with pytest.raises(TypeError):
        hash(ledger_of(("a", "x")).compact()._chain.base)
    assert ledger_of()._chain.base != "nothing"


def test_two_changes_of_one_compacted_ledger_are_independent() -> None:
    root = ledger_of(("a", "x"), ("a", "y")).compact()
    left, right = root.enroll(request("a", "l"), AT), root.withdraw_server("a", AT)
    assert [one.ref.name for one in left.live_capabilities()] == ["x", "y", "l"]
    assert (right.live_capabilities(), len(root.live_capabilities())) == ((), 2)


def test_a_retired_definition_gives_its_place_only_if_it_was_named() -> None:
    former = content_key_of(capability("a", "x"))
    whole = ledger_of(("a", "x"), ("a", "y")).retire(former, "a", AT)
    again = EnrollRequest(capability("a", "x", version=2), "a", supersedes=former)

    def order(ledger: BridgeLedger) -> list[str]:
        return [one.ref.name for one in ledger.enroll(again, AT).live_capabilities()]

    assert order(whole) == order(whole.compact(places_of=[former])) == ["x", "y"]
    assert order(whole.compact()) == ["y", "x"]


# -- laws -------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enroll", "retire", "withdraw", "restore"]),
        st.sampled_from("ab"),
        st.sampled_from("xyz"),
        st.integers(1, 2),
    ),
    max_size=25,
)
DEAD = [
    content_key_of(capability(server, tool, version=version)) for server in "ab" for tool in "xyz" for version in (1, 2)
]


def gone_on(ledger: BridgeLedger, steps: Sequence[Step]) -> BridgeLedger:
    for step, server, tool, version in steps:
        one = capability(server, tool, version=version)
        if step == "enroll":
            ledger = ledger.enroll(EnrollRequest(one, server), AT)
        elif step == "restore":
            former = content_key_of(capability(server, tool, version=3 - version))
            ledger = ledger.retire(former, server, AT)
            ledger = ledger.enroll(EnrollRequest(one, server, supersedes=former), AT)
        elif step == "retire":
            ledger = ledger.retire(content_key_of(one), server, AT)
        else:
            ledger = ledger.withdraw_server(server, AT)
    return ledger


def deck(ledger: BridgeLedger) -> object:
    live = ledger.live_capabilities()
    return (
        list(ledger.snapshot.live.items()),
        list(ledger.snapshot.by_server.items()),
        ledger.snapshot.high_water,
        ledger.next_seq,
        [ledger.live_capabilities_for_server(server) for server in "ab"],
        [(ledger.find(one.ref), ledger.holder_of(one.name)) for one in live],
    )


@given(STEPS, STEPS, st.integers(0, 60))
def test_a_compacted_ledger_continues_like_the_complete_one(first: list[Step], second: list[Step], cut: int) -> None:
    whole = gone_on(BridgeLedger.empty(), first)
    short = whole.compact(cut, places_of=DEAD)
    assert deck(short) == deck(whole)
    later, shorter = gone_on(whole, second), gone_on(short, second)
    assert deck(shorter) == deck(later)
    assert shorter.since(whole.next_seq) == later.since(whole.next_seq)
    # Who kept the events has the whole log still, and it leads to the same deck.
    kept = [entry for entry in later.log if entry.seq <= short.folded]
    assert BridgeLedger.from_log([*kept, *shorter.log]) == later
    # Values that are older than the last of their line stay what they are.
    assert deck(short) == deck(whole)


@given(STEPS, STEPS, STEPS)
def test_compacting_again_and_again_is_compacting_once(
    first: list[Step], second: list[Step], third: list[Step]
) -> None:
    whole = gone_on(BridgeLedger.empty(), [*first, *second])
    once = whole.compact(places_of=DEAD)
    twice = gone_on(gone_on(BridgeLedger.empty(), first).compact(places_of=DEAD), second)
    assert twice.compact(places_of=DEAD) == once
    assert deck(gone_on(twice, third)) == deck(gone_on(whole, third))


# -- for as long as it runs -------------------------------------------------------------------


@asynccontextmanager
async def booted(store: LedgerStore, *servers: ServerConfig) -> AsyncGenerator[BootedBridge]:
    bridge = await boot_bridge(store, ServerPlan.from_configs(servers), BootOptions(supervision=QUICK))
    try:
        await bridge.wait_started()
        yield bridge
    finally:
        await bridge.aclose()


def enrolment_of(bridge: BootedBridge) -> Enrolment:
    return bridge.enrolment


def listed_by(bridge: BootedBridge, server: str) -> Sequence[RemoteTool]:
    endpoint = bridge.fleet.endpoint(server)
    assert endpoint is not None
    assert endpoint.known_tools is not None
    return endpoint.known_tools


def entries_held() -> int:
    """Count the events that anything in this process still holds."""
    gc.collect()
    return sum(type(one) is BridgeEntry for one in gc.get_objects())


@pytest.mark.repeats
@pytest.mark.anyio
@pytest.mark.process
async def test_2000_changes_of_a_server_leave_no_more_behind_than_a_few(tmp_path: Path) -> None:
    rounds, flips, flipped = 4, 250, 1
    gc.freeze()  # of all that is here already nothing is counted
    most = 2 * LONGEST_LOG + 4 * flips * flipped
    async with stored(tmp_path) as store, booted(store, honest(id="h")) as bridge:
        enrolment, listed = enrolment_of(bridge), listed_by(bridge, "h")[:2]
        enrolment.sync_tools("h", listed)
        first, before, held = enrolment.ledger.next_seq, entries_held(), list[int]()
        for _ in range(rounds):
            for _ in range(flips):
                enrolment.sync_tools("h", listed[:-flipped])
                enrolment.sync_tools("h", listed)
            await until(lambda: enrolment.ledger.events <= LONGEST_LOG)
            held.append(entries_held() - before)
        assert max(held) < most
        assert [one.ref for one in enrolment.ledger.live_capabilities()] == [one.ref for one in listed]
        assert enrolment.ledger.next_seq - first == rounds * flips * flipped * 2
        # The store has all of it, and what it comes to is the deck.
        entries, notes = await read_ledger_log(store, bridge.journal.run)
        assert notes == ()
        whole = BridgeLedger.from_log(entries)
        assert (whole.events + 1, whole.snapshot) == (enrolment.ledger.next_seq, enrolment.ledger.snapshot)


@pytest.mark.anyio
@pytest.mark.process
async def test_a_server_that_keeps_changing_is_followed_by_a_short_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment_module, "LONGEST_LOG", 2 * len(HONEST_TOOLS))
    fast = honest(id="h", limits=replace(STEADY, relist_gap_s=0.0))
    async with stored(tmp_path) as store, booted(store, fast) as bridge:
        bridge._pins.growing = {"h"}
        enrolment = enrolment_of(bridge)
        endpoint = bridge.fleet.endpoint("h")
        assert endpoint is not None
        extra = RemoteToolRef("h", "extra")
        while not enrolment.ledger.folded:
            await endpoint.invoke("mutate", {"kind": "add"})
            await until(lambda: enrolment.ledger.find(extra) is not None)
            await endpoint.invoke("mutate", {"kind": "remove"})
            await until(lambda: enrolment.ledger.find(extra) is None)
            assert enrolment.ledger.next_seq < 10 * len(HONEST_TOOLS)
        assert [one.ref.name for one in enrolment.ledger.live_capabilities()] == [*HONEST_TOOLS]


@pytest.mark.anyio
@pytest.mark.process
async def test_removed_servers_of_a_changing_configuration_leave_no_state(tmp_path: Path) -> None:
    async with stored(tmp_path) as store, booted(store, honest(id="h")) as bridge:
        for number in range(30):
            passing = honest(id=f"p{number}")
            await bridge.change(ServerPlan.from_configs([honest(id="h"), passing]))
            enrolment_of(bridge).sync_tools(passing.id, named(passing.id, listed_by(bridge, "h")))
        await bridge.change(ServerPlan.from_configs([honest(id="h")]))
        enrolment, journal = enrolment_of(bridge), bridge.journal
        await until(lambda: enrolment.ledger.events <= LONGEST_LOG)
        assert len(enrolment.ledger.live_capabilities()) == len(HONEST_TOOLS)
        assert [*journal._configs] == [*journal._identities] == ["h"]
        assert [*journal._listed] == [("h", "tool")]
        assert {server for server, _ in bridge._pins._forms} == {"h"}


def named(server: str, tools: Sequence[RemoteTool]) -> Sequence[RemoteTool]:
    return [
        replace(
            one,
            ref=RemoteToolRef(server, one.ref.name),
            descriptor=replace(one.descriptor, name=f"{server}__{one.ref.name}"),
        )
        for one in tools
    ]


@pytest.mark.anyio
@pytest.mark.process
async def test_a_drifted_tool_gets_its_place_back_after_compaction(tmp_path: Path) -> None:
    async with stored(tmp_path) as store, booted(store, honest(id="h")) as bridge:
        enrolment, listed = enrolment_of(bridge), listed_by(bridge, "h")
        drifted = replace(listed[0], raw={**listed[0].raw, "description": "Something else."})
        enrolment.sync_tools("h", [drifted, *listed[1:]])
        enrolment.compact(enrolment.ledger.next_seq)
        assert (enrolment.ledger.events, len(enrolment.quarantined)) == (0, 1)
        assert enrolment.approve(drifted.ref, definition_pin(drifted.raw))
        assert [one.ref for one in enrolment.ledger.live_capabilities()] == [one.ref for one in listed]


@pytest.mark.anyio
@pytest.mark.process
async def test_a_tool_that_drifted_and_is_listed_no_more_leaves_no_place(tmp_path: Path) -> None:
    async with stored(tmp_path) as store, booted(store, honest(id="h")) as bridge:
        enrolment, listed = enrolment_of(bridge), listed_by(bridge, "h")
        drifted = replace(listed[0], raw={**listed[0].raw, "description": "Something else."})
        enrolment.sync_tools("h", [drifted, *listed[1:]])
        enrolment.sync_tools("h", listed[1:])
        assert (enrolment.notes, enrolment.quarantined, enrolment._former_keys) == ((), (), {})
        enrolment.sync_tools("h", listed)
        assert enrolment.ledger.live_capabilities()[-1].ref == listed[0].ref


class Stuck:
    """A store in a file, which does not say that it has written."""

    def __init__(self, store: LedgerStore) -> None:
        self.store = store
        self.asked = 0
        self.answers = asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    async def flush(self) -> bool:
        self.asked += 1
        await asyncio.sleep(0)
        return self.answers.is_set() and await self.store.flush()


@pytest.mark.anyio
@pytest.mark.process
async def test_events_stay_in_the_log_until_the_store_has_written_them(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        stuck = Stuck(store)
        async with booted(stuck, honest(id="h")) as bridge:  # type: ignore[arg-type]
            enrolment, listed = enrolment_of(bridge), listed_by(bridge, "h")
            while enrolment.ledger.events <= LONGEST_LOG:
                enrolment.sync_tools("h", ())
                enrolment.sync_tools("h", listed)
            await until(lambda: stuck.asked > 2)
            assert enrolment.ledger.folded == 0
            stuck.answers.set()
            await until(lambda: enrolment.ledger.folded > 0)


@pytest.mark.anyio
@pytest.mark.process
async def test_a_store_in_memory_has_the_past_for_as_long_as_the_process_lives() -> None:
    store = await memory_store()
    try:
        async with booted(store, honest(id="h")) as bridge:
            enrolment, listed = enrolment_of(bridge), listed_by(bridge, "h")
            for _ in range(20):
                enrolment.sync_tools("h", ())
                enrolment.sync_tools("h", listed)
            await until(lambda: enrolment.ledger.folded > 0)
            entries, _ = await read_ledger_log(store, bridge.journal.run)
            assert BridgeLedger.from_log(entries).snapshot == enrolment.ledger.snapshot
    finally:
        await store.aclose()
