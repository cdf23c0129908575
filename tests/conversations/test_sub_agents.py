"""Sub-agents in headless runs: at once, in the background, from files, and what is left after a kill."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from anyio import to_thread
from tests.calls.helpers import read_calls
from tests.support.model_server import ModelServer, Reply, calls, model_server, says
from tests.support.servers import diary, honest
from tests.support.sessions import SessionSetup, to_text
from tests.support.waiting import is_alive, mentioning, running, until

from indusagi.capabilities.leftovers import find_leftover_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def setup(tmp_path: Path, server: ModelServer) -> SessionSetup:
    return SessionSetup(tmp_path, server)


def write_agent(setup: SessionSetup, name: str, *lines: str, prompt: str = "Be brief.") -> None:
    folder = setup.cwd / ".indusvx" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(("---", f"name: {name}", *lines, "---", prompt))
    (folder / f"{name}.md").write_text(text, encoding="utf-8")


def run(setup: SessionSetup, *script: Reply, **flags: Any) -> dict[str, Any]:
    setup.server.script[:] = script
    done = setup.run_process(output_format="json", **flags)
    return {**json.loads(done.out), "code": done.code, "err": done.err}


def objective_of(body: dict[str, Any]) -> str:
    """Give the first line of the first prompt of a request."""
    prompt = next(str(message["content"]) for message in body["messages"] if message["role"] == "user")
    return prompt.removeprefix("Your task: ").partition("\n")[0]


def tasks(*rows: tuple[str, str]) -> Reply:
    return Reply(calls=[("task", {"objective": objective, "agent": agent}) for objective, agent in rows])


# -- order ---------------------------------------------------------------------------------------


def test_three_reading_agents_are_at_the_model_at_once(setup: SessionSetup) -> None:
    # Each reply is sent when the requests of all three have arrived: one after the other they would never come.
    replies = [Reply(text=(f"report {number}",), after=4) for number in range(3)]
    done = run(setup, tasks(("a", "explore"), ("b", "explore"), ("c", "explore")), *replies, says("all done"))
    assert (done["code"], done["result"], done["turns"]) == (0, "all done", 5)
    assert {objective_of(body) for body in setup.server.requests[1:4]} == {"a", "b", "c"}
    assert all(f"report {number}" in to_text(setup.server.requests[-1]) for number in range(3))


def test_writing_agent_waits_for_the_reading_ones_and_they_for_it(setup: SessionSetup) -> None:
    script = (
        tasks(("a", "explore"), ("b", "explore"), ("w", "general"), ("c", "explore")),
        Reply(calls=(("ls", {}),), after=3),
        Reply(calls=(("ls", {}),), after=3),
        says("seen"),
        says("seen"),
        calls("write", path="made.txt", content="x"),
        says("written"),
        says("seen"),
        says("all done"),
    )
    done = run(setup, *script)
    assert (done["code"], done["result"]) == (0, "all done")
    order = [objective_of(body) for body in setup.server.requests[1:-1]]
    assert sorted(order[:4]) == ["a", "a", "b", "b"]
    assert order[4:] == ["w", "w", "c"]
    assert (setup.cwd / "made.txt").read_text(encoding="utf-8") == "x"


def test_calls_of_a_session_and_of_its_agents_are_recorded(setup: SessionSetup) -> None:
    script = (calls("ls"), tasks(("a", "explore")), calls("ls"), says("seen"), says("all done"))
    done = run(setup, *script)
    assert done["code"] == 0
    own, agents, task = read_calls()
    assert [(one.via, one.tool, one.agent) for one in (own, agents, task)] == [
        ("session", "ls", ""),
        ("session", "ls", "explore"),
        ("session", "task", ""),
    ]
    assert {one.conversation for one in (own, agents, task)} == {done["session_id"]}
    assert own.turn == 1 < agents.turn
    assert own.digest == agents.digest


def test_agents_share_the_servers_of_the_session(setup: SessionSetup, tmp_path: Path) -> None:
    log = tmp_path / "log"
    setup.mount(honest("--log", log, id="srv"))
    write_agent(setup, "caller", "description: calls", "tools: srv__*")
    replies = [calls("srv__echo", text="one"), says("r"), calls("srv__echo", text="two"), says("r")]
    done = run(setup, tasks(("a", "caller"), ("b", "caller")), *replies, says("done"))
    assert (done["code"], done["result"]) == (0, "done")
    assert [tool["function"]["name"].startswith("srv__") for tool in setup.server.requests[1]["tools"]].count(
        False
    ) == 0
    assert len(diary(log, "start")) == 1


# -- agents from files ---------------------------------------------------------------------------


def test_agent_of_the_project_is_offered_and_gets_no_more_than_the_session_allows(setup: SessionSetup) -> None:
    write_agent(setup, "smith", "description: Writes files.", "tools: write, read", "max_turns: 3", prompt="Forge.")
    write_agent(setup, "bad", "tools: read")
    done = run(
        setup,
        tasks(("make it", "smith")),
        calls("write", path="made.txt", content="x"),
        says("I may not"),
        says("well"),
        approval="ask",
    )
    assert (done["code"], [row["name"] for row in done["denied"]]) == (0, ["write"])
    assert not (setup.cwd / "made.txt").exists()
    assert "bad.md: left out: it has no description" in done["err"]
    outer, inner, *_, last = setup.server.requests
    (card,) = [tool["function"] for tool in outer["tools"] if tool["function"]["name"] == "task"]
    assert "\n- smith: Writes files." in card["description"]
    assert {tool["function"]["name"] for tool in inner["tools"]} == {"write", "read"}
    assert "<agent-file>\nForge.\n</agent-file>" in to_text(inner)
    assert '"calls":{"write":1}' in to_text(last)
    assert '"usage":{"requests":2,"input_tokens":20,"output_tokens":10}' in to_text(last)


def test_agent_of_the_project_names_no_model_of_another_provider(setup: SessionSetup) -> None:
    setup.environ["ANTHROPIC_API_KEY"] = "key"
    write_agent(setup, "far", "description: d", "model: anthropic:large")
    write_agent(setup, "near", "description: d", "model: openai:small")
    done = run(setup, tasks(("x", "far")), says("r"), tasks(("y", "near")), says("r"), says("done"))
    assert done["code"] == 0
    assert [body["model"] for body in setup.server.requests] == [
        "scripted",
        "scripted",
        "scripted",
        "small",
        "scripted",
    ]
    assert "a file of the project names no model of another provider" in to_text(setup.server.requests[2])
    assert done["turns"] == 5


# -- background ----------------------------------------------------------------------------------


def test_background_task_is_reported_to_the_model_before_the_run_ends(setup: SessionSetup) -> None:
    report, first, last = says("the report"), says("started"), says("all told")
    setup.server.pick = lambda body, reply: (reply is report) == (objective_of(body) == "dig")
    start = calls("task", objective="dig", agent="explore", background=True)
    done = run(setup, start, report, first, last)
    assert (done["code"], done["result"], done["turns"]) == (0, "all told", 4)
    assert "runs in the background" in to_text(setup.server.requests[1]) + to_text(setup.server.requests[2])
    end = to_text(setup.server.requests[-1])
    assert "has ended. Its report:\nthe report" in end
    assert "(explore: dig) is done after" in done["err"]


def test_requests_of_a_background_task_count_as_those_of_the_run(setup: SessionSetup) -> None:
    script = [calls("task", objective="dig", agent="explore", background=True), says("started"), says("never")]
    setup.server.pick = lambda body, reply: reply is not script[2] or objective_of(body) == "dig"
    done = run(setup, *script, calls("ls"), says("never"), max_requests=2)
    assert done["code"] in {0, 5}
    assert len(setup.server.requests) == 2


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
async def test_finding_t1_end_of_the_parent_leaves_nothing(
    setup: SessionSetup, tmp_path: Path, number: signal.Signals, background: bool
) -> None:
    log, temporary = tmp_path / "log", tmp_path / "temporary"
    temporary.mkdir()
    setup.environ["TMPDIR"] = str(temporary)
    setup.mount(honest("--log", log, id="srv"))
    write_agent(setup, "caller", "description: calls", "tools: srv__*, bash")
    # Found by a number of its own instead of by pids: in bubblewrap those are of another namespace.
    seconds = f"600.{os.getpid():08}{number:02}{background:d}"
    job = f"setsid sleep {seconds} & exec sleep {seconds}"
    both = (("bash", {"command": job, "background": True}), ("srv__slow", {"seconds": 600}))
    stalled, slow = Reply(text=("thinking",), stalls=True), Reply(calls=both)
    asked = calls("task", objective="call", agent="caller", background=background)
    setup.server.script[:] = (asked, slow, stalled)
    setup.server.pick = lambda body, reply: (reply is slow) == (objective_of(body) == "call")
    process = setup.start()
    try:
        # A command and a call of a server are under way; in the background, beside a request of the parent.
        await until(lambda: bool(diary(log, "heard tools/call")))
        await until(lambda: not background or setup.server.speaking.is_set())
        await until(lambda: len(running("sleep", seconds)) == 2)
        (server,) = map(int, diary(log, "start"))
        process.send_signal(number)
        await until(lambda: process.poll() is not None)
    finally:
        process.kill()
        process.communicate(timeout=60)
    await until(lambda: not is_alive(server))
    # Neither the two, nor a shell or a bubblewrap around them, whose words name it too.
    await until(lambda: mentioning(seconds) == [])
    if background:
        await until(setup.server.left.is_set)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert await to_thread.run_sync(find_leftover_jobs) == []
    await until(lambda: [*temporary.glob("indus-*")] == [])


# -- the flow guard ------------------------------------------------------------------------------


@pytest.mark.parametrize("sender", ["sub-agent", "session"])
def test_a_sub_agent_and_its_session_share_what_they_have_read(setup: SessionSetup, sender: str) -> None:
    for name, label in (("files", "private"), ("inbox", "untrusted"), ("post", "outward")):
        setup.mount(honest(id=name), labels=[label])
    send = calls("post__echo", text="secrets")
    inner = (send, says("sent")) if sender == "sub-agent" else (says("read"),)
    outer = () if sender == "sub-agent" else (send,)
    script = (
        calls("files__echo", text="private"),
        tasks(("read the mail", "general")),
        calls("inbox__echo", text="a stranger's"),
        *inner,
        *outer,
        says("done"),
    )
    done = run(setup, *script, flow="deny")
    assert (done["code"], done["result"]) == (0, "done")
    answer = next(text for body in setup.server.requests if "flow guard" in (text := to_text(body)))
    assert "echo of server 'files'" in answer
    assert "echo of server 'inbox'" in answer
