"""Checkpoints: what a file held comes back, byte for byte, and nothing else is touched."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scripts import ROOT

from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.ports import FileKind
from indusagi.capabilities.tools.edit import edit_tool, write_tool
from indusagi.capabilities.tools.read import read_tool
from induscode.deck import DeckContext, DeckFramework
from induscode.deck.cards import checkpoint
from induscode.deck.cards.checkpoint import CHECKPOINTED_TOOLS, CheckpointingCard, maybe_wrap_checkpoint
from induscode.deck.stores.checkpoints import FileCheckpoints
from induscode.deck.stores.line_log import LineLog, decode_line, encode_line
from induscode.deck.stores.tree import FileImage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext

pytestmark = pytest.mark.anyio


class Memory:
    """A store that only remembers."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes | None]] = []

    def record(self, path: str, previous: bytes | None) -> None:
        self.records.append((path, previous))


class Broken:
    """A store that cannot keep anything."""

    def record(self, path: str, previous: bytes | None) -> None:
        raise OSError("the disk is full")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileCheckpoints]:
    made = FileCheckpoints(tmp_path / "checkpoints")
    yield made
    made.close()


def wrapped(name: str, store: object, work: Path) -> CheckpointingCard:
    card = {"write": write_tool, "edit": edit_tool}[name]()
    deck = DeckContext(str(work), DeckFramework(checkpoint=store))  # type: ignore[arg-type]
    found = maybe_wrap_checkpoint(card, deck)
    assert isinstance(found, CheckpointingCard)
    return found


# -- the wrapper ------------------------------------------------------------------------------


def test_without_a_store_the_very_same_card_comes_back(work: Path) -> None:
    card = write_tool()
    assert maybe_wrap_checkpoint(card, DeckContext(str(work))) is card


def test_only_the_tools_that_change_files_are_wrapped(work: Path) -> None:
    deck = DeckContext(str(work), DeckFramework(checkpoint=Memory()))
    read = read_tool()
    assert maybe_wrap_checkpoint(read, deck) is read
    assert CHECKPOINTED_TOOLS == ("write", "edit")


def test_a_wrapped_card_looks_like_the_inner_card(work: Path) -> None:
    card = wrapped("edit", Memory(), work)
    inner = card.inner
    assert (card.name, card.label, card.description, card.parameters, card.read_only) == (
        inner.name,
        inner.label,
        inner.description,
        inner.parameters,
        inner.read_only,
    )
    assert card.descriptor == edit_tool().descriptor


async def test_the_content_of_a_file_is_recorded_before_a_change(work: Path) -> None:
    store = Memory()
    ctx = make_local_context(work)
    target = work / "a.bin"
    target.write_bytes(b"\xff\x00old\r\n")
    await read_tool().run({"path": "a.bin"}, ctx)
    card = wrapped("write", store, work)
    ctx = replace(ctx, framework=replace(ctx.framework, read_state=None))
    await card.run({"path": "a.bin", "content": "new"}, ctx)
    await card.run({"file_path": "sub/b.txt", "content": "b"}, ctx)
    assert store.records == [(str(target), b"\xff\x00old\r\n"), (str(work / "sub/b.txt"), None)]


async def test_a_failing_store_never_prevents_a_change(work: Path) -> None:
    ctx = make_local_context(work)
    result = await wrapped("write", Broken(), work).run({"path": "a", "content": "x"}, ctx)
    assert not result.is_error
    assert (work / "a").read_text(encoding="utf-8") == "x"
    assert "the disk is full" in str(result.details["notCheckpointed"])


