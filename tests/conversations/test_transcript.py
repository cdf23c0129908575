"""Conversations on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from indusagi.core.ids import new_ulid
from indusagi.core.time import now_ms
from induscode.conversations.transcript import (
    KEEP,
    ConversationError,
    ConversationReadState,
    Transcript,
    conversations_dir,
    find_last_conversation,
    open_transcript,
    remove_old_conversations,
)


def held(cwd: str, *said: str) -> str:
    transcript = open_transcript(cwd)
    for text in said:
        transcript.add_message({"said": text})
    transcript.close()
    return transcript.id


def test_conversation_is_continued_in_its_working_directory() -> None:
    first, second, other = held("/a", "one"), held("/a", "two"), held("/b", "three")
    for wanted, open_it in (
        (second, lambda: open_transcript("/a", last=True)),
        (first, lambda: open_transcript("/a", resume=first)),
        (other, lambda: open_transcript("/b", last=True)),
    ):
        transcript = open_it()
        assert transcript.id == wanted
        transcript.close()


def test_messages_are_restored_in_order_without_other_rows() -> None:
    identity = held("/a", "one", "two")
    transcript = open_transcript("/a", resume=identity)
    transcript.mark("turn", deck="d", turn=1)
    transcript.add_message({"said": "three"})
    assert transcript.messages() == ({"said": "one"}, {"said": "two"}, {"said": "three"})
    transcript.close()


def test_conversation_is_private() -> None:
    transcript = open_transcript("/a")
    log = Path(transcript.directory) / "transcript.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    transcript.close()


def test_last_conversation_is_the_one_written_last() -> None:
    old, new = held("/a", "one"), held("/a", "two")
    os.utime(os.path.join(conversations_dir(), new, "transcript.log"), ns=(1, 1))
    assert find_last_conversation("/a", conversations_dir()) == old


@pytest.mark.parametrize("identity", ["", "../../etc", "nonsense", "01ARZ3NDEKTSV4RRFFQ69G5FAV"])
def test_unknown_conversation_is_an_error(identity: str) -> None:
    with pytest.raises(ConversationError, match="no conversation"):
        open_transcript("/a", resume=identity)
    with pytest.raises(ConversationError, match="in /a"):
        open_transcript("/a", last=True)


def test_conversation_is_open_in_one_process_only() -> None:
    transcript = open_transcript("/a")
    with pytest.raises(ConversationError, match="is open elsewhere"):
        open_transcript("/a", resume=transcript.id)
    transcript.close()
    again = open_transcript("/a", resume=transcript.id)
    again.close()


def test_crash_during_a_message_loses_only_that_message() -> None:
    identity = held("/a", "one", "two")
    log = Path(conversations_dir()) / identity / "transcript.log"
    log.write_bytes(log.read_bytes()[:-3])
    transcript = open_transcript("/a", resume=identity)
    assert transcript.messages() == ({"said": "one"},)
    transcript.close()


def test_old_and_surplus_conversations_are_removed_unless_in_use() -> None:
    root = conversations_dir()
    aged, used = held("/a", "old"), open_transcript("/a")
    os.utime(os.path.join(root, aged, "transcript.log"), ns=(1, 1))
    os.utime(os.path.join(root, used.id, "transcript.log"), ns=(1, 1))
    keep = held("/a", "young")
    days_ago = now_ms() * 1_000_000 - 2 * 86_400 * 1_000_000_000
    # A single conversation after a long pause may come from a clock that's wrong.
    assert sorted(os.listdir(root)) == sorted([aged, used.id, keep])
    os.utime(os.path.join(root, keep, "transcript.log"), ns=(days_ago, days_ago))
    last = [held("/a", "last"), held("/a", "last")]
    assert sorted(os.listdir(root)) == sorted([used.id, keep, *last])
    used.close()
    for _ in range(KEEP + 5):
        Transcript(os.path.join(root, new_ulid()), "/many").close()
    os.makedirs(os.path.join(root, "not-ours"))
    os.makedirs(os.path.join(root, new_ulid()))
    remove_old_conversations(root)
    found = [name for name in os.listdir(root) if Path(root, name, "transcript.log").exists()]
    assert len(found) == KEEP
    assert (Path(root) / "not-ours").exists()


def test_conversations_of_scripts_never_displace_those_of_a_user() -> None:
    root = conversations_dir()
    mine = held("/a", "mine")
    taken_up = open_transcript("/a", scripted=True)
    taken_up.close()
    open_transcript("/a", resume=taken_up.id).close()  # a user went on with what a script began
    for _ in range(KEEP + 5):
        open_transcript("/a", scripted=True).close()
    again = open_transcript("/a", scripted=True)
    again.close()
    found = {*os.listdir(root)}
    assert {mine, taken_up.id, again.id} <= found
    assert len(found) == KEEP + 3


def test_removal_without_conversations_does_nothing(tmp_path: Path) -> None:
    remove_old_conversations(str(tmp_path / "none"))
    assert find_last_conversation("/a", str(tmp_path / "none")) is None


def test_unreadable_log_is_ignored(tmp_path: Path) -> None:
    folder = tmp_path / new_ulid()
    (folder / "transcript.log").mkdir(parents=True)
    assert find_last_conversation("/a", str(tmp_path)) is None
    remove_old_conversations(str(tmp_path))


# -- read state ---------------------------------------------------------------------------------


def reopened(folder: Path) -> tuple[Transcript, ConversationReadState]:
    transcript = Transcript(str(folder), "/w")
    return transcript, ConversationReadState(transcript)


def test_finding_c5_digests_and_forgotten_paths_are_restored(tmp_path: Path) -> None:
    transcript, reads = reopened(tmp_path / "c")
    reads.record("/w/a", "d1")
    reads.record("/w/b", "d2")
    reads.record("/w/gone", "d3")
    reads.forget("/w/gone")
    reads.save_message({"said": "hello"})
    transcript.close()
    transcript, again = reopened(tmp_path / "c")
    assert [again.digest(f"/w/{name}") for name in ("a", "b", "gone")] == ["d1", "d2", None]
    assert transcript.messages() == ({"said": "hello"},)
    transcript.close()


def test_reads_are_stored_after_their_message(tmp_path: Path) -> None:
    transcript, reads = reopened(tmp_path / "c")
    reads.record("/w/a", "d1")
    transcript.close()  # before any message: the model was never told
    transcript, again = reopened(tmp_path / "c")
    assert again.digest("/w/a") is None
    transcript.close()


@pytest.mark.parametrize("row", [{}, {"path": 5}, {"digest": "d"}, {"path": "/w/a", "first": 1}])
def test_invalid_read_row_is_ignored(tmp_path: Path, row: dict[str, str | int]) -> None:
    transcript, _ = reopened(tmp_path / "c")
    transcript.mark("read", **row)
    transcript.close()
    transcript, reads = reopened(tmp_path / "c")
    assert reads.digest("/w/a") is None
    transcript.close()
