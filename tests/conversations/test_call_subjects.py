"""What a recorded call was about, from the log of its conversation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.calls.helpers import make_record

from indusagi.core.ids import new_ulid
from induscode.conversations.call_subjects import CallSubject, describe_subjects
from induscode.conversations.transcript import Transcript, conversations_dir

if TYPE_CHECKING:
    from collections.abc import Generator

    from indusagi.core.json import JsonValue


@pytest.fixture
def transcript() -> Generator[Transcript]:
    name = new_ulid()
    os.makedirs(conversations_dir(), exist_ok=True)
    found = Transcript(os.path.join(conversations_dir(), name), "/work/here")
    yield found
    found.close()


def say(transcript: Transcript, turn: int, prompt: str = "", node: str = "n1") -> None:
    transcript.mark("turn", node=node, run="r1", turn=turn)
    if prompt:
        part: JsonValue = {"part_kind": "user-prompt", "content": prompt}
        transcript.add_message({"kind": "request", "parts": [part]})


def call(transcript: Transcript, name: str, identity: str, arguments: JsonValue) -> None:
    part: JsonValue = {"part_kind": "tool-call", "tool_name": name, "args": arguments, "tool_call_id": identity}
    transcript.add_message({"kind": "response", "parts": [part]})


def answer(transcript: Transcript, identity: str, content: JsonValue) -> None:
    part: JsonValue = {"part_kind": "tool-return", "content": content, "tool_call_id": identity}
    transcript.add_message({"kind": "request", "parts": [part]})


def test_call_is_named_by_its_prompt_and_by_its_file_or_command(transcript: Transcript) -> None:
    say(transcript, 1, "please\n edit it")
    call(transcript, "edit", "c1", '{"path": "/work/here/app.py", "edits": []}')
    say(transcript, 2)
    answer(transcript, "c1", ["edited app.py (+2 −1, 80 bytes)", "more"])  # noqa: RUF001 — a minus
    call(transcript, "bash", "c1", {"command": "python3 -m pytest"})
    say(transcript, 3, "and now?", "n2")
    call(transcript, "files__list", "c3", "{no json")
    origin = {"conversation": transcript.id, "via": "session", "run": "r1", "server": ""}
    found = describe_subjects([
        make_record(tool="edit", call="c1", turn=1, **origin),
        make_record(tool="bash", call="c1", turn=2, **origin),
        make_record(tool="list", call="c3", turn=3, **{**origin, "server": "files"}),
        make_record(tool="grep", call="c4", turn=2, agent="explore", **origin),
        make_record(tool="read", call="c5", turn=9, **origin),
    ])  # fmt: skip
    edit: JsonValue = {"path": "/work/here/app.py", "edits": []}
    assert [(one.by, one.what, one.row, one.arguments) for one in found] == [
        ('"please edit it"', "app.py", 3, edit),
        ('"please edit it"', "python3 -m pytest", 6, {"command": "python3 -m pytest"}),
        ('"and now?"', "{no json", 9, "{no json"),
        ('explore: "please edit it"', "", 4, None),
        ("session", "", None, None),
    ]
    assert [(one.result, one.change) for one in found[:2]] == [
        ("edited app.py (+2 −1, 80 bytes)\nmore", "+2 −1"),  # noqa: RUF001 — a minus
        ("", ""),
    ]
    assert {one.cwd for one in found} == {"/work/here"}
    assert describe_subjects([make_record(call="c1", turn=1, **origin)], "/work/here")[0].what
    assert describe_subjects([make_record(call="c1", turn=1, **origin)], "/work/there") == [CallSubject(by="session")]


def test_client_names_its_calls_and_no_log_is_needed() -> None:
    calls = [
        make_record(via="gateway", client="claude-code 2.1", principal="ada"),
        make_record(via="call"),
        make_record(via="session", conversation=new_ulid()),
        make_record(via="session", conversation="../../etc"),
    ]
    assert [one.by for one in describe_subjects(calls)] == ["ada claude-code 2.1", "indus call", "session", "session"]


def test_long_prompt_is_cut_and_a_damaged_log_read_up_to_there(transcript: Transcript) -> None:
    say(transcript, 1, "word " * 100)
    call(transcript, "read", "c1", {"path": "a.py"})
    with open(transcript.path, "ab") as file:
        file.write(b'00000000 5 {"op":"turn"}\n')
    say(transcript, 2)
    call(transcript, "read", "c2", {"path": "b.py"})
    first, second = describe_subjects([
        make_record(tool="read", server="", call=f"c{turn}", turn=turn, run="r1", conversation=transcript.id)
        for turn in (1, 2)
    ])  # fmt: skip
    assert (first.what, len(first.by), first.by[-3:]) == ("a.py", 74, 'w…"')
    assert second.what == ""
