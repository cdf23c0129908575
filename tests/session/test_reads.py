"""What a conversation has read, kept with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from induscode.session.transcript import ConversationReadState, Transcript


def reopened(folder: Path) -> tuple[Transcript, ConversationReadState]:
    transcript = Transcript(str(folder), "/w")
    return transcript, ConversationReadState(transcript)


def test_finding_c5_digests_lines_and_what_was_forgotten_come_back(tmp_path: Path) -> None:
    transcript, reads = reopened(tmp_path / "c")
    reads.record("/w/a", "d1", (1, 10))
    reads.record("/w/a", "d1", (11, 20))
    reads.record("/w/b", "d2")
    reads.record("/w/gone", "d3")
    reads.forget("/w/gone")
    reads.save_message({"said": "hello"})
    transcript.close()
    transcript, again = reopened(tmp_path / "c")
    assert [again.digest(f"/w/{name}") for name in ("a", "b", "gone")] == ["d1", "d2", None]
    assert (again.list_shown_lines("/w/a"), again.list_shown_lines("/w/b")) == (((1, 20),), ())
    assert transcript.messages() == ({"said": "hello"},)
    transcript.close()


def test_what_was_read_is_kept_after_the_message_that_tells_of_it(tmp_path: Path) -> None:
    transcript, reads = reopened(tmp_path / "c")
    reads.record("/w/a", "d1")
    transcript.close()  # before any message: the model was never told
    transcript, again = reopened(tmp_path / "c")
    assert again.digest("/w/a") is None
    transcript.close()


@pytest.mark.parametrize("row", [{}, {"path": 5}, {"digest": "d"}, {"path": "/w/a", "first": 1}])
def test_an_odd_row_is_passed_over(tmp_path: Path, row: dict[str, str | int]) -> None:
    transcript, _ = reopened(tmp_path / "c")
    transcript.mark("read", **row)
    transcript.close()
    transcript, reads = reopened(tmp_path / "c")
    assert reads.digest("/w/a") is None
    transcript.close()
