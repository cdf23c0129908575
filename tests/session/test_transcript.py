"""Conversations on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from indusagi.core.ids import new_ulid
from induscode.session.transcript import (
    KEEP,
    ConversationError,
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


def test_a_conversation_is_gone_on_with_where_it_was_held() -> None:
    first, second, other = held("/a", "one"), held("/a", "two"), held("/b", "three")
    for wanted, open_it in (
        (second, lambda: open_transcript("/a", last=True)),
        (first, lambda: open_transcript("/a", resume=first)),
        (other, lambda: open_transcript("/b", last=True)),
    ):
        transcript = open_it()
        assert transcript.id == wanted
        transcript.close()


def test_messages_come_back_in_their_order_and_other_rows_are_none_of_them() -> None:
    identity = held("/a", "one", "two")
    transcript = open_transcript("/a", resume=identity)
    transcript.mark("turn", deck="d", turn=1)
    transcript.add_message({"said": "three"})
    assert transcript.messages() == ({"said": "one"}, {"said": "two"}, {"said": "three"})
    transcript.close()


def test_a_conversation_is_nobody_elses_to_read() -> None:
    transcript = open_transcript("/a")
    log = Path(transcript.directory) / "transcript.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    transcript.close()


def test_the_one_written_to_last_is_the_last() -> None:
    old, new = held("/a", "one"), held("/a", "two")
    os.utime(os.path.join(conversations_dir(), new, "transcript.log"), ns=(1, 1))
    assert find_last_conversation("/a", conversations_dir()) == old


@pytest.mark.parametrize("identity", ["", "../../etc", "nonsense", "01ARZ3NDEKTSV4RRFFQ69G5FAV"])
def test_a_conversation_that_is_not_there_is_an_error(identity: str) -> None:
    with pytest.raises(ConversationError, match="no conversation"):
        open_transcript("/a", resume=identity)
    with pytest.raises(ConversationError, match="in /a"):
        open_transcript("/a", last=True)


def test_two_processes_never_write_one_conversation() -> None:
    transcript = open_transcript("/a")
    with pytest.raises(ConversationError, match="another process"):
        open_transcript("/a", resume=transcript.id)
    transcript.close()
    again = open_transcript("/a", resume=transcript.id)
    again.close()


def test_a_crash_in_the_middle_of_a_message_loses_only_that_one() -> None:
    identity = held("/a", "one", "two")
    log = Path(conversations_dir()) / identity / "transcript.log"
    log.write_bytes(log.read_bytes()[:-3])
    transcript = open_transcript("/a", resume=identity)
    assert transcript.messages() == ({"said": "one"},)
    transcript.close()


def test_old_conversations_and_too_many_are_removed_but_none_in_use() -> None:
    root = conversations_dir()
    aged, used = held("/a", "old"), open_transcript("/a")
    os.utime(os.path.join(root, aged, "transcript.log"), ns=(1, 1))
    os.utime(os.path.join(root, used.id, "transcript.log"), ns=(1, 1))
    keep = held("/a", "young")
    assert sorted(os.listdir(root)) == sorted([used.id, keep])
    used.close()
    for _ in range(KEEP + 5):
        Transcript(os.path.join(root, new_ulid()), "/many").close()
    os.makedirs(os.path.join(root, "not-ours"))
    os.makedirs(os.path.join(root, new_ulid()))
    remove_old_conversations(root)
    found = [name for name in os.listdir(root) if Path(root, name, "transcript.log").exists()]
    assert len(found) == KEEP
    assert (Path(root) / "not-ours").exists()


def test_without_any_conversation_there_is_nothing_to_sweep(tmp_path: Path) -> None:
    remove_old_conversations(str(tmp_path / "none"))
    assert find_last_conversation("/a", str(tmp_path / "none")) is None


def test_a_log_that_cannot_be_read_is_no_conversation_of_here(tmp_path: Path) -> None:
    folder = tmp_path / new_ulid()
    (folder / "transcript.log").mkdir(parents=True)
    assert find_last_conversation("/a", str(tmp_path)) is None
    remove_old_conversations(str(tmp_path))
