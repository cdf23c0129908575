"""Rewind: points of a conversation, what they hide, and how a rewind is undone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
import pytest

from indusagi.capabilities.local import make_local_context
from induscode.conversations.rewind import (
    find_rewind_points,
    list_rewind_points,
    preview_rewind,
    rewind,
    rewind_conversation,
)
from induscode.conversations.transcript import ConversationReadState, Transcript, add_session_note
from induscode.deck.stores import FileCheckpoints

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from indusagi.core.json import JsonObject
    from induscode.conversations.rewind import RewindPoint, RewindResult

pytestmark = pytest.mark.anyio


class Talk:
    """A conversation on disk with its checkpoints, for turns without a model."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.transcript = Transcript(str(folder / "talk"), str(self.work))
        self.checkpoints = FileCheckpoints(folder / "talk/checkpoints")
        self.fs = make_local_context(self.work).fs

    def close(self) -> None:
        self.checkpoints.close()
        self.transcript.close()

    def turn(self, prompt: str, **files: str) -> None:
        node = f"node of {prompt}"
        self.checkpoints.begin(node)
        self.transcript.mark("turn", node=node, turn=1)
        content: JsonObject = {"part_kind": "user-prompt", "content": prompt}
        self.transcript.add_message({"kind": "request", "parts": [content]})
        self.transcript.mark("turn", node=node, turn=2)
        self.transcript.add_message({"kind": "response", "parts": [{"part_kind": "text", "content": "done"}]})
        for name, text in files.items():
            path = self.work / name
            self.checkpoints.record(str(path), path.read_bytes() if path.exists() else None)
            path.write_text(text, encoding="utf-8")
            self.checkpoints.settle(str(path), text.encode())

    def prompts(self) -> list[str]:
        texts: list[str] = []
        for message in self.transcript.messages():
            if message["kind"] == "request":
                part = message["parts"][0]  # type: ignore[index]
                texts.append(part["content"])  # type: ignore[index,arg-type,call-overload]
        return texts

    def points(self) -> list[tuple[int, str]]:
        return [(point.number, point.title) for point in list_rewind_points(self.transcript, self.checkpoints)]


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    opened = Talk(tmp_path)
    yield opened
    opened.close()


def point_of(talk: Talk, number: int) -> RewindPoint:
    (point,) = (
        point for point in list_rewind_points(talk.transcript, talk.checkpoints, hidden=True) if point.number == number
    )
    return point


async def run(talk: Talk, number: int, scope: str = "both", **more: object) -> RewindResult:
    point = await anyio.to_thread.run_sync(point_of, talk, number)
    return await rewind(point, scope, talk.transcript, talk.checkpoints, talk.fs, **more)  # type: ignore[arg-type]


def test_every_prompt_is_a_point_with_its_first_words_and_files(talk: Talk) -> None:
    talk.turn("one\n\x1b[31mred " + "long " * 40, a="1")
    talk.turn("two", a="2", b="2")
    talk.turn(add_session_note("three", ["a server came up"]))
    first, second, third = list_rewind_points(talk.transcript, talk.checkpoints)
    assert first.title.startswith("one red long long")
    assert len(first.title) <= 72
    assert first.at.endswith("Z")
    assert [os.path.basename(path) for path in second.files] == ["a", "b"]
    assert (third.number, third.kind, third.title, third.files) == (3, "prompt", "three", ())


def test_a_point_lists_only_files_that_differ_and_counts_their_lines(talk: Talk) -> None:
    talk.turn("one", a="1\n")
    talk.turn("two", a="1\n2\n", b="x\n")
    talk.checkpoints.begin("failed")
    talk.transcript.mark("turn", node="failed")
    talk.checkpoints.record(str(talk.work / "a"), b"1\n2\n")
    first, second, third = list_rewind_points(talk.transcript, talk.checkpoints)
    assert third.files == ()
    assert [talk.checkpoints.count_lines(point.node) for point in (first, second, third)] == [(1, 0), (2, 0), (0, 0)]
    (talk.work / "a").write_text("other\n", encoding="utf-8")
    assert talk.checkpoints.changed_paths("failed") == [str(talk.work / "a")]


def test_a_prompt_of_another_form_is_a_point_without_words() -> None:
    odd: list[JsonObject] = [{"parts": "text"}, {"parts": ["text"]}, {"parts": [{"part_kind": "odd"}]}]
    for message in odd:
        rows: list[JsonObject] = [{"op": "turn", "node": "n"}, {"op": "message", "message": message}]
        (point,) = find_rewind_points(rows, lambda _: [])
        assert point.title == "(the prompt was not stored)"


