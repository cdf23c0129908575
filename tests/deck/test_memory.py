"""Notes: in memory or in a file, never larger than agreed, never doubled."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.local import make_local_context
from induscode.deck import DeckContext, DeckFramework
from induscode.deck.cards.memory import LARGEST_BYTES, FileMemory, InMemoryStore, append_note_line, memory_card

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject
    from induscode.deck import Capability
    from induscode.deck.contract import MemoryStore

pytestmark = pytest.mark.anyio


def card(tmp_path: Path, store: MemoryStore | None = None) -> Capability:
    return memory_card().build(DeckContext(str(tmp_path), DeckFramework(memory=store)))


async def ask(memory: Capability, tmp_path: Path, **arguments: str) -> tuple[bool, str, JsonObject]:
    result = await memory.run({**arguments}, make_local_context(tmp_path))
    return result.is_error, result.content[0].text, dict(result.details)  # type: ignore[union-attr]


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore:
    if request.param == "memory":
        return InMemoryStore()
    return FileMemory(tmp_path / ".indusvx" / "memory.md")


async def test_notes_are_written_added_to_and_read(tmp_path: Path, store: MemoryStore) -> None:
    memory = card(tmp_path, store)
    assert await ask(memory, tmp_path, action="read") == (False, "The notes are empty.", {"bytes": 0})
    assert (await ask(memory, tmp_path, action="append", content="one"))[1] == "Added."
    await ask(memory, tmp_path, action="append", content="two\n")
    assert (await ask(memory, tmp_path, action="read"))[1] == "one\ntwo\n"
    _, said, _ = await ask(memory, tmp_path, action="replace", content="one\nthree\n")
    assert "-two" in said
    assert "+three" in said
    assert await store.read() == "one\nthree\n"


async def test_appending_the_last_line_again_changes_nothing(tmp_path: Path, store: MemoryStore) -> None:
    memory = card(tmp_path, store)
    await ask(memory, tmp_path, action="append", content="one")
    assert "already" in (await ask(memory, tmp_path, action="append", content="one"))[1]
    await ask(memory, tmp_path, action="append", content="ne")
    assert await store.read() == "one\nne\n"


async def test_notes_never_grow_beyond_their_size(tmp_path: Path, store: MemoryStore) -> None:
    memory = card(tmp_path, store)
    await ask(memory, tmp_path, action="append", content="x" * 100)
    for action in ("append", "replace"):
        error, said, details = await ask(memory, tmp_path, action=action, content="é" * (LARGEST_BYTES // 2 + 1))
        assert (error, details["code"]) == (True, "too_large")
        assert "left as they were" in said
    assert await store.read() == "x" * 100 + "\n"


@pytest.mark.parametrize(
    "secret",
    ["-----BEGIN RSA PRIVATE KEY-----", "ghp_" + "a" * 36, "AKIA" + "A" * 16, "sk-" + "a1" * 12, "password = hunter22"],
)
async def test_a_likely_secret_is_mentioned(tmp_path: Path, secret: str) -> None:
    _, said, _ = await ask(card(tmp_path), tmp_path, action="append", content=secret)
    assert "looks like a secret" in said


async def test_writing_needs_something_to_write(tmp_path: Path) -> None:
    for action in ("append", "replace"):
        error, _, details = await ask(card(tmp_path), tmp_path, action=action)
        assert (error, details["code"]) == (True, "invalid_arguments")


async def test_two_cards_share_state_only_through_a_store_of_the_host(tmp_path: Path) -> None:
    one, two = card(tmp_path), card(tmp_path)
    await ask(one, tmp_path, action="append", content="x")
    assert (await ask(two, tmp_path, action="read"))[1] == "The notes are empty."


async def test_a_long_change_is_shown_in_part(tmp_path: Path) -> None:
    memory = card(tmp_path)
    await ask(memory, tmp_path, action="replace", content="\n".join(map(str, range(200))))
    _, said, _ = await ask(memory, tmp_path, action="replace", content="none")
    assert "more lines]" in said


# -- the file ---------------------------------------------------------------------------------


async def test_the_file_is_private_and_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.md"
    store = FileMemory(path)
    await store.replace("old\n")
    assert path.stat().st_mode & 0o777 == 0o600

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        await store.replace("new\n")
    assert path.read_text(encoding="utf-8") == "old\n"
    assert os.listdir(tmp_path) == ["memory.md"]


async def test_a_link_or_a_pipe_in_the_place_of_the_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(OSError, match=r".+"):
            await FileMemory(tmp_path / name).read()


@given(st.lists(st.text(alphabet="ab\n", max_size=4), max_size=6))
def test_appended_notes_are_on_separate_lines(parts: list[str]) -> None:
    notes = ""
    for part in parts:
        notes = append_note_line(notes, part)
        assert notes.endswith("\n")
        kept = part.removesuffix("\n")
        assert notes == f"{kept}\n" or notes.endswith(f"\n{kept}\n")
        assert append_note_line(notes, part) == notes or not kept


async def test_finding_p8_notes_of_several_processes_are_all_kept(tmp_path: Path) -> None:
    """Each store has its own lock file descriptor, as each process has."""
    path = tmp_path / ".indusvx" / "memory.md"
    notes = [f"note {number}" for number in range(60)]
    stores = [FileMemory(path) for _ in range(3)]
    async with anyio.create_task_group() as group:
        for number, note in enumerate(notes):
            group.start_soon(stores[number % 3].append, note)
    assert sorted((await stores[0].read()).splitlines()) == sorted(notes)