async def test_a_file_too_large_to_record_is_changed_and_reported(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LARGEST_BYTES", 3)
    (work / "a").write_text("large", encoding="utf-8")
    ctx = make_local_context(work)
    ctx = replace(ctx, framework=replace(ctx.framework, read_state=None))
    result = await wrapped("write", Memory(), work).run({"path": "a", "content": "x"}, ctx)
    assert not result.is_error
    assert "5 bytes" in str(result.details["notCheckpointed"])


@pytest.mark.parametrize("arguments", [None, [], {}, {"path": 5}, "path"])
async def test_arguments_without_a_path_are_left_to_the_card_inside(work: Path, arguments: object) -> None:
    store = Memory()
    result = await wrapped("write", store, work).run(arguments, make_local_context(work))  # type: ignore[arg-type]
    assert (result.is_error, store.records) == (True, [])


async def test_r43_a_file_outside_is_neither_kept_nor_changed(work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine", encoding="utf-8")
    (work / "link").symlink_to(outside)
    store = Memory()
    ctx = make_local_context(work)
    for path in ("link", "../outside", str(outside)):
        result = await wrapped("write", store, work).run({"path": path, "content": "x"}, ctx)
        assert result.is_error
    assert store.records == []
    assert outside.read_text(encoding="utf-8") == "mine"


# -- the way back -----------------------------------------------------------------------------


async def begin(store: FileCheckpoints, node: str) -> None:
    await anyio.to_thread.run_sync(store.begin, node)


async def change(card: CheckpointingCard, ctx: ToolContext, path: str, content: str) -> None:
    ctx = replace(ctx, framework=replace(ctx.framework, read_state=None))
    result = await card.run({"path": path, "content": content}, ctx)
    assert not result.is_error


async def test_every_file_comes_back_as_it_was_before_a_node(work: Path, store: FileCheckpoints) -> None:
    ctx = make_local_context(work)
    card = wrapped("write", store, work)
    (work / "a").write_bytes(b"\xffone")
    os.chmod(work / "a", 0o640)
    await begin(store, "one")
    await change(card, ctx, "a", "two")
    await change(card, ctx, "new", "x")
    await begin(store, "two")
    await change(card, ctx, "a", "three")
    steps = await store.preview("two", ctx.fs)
    assert [(os.path.basename(step.path), step.action, step.conflict) for step in steps] == [("a", "write", False)]
    done = await store.restore("two", ctx.fs)
    assert ((work / "a").read_bytes(), (work / "new").read_bytes()) == (b"two", b"x")
    again = await store.restore("one", ctx.fs)
    assert (work / "a").read_bytes() == b"\xffone"
    assert os.stat(work / "a").st_mode & 0o777 == 0o640
    assert not (work / "new").exists()
    assert again.left == ()
    back = await store.restore(again.safety, ctx.fs)
    assert ((work / "a").read_bytes(), (work / "new").read_bytes()) == (b"two", b"x")
    assert (len(done.done), len(back.done)) == (1, 2)
    assert (await anyio.to_thread.run_sync(store.nodes))[:2] == ("one", "two")


async def test_the_first_record_under_a_node_applies(work: Path, store: FileCheckpoints) -> None:
    ctx = make_local_context(work)
    card = wrapped("write", store, work)
    (work / "a").write_text("0", encoding="utf-8")
    await begin(store, "n")
    for number in "123":
        await change(card, ctx, "a", number)
    await store.restore("n", ctx.fs)
    assert (work / "a").read_text(encoding="utf-8") == "0"


async def test_finding_d8_a_restore_leaves_the_other_names_of_a_file_alone(
    work: Path, store: FileCheckpoints, tmp_path: Path
) -> None:
    ctx = make_local_context(work)
    (work / "a").write_text("before", encoding="utf-8")
    await begin(store, "n")
    await change(wrapped("write", store, work), ctx, "a", "after")
    os.link(work / "a", tmp_path / "outside")
    await store.restore("n", ctx.fs)
    assert (work / "a").read_text(encoding="utf-8") == "before"
    assert (tmp_path / "outside").read_text(encoding="utf-8") == "after"


async def test_a_file_changed_by_another_program_is_restored_only_on_request(
    work: Path, store: FileCheckpoints
) -> None:
    ctx = make_local_context(work)
    await begin(store, "n")
    await change(wrapped("write", store, work), ctx, "a", "ours")
    (work / "a").write_text("theirs", encoding="utf-8")
    (step,) = await store.preview("n", ctx.fs)
    assert (step.action, step.conflict) == ("delete", True)
    kept = await store.restore("n", ctx.fs)
    assert kept.left == ((str(work / "a"), "another program has changed it since"),)
    assert (work / "a").read_text(encoding="utf-8") == "theirs"
    forced = await store.restore("n", ctx.fs, insist={str(work / "a")})
    assert forced.done == (str(work / "a"),)
    assert not (work / "a").exists()
    await store.restore(forced.safety, ctx.fs, insist={str(work / "a")})
    assert (work / "a").read_text(encoding="utf-8") == "theirs"


async def test_a_removed_directory_comes_back_with_its_mode(work: Path, store: FileCheckpoints) -> None:
    ctx = make_local_context(work)
    folder = work / "private"
    folder.mkdir(0o500)
    await begin(store, "n")
    await anyio.to_thread.run_sync(store.record, str(folder), FileImage(FileKind.DIRECTORY, b"", 0o500))
    folder.rmdir()
    await anyio.to_thread.run_sync(store.settle, str(folder), None)
    assert (await store.restore("n", ctx.fs)).done == (str(folder),)
    assert os.stat(folder).st_mode & 0o777 == 0o500


async def test_a_file_that_is_as_it_was_needs_nothing(work: Path, store: FileCheckpoints) -> None:
    ctx = make_local_context(work)
    (work / "a").write_text("0", encoding="utf-8")
    await begin(store, "n")
    await change(wrapped("write", store, work), ctx, "a", "1")
    (work / "a").write_text("0", encoding="utf-8")
    assert [step.action for step in await store.preview("n", ctx.fs)] == ["none"]
    assert (await store.restore("n", ctx.fs)).done == ()


async def test_r43_a_restore_never_leads_out_of_the_workspace(
    work: Path, tmp_path: Path, store: FileCheckpoints
) -> None:
    ctx = make_local_context(work)
    (work / "dir").mkdir()
    (work / "dir/a").write_text("0", encoding="utf-8")
    await begin(store, "n")
    await change(wrapped("write", store, work), ctx, "dir/a", "1")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("mine", encoding="utf-8")
    (work / "dir").rename(work / "moved")
    (work / "dir").symlink_to(outside)
    found = await store.restore("n", ctx.fs, insist={str(work / "dir/a")})
    assert found.done == ()
    assert len(found.left) == 1
    assert (outside / "a").read_text(encoding="utf-8") == "mine"


async def test_a_content_that_was_damaged_is_not_put_back(work: Path, store: FileCheckpoints, tmp_path: Path) -> None:
    ctx = make_local_context(work)
    (work / "a").write_text("0", encoding="utf-8")
    await begin(store, "n")
    await change(wrapped("write", store, work), ctx, "a", "1")
    for blob in (tmp_path / "checkpoints/blobs").iterdir():
        blob.write_text("else", encoding="utf-8")
    found = await store.restore("n", ctx.fs)
    assert "damaged" in found.left[0][1]
    assert (work / "a").read_text(encoding="utf-8") == "1"


def test_the_store_is_private_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    first = FileCheckpoints(folder)
    first.begin("n")
    first.record("/w/a", b"x")
    first.close()
    second = FileCheckpoints(folder)
    second.record("/w/a", b"y")
    assert second.node == "n"
    assert second.nodes() == ("n",)
    second.close()
    modes = {oct(path.stat().st_mode & 0o777) for path in folder.rglob("*") if path.is_file()}
    assert modes == {"0o600"}
    assert len(list((folder / "blobs").iterdir())) == 1


def test_a_blob_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileCheckpoints(tmp_path / "c")
    store.begin("n")

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        store.record("/w/a", b"x")
    store.close()
    assert list((tmp_path / "c/blobs").iterdir()) == []


# -- crashes ----------------------------------------------------------------------------------

KILLED = """
import os, sys, anyio
from dataclasses import replace
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.tools.edit import write_tool
from induscode.deck import DeckContext, DeckFramework
from induscode.deck.cards.checkpoint import maybe_wrap_checkpoint
from induscode.deck.stores.checkpoints import FileCheckpoints

work, kept = sys.argv[1:3]

async def main():
    store = FileCheckpoints(kept)
    store.begin("n")
    deck = DeckContext(work, DeckFramework(checkpoint=store))
    card = maybe_wrap_checkpoint(write_tool(), deck)
    ctx = make_local_context(work)
    ctx = replace(ctx, framework=replace(ctx.framework, read_state=None))
    print("ready", flush=True)
    for number in range(100_000):
        await card.run({"path": "a", "content": f"{number % 10}" * 200_000}, ctx)
        print(number, flush=True)

anyio.run(main)
"""


@pytest.mark.process
async def test_r55_a_kill_at_any_moment_leaves_old_or_new_and_the_way_back(tmp_path: Path, work: Path) -> None:
    for round_ in range(5):
        (work / "a").write_bytes(b"\xff" * 1_000)
        kept = tmp_path / f"kept{round_}"
        command = [sys.executable, "-c", KILLED, str(work), str(kept)]
        async with await anyio.open_process(command, cwd=ROOT) as child:
            assert child.stdout is not None
            for _ in range(round_ + 1):
                await child.stdout.receive()
            child.kill()
        found = (work / "a").read_bytes()
        assert found == b"\xff" * 1_000 or (len(set(found)) == 1 and len(found) == 200_000)
        store = FileCheckpoints(kept)
        insist = {str(work / "a")}
        await store.restore("n", make_local_context(work).fs, insist=insist)
        store.close()
        assert (work / "a").read_bytes() == b"\xff" * 1_000


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers()), max_size=6), st.data())
def test_a_log_that_was_cut_anywhere_keeps_every_whole_line_before(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, int]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    log = LineLog(str(path))
    ends = [0]
    for row in rows:
        log.append({**row})
        ends.append(path.stat().st_size)
    log.close()
    cut = data.draw(st.integers(0, ends[-1]))
    os.truncate(path, cut)
    again = LineLog(str(path))
    whole = sum(end <= cut for end in ends) - 1
    assert again.rows == rows[:whole]
    assert (again.set_aside is None) == (cut in ends)
    again.append({"more": 1})
    again.close()
    last = LineLog(str(path))
    assert last.rows == [*rows[:whole], {"more": 1}]
    last.close()


@given(st.dictionaries(st.text(), st.text()), st.data())
def test_a_line_with_a_changed_byte_is_rejected(row: dict[str, str], data: st.DataObject) -> None:
    line = encode_line({**row})[:-1]
    assert decode_line(line) == row
    at = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda value: value != line[at]))
    assert decode_line(line[:at] + bytes([other]) + line[at + 1 :]) is None


def test_a_row_that_cannot_be_written_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LineLog(str(tmp_path / "log"))
    log.append({"a": 1})

    def fail(handle: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            log.append({"b": 2})
    log.append({"c": 3})
    log.close()
    again = LineLog(str(tmp_path / "log"))
    again.close()
    assert again.rows == [{"a": 1}, {"c": 3}]


async def test_concurrent_records_are_all_stored(store: FileCheckpoints, work: Path) -> None:
    await begin(store, "n")
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(anyio.to_thread.run_sync, store.record, f"{work}/{number}", str(number).encode())
    changes = await anyio.to_thread.run_sync(store._changes_since, "n")
    assert len(changes) == 20
