"""A damaged, emptied or removed ledger: its valid rows are kept, and no pin is forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands.helpers import configured, project_file, row, user_file
from tests.commands.mcp.test_pins import Changing
from tests.support.scripts import run
from tests.support.stores import fill_store, query_file, run_sql, store_file, stored

from induscode.deck.mcp.store import LedgerStore, SilentStoreError
from induscode.deck.mcp.store import fallback as store_pins
from induscode.deck.mcp.store.database import store_path
from induscode.deck.mcp.store.events import Batch, Event
from induscode.deck.mcp.store.fallback import Pin, append_pins, read_backup

pytestmark = pytest.mark.anyio


def pins_file(folder: Path) -> Path:
    return store_file(folder).with_name("pins.jsonl")


async def list_pinned_tools(store: LedgerStore) -> list[str]:
    rows = await store.latest("pin")
    documents = await store.documents([str(one.facts["definition"]) for one in rows])
    assert len(documents) == len(rows)
    return sorted(str(one.facts["tool"]) for one in rows)


def names(count: int) -> list[str]:
    return sorted(f"t{number}" for number in range(1, count + 1))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET facts = replace(facts, 't20', 'tX') WHERE position = 20",
        "UPDATE events SET facts = '{' WHERE position = 7",
        "DELETE FROM ends",
    ],
)
async def test_finding_d5_a_damaged_ledger_is_set_aside_and_its_pins_apply(tmp_path: Path, damage: str) -> None:
    await fill_store(tmp_path, 20)
    path = store_file(tmp_path)
    run_sql(path, damage)
    async with stored(tmp_path) as store:
        await store.verify(set_aside=True)
        assert await list_pinned_tools(store) == names(20)
        (note,) = store.notes
        assert "a new one was begun. The definitions of 20 tools that were approved are kept" in note.message
        aside = note.remedy.removeprefix("the damaged file is ")
        assert len(query_file(Path(aside), "SELECT * FROM events")) == 20
    (kept,) = query_file(path, "SELECT facts FROM events WHERE op = 'recover'")
    facts = json.loads(str(kept[0]))
    assert (facts["pins"], facts["missing"]) == (20, [])
    async with stored(tmp_path) as store:
        assert (store.notes, await list_pinned_tools(store)) == ((), names(20))
        assert ["set aside" in note.message for note in await store.verify()] == [True]


async def test_a_ledger_that_is_damaged_again_continues_in_memory(tmp_path: Path) -> None:
    await fill_store(tmp_path, 3)
    async with stored(tmp_path) as store:
        for said in ("a new one was begun", "what happens is kept until the session ends"):
            run_sql(store_file(tmp_path), "DELETE FROM ends")
            await store.verify(set_aside=True)
            assert said in store.notes[-1].message
            assert await list_pinned_tools(store) == names(3)
    assert len([*store_file(tmp_path).parent.glob("ledger.db.corrupt-*")]) == 1


@pytest.mark.parametrize("removed", ["ledger.db", "ledger.db*"])
async def test_finding_d5_a_removed_ledger_is_reported_and_its_pins_apply(tmp_path: Path, removed: str) -> None:
    await fill_store(tmp_path, 5)
    for one in store_file(tmp_path).parent.glob(removed):
        one.unlink()
    async with stored(tmp_path) as store:
        assert ["is not there any more" in note.message for note in store.notes] == [True]
        assert "definitions of 5 tools that were approved are kept" in store.notes[0].message
        assert await list_pinned_tools(store) == names(5)


async def test_finding_d5_an_emptied_ledger_is_reported_and_its_pins_apply(tmp_path: Path) -> None:
    await fill_store(tmp_path, 5)
    path = store_file(tmp_path)
    for side in path.parent.glob("ledger.db-*"):
        side.unlink()
    path.write_bytes(b"")
    async with stored(tmp_path) as store:
        assert len(store.notes) == 1
        assert await list_pinned_tools(store) == names(5)


async def test_finding_d5_pins_missing_in_the_index_come_back(tmp_path: Path) -> None:
    await fill_store(tmp_path, 5)
    run_sql(store_file(tmp_path), "DELETE FROM latest WHERE subject = 's3'")
    async with stored(tmp_path) as store:
        assert await list_pinned_tools(store) == names(5)
        assert ["1 pins were missing" in note.message for note in store.notes] == [True]


async def test_finding_d5_pins_of_a_ledger_without_a_pins_file_are_copied(tmp_path: Path) -> None:
    await fill_store(tmp_path, 5)
    pins_file(tmp_path).unlink()
    async with stored(tmp_path) as store:
        assert await list_pinned_tools(store) == names(5)
        assert store.notes == ()
    store_file(tmp_path).unlink()
    async with stored(tmp_path) as store:
        assert await list_pinned_tools(store) == names(5)


@pytest.mark.parametrize("pins", ["missing", "unreadable"])
async def test_finding_s01_a_damaged_ledger_without_its_pins_file_approves_nothing(tmp_path: Path, pins: str) -> None:
    await fill_store(tmp_path, 9)
    pins_file(tmp_path).unlink()
    if pins == "unreadable":
        pins_file(tmp_path).mkdir()
    run_sql(store_file(tmp_path), "UPDATE events SET facts = '{' WHERE position = 4")
    for _ in range(2):
        async with stored(tmp_path) as store:
            for op in ("pin", "list"):
                with pytest.raises(SilentStoreError, match="its pins are in no other file"):
                    await store.latest(op)
            assert "remove it to start over" in store.notes[-1].message or pins == "unreadable"
    # The damaged file is still there, until its user removes it.
    assert len(query_file(store_file(tmp_path), "SELECT * FROM events")) == 9
    path = store_file(tmp_path)
    for one in path.parent.glob("ledger.db*"):
        one.unlink()
    if pins == "missing":
        async with stored(tmp_path) as store:
            assert await store.latest("pin") == ()


async def test_finding_d5_the_last_approval_applies_after_a_recovery(tmp_path: Path) -> None:
    def approved(pin: str) -> Batch:
        return Batch((Event("r1", "now", "pin", {"tool": "t", "pin": pin}, "s"),))

    async with stored(tmp_path) as store:
        for pin in ("first", "second"):
            store.append(lambda pin=pin: approved(pin))
            await store.flush()
    run_sql(store_file(tmp_path), "UPDATE events SET digest = 'x' WHERE position = 2")
    async with stored(tmp_path) as store:
        assert [one.facts["pin"] for one in await store.latest("pin")] == ["second"]


async def test_finding_d5_a_damaged_line_of_the_pins_file_loses_only_that_pin(tmp_path: Path) -> None:
    await fill_store(tmp_path, 5)
    lines = pins_file(tmp_path).read_bytes().splitlines()
    lines[2] = lines[2].replace(b"t3", b"tX")
    pins_file(tmp_path).write_bytes(b"\n".join([*lines, b"[1]", b"{", b'{"subject":1}', b"[" * 100_000]))
    store_file(tmp_path).unlink()
    async with stored(tmp_path) as store:
        assert "4 tools that were approved are kept, 5 are lost" in store.notes[0].message
        assert await list_pinned_tools(store) == ["t1", "t2", "t4", "t5"]


async def test_finding_d5_an_unusable_pins_file_is_reported(tmp_path: Path) -> None:
    await fill_store(tmp_path, 2)
    pins_file(tmp_path).unlink()
    pins_file(tmp_path).mkdir()
    async with stored(tmp_path) as store:
        assert await list_pinned_tools(store) == names(2)
        said = [note.message for note in store.notes]
        assert ["it cannot be" in one for one in said] == [True, True]
        assert "Pins would be lost with the ledger" in said[1]


async def test_finding_d5_the_pins_file_is_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_pins, "_SPARE_LINES", 3)
    for _ in range(4):
        await fill_store(tmp_path, 3)
    assert pins_file(tmp_path).stat().st_mode & 0o777 == 0o600
    async with stored(tmp_path) as store:
        assert await list_pinned_tools(store) == names(3)
    found = read_backup(str(store_file(tmp_path)))
    assert found is not None
    assert (found.lines, len(found.pins), found.damaged) == (3, 3, 0)


async def test_finding_d5_a_ledger_that_cannot_be_used_still_has_its_pins(tmp_path: Path) -> None:
    await fill_store(tmp_path, 3)
    path = store_file(tmp_path)
    for one in path.parent.glob("ledger.db*"):
        one.unlink()
    path.mkdir()
    async with stored(tmp_path) as store:
        assert store.path is None
        assert await list_pinned_tools(store) == names(3)


# -- through the commands ---------------------------------------------------------------------


def lose(how: str) -> None:
    path = Path(store_path())
    if how == "emptied":
        for side in path.parent.glob("ledger.db-*"):
            side.unlink()
        path.write_bytes(b"")
    elif how == "removed":
        for one in path.parent.glob("ledger.db*"):
            one.unlink()
    else:
        run_sql(path, "UPDATE events SET facts = '{' WHERE op = 'pin'", "DELETE FROM ends")


@pytest.mark.process
@pytest.mark.parametrize("how", ["damaged", "emptied", "removed"])
def test_finding_d5_a_changed_tool_stays_disabled_when_the_ledger_is_lost(tmp_path: Path, how: str) -> None:
    server = Changing(tmp_path)
    configured(user_file(), {"s": server.row})
    assert run("mcp", "list", cwd=tmp_path).returncode == 0
    server.has(one={"description": "One, and your keys."}, two={"description": "Two."})
    lose(how)
    done = run("call", "s__one", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "the ledger" in done.stderr
    assert "indus mcp approve s one" in done.stderr
    changed = run("mcp", "diff", cwd=tmp_path)
    assert (changed.returncode, changed.stdout.count("s/one: ")) == (1, 1)
    assert run("call", "s__two", cwd=tmp_path).stdout == "done\n"


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [
        ("mcp", "list"), ("tools",), ("call", "honest__echo", "text=a"), ("mcp", "doctor"),
        ("ledger",), ("ledger", "verify"), ("mcp", "diff"), ("mcp", "get", "honest"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_finding_d5_every_command_reports_a_lost_ledger(tmp_path: Path, words: tuple[str, ...]) -> None:
    configured(user_file(), {"honest": row()})
    state = Path(store_path()).parent
    state.mkdir(parents=True, mode=0o700)
    append_pins(store_path(), [Pin("s", {"tool": "t"})])
    done = run(*words, cwd=tmp_path)
    assert done.stderr.count("it is not there any more; a new one was begun") == 1, done.stderr
    assert "The definitions of 1 tools that were approved are kept" in done.stderr


@pytest.mark.process
def test_finding_d5_with_a_lock_only_its_definitions_are_taken_for_new_tools(tmp_path: Path) -> None:
    server = Changing(tmp_path)
    configured(project_file(tmp_path), {"s": server.row})
    assert run("mcp", "trust", "s", "--yes", cwd=tmp_path).returncode == 0
    assert run("mcp", "lock", cwd=tmp_path).returncode == 0
    forget_all()
    assert run("call", "s__one", cwd=tmp_path).stdout == "done\n"
    forget_all()
    server.has(one={"description": "One, and your keys."}, two={"description": "Two."}, three={})
    for tool in ("one", "three"):
        done = run("call", f"s__{tool}", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (3, ""), tool
    changed = run("mcp", "diff", cwd=tmp_path)
    assert [changed.stdout.count(f"s/{tool}: ") for tool in ("one", "two", "three")] == [1, 0, 1]
    assert run("call", "s__two", cwd=tmp_path).stdout == "done\n"
    assert run("mcp", "approve", "s", "one", "--yes", cwd=tmp_path).returncode == 0
    assert run("call", "s__one", cwd=tmp_path).stdout == "done\n"
    (tmp_path / ".indusvx" / "mcp.lock.json").write_text("{", encoding="utf-8")
    done = run("tools", cwd=tmp_path)
    assert "nothing new of the project's servers is approved" in done.stderr
    assert "s__three" in done.stdout.partition("DISABLED")[2]


def forget_all() -> None:
    """Remove the ledger and everything that shows that there was one."""
    state = Path(store_path()).parent
    for one in (*state.glob("ledger.db*"), state / "pins.jsonl"):
        one.unlink()


def test_finding_p8_pins_that_another_process_adds_survive_a_compaction(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.db")
    for number in range(300):
        append_pins(ledger, [Pin("old", {"number": number})])
    looked_at = read_backup(ledger)
    assert looked_at is not None
    append_pins(ledger, [Pin("new", {"tool": "t"})])
    store_pins.compact_backup(ledger, looked_at)
    after = read_backup(ledger)
    assert after is not None
    assert (after.lines, set(after.pins)) == (2, {"old", "new"})
