"""`indus acp` with a client of another author: turns, approvals, cancellation, loading, modes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from acp import RequestError
from acp import schema as models
from tests.support.editors import LIMIT_S, open_editor
from tests.support.model_server import Reply, calls, model_server, says
from tests.support.sessions import SessionSetup, to_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.model_server import ModelServer

pytestmark = pytest.mark.process


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running


@pytest.fixture
def setup(server: ModelServer, tmp_path: Path) -> SessionSetup:
    setup = SessionSetup(tmp_path, server)
    setup.cwd.mkdir()
    setup.environ = {**os.environ, **setup.build_environment()}
    return setup


async def test_a_turn_with_an_approval_a_cancel_and_a_resumed_session(setup: SessionSetup, server: ModelServer) -> None:
    (setup.cwd / "a.txt").write_text("one\n", encoding="utf-8")
    server.script[:] = [
        Reply(text=("I ", "look"), calls=(("read", {"path": "a.txt"}),)),
        calls("edit", path="a.txt", oldText="one", newText="two"),
        says("It is ", "two now."),
        Reply(text=("Let me think",), stalls=True),
    ]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        editor, agent = opened.editor, opened.agent
        editor.answer = lambda _: "y"
        new = await agent.new_session(cwd=str(setup.cwd))
        session = new.session_id
        assert await opened.say(session, "make it two") == "end_turn"
        assert (setup.cwd / "a.txt").read_text(encoding="utf-8") == "two\n"
        assert editor.said(session) == "I lookIt is two now."
        messages = [chunk.message_id for chunk in editor.of(session, models.AgentMessageChunk)]
        assert len({*messages} - {"", None}) == 2, "a passage is one message"
        starts = editor.of(session, models.ToolCallStart)
        assert [(start.title, start.kind) for start in starts] == [("Read a.txt", "read"), ("Edit a.txt", "edit")]
        assert starts[0].locations[0].path == str(setup.cwd / "a.txt")
        (question,) = editor.questions
        assert question.call.tool_call_id == starts[1].tool_call_id
        assert question.names() == {"y": "allow_once", "e": "allow_always", "a": "allow_always", "n": "reject_once"}
        assert question.call.content is not None
        shown = question.call.content[0]
        assert isinstance(shown, models.FileEditToolCallContent)
        assert (shown.old_text, shown.new_text) == ("one\n", "two\n")
        ends = editor.of(session, models.ToolCallProgress)
        assert [end.status for end in ends] == ["completed", "in_progress", "completed"]
        diff = ends[-1].content[0]
        assert (diff.path, diff.old_text, diff.new_text) == (str(setup.cwd / "a.txt"), "one\n", "two\n")
        assert ends[-1].locations[0].line == 1

        waiting = asyncio.create_task(opened.say(session, "and now?"))  # noqa: TID251 — awaited below
        await editor.wait_until(lambda: "Let me think" in editor.said(session))
        await agent.cancel(session_id=session)
        assert await waiting == "cancelled"
        assert await asyncio.to_thread(server.left.wait, LIMIT_S)
        assert await opened.leave() == 0

    server.script[:] = [says("You asked for two.")]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        editor = opened.editor
        await opened.agent.load_session(cwd=str(setup.cwd), session_id=session)
        asked = [chunk.content.text for chunk in editor.of(session, models.UserMessageChunk)]
        assert asked == ["make it two", "and now?"]
        assert editor.said(session) == "I lookIt is two now.Let me think"
        replayed = editor.of(session, models.ToolCallStart)
        assert [call.title for call in replayed] == ["Read a.txt", "Edit a.txt"]
        assert [end.status for end in editor.of(session, models.ToolCallProgress)] == ["completed", "completed"]
        assert await opened.say(session, "what did I ask for?") == "end_turn"
        assert editor.said(session).endswith("You asked for two.")
        assert "make it two" in to_text(server.requests[-1])


async def test_a_no_and_a_closed_question_refuse_the_call(setup: SessionSetup, server: ModelServer) -> None:
    server.script[:] = [
        calls("write", path="a.txt", content="one"),
        calls("write", path="a.txt", content="two"),
        says("then not"),
    ]
    answers = ["n", None]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        opened.editor.answer = lambda _: answers.pop(0)
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        assert await opened.say(session, "write it") == "end_turn"
        ends = opened.editor.of(session, models.ToolCallProgress)
        assert [end.status for end in ends] == ["failed", "failed"]
        ids = [start.tool_call_id for start in opened.editor.of(session, models.ToolCallStart)]
        assert len({*ids}) == 2, "an id that the model uses again names another call"
    assert not (setup.cwd / "a.txt").exists()
    assert "the user declined" in to_text(server.requests[-1])


async def test_a_cancel_during_a_question_ends_the_turn(setup: SessionSetup, server: ModelServer) -> None:
    server.script[:] = [calls("write", path="a.txt", content="one"), says("next")]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        editor = opened.editor
        editor.hold.clear()
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        waiting = asyncio.create_task(opened.say(session, "write it"))  # noqa: TID251 — awaited below
        async with asyncio.timeout(LIMIT_S):
            await editor.asked.wait()
        await opened.agent.cancel(session_id=session)
        assert await waiting == "cancelled"
        editor.hold.set()
        assert [end.status for end in editor.of(session, models.ToolCallProgress)] == ["failed"]
        assert await opened.say(session, "go on") == "end_turn"
    assert not (setup.cwd / "a.txt").exists()


async def test_a_cancelled_request_ends_its_turn_and_the_question_of_the_turn(
    setup: SessionSetup, server: ModelServer
) -> None:
    server.script[:] = [calls("write", path="a.txt", content="one"), says("next")]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        editor = opened.editor
        editor.hold.clear()
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        waiting = asyncio.create_task(opened.say(session, "write it"))  # noqa: TID251 — awaited below
        async with asyncio.timeout(LIMIT_S):
            await editor.asked.wait()
        request = editor.judge.find_request("session/prompt")
        await opened.agent._conn.send_notification("$/cancel_request", {"requestId": request})
        with pytest.raises(RequestError) as refused:
            await waiting
        assert refused.value.code == -32800
        question = next(one["id"] for one in editor.judge.messages if one.get("method") == "session/request_permission")
        withdrawn = [one["params"] for one in editor.judge.messages if one.get("method") == "$/cancel_request"]
        assert withdrawn == [{"requestId": question}]
        editor.hold.set()
        assert [end.status for end in editor.of(session, models.ToolCallProgress)] == ["failed"]
        await opened.agent._conn.send_notification("$/cancel_request", {"requestId": request})
        assert await opened.say(session, "go on") == "end_turn", "a request that has ended cannot be cancelled"
    assert not (setup.cwd / "a.txt").exists()


async def test_modes_decide_what_is_asked(setup: SessionSetup, server: ModelServer) -> None:
    server.script[:] = [
        calls("write", path="a.txt", content="one"),
        says("plan mode refused it"),
        calls("write", path="b.txt", content="two"),
        says("written"),
        calls("enter_plan_mode"),
        calls("exit_plan_mode", plan="1. write c.txt"),
        says("go"),
    ]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        editor, agent = opened.editor, opened.agent
        new = await agent.new_session(cwd=str(setup.cwd))
        session = new.session_id
        assert new.modes is not None
        assert new.modes.current_mode_id == "ask"
        assert [mode.id for mode in new.modes.available_modes] == ["ask", "auto-edit", "plan"]
        await agent.set_session_mode(session_id=session, mode_id="plan")
        await opened.say(session, "write a")
        assert not (setup.cwd / "a.txt").exists()
        assert "has turned plan mode on" in to_text(server.requests[0])
        await agent.set_session_mode(session_id=session, mode_id="auto-edit")
        await opened.say(session, "write b")
        assert (setup.cwd / "b.txt").read_text(encoding="utf-8") == "two"
        assert editor.questions == []
        await agent.set_session_mode(session_id=session, mode_id="ask")
        editor.answer = lambda _: "e"
        await opened.say(session, "plan c")
        (question,) = editor.questions
        assert question.names() == {"y": "allow_once", "e": "allow_always", "r": "reject_once", "n": "reject_once"}
        assert "1. write c.txt" in str(question.call.content)
        modes = [update.current_mode_id for update in editor.of(session, models.CurrentModeUpdate)]
        assert modes == ["plan", "auto-edit", "ask", "plan", "auto-edit"]


async def test_a_checklist_is_a_plan(setup: SessionSetup, server: ModelServer) -> None:
    items = [{"id": "1", "text": "look", "status": "done"}, {"id": "2", "text": "write", "status": "active"}]
    heavy = [{"task": "ship", "weight": "high"}, {"task": "rest", "state": "dropped"}]
    server.script[:] = [
        calls("todo_set", items=items),
        Reply(calls=(("todo", {"action": "set", "items": heavy}),)),
        says("ok"),
    ]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        await opened.say(session, "plan")
        plans = opened.editor.of(session, models.AgentPlanUpdate)
        entries = [[(entry.content, entry.status, entry.priority) for entry in plan.entries] for plan in plans]
        first = [("look", "completed", "medium"), ("write", "in_progress", "medium")]
        assert entries == [first, [("ship", "pending", "high")]]
        await opened.agent.close_session(session_id=session)
        before = len(opened.editor.updates)
        await opened.agent.load_session(cwd=str(setup.cwd), session_id=session)
        await opened.editor.wait_until(lambda: "AvailableCommands" in str(opened.editor.updates[before:]))
        replayed = [update for _, update in opened.editor.updates[before:]]
        assert [len(update.entries) for update in replayed if isinstance(update, models.AgentPlanUpdate)] == [1]


async def test_stop_reasons_tell_why_a_turn_ended(setup: SessionSetup, server: ModelServer) -> None:
    server.script[:] = [Reply(text=("half",), finish="length"), calls("ls"), calls("ls", path="x"), says("unreached")]
    flags = ("--model", "openai:scripted", "--max-requests", "2")
    async with open_editor(setup.cwd, setup.environ, *flags) as opened:
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        assert await opened.say(session, "write a book") == "max_tokens"
        assert "cut off" in opened.editor.said(session)
        assert await opened.say(session, "look") == "max_turn_requests"
        assert "the limit of 2 requests" in opened.editor.said(session)


async def test_sessions_run_side_by_side_and_are_listed(setup: SessionSetup, server: ModelServer) -> None:
    other = setup.folder / "other"
    other.mkdir()
    (other / "o.txt").write_text("other\n", encoding="utf-8")
    server.script[:] = [Reply(text=("slow",), stalls=True), calls("read", path="o.txt"), says("fast")]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        agent, editor = opened.agent, opened.editor
        slow = (await agent.new_session(cwd=str(setup.cwd))).session_id
        fast = (await agent.new_session(cwd=str(other))).session_id
        waiting = asyncio.create_task(opened.say(slow, "take your time"))  # noqa: TID251 — awaited below
        assert await asyncio.to_thread(server.speaking.wait, LIMIT_S)
        assert await opened.say(fast, "quick") == "end_turn"
        assert "other" in editor.of(fast, models.ToolCallProgress)[0].content[0].content.text
        assert not waiting.done()
        await agent.cancel(session_id=slow)
        assert await waiting == "cancelled"
        assert "fast" not in editor.said(slow)
        listed = await agent.list_sessions()
        assert {row.session_id: (row.cwd, row.title) for row in listed.sessions} == {
            slow: (str(setup.cwd), "take your time"),
            fast: (str(other), "quick"),
        }
        assert [row.session_id for row in (await agent.list_sessions(cwd=str(other))).sessions] == [fast]
        await agent.resume_session(cwd=str(other), session_id=fast)
        assert editor.of(fast, models.UserMessageChunk) == []


async def test_a_servers_skill_is_read_like_ours(setup: SessionSetup, server: ModelServer) -> None:
    library = Path(__file__).parents[2] / "servers/library.py"
    rows = {"books": {"command": sys.executable, "args": [str(library), "--skills", "yes"]}}
    (setup.folder / "mcp.json").write_text(json.dumps({"mcpServers": rows}), encoding="utf-8")
    server.script[:] = [calls("skill", name="books:shelve"), says("read")]
    flags = ("--model", "openai:scripted", "--approval", "all", "--mcp", str(setup.folder / "mcp.json"))
    async with open_editor(setup.cwd, setup.environ, *flags) as opened:
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        await opened.say(session, "shelve it")
    (tool,) = [tool for tool in server.requests[0]["tools"] if tool["function"]["name"] == "skill"]
    assert "books:shelve" in tool["function"]["description"]
    assert "of the skill 'books:shelve' says the following" in to_text(server.requests[1])
    assert "<skill-file>" in to_text(server.requests[1])


async def test_skills_and_hooks_of_a_project_need_consent_and_take_part(
    setup: SessionSetup, server: ModelServer
) -> None:
    skill = setup.cwd / ".claude/skills/deploy/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\ndescription: How to deploy.\n---\nCall $ARGUMENTS off.\n", encoding="utf-8")
    row = {"type": "command", "command": "touch ran; echo no >&2; exit 2"}
    settings = setup.cwd / ".claude/settings.json"
    settings.write_text(json.dumps({"hooks": {"PreToolUse": [{"hooks": [row]}]}}), encoding="utf-8")
    server.script[:] = [calls("ls"), says("listed"), calls("ls"), says("denied"), says("called off")]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        await opened.say(session, "look")
        assert not (setup.cwd / "ran").exists()
        said = opened.editor.said(session)
        assert "indus addons trust skill:deploy" in said
        assert "indus addons trust hooks:.claude/settings.json" in said
        opened.editor.answer = lambda _: "y"
        await opened.say(session, "/addons trust")
        assert len(opened.editor.questions) == 2
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        await opened.say(session, "look")
        assert (setup.cwd / "ran").exists()
        await opened.say(session, "/deploy everything")
        assert "Call everything off." in to_text(server.requests[-1])
