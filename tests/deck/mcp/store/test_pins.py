"""Pins that outlive a session, and how much the store keeps of old ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.support.clock import ManualClock
from tests.support.deck import capability, ledger_of, open_pins
from tests.support.stores import batch, forge, query_file, store_file, stored

from indusagi.core.json import compact_json
from indusagi.core.time import iso_utc
from indusagi.interop.protocol_bridge.contract import RemoteTool, RemoteToolRef, StdioServerConfig
from induscode.deck.mcp.capability import definition_pin
from induscode.deck.mcp.drift import DisabledTool, DriftGrade
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.mcp.store import SilentStoreError
from induscode.deck.mcp.store.database import LedgerDb, prune
from induscode.deck.mcp.store.events import Batch, Event, PruneResult, Retention, content_address
from induscode.deck.mcp.store.history import read_ledger_log
from induscode.deck.mcp.store.journal import Journal
from induscode.deck.mcp.store.pins import load_pins, read_disabled_tools, read_pinned, read_pins
from induscode.servers.config.trust import server_identity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from indusagi.core.json import JsonObject
    from induscode.deck.mcp.drift import Drift
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import Row

pytestmark = pytest.mark.anyio

SERVER = StdioServerConfig("a", "server", ["--port", "1"])
OTHER = replace(SERVER, args=["--port", "2"])
X, Y = capability("a", "x"), capability("a", "y")
CHANGED = {**X.raw, "description": "Another."}


def remotes(*tools: str) -> list[RemoteTool]:
    made = [capability("a", tool) for tool in tools]
    return [RemoteTool(one.ref, one.descriptor, raw=one.raw) for one in made]


async def seen(store: LedgerStore, *tools: str) -> Journal:
    """Have a run that sees these tools for the first time."""
    journal = Journal(store, [SERVER])
    pins = await open_pins(journal, [SERVER])
    for remote in remotes(*tools):
        pins.judge(remote.ref, remote.raw)
    journal.record_listing("a", remotes(*tools), ())
    await store.flush()
    return journal


def grade(drift: Drift | None) -> str | None:
    return None if drift is None else str(drift.grade)


async def test_a_definition_is_pinned_when_it_is_seen_first_and_compared_from_then_on(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        pins = await open_pins(Journal(store, [SERVER]), [SERVER])
        assert [pins.judge(X.ref, X.raw).drift, pins.judge(X.ref, X.raw).drift] == [None, None]
        assert grade(pins.judge(X.ref, CHANGED).drift) == "routing"
    async with stored(tmp_path) as store:
        pins = await open_pins(Journal(store, [SERVER]), [SERVER])
        assert pins.judge(X.ref, dict(reversed(X.raw.items()))).drift is None
        drift = pins.judge(X.ref, CHANGED).drift
        assert drift is not None
        assert (drift.before, drift.after, drift.fields) == (X.raw, CHANGED, ("description",))


async def test_finding_c1_forms_that_were_approved_earlier_stay_approved(tmp_path: Path) -> None:
    third = {**X.raw, "description": "A third."}
    for approved in (CHANGED, third):
        async with stored(tmp_path) as store:
            pins = await open_pins(Journal(store, [SERVER]), [SERVER])
            assert pins.judge(X.ref, X.raw).drift is None
            assert grade(pins.judge(X.ref, approved).drift) == "routing"
            pins.approve(X.ref, approved)
            assert [pins.judge(X.ref, one).drift for one in (approved, X.raw)] == [None, None]
    async with stored(tmp_path) as store:
        pins = await open_pins(Journal(store, [SERVER]), [SERVER])
        assert [pins.judge(X.ref, one).drift for one in (third, X.raw, CHANGED)] == [None, None, None]
        assert grade(pins.judge(X.ref, {**third, "description": "A fourth."}).drift) == "routing"
        # A deck that is there before its server shows what was approved last.
        journal = await seen(store, "x")
        await store.flush()
        assert (await read_pinned(store, [SERVER]))["a"] == [third]
        rows = [row for row in await store.rows(journal.run) if row.op == "pin"]
        assert rows == []


async def test_a_form_that_is_approved_while_the_store_is_read_stays_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stored(tmp_path) as store:
        pins = await open_pins(Journal(store, [SERVER]), [SERVER])
        assert pins.judge(X.ref, X.raw).drift is None
        read, reads = store.latest, 0

        async def read_and_approve(op: str) -> Sequence[Row]:
            nonlocal reads
            rows, reads = await read(op), reads + 1
            if reads == 1:
                pins.approve(X.ref, CHANGED)
            return rows

        monkeypatch.setattr(store, "latest", read_and_approve)
        await load_pins(pins, store, [SERVER])
        assert reads == 4  # pins and listings, twice
        assert pins.judge(X.ref, CHANGED).drift is None
        assert pins.judge(X.ref, X.raw).drift is None


async def test_a_store_that_does_not_answer_in_time_approves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer_nothing(_: str) -> Sequence[Row]:
        raise SilentStoreError("it does not answer")

    async with stored(tmp_path) as store:
        pins = await open_pins(Journal(store, [SERVER]), [SERVER])
        assert pins.judge(X.ref, X.raw).drift is None
        monkeypatch.setattr(store, "latest", answer_nothing)
        with pytest.raises(SilentStoreError):
            await load_pins(pins, store, [SERVER])
        assert grade(pins.judge(X.ref, CHANGED).drift) == "routing"


async def test_finding_c1_a_cosmetic_change_is_not_pinned(tmp_path: Path) -> None:
    """Small steps that each look harmless do not add up to an approved definition."""
    async with stored(tmp_path) as store:
        pins = await open_pins(Journal(store, [SERVER]), [SERVER])
        first = {**X.raw, "description": "Write data to a file"}
        assert pins.judge(X.ref, first).drift is None
        for _ in range(2):
            turned = pins.judge(X.ref, {**X.raw, "description": "Write a file to data"}).drift
            assert grade(turned) == "cosmetic"
        turned = pins.judge(X.ref, {**X.raw, "description": "Write a secret file to data"}).drift
        assert turned is not None
        assert (turned.grade, turned.before) == ("routing", first)


async def test_finding_c1_a_ledger_of_the_first_edition_disables_nothing(tmp_path: Path) -> None:
    """Its pins have no canonical digest, and its lists no disabled tools."""
    listed: JsonObject = {**X.raw, "description": "Allowed commands: ls, cat, pwd"}
    turned: JsonObject = {**X.raw, "description": "Allowed commands: pwd, ls, cat"}
    async with stored(tmp_path) as store:
        identity = server_identity(SERVER)
        for text, tool, raw in (("{}", "y", Y.raw), (compact_json(listed), "x", listed)):
            facts: JsonObject = {
                "identity": identity,
                "server": "a",
                "tool": tool,
                "pin": definition_pin(raw),
                "definition": content_address(text),
            }
            row = Event("old", "2026-01-01T00:00:00.000Z", "pin", facts, f"{identity}{tool}")
            # The text of one definition is gone: its digest is all there is.
            documents = {content_address(text): text} if tool == "x" else {}
            store.append(partial(Batch, (row,), documents))
        pins = await open_pins(Journal(store, [SERVER]), [SERVER])
        assert [pins.judge(X.ref, one).drift for one in (listed, turned)] == [None, None]
        assert pins.judge(Y.ref, Y.raw).drift is None
        assert grade(pins.judge(Y.ref, {**Y.raw, "title": "Y"}).drift) == "routing"
        assert await read_disabled_tools(store, [SERVER]) == {}


async def test_another_server_under_the_same_id_starts_without_pins(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        await seen(store, "x")
        pins = await open_pins(Journal(store, [OTHER]), [OTHER])
        assert pins.judge(X.ref, CHANGED).drift is None
        assert await read_pinned(store, [OTHER]) == {}
        again = await open_pins(Journal(store, [SERVER]), [SERVER])
        assert again.judge(X.ref, X.raw).drift is None
        assert grade(again.judge(X.ref, CHANGED).drift) == "routing"


async def test_pins_that_are_only_read_pin_nothing(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        await seen(store, "x")
        pins = await read_pins(store, [SERVER])
        assert grade(pins.judge(X.ref, CHANGED).drift) == "routing"
        before = await store.latest("pin")
        other = RemoteToolRef("b", "y")
        assert [pins.judge(other, Y.raw).drift, pins.judge(other, CHANGED).drift] == [None, None]
        await store.flush()
        assert await store.latest("pin") == before


async def test_which_tools_were_disabled_is_read_back_as_far_as_it_makes_sense(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        journal = Journal(store, [SERVER])
        one = DisabledTool(X.ref, "a__x", DriftGrade.ROUTING, ("description",))
        journal.record_listing("a", remotes("y"), [one])
        await store.flush()
        assert await read_disabled_tools(store, [SERVER]) == {"a": [one]}
        assert await read_disabled_tools(store, [OTHER]) == {}
        assert await read_disabled_tools(store, [replace(SERVER, include_tools=["y"])]) == {}
        odd = '[1, {"tool": 2}, {"tool": "z", "grade": "odd", "name": 1, "fields": [1, "title"]}]'
        forge(
            store_file(tmp_path),
            f"UPDATE events SET facts = json_set(facts, '$.disabled', json('{odd}')) WHERE op = 'list'",
        )
        ((found,),) = (await read_disabled_tools(store, [SERVER])).values()
        assert (found.ref.name, found.name, found.grade) == ("z", "a__z", DriftGrade.BREAKING)
        assert found.fields == ("title",)


async def test_the_definitions_of_a_server_are_those_of_its_last_listing_in_its_order(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        await seen(store, "y", "x", "z")
        await seen(store, "y", "x")
        found = await read_pinned(store, [SERVER])
        assert {server: [one["name"] for one in rows] for server, rows in found.items()} == {"a": ["y", "x"]}
        assert list(found["a"][1].items()) == list(X.raw.items())
        narrower = replace(SERVER, include_tools=["x"])
        assert await read_pinned(store, [narrower]) == {}


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM documents WHERE text LIKE '%\"x\"%'",
        "UPDATE documents SET text = replace(text, 'A tool', 'Another')",
        "DELETE FROM latest WHERE op = 'pin' AND subject LIKE '%\"x\"]'",
        "UPDATE events SET facts = json_set(facts, '$.tools', 1) WHERE op = 'list'",
        "UPDATE events SET facts = json_set(facts, '$.server', 1)",
    ],
)
async def test_a_server_with_a_missing_definition_is_left_out(tmp_path: Path, statement: str) -> None:
    async with stored(tmp_path) as store:
        await seen(store, "x", "y")
        forge(store_file(tmp_path), statement)
        assert await read_pinned(store, [SERVER]) == {}


async def test_a_definition_of_another_type_is_ignored(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        await seen(store, "x")
        for text in ("[1]", "{"):
            address = content_address(text)
            forge(
                store_file(tmp_path),
                f"INSERT INTO documents VALUES ('{address}', '{text}')",
                f"UPDATE events SET facts = json_set(facts, '$.definition', '{address}') WHERE op = 'pin'",
            )
            assert await read_pinned(store, [SERVER]) == {}


async def test_an_empty_pin_is_ignored(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        await seen(store, "x", "y")
        forge(
            store_file(tmp_path),
            "UPDATE events SET facts = json_set(facts, '$.pin', 1) WHERE subject LIKE '%\"x\"]'",
            "UPDATE events SET facts = json_set(facts, '$.tool', 1) WHERE subject LIKE '%\"y\"]'",
        )
        pins = await open_pins(Journal(store, [SERVER]), [SERVER])
        await store.flush()
        assert [pins.judge(one.ref, CHANGED).drift for one in (X, Y)] == [None, None]


# -- retention --------------------------------------------------------------------------------


async def test_runs_beyond_the_limit_are_removed_and_recorded(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        first = await seen(store, "x")
        for run in range(4):
            store.append(batch(run, run=f"run{run}"))
        last = Journal(store, [SERVER])
        last.record_entries(ledger_of(("a", "x")).log)
        assert await store.prune(Retention(runs=3), last.run) == PruneResult(3, 5)
        assert await store.prune(Retention(runs=3), last.run) is None
        runs = [run.run for run in await store.runs()]
        assert runs == ["run2", "run3", last.run]
        assert await store.rows(first.run) == ()
        rows = await store.rows(last.run)
        assert [row.op for row in rows] == ["run", "enroll", "pin", "list", "pin", "pin", "prune"]
        facts = rows[-1].facts
        assert (facts["first"], facts["last"], facts["rows"], facts["runs"]) == (1, 5, 5, 3)
        assert await store.verify() == ()
        assert len(store.notes) == 1
        # What is in force is in force still.
        pins = await open_pins(last, [SERVER])
        assert grade(pins.judge(X.ref, CHANGED).drift) == "routing"
        assert [one["name"] for one in (await read_pinned(store, [SERVER]))["a"]] == ["x"]
        last.record_entries(ledger_of(("a", "y")).log)
        assert await store.flush()
        assert [row.seq for row in await store.rows(last.run)] == list(range(1, 9))
        assert await store.verify() == ()
    async with stored(tmp_path) as store:
        assert (await store.verify(), store.notes) == ((), ())
        later = Journal(store)
        assert await store.prune(Retention(runs=1), later.run) == PruneResult(3, 10)
        assert await store.verify() == ()
        assert [run.run for run in await store.runs()] == [later.run]


async def test_documents_go_with_the_last_row_that_needs_them(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        old = Journal(store)
        old.record_turn([X.descriptor, Y.descriptor])
        old.record_entries(ledger_of(("a", "x")).log)
        new = Journal(store)
        new.record_turn([X.descriptor])
        assert await store.flush()
        before = query_file(store_file(tmp_path), "SELECT count(*) FROM documents")
        assert await store.prune(Retention(runs=1), new.run) is not None
        # Two descriptors, a definition and two lists; then a descriptor and its list.
        assert (before, query_file(store_file(tmp_path), "SELECT count(*) FROM documents")) == ([(5,)], [(2,)])
        assert await store.verify() == ()


def test_runs_that_are_too_old_go_however_few_there_are(tmp_path: Path) -> None:
    day = 86_400_000
    clock = ManualClock(400 * day)
    db = LedgerDb(None)
    try:
        for number, age in enumerate((300, 200, 100, 98)):
            made = batch(number, run=f"run{age}")()
            at = iso_utc(clock.now_ms() - age * day)
            event = replace(made.events[0], at=at)
            db.append([replace(made, events=(event,))])
        done = prune(db, Retention(days=100), "own", now=clock.now_ms)
        assert done is not None
        assert done == PruneResult(2, 2)
        assert [run.run for run in db.runs()] == ["run100", "run98", "own"]
        done = prune(db, Retention(days=1), "own", now=clock.now_ms)
        assert done is not None
        assert [run.run for run in db.runs()] == ["run98", "own"]
    finally:
        db.close()


@pytest.mark.parametrize("jump", [60, 400, 40_000])
def test_finding_r8_a_clock_that_jumps_removes_nothing(jump: int) -> None:
    day = 86_400_000
    clock = ManualClock(20_000 * day)
    db = LedgerDb(None)

    def run(name: str) -> None:
        made = batch(1, run=name)()
        db.append([replace(made, events=(replace(made.events[0], at=iso_utc(clock.now_ms())),))])

    try:
        for number in range(10):
            run(f"day{number}")
            clock.advance(day)
        clock.advance(jump * day)
        for number in range(3):  # several runs while the clock is wrong
            run(f"jumped{number}")
            assert prune(db, Retention(days=30), f"jumped{number}", now=clock.now_ms) is None
            clock.advance(day // 10)
        clock.advance(-jump * day)
        run("back")
        assert prune(db, Retention(days=30), "back", now=clock.now_ms) is None
        # A user who comes back after a long time: the second day shows that the clock is right.
        clock.advance(jump * day)
        run("later")
        clock.advance(2 * day)
        run("own")
        done = prune(db, Retention(days=30), "own", now=clock.now_ms)
        assert done is not None
        assert "day0" not in [one.run for one in db.runs()]
    finally:
        db.close()


async def test_a_run_that_is_pruned_while_it_lasts_keeps_its_numbers(tmp_path: Path) -> None:
    async with stored(tmp_path) as one, stored(tmp_path) as other:
        slow = Journal(one)
        await one.flush()
        quick = Journal(other)
        assert await other.prune(Retention(runs=1), quick.run) == PruneResult(1, 1)
        slow.record_entries(ledger_of(("a", "x")).log)
        await one.flush()
        assert [row.seq for row in await other.rows(slow.run)] == [2]
        assert await other.verify() == ()
        entries, _ = await read_ledger_log(one, slow.run)
        assert BridgeLedger.from_log(entries) == ledger_of(("a", "x"))


async def test_a_beginning_that_no_row_accounts_for_is_damage(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        for run in range(3):
            store.append(batch(run, run=f"run{run}"))
        assert await store.prune(Retention(runs=1), "run2") is not None
        forge(
            store_file(tmp_path),
            "UPDATE ends SET (position, digest) = "
            "(SELECT position, digest FROM events WHERE position = 3) WHERE name = 'base'",
            "DELETE FROM events WHERE position = 3",
        )
        found = [note.message for note in await store.verify()]
        assert "rows 1 to 3 are missing, and no row says why" in found
