"""The ledger: events in, a deck out, and nothing that was is ever changed."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.deck import AT, capability, ledger_of, request, with_raw

from induscode.deck.contract import BridgeFault
from induscode.deck.mcp.capability import bridge_ulid_key
from induscode.deck.mcp.ledger import BridgeEntry, BridgeLedger, BridgeOp, EnrollRequest, content_key_of, reduce_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence


def names(ledger: BridgeLedger) -> list[str]:
    return [one.name for one in ledger.live_capabilities()]


def test_an_empty_ledger_has_no_events_and_starts_at_one() -> None:
    ledger = BridgeLedger.empty()
    assert (ledger.log, ledger.next_seq) == ((), 1)
    assert (dict(ledger.snapshot.live), dict(ledger.snapshot.by_server)) == ({}, {})
    assert ledger.snapshot.high_water == 0


def test_tools_are_live_in_the_order_of_their_enrolment() -> None:
    ledger = ledger_of(("b", "x"), ("a", "y"), ("b", "z"))
    assert names(ledger) == ["b__x", "a__y", "b__z"]
    assert list(ledger.snapshot.by_server.items()) == [("b", 2), ("a", 1)]
    assert [entry.seq for entry in ledger.log] == [1, 2, 3]
    assert (ledger.snapshot.high_water, ledger.next_seq) == (3, 4)
    assert [one.name for one in ledger.live_capabilities_for_server("b")] == ["b__x", "b__z"]


def test_a_change_leaves_the_ledger_it_was_made_on_as_it_was() -> None:
    first = ledger_of(("a", "x"))
    second = first.enroll(request("a", "y"), AT)
    third = second.withdraw_server("a", AT)
    assert [names(ledger) for ledger in (first, second, third)] == [["a__x"], ["a__x", "a__y"], []]
    assert [len(ledger.log) for ledger in (first, second, third)] == [1, 2, 4]


def test_two_changes_of_one_ledger_are_independent() -> None:
    root = ledger_of(("a", "x"))
    left, right = root.enroll(request("a", "l"), AT), root.enroll(request("a", "r"), AT)
    assert (names(left), names(right)) == (["a__x", "a__l"], ["a__x", "a__r"])
    assert names(left.enroll(request("a", "m"), AT)) == ["a__x", "a__l", "a__m"]
    assert names(right) == ["a__x", "a__r"]
    assert left != right
    assert left == BridgeLedger.from_log(left.log)


def test_enrolling_the_same_tool_again_replaces_it_in_its_place() -> None:
    ledger = ledger_of(("a", "x"), ("a", "y"))
    again = with_raw(capability("a", "x"), {"name": "x", "title": "X"})
    ledger = ledger.enroll(EnrollRequest(again, "a"), AT)
    assert names(ledger) == ["a__x", "a__y"]
    assert ledger.live_capabilities()[0].raw["title"] == "X"
    assert len(ledger.log) == 3


def test_a_tool_whose_schema_changed_supersedes_its_predecessor_in_its_place() -> None:
    ledger = ledger_of(("a", "x"), ("a", "y")).enroll(request("a", "x", version=2), AT)
    assert names(ledger) == ["a__x", "a__y"]
    assert list(ledger.live_capabilities()[0].parameters["properties"]) == ["v2"]  # type: ignore[call-overload]
    assert [entry.op for entry in ledger.log[2:]] == [BridgeOp.RETIRE, BridgeOp.ENROLL]
    assert [entry.seq for entry in ledger.log[2:]] == [3, 4]
    assert names(BridgeLedger.from_log(ledger.log)) == ["a__x", "a__y"]


def test_a_tool_that_was_retired_and_comes_back_later_comes_last() -> None:
    ledger = ledger_of(("a", "x"), ("a", "y"))
    key = content_key_of(capability("a", "x"))
    ledger = ledger.retire(key, "a", AT).enroll(request("a", "z"), AT).enroll(request("a", "x"), AT)
    assert names(ledger) == ["a__y", "a__z", "a__x"]


def test_a_tool_can_be_given_the_place_of_a_definition_that_was_retired_before() -> None:
    ledger = ledger_of(("a", "x"), ("a", "y"))
    former = content_key_of(capability("a", "x"))
    ledger = ledger.retire(former, "a", AT).enroll(request("a", "z"), AT)
    fresh = capability("a", "x", version=2)
    ledger = ledger.enroll(EnrollRequest(fresh, "a", supersedes=former), AT)
    assert names(ledger) == ["a__x", "a__y", "a__z"]
    assert names(BridgeLedger.from_log(ledger.log)) == names(ledger)


def test_the_events_from_a_number_on_are_those_that_came_since() -> None:
    before = ledger_of(("a", "x"))
    after = before.enroll(request("a", "y"), AT).enroll(request("a", "y", version=2), AT)
    assert [entry.seq for entry in after.since(before.next_seq)] == [2, 3, 4]
    assert (after.since(5), before.since(1)) == ((), before.log)


def test_a_live_tool_is_found_by_reference_and_by_name() -> None:
    ledger = ledger_of(("a", "x"))
    one = capability("a", "x")
    assert ledger.find(one.ref) == (content_key_of(one), one)
    assert ledger.holder_of("a__x") == one.ref
    gone = ledger.withdraw_server("a", AT)
    assert (gone.find(one.ref), gone.holder_of("a__x")) == (None, None)


def test_retiring_an_unknown_key_is_recorded_with_a_number() -> None:
    ledger = ledger_of(("a", "x")).retire(bridge_ulid_key(), "a", AT)
    assert names(ledger) == ["a__x"]
    assert (len(ledger.log), ledger.next_seq, ledger.snapshot.high_water) == (2, 3, 2)


def test_withdrawing_a_server_retires_its_tools_and_no_others() -> None:
    ledger = ledger_of(("a", "x"), ("b", "y"), ("a", "z")).withdraw_server("a", AT)
    assert names(ledger) == ["b__y"]
    assert [entry.op for entry in ledger.log[3:]] == [BridgeOp.RETIRE] * 2
    assert ledger.withdraw_server("a", AT) is ledger


def test_a_name_that_another_tool_has_cannot_be_taken() -> None:
    ledger = ledger_of(("a", "b__c"))
    with pytest.raises(BridgeFault, match=r"'c' of server 'a__b'.*'b__c' of 'a'"):
        ledger.enroll(request("a__b", "c"), AT)
    assert names(ledger.enroll(request("a", "d"), AT)) == ["a__b__c", "a__d"]


def test_an_enrolment_event_must_have_a_capability() -> None:
    key = bridge_ulid_key()
    with pytest.raises(ValueError, match="enroll"):
        BridgeEntry(BridgeOp.ENROLL, key, "a", None, 1, AT)
    with pytest.raises(ValueError, match="retire"):
        BridgeEntry(BridgeOp.RETIRE, key, "a", capability("a", "x"), 1, AT)


def test_a_continued_log_counts_from_its_highest_number() -> None:
    log = ledger_of(("a", "x"), ("a", "y")).log
    gap = [log[0], dataclasses.replace(log[1], seq=40)]
    ledger = BridgeLedger.from_log(gap)
    assert ledger.next_seq == 41
    assert ledger.enroll(request("a", "z"), AT).log[-1].seq == 41


def test_a_ledger_is_a_value_that_cannot_be_a_key() -> None:
    assert ledger_of(("a", "x")) == ledger_of(("a", "x"))
    assert ledger_of(("a", "x")) != "ledger"
    assert repr(ledger_of(("a", "x"))) == "BridgeLedger(1 events, next 2)"
    with pytest.raises(TypeError):
        hash(BridgeLedger.empty())


def test_a_snapshot_cannot_be_written_to() -> None:
    snapshot = ledger_of(("a", "x")).snapshot
    with pytest.raises(TypeError):
        snapshot.by_server["a"] = 2  # type: ignore[index]


def test_threads_that_change_one_ledger_get_separate_ledgers() -> None:
    root = ledger_of(("a", "x"))
    made: list[BridgeLedger] = []

    def grow(tool: str) -> None:
        ledger = root
        for number in range(50):
            ledger = ledger.enroll(request("a", f"{tool}{number}"), AT)
        made.append(ledger)

    threads = [threading.Thread(target=grow, args=(tool,)) for tool in "pqrs"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(ledger.live_capabilities()) for ledger in made) == [51] * 4
    assert all(ledger == BridgeLedger.from_log(ledger.log) for ledger in made)


# -- laws -------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enroll", "retire", "withdraw"]),
        st.sampled_from("ab"),
        st.sampled_from("xyz"),
        st.integers(1, 2),
    ),
    max_size=25,
)


def grown(steps: Sequence[tuple[str, str, str, int]]) -> BridgeLedger:
    ledger = BridgeLedger.empty()
    for step, server, tool, version in steps:
        if step == "enroll":
            ledger = ledger.enroll(request(server, tool, version=version), AT)
        elif step == "retire":
            key = content_key_of(capability(server, tool, version=version))
            ledger = ledger.retire(key, server, AT)
        else:
            ledger = ledger.withdraw_server(server, AT)
    return ledger


@given(STEPS, st.randoms(use_true_random=False))
def test_the_fold_does_not_depend_on_the_order_in_which_events_are_given(
    steps: list[tuple[str, str, str, int]], random: object
) -> None:
    log = list(grown(steps).log)
    before = list(log)
    wanted = reduce_ledger(log)
    random.shuffle(log)  # type: ignore[attr-defined]
    found = reduce_ledger(log)
    assert list(found.live.items()) == list(wanted.live.items())
    assert list(found.by_server.items()) == list(wanted.by_server.items())
    assert sorted(log, key=lambda entry: entry.seq) == before


@given(STEPS)
def test_a_replayed_log_gives_the_same_deck_and_continues_equally(steps: list[tuple[str, str, str, int]]) -> None:
    ledger = grown(steps)
    replayed = BridgeLedger.from_log(ledger.log)
    assert replayed == ledger
    assert list(replayed.snapshot.live.items()) == list(ledger.snapshot.live.items())
    assert replayed.snapshot == ledger.snapshot
    assert replayed.next_seq == ledger.snapshot.high_water + 1
    one, two = (one.enroll(request("c", "new"), AT) for one in (ledger, replayed))
    assert one == two


@given(STEPS)
def test_live_names_and_sequence_numbers_are_unique(steps: list[tuple[str, str, str, int]]) -> None:
    ledger = grown(steps)
    live = names(ledger)
    assert len(set(live)) == len(live)
    assert [entry.seq for entry in ledger.log] == list(range(1, len(ledger.log) + 1))
    assert sum(ledger.snapshot.by_server.values()) == len(live)


@given(STEPS, STEPS)
def test_older_ledgers_stay_unchanged(
    first: list[tuple[str, str, str, int]], second: list[tuple[str, str, str, int]]
) -> None:
    old = grown(first)
    log, live = old.log, names(old)
    ledger = old
    for step, server, tool, version in second:
        if step == "enroll":
            ledger = ledger.enroll(request(server, tool, version=version), AT)
        else:
            ledger = ledger.withdraw_server(server, AT)
    assert (old.log, names(old)) == (log, live)
    assert names(BridgeLedger.from_log(old.log)) == live
