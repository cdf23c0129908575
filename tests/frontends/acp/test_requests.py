"""`indus acp`: prompts with blocks, servers of the editor, commands, errors, and the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from acp import RequestError, image_block, resource_block, resource_link_block, text_block
from acp import schema as models
from acp.connection import StreamDirection, StreamEvent
from acp.helpers import embedded_text_resource
from tests.support.editors import LIMIT_S, Editor, MessageJudge, open_editor
from tests.support.host_tools import PNG
from tests.support.http_behaviours import Legacy
from tests.support.http_peer import http_server
from tests.support.model_server import Reply, calls, model_server, says
from tests.support.scripts import command
from tests.support.servers import honest
from tests.support.sessions import SessionSetup, to_text
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


# -- prompts ----------------------------------------------------------------------------------


async def test_a_prompt_has_text_resources_and_images(setup: SessionSetup, server: ModelServer) -> None:
    server.script[:] = [says("I see"), says("again")]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        prompts = opened.capabilities.agent_capabilities
        assert prompts is not None
        assert prompts.prompt_capabilities is not None
        assert (prompts.prompt_capabilities.image, prompts.prompt_capabilities.audio) == (True, False)
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        blocks: list[Any] = [
            text_block("Compare"),
            resource_link_block("a file", "file:///work/a%20b.py"),
            resource_block(embedded_text_resource("file:///work/c.py#L1:2", "c = 1")),
            image_block(PNG, "image/png"),
        ]
        await opened.agent.prompt(session_id=session, prompt=blocks)
        sent = server.requests[0]["messages"][-1]["content"]
        assert sent[0]["text"] == "Compare /work/a b.py \n\n<resource uri='/work/c.py#L1:2'>\nc = 1\n</resource>"
        assert sent[1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
        await opened.agent.close_session(session_id=session)
        await opened.agent.load_session(cwd=str(setup.cwd), session_id=session)
        kinds = [chunk.content.type for chunk in opened.editor.of(session, models.UserMessageChunk)]
        assert kinds == ["text", "image"]
        await opened.say(session, "and now?")
        assert PNG in to_text(server.requests[1]), "the image stays in the conversation"
        audio = models.AudioContentBlock(type="audio", data=PNG, mime_type="audio/wav")
        with pytest.raises(RequestError, match="'audio' is not supported"):
            await opened.agent.prompt(session_id=session, prompt=[audio])


async def test_an_image_that_a_model_refuses_is_described(setup: SessionSetup, server: ModelServer) -> None:
    refusal = Reply(status=400, error="this model does not support image input")
    server.script[:] = [refusal, says("no image"), says("still none")]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        response = await opened.agent.prompt(
            session_id=session, prompt=[text_block("See"), image_block(PNG, "image/png")]
        )
        assert response.stop_reason == "end_turn"
        await opened.say(session, "and now?")
        assert PNG not in to_text(server.requests[2])
        assert "image/png, 8 bytes: left out" in to_text(server.requests[2])


async def test_commands_are_announced_and_run(setup: SessionSetup, server: ModelServer) -> None:
    folder = setup.cwd / ".indusvx" / "commands"
    folder.mkdir(parents=True)
    text = "---\ndescription: review a file\nargument-hint: FILE\n---\nReview $ARGUMENTS please."
    (folder / "review.md").write_text(text, encoding="utf-8")
    server.script[:] = [says("reviewed"), says("what?")]
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        session = (await opened.agent.new_session(cwd=str(setup.cwd))).session_id
        await opened.editor.wait_until(lambda: bool(opened.editor.of(session, models.AvailableCommandsUpdate)))
        responded = next(index for index, row in enumerate(opened.editor.judge.messages) if row.get("id") == 1)
        announced = opened.editor.judge.messages[responded + 1]
        assert announced["method"] == "session/update", "an editor knows the session only by the response"
        (update,) = opened.editor.of(session, models.AvailableCommandsUpdate)
        commands = {row.name: row for row in update.available_commands}
        assert commands["review"].description == "review a file (project)"
        assert not {"exit", "resume"} & {*commands}, "the editor opens and closes sessions"
        assert await opened.say(session, "/tools") == "end_turn"
        assert "| read |" in opened.editor.said(session)
        assert await opened.say(session, "/plan on") == "end_turn"
        (mode,) = opened.editor.of(session, models.CurrentModeUpdate)
        assert mode.current_mode_id == "plan"
        assert await opened.say(session, "/context") == "end_turn"
        assert server.requests == []
        assert await opened.say(session, "/review a.py") == "end_turn"
        assert "Review a.py please." in to_text(server.requests[0])
        assert await opened.say(session, "/unknown thing") == "end_turn"
        assert "/unknown thing" in to_text(server.requests[1]), "what is no command is for the model"


# -- servers ----------------------------------------------------------------------------------


async def test_servers_of_the_editor_stand_beside_the_configured_ones(setup: SessionSetup, server: ModelServer) -> None:
    configured = honest(id="mine")
    row = {"command": configured.command, "args": [*configured.args]}
    config = setup.folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"mine": row, "both": {"command": "/absent"}}}), encoding="utf-8")
    handed = honest(id="theirs")
    stdio = models.McpServerStdio(
        name="theirs",
        command=handed.command,
        args=[*handed.args],
        env=[models.EnvVariable(name="GREETING", value="${HOME} hi")],
    )
    both = models.McpServerStdio(name="both", command=handed.command, args=[*handed.args], env=[])
    server.script[:] = [
        Reply(calls=(("theirs__env", {"name": "GREETING"}), ("web__echo", {"text": "by http"}))),
        calls("mine__echo", text="mine"),
        calls("both__echo", text="both"),
        says("done"),
        calls("theirs__echo", text="again"),
        says("done"),
    ]
    async with http_server(Legacy()) as peer:
        web = models.HttpMcpServer(
            type="http", name="web", url=peer.url, headers=[models.HttpHeader(name="x-key", value="k")]
        )
        flags = ("--model", "openai:scripted", "--mcp", str(config))
        async with open_editor(setup.cwd, setup.environ, *flags) as opened:
            opened.editor.answer = lambda question: "v" if "theirs" in str(question.call.title) else "y"
            new = await opened.agent.new_session(cwd=str(setup.cwd), mcp_servers=[stdio, web, both])
            session = new.session_id
            assert await opened.say(session, "call them") == "end_turn"
            results = [to_text(message) for message in server.requests[3]["messages"] if message["role"] == "tool"]
            assert "${HOME} hi" in results[0], "values of the editor are not expanded"
            assert "by http" in results[1]
            assert "mine" in results[2]
            assert "both" in results[3]
            assert {request.headers.get("x-key") for request in peer.requests} == {"k"}
            kinds = {question.call.title: question.names() for question in opened.editor.questions}
            assert kinds["theirs → env"] == {
                "y": "allow_once",
                "s": "allow_always",
                "a": "allow_always",
                "v": "allow_always",
                "n": "reject_once",
            }
            assert "the editor has a server of this name" in opened.editor.said(session)
            asked = len(opened.editor.questions)
            assert await opened.say(session, "again") == "end_turn"
            assert len(opened.editor.questions) == asked, "always for this server covers its other tools"


# -- errors -----------------------------------------------------------------------------------


async def test_requests_that_cannot_be_answered_say_why(setup: SessionSetup, server: ModelServer) -> None:
    async with open_editor(setup.cwd, setup.environ, "--model", "openai:scripted") as opened:
        agent = opened.agent
        here = str(setup.cwd)
        session = (await agent.new_session(cwd=here)).session_id
        with pytest.raises(RequestError, match="no way to sign in"):
            await agent.authenticate(method_id="any")
        with pytest.raises(RequestError, match="absolute path"):
            await agent.new_session(cwd="relative")
        with pytest.raises(RequestError, match="cannot be used"):
            await agent.new_session(cwd=f"{here}/absent")
        with pytest.raises(RequestError, match="there is no conversation"):
            await agent.load_session(cwd=here, session_id="absent")
        await agent.close_session(session_id=session)
        with pytest.raises(RequestError, match="belongs to"):
            await agent.load_session(cwd=str(setup.folder), session_id=session)
        with pytest.raises(RequestError, match="is not open"):
            await opened.say("absent", "hello")
        new = (await agent.new_session(cwd=here)).session_id
        with pytest.raises(RequestError, match="there is no mode 'all': ask, auto-edit, plan"):
            await agent.set_session_mode(session_id=new, mode_id="all")
        server.script[:] = [Reply(status=401, error="bad key"), says("fine")]
        with pytest.raises(RequestError, match="bad key") as refused:
            await opened.say(new, "hello")
        assert refused.value.code == -32000
        assert await opened.say(new, "again") == "end_turn"


async def test_a_session_without_a_model_names_the_variables(setup: SessionSetup) -> None:
    environ = {name: value for name, value in setup.environ.items() if not name.startswith("OPENAI")}
    async with open_editor(setup.cwd, environ) as opened:
        with pytest.raises(RequestError, match="ANTHROPIC_API_KEY") as refused:
            await opened.agent.new_session(cwd=str(setup.cwd))
        assert refused.value.code == -32000


def exchange(lines: list[bytes], environ: dict[str, str]) -> tuple[list[dict[str, Any]], int]:
    """Send lines to `indus acp`, and read what it writes until it ends."""
    done = subprocess.run(
        [command(), "acp"], input=b"\n".join(lines), capture_output=True, timeout=LIMIT_S, check=False, env=environ
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


def test_odd_lines_are_refused_and_standard_output_has_only_messages(setup: SessionSetup) -> None:
    initialize = {"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": {"protocolVersion": 7}}
    lines = [
        b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}',
        b"not json",
        json.dumps(initialize).encode(),
        b'{"jsonrpc":"2.0","id":3,"method":"session/fork","params":{}}',
        b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"absent"}}',
    ]
    messages, code = exchange(lines, setup.environ)
    assert code == 0
    by_id = {message["id"]: message for message in messages}
    assert by_id[1]["error"]["code"] == -32600
    assert by_id[None]["error"]["code"] == -32700
    assert by_id[2]["result"]["protocolVersion"] == 1
    assert by_id[3]["error"]["code"] == -32601


def test_the_judge_of_messages_finds_what_the_schema_does_not_have() -> None:
    judge = MessageJudge()
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "a"}, "odd": 1}
    params = {"sessionId": "s", "update": update}
    judge(StreamEvent(StreamDirection.INCOMING, {"jsonrpc": "2.0", "method": "session/update", "params": params}))
    assert len(judge.problems) == 1


# -- the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["end of input", "SIGTERM", "killed reader"])
async def test_the_end_leaves_no_process(setup: SessionSetup, server: ModelServer, by: str) -> None:
    server.script[:] = [calls("bash", command="echo started > mark; sleep 300"), says("never")]
    handed = honest("--log", str(setup.folder / "log"), id="theirs")
    mark = f"ACP_TEST={setup.folder}"
    environ = {**setup.environ, "ACP_TEST": str(setup.folder)}
    server_row = models.McpServerStdio(name="theirs", command=handed.command, args=[*handed.args], env=[])
    flags = ("--model", "openai:scripted", "--approval", "all")
    async with open_editor(setup.cwd, environ, *flags, editor=Editor()) as opened:
        new = await opened.agent.new_session(cwd=str(setup.cwd), mcp_servers=[server_row])
        assert new.modes is not None
        assert new.modes.current_mode_id == "all"
        waiting = asyncio.create_task(opened.say(new.session_id, "sleep"))  # noqa: TID251 — awaited below
        await until((setup.cwd / "mark").exists)
        if by == "SIGTERM":
            opened.process.send_signal(signal.SIGTERM)
            assert await opened.wait() == 0
        elif by == "end of input":
            assert await opened.leave() == 0
        else:
            opened.output.close()
            assert await opened.leave() == 0
        if by == "killed reader":
            with pytest.raises(ConnectionError):
                await waiting
        else:
            assert await waiting == "cancelled"
    assert list_processes(mark) == []


def list_processes(mark: str) -> list[str]:
    """List the processes with a variable in their environment."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark.encode() in file.read() and int(pid) != os.getpid():
                    found.append(pid)
        except OSError:
            continue
    return found
