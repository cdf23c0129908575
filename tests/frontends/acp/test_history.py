"""Stored conversations for an editor: their list, and their messages as updates."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from induscode.conversations.transcript import (
    Transcript,
    conversations_dir,
    find_last_exchange,
    list_conversations,
    summarise_log,
)
from induscode.frontends.acp import updates
from induscode.frontends.acp.updates import CallIds, list_sessions, replay_messages

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CALL: dict[str, Any] = {"part_kind": "tool-call", "tool_name": "read", "tool_call_id": "c1", "args": '{"path": "a.py"}'}


def replay(*messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [(number, {"op": "message", "message": {"parts": parts}}) for number, parts in enumerate(messages, 3)]
    rows += [(90, {"op": "turn"}), (91, {"op": "message", "message": 1})]
    transcript = cast("Any", SimpleNamespace(visible_rows=lambda: rows))
    return [cast("Any", update) for update in replay_messages(transcript, "/work", {"srv__read"}, CallIds())]


def test_prompts_and_answers_are_chunks_named_by_their_rows() -> None:
    image = {"kind": "binary", "data": "AAAA", "media_type": "image/png"}
    prompt = {"part_kind": "user-prompt", "content": ["See", image, {"kind": "odd"}]}
    answer = [
        {"part_kind": "text", "content": "I see"},
        {"part_kind": "text", "content": ""},
        {"part_kind": "thinking"},
    ]
    assert replay([prompt], answer) == [
        {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "See"}, "messageId": "row-3"},
        {"sessionUpdate": "user_message_chunk", "messageId": "row-3",
         "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "I see"}, "messageId": "row-4"},
    ]  # fmt: skip


def test_calls_are_shown_with_their_answers_and_those_without_one_have_failed() -> None:
    def answer(**facts: Any) -> dict[str, Any]:
        return {"part_kind": "tool-return", "tool_call_id": "c1", "content": ["one", 2, "two"], **facts}

    for facts, status in (
        ({}, "completed"),
        ({"outcome": "success"}, "completed"),
        ({"outcome": "failed"}, "failed"),
        ({"content": "Error: no"}, "failed"),
        ({"part_kind": "retry-prompt"}, "failed"),
    ):
        call, done = replay([CALL], [answer(**facts), answer(tool_call_id="other")])
        assert (call["sessionUpdate"], call["kind"], done["status"]) == ("tool_call", "read", status)
        assert call["toolCallId"] == done["toolCallId"]
        text = "Error: no" if facts.get("content") else "one\ntwo"
        assert text in json.dumps(done["content"], ensure_ascii=False).replace("\\n", "\n")
    assert replay([{**CALL, "tool_name": "srv__read"}])[0]["kind"] == "other"
    call, ended = replay([{**CALL, "args": "{"}])
    assert ended == {"sessionUpdate": "tool_call_update", "toolCallId": call["toolCallId"], "status": "failed"}
    assert call["rawInput"] == "{"


def write(name: str, cwd: Path, *prompts: str) -> str:
    directory = os.path.join(conversations_dir(), name)
    transcript = Transcript(directory, str(cwd))
    transcript.mark("turn", node="n", run="r", turn=1, deck="d")
    for prompt in prompts:
        transcript.add_message({"kind": "request", "parts": [{"part_kind": "user-prompt", "content": prompt}]})
    transcript.close()
    return directory


def test_conversations_are_listed_by_directory_with_their_first_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"01{letter * 24}" for letter in "ABC"]
    here, there = tmp_path / "here", tmp_path / "there"
    folders = [
        write(names[0], here, "first\n words", "second"),
        write(names[1], there, "x" * 90),
        write(names[2], here),
    ]
    for number, folder in enumerate(folders):
        for root, _, files in os.walk(folder):
            for path in (root, *(os.path.join(root, file) for file in files)):
                os.utime(path, (1_000 + number, 1_000 + number))
    # Conversations without a message are left out.
    rows = cast("Any", list_sessions(str(here)))
    assert [(row["sessionId"], row["cwd"], row["title"]) for row in rows] == [(names[0], str(here), "first words")]
    assert len(list_sessions(None)) == 2
    monkeypatch.setattr(updates, "_MAX_LISTED", 1)
    assert len(list_sessions(None)) == 1
    found = list_conversations(str(here), limit=9)
    assert [(one.id, one.title, one.messages) for one in found] == [(names[0], "first words", 2)]
    assert list_conversations(str(here), limit=9, without=names[0]) == []
    assert list_conversations(str(here), limit=0) == []
    assert summarise_log(str(tmp_path / "gone"), 1) is None
    monkeypatch.setattr(updates, "_MAX_LISTED", 9)
    log = os.path.join(folders[0], "transcript.log")
    with open(log, "rb") as file:
        damaged = b"x" + file.read()
    with open(log, "wb") as file:
        file.write(damaged)
    # An editor could not load a conversation whose directory is unknown.
    assert [cast("Any", row)["sessionId"] for row in list_sessions(None)] == [names[1]]


def test_the_last_exchange_is_the_last_prompt_with_the_answer_after_it() -> None:
    def part(kind: str, *texts: str) -> Any:
        shape = "request" if kind == "user-prompt" else "response"
        return {"kind": shape, "parts": [{"part_kind": kind, "content": [*texts]}]}

    messages = [part("user-prompt", "one"), part("text", "ONE"), part("user-prompt", "two", "", "more")]
    assert find_last_exchange(messages) == ("two\nmore", "")
    assert find_last_exchange([*messages, part("text", "a"), part("text", "b")]) == ("two\nmore", "b")
    assert find_last_exchange([]) == ("", "")