async def test_files_and_conversation_return_together_and_come_back(talk: Talk) -> None:
    for name in ("one", "two", "three"):
        await anyio.to_thread.run_sync(lambda name=name: talk.turn(name, a=name, **{name: name}))
    preview = await preview_rewind(
        await anyio.to_thread.run_sync(point_of, talk, 2), "both", talk.transcript, talk.checkpoints, talk.fs
    )
    assert preview.messages == 4
    assert sorted((os.path.basename(step.path), step.action) for step in preview.steps) == [
        ("a", "write"),
        ("three", "delete"),
        ("two", "delete"),
    ]
    result = await run(talk, 2)
    assert result.messages == 4
    assert talk.prompts() == ["one"]
    assert sorted(os.listdir(talk.work)) == ["a", "one"]
    assert talk.points() == [(1, "one"), (4, "rewind (both) to 2")]
    undone = await run(talk, 4)
    assert undone.messages == -4
    assert talk.prompts() == ["one", "two", "three"]
    assert (talk.work / "a").read_text(encoding="utf-8") == "three"
    assert sorted(os.listdir(talk.work)) == ["a", "one", "three", "two"]


async def test_a_conversation_goes_on_after_a_rewind(talk: Talk) -> None:
    for name in ("one", "two"):
        await anyio.to_thread.run_sync(talk.turn, name)
    await run(talk, 2, "talk")
    await anyio.to_thread.run_sync(talk.turn, "another two")
    assert talk.prompts() == ["one", "another two"]
    assert [title for _, title in talk.points()] == ["one", "rewind (talk) to 2", "another two"]
    await run(talk, 1, "talk")
    assert talk.prompts() == []
    reopened_rows = talk.transcript.rows()
    assert sum(row.get("op") == "message" for row in reopened_rows) == 6


async def test_only_the_files_return(talk: Talk) -> None:
    await anyio.to_thread.run_sync(lambda: talk.turn("one", a="1"))
    await anyio.to_thread.run_sync(lambda: talk.turn("two", a="2"))
    point = await anyio.to_thread.run_sync(point_of, talk, 2)
    result = await rewind(point, "files", talk.transcript, talk.checkpoints, talk.fs)
    assert (talk.work / "a").read_text(encoding="utf-8") == "1"
    assert result.messages == 0
    assert talk.prompts() == ["one", "two"]
    await run(talk, 3, "files")
    assert (talk.work / "a").read_text(encoding="utf-8") == "2"


async def test_a_later_change_of_files_returns_with_a_rewind_of_the_conversation_alone(talk: Talk) -> None:
    await anyio.to_thread.run_sync(lambda: talk.turn("one", a="1"))
    await run(talk, 1, "talk")
    await anyio.to_thread.run_sync(lambda: talk.turn("two", a="2"))
    await run(talk, 2, "both")
    assert talk.prompts() == ["one"]
    assert (talk.work / "a").read_text(encoding="utf-8") == "1"


async def test_a_conflicting_file_stays_unless_insisted(talk: Talk) -> None:
    await anyio.to_thread.run_sync(lambda: talk.turn("one", a="1", b="1"))
    (talk.work / "a").write_text("theirs", encoding="utf-8")
    kept = await run(talk, 1)
    assert kept.files is not None
    assert [path for path, _ in kept.files.left] == [str(talk.work / "a")]
    assert os.listdir(talk.work) == ["a"]
    await run(talk, 2)
    assert (talk.work / "a").read_text(encoding="utf-8") == "theirs"
    assert (talk.work / "b").read_text(encoding="utf-8") == "1"
    await run(talk, 1, insist={str(talk.work / "a")})
    assert os.listdir(talk.work) == []


def test_what_was_read_after_the_point_counts_as_unread(talk: Talk) -> None:
    talk.turn("one")
    state = ConversationReadState(talk.transcript)
    state.record("/early", "digest")
    state.save_message({"kind": "request", "parts": []})
    talk.turn("two")
    state.record("/late", "digest")
    state.save_message({"kind": "request", "parts": []})
    rewind_conversation(point_of(talk, 2), talk.transcript)
    again = ConversationReadState(talk.transcript)
    assert (again.digest("/early"), again.digest("/late")) == ("digest", None)


def test_rows_of_a_damaged_rewind_hide_nothing(talk: Talk) -> None:
    talk.turn("one")
    for before in (-1, 10_000):
        talk.transcript.mark("rewind", before=before)
    talk.transcript.mark("rewind", before="0")
    assert talk.prompts() == ["one"]


def test_a_rewind_that_cannot_be_stored_is_an_error(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    talk.turn("one")
    point = point_of(talk, 1)

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="not recorded"):
        rewind_conversation(point, talk.transcript)
