"""An enrolment under definitions that change, alternate and come back: without any process."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.deck import capability, open_pins
from tests.support.stores import stored

from indusagi.interop.protocol_bridge.contract import RemoteTool, StdioServerConfig
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
from induscode.deck.mcp.attach import bridge_tool_names
from induscode.deck.mcp.capability import definition_pin
from induscode.deck.mcp.enrolment import MOST_SWITCHES, Enrolment
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.mcp.store.journal import Journal
from induscode.deck.mcp.store.pins import read_disabled_tools

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonValue
    from induscode.deck.mcp.store import LedgerStore

pytestmark = pytest.mark.anyio

SERVER = StdioServerConfig("s", "server")


def tool(name: str = "x", **parts: JsonValue) -> RemoteTool:
    made = capability("s", name)
    return RemoteTool(made.ref, made.descriptor, raw={**made.raw, **parts})


OTHER = tool("y")
A, B = tool(description="Allowed: ls, cat"), tool(description="Allowed: ls, cat, rm")


async def enrolment_in(store: LedgerStore) -> tuple[Enrolment, Journal]:
    journal = Journal(store, [SERVER])
    pins = await open_pins(journal, [SERVER])
    fleet = ServerFleetImpl()
    return Enrolment(fleet, BridgeLedger.empty(), pins=pins, sink=journal), journal


async def ops(store: LedgerStore, journal: Journal) -> list[str]:
    await store.flush()
    return [row.op for row in await store.rows(journal.run)]


async def test_finding_d10_definitions_that_alternate_do_not_make_the_list_flap(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        enrolment, journal = await enrolment_in(store)
        seen: list[tuple[str, ...]] = []
        for turn in range(20):
            enrolment.sync_tools("s", [B if turn % 2 else A])
            seen.append(tuple(bridge_tool_names(enrolment.ledger)))
        changes = sum(one != other for one, other in itertools.pairwise(seen))
        assert changes == MOST_SWITCHES
        # It ends disabled: the unapproved form is never enrolled.
        assert set(seen[MOST_SWITCHES:]) == {()}
        (told,) = enrolment.notes
        assert "keeps switching" in told.message
        assert "indus mcp approve s x" in told.remedy
        happened = await ops(store, journal)
        assert happened.count("drift") == 1
        assert len(happened) < 12


async def test_finding_d10_an_alternating_tool_is_stable_once_both_forms_are_approved(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        enrolment, _ = await enrolment_in(store)
        for one in (A, B) * 3:
            enrolment.sync_tools("s", [one])
        assert enrolment.approve(A.ref, definition_pin(B.raw))
        names = bridge_tool_names(enrolment.ledger)
        assert len(names) == 1
        before = enrolment.ledger.next_seq
        for one in (A, B) * 10:
            enrolment.sync_tools("s", [one])
            assert (bridge_tool_names(enrolment.ledger), enrolment.notes) == (names, ())
        assert enrolment.ledger.next_seq - before <= MOST_SWITCHES + 1
    for one in (A, B, A, B):
        async with stored(tmp_path) as store:
            enrolment, journal = await enrolment_in(store)
            enrolment.sync_tools("s", [one])
            assert bridge_tool_names(enrolment.ledger) == names
            assert "drift" not in await ops(store, journal)


async def test_a_ledger_that_is_still_long_after_a_compaction_is_compacted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("induscode.deck.mcp.enrolment.LONGEST_LOG", 6)
    async with stored(tmp_path) as store:
        enrolment, _ = await enrolment_in(store)
        for _ in range(10):
            enrolment.sync_tools("s", [A])
            enrolment.sync_tools("s", [])
        with anyio.fail_after(0):
            await enrolment.wait_until_long()
        enrolment.compact(4)
        with anyio.fail_after(0):
            await enrolment.wait_until_long()
        enrolment.compact(enrolment.ledger.next_seq)
        assert enrolment.ledger.events <= 6
        with pytest.raises(TimeoutError), anyio.fail_after(0):
            await enrolment.wait_until_long()


async def test_finding_c1_an_order_that_alternates_leaves_no_trace(tmp_path: Path) -> None:
    turned = tool(description="Allowed: cat, ls")
    async with stored(tmp_path) as store:
        enrolment, journal = await enrolment_in(store)
        enrolment.sync_tools("s", [A])
        before, happened = enrolment.ledger, await ops(store, journal)
        for one in (turned, A) * 3:
            enrolment.sync_tools("s", [one])
        assert enrolment.ledger is before
        assert await ops(store, journal) == happened
        assert enrolment.drifts == ()


async def test_finding_c1_a_cosmetic_change_is_recorded_and_disables_nothing(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        enrolment, journal = await enrolment_in(store)
        enrolment.sync_tools("s", [A])
        for text in ("ls Allowed: cat,", "cat, ls Allowed:") * 5:
            enrolment.sync_tools("s", [tool(description=text)])
            assert len(bridge_tool_names(enrolment.ledger)) == 1
        assert (enrolment.disabled, enrolment.quarantined) == ((), ())
        assert [str(one.grade) for one in enrolment.drifts] == ["cosmetic"]
        await store.flush()
        rows = await store.rows(journal.run)
        assert [row.facts["detail"] for row in rows if row.op == "drift"] == ["cosmetic: description"]
        # What was approved is what is shown.
        found = enrolment.ledger.find(A.ref)
        assert found is not None
        assert found[1].raw == A.raw
        enrolment.sync_tools("s", [A])
        assert enrolment.drifts == ()


async def test_an_approved_change_of_the_schema_is_always_followed(tmp_path: Path) -> None:
    wide = tool(inputSchema={"type": "object"})
    narrow = tool(inputSchema={"type": "object", "required": ["a"]})
    async with stored(tmp_path) as store:
        enrolment, _ = await enrolment_in(store)
        enrolment.sync_tools("s", [wide])
        enrolment.sync_tools("s", [narrow])
        assert [str(one.grade) for one in enrolment.disabled] == ["breaking"]
        assert enrolment.approve(wide.ref, definition_pin(narrow.raw))
        for one in (wide, narrow) * (MOST_SWITCHES + 1):
            enrolment.sync_tools("s", [one])
            found = enrolment.ledger.find(wide.ref)
            assert found is not None
            assert found[1].raw == one.raw


async def test_finding_b3_a_disabled_tool_is_known_before_its_server_is_there(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        enrolment, _ = await enrolment_in(store)
        enrolment.sync_tools("s", [A, OTHER])
        enrolment.sync_tools("s", [B, OTHER])
        (now,) = enrolment.disabled
    async with stored(tmp_path) as store:
        remembered = await read_disabled_tools(store, [SERVER])
        assert remembered == {"s": [now]}
        enrolment, journal = await enrolment_in(store)
        journal.set_known_listings({"s": ["y"]}, remembered)
        enrolment.sync_tools("s", [OTHER], remembered["s"])
        assert enrolment.find_disabled(now.name) == now
        assert enrolment.find_disabled("nothing") is None
        assert [note.owner for note in enrolment.notes] == ["server 's', tool 'x'"]
        # That is not news: the list as it is known is not written again.
        assert await ops(store, journal) == ["run", "enroll"]
        # What the server lists then decides.
        enrolment.sync_tools("s", [A, OTHER])
        assert enrolment.disabled == ()
        assert await read_disabled_tools(store, [SERVER]) == {"s": []}
        enrolment.sync_tools("s", [B, OTHER])
        enrolment.remove_server("s")
        assert (enrolment.disabled, enrolment.drifts) == ((), ())
