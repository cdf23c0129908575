"""Continued conversations: a later process goes on with everything that an earlier one had."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.model_server import Reply, calls, model_server, says
from tests.support.sessions import SessionSetup, to_text

from indusagi.core.ids import is_ulid
from induscode.conversations.transcript import Transcript, conversations_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.process

ITEMS = [{"id": "a", "text": "first thing", "status": "active"}, {"id": "b", "text": "second", "status": "pending"}]
WEIGHTED = [{"task": "heavy work", "state": "active", "weight": "high"}]
FULL = Reply(status=400, error="This model's maximum context length is 9 tokens")


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[SessionSetup]:
    with model_server() as server:
        yield SessionSetup(tmp_path, server)


def run(setup: SessionSetup, *script: Reply, **flags: Any) -> dict[str, Any]:
    """Run `indus -p` in a process, and give its result object."""
    setup.server.script[:] = script
    done = setup.run_process(output_format="json", **flags)
    assert not setup.server.script, done.err
    return {**json.loads(done.out), "err": done.err, "code": done.code}


def read_rows(identity: str) -> Sequence[JsonObject]:
    """Read the rows of a stored conversation."""
    transcript = Transcript(os.path.join(conversations_dir(), identity), "")
    rows = transcript.rows()
    transcript.close()
    return rows


def test_plan_mode_is_on_after_continue(setup: SessionSetup) -> None:
    run(setup, calls("enter_plan_mode"), says("planning"), approval="ask")
    result = run(
        setup, calls("write", path="new.txt", content="x"), says("refused"), approval="all", continue_last=True
    )
    assert not (setup.cwd / "new.txt").exists()
    assert "plan" in to_text(setup.server.requests[-1])
    assert result["code"] == 0


def test_finding_sg_the_checklist_is_one_by_both_names_and_restored(setup: SessionSetup) -> None:
    run(setup, calls("todo_set", items=ITEMS), calls("todo", action="read"), says("noted"))
    assert "[~] first thing" in to_text(setup.server.requests[-1]), "todo reads what todo_set wrote"
    listed = {tool["function"]["name"] for tool in setup.server.requests[0]["tools"]}
    assert {"todo_read", "todo_set", "process"} <= listed
    assert not {"todo", "bg-process"} & listed
    run(setup, calls("todo", action="set", items=WEIGHTED), says("noted"), continue_last=True)
    run(setup, calls("todo_read"), calls("todo", action="read"), says("read"), continue_last=True)
    results = setup.server.requests[-1]["messages"][-3:]
    text = to_text({"results": results})
    assert "[~] 1: heavy work (high)" in text
    assert "[~] heavy work (high)" in text
    assert "first thing" not in text


def test_a_job_of_the_last_session_is_reported_to_the_person_and_to_the_model(setup: SessionSetup) -> None:
    run(setup, calls("process", action="start", command="sleep 600"), says("started"))
    again = run(setup, says("it is gone"), continue_last=True)
    told = to_text(setup.server.requests[-1])
    assert "background job job-1 (sleep 600) has ended with the last session" in told
    assert any("job-1 (sleep 600) has ended" in note for note in again["notes"])
    once = run(setup, says("yes"), continue_last=True)
    assert not any("job-1" in note for note in once["notes"])
    assert to_text(setup.server.requests[-1]["messages"][-1]).count("session-note") == 0


def test_another_model_is_named_when_it_goes_on(setup: SessionSetup) -> None:
    run(setup, says("one"))
    again = run(setup, says("two"), continue_last=True, model="openai:other")
    assert "this conversation started with openai:scripted" in again["notes"]


def test_usage_of_every_turn_is_stored(setup: SessionSetup) -> None:
    session = run(setup, calls("ls"), says("one"))["session_id"]
    run(setup, says("two"), continue_last=True)
    usage = [row for row in read_rows(session) if row["op"] == "usage"]
    assert [row["requests"] for row in usage] == [2, 1]


def test_rows_of_a_newer_version_are_kept_and_ignored(setup: SessionSetup) -> None:
    session = run(setup, says("one"))["session_id"]
    transcript = Transcript(os.path.join(conversations_dir(), session), "")
    transcript.mark("hologram", data={"anything": [1]})
    transcript.close()
    assert run(setup, says("two"), continue_last=True)["code"] == 0
    assert "hologram" in [row["op"] for row in read_rows(session)]


def test_fork_goes_on_in_a_copy(setup: SessionSetup) -> None:
    session = run(setup, says("the original answer"))["session_id"]
    rows = read_rows(session)
    copy = run(setup, says("in the copy"), continue_last=True, fork=True)["session_id"]
    assert copy != session
    assert is_ulid(copy)
    assert "the original answer" in to_text(setup.server.requests[-1])
    assert read_rows(session) == rows


def test_fork_alone_is_a_usage_error(setup: SessionSetup) -> None:
    done = setup.run_process(fork=True)
    assert (done.code, "--fork needs --continue or --resume ID" in done.err) == (2, True)


# -- compaction ---------------------------------------------------------------------------------


def test_a_nearly_full_context_is_compacted_before_the_turn(setup: SessionSetup) -> None:
    for number in range(3):
        run(setup, says(f"answer {number} " + "x" * 400), continue_last=number > 0, context_window=20_000)
    result = run(
        setup, says("the summary text"), says("done"), continue_last=True, prompt="y" * 80_000, context_window=20_000
    )
    asked, sent = setup.server.requests[-2:]
    assert "Summarise the conversation." in to_text(asked)
    assert "tools" not in asked
    assert "the summary text" in to_text(sent)
    assert "answer 0" not in to_text(sent)
    assert "answer 2" in to_text(sent)
    assert any("the context window was nearly full: a summary replaces" in note for note in result["notes"])


def test_a_full_context_is_compacted_and_the_turn_answered_once_more(setup: SessionSetup) -> None:
    for number in range(3):
        run(setup, says(f"answer {number}"), continue_last=number > 0)
    result = run(setup, FULL, says("the summary text"), says("done"), continue_last=True, prompt="the last question")
    sent = setup.server.requests[-1]
    assert result["result"] == "done"
    assert to_text(sent).count("the last question") == 1
    assert "the summary text" in to_text(sent)
    assert "answer 0" not in to_text(sent)
    assert run(setup, says("and on"), continue_last=True)["code"] == 0
    assert to_text(setup.server.requests[-1]).count("the last question") == 1


def test_a_failed_compaction_changes_nothing_and_gives_the_reason(setup: SessionSetup) -> None:
    session = run(setup, says("answer 0"))["session_id"]
    for number in (1, 2):
        run(setup, says(f"answer {number}"), continue_last=True)
    result = run(setup, FULL, Reply(status=500, error="no summary today"), continue_last=True)
    assert (result["code"], result["fault"]["kind"]) == (4, "context_window")
    assert any("no summary today" in note for note in result["notes"])
    assert "compact" not in [row["op"] for row in read_rows(session)]
    run(setup, says("still here"), continue_last=True)
    assert "answer 0" in to_text(setup.server.requests[-1])
