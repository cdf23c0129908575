"""`indus -p` on a terminal: the person is asked, by a process with a pseudo-terminal."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.model_server import calls, model_server, says
from tests.support.servers import diary, honest
from tests.support.sessions import SessionSetup, build_command_line, to_text
from tests.support.terminal import CTRL_C, CTRL_D, LineTerminal

from induscode.permissions.rules import rules_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.model_server import ModelServer

pytestmark = pytest.mark.process
ASKED = "Enter: "


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running


def started(setup: SessionSetup, *, piped: str | None = None, stdout: int | None = None, **flags: Any) -> LineTerminal:
    words = build_command_line(setup.build_fields(**{"approval": "ask", **flags}))
    environ = {**os.environ, **setup.build_environment()}
    return LineTerminal(*words, environ=environ, piped=piped, stdout=stdout)


def last_answer(server: ModelServer) -> str:
    return to_text(server.requests[-1]["messages"][-1])


def test_yes_runs_the_call_once(server: ModelServer, tmp_path: Path) -> None:
    setup = SessionSetup(tmp_path, server)
    server.script[:] = [
        calls("write", path="a.txt", content="one"),
        calls("write", path="a.txt", content="two"),
        says("done"),
    ]
    with started(setup) as terminal:
        shown = terminal.answer(ASKED, "d\n")
        assert "Create a.txt  +1 −0" in shown  # noqa: RUF001 — a minus
        assert "     1 + one" in shown
        assert "rule: allow write(a.txt)" in terminal.answer(ASKED, "y\n")
        terminal.answer(ASKED, "n\n")
        terminal.answer("why?", "once is enough\n")
        code, rest = terminal.wait()
    assert code == 0
    assert "done" in rest
    assert (setup.cwd / "a.txt").read_text(encoding="utf-8") == "one"
    assert "the user declined: once is enough" in last_answer(server)
    assert "The user is asked" in to_text(server.requests[0])
    assert not os.path.exists(rules_path())


def test_always_is_stored_and_the_next_run_is_not_asked(server: ModelServer, tmp_path: Path) -> None:
    setup = SessionSetup(tmp_path, server)
    server.script[:] = [calls("write", path="a.txt", content="one"), says("done")]
    with started(setup) as terminal:
        terminal.answer(ASKED, "a\n")
        assert terminal.wait()[0] == 0
    with open(rules_path(), encoding="utf-8") as file:
        (row,) = json.load(file)["rules"]
    assert (row["effect"], row["rule"], row["workspace"]) == ("allow", "write(a.txt)", str(setup.cwd))
    (setup.cwd / "a.txt").unlink()
    server.script[:] = [calls("write", path="a.txt", content="two"), says("done")]
    with started(setup) as terminal:
        assert terminal.wait()[0] == 0
    assert (setup.cwd / "a.txt").read_text(encoding="utf-8") == "two"


def test_question_is_put_on_the_terminal_while_input_and_output_are_piped(server: ModelServer, tmp_path: Path) -> None:
    setup = SessionSetup(tmp_path, server)
    server.script[:] = [calls("write", path="a.txt", content="one"), says("the answer")]
    with started(setup, piped="the text of the prompt", stdout=subprocess.PIPE) as terminal:
        terminal.answer(ASKED, "y\n")
        assert terminal.wait()[0] == 0
        assert terminal.process.stdout is not None
        assert terminal.process.stdout.read() == b"the answer\n"
    assert "the text of the prompt" in to_text(server.requests[0])
    assert (setup.cwd / "a.txt").exists()


@pytest.mark.parametrize("output_format", ["json", "stream-json"])
def test_run_with_json_output_never_asks(output_format: str, server: ModelServer, tmp_path: Path) -> None:
    setup = SessionSetup(tmp_path, server)
    server.script[:] = [calls("write", path="a.txt", content="one"), says("done")]
    with started(setup, output_format=output_format) as terminal:
        code, shown = terminal.wait()
    assert code == 0
    assert ASKED not in shown
    assert "this run cannot ask the user. To allow it, start with --allow 'write(a.txt)'" in last_answer(server)


def test_ctrl_c_at_a_question_ends_the_run_with_a_sane_terminal_and_no_process(
    server: ModelServer, tmp_path: Path
) -> None:
    setup = SessionSetup(tmp_path, server)
    log = tmp_path / "log"
    setup.mount(honest("--log", log))
    server.script[:] = [calls("honest__pid"), says("done")]
    with started(setup) as terminal:
        assert "honest → pid" in terminal.answer(ASKED, CTRL_C)
        code, _ = terminal.wait()
        assert code == 130
        assert terminal.read_modes() == terminal.modes
        assert not terminal.has_processes()
    (pid,) = diary(log, "start")
    assert not _is_running(int(pid))
    assert diary(log, "heard tools/call") == []


def test_ctrl_d_at_a_question_means_no_and_the_run_goes_on(server: ModelServer, tmp_path: Path) -> None:
    setup = SessionSetup(tmp_path, server)
    server.script[:] = [calls("write", path="a.txt", content="one"), says("the end")]
    with started(setup) as terminal:
        terminal.answer(ASKED, CTRL_D)
        code, shown = terminal.wait()
    assert code == 0
    assert "the end" in shown
    assert "the user declined" in last_answer(server)


def test_plan_is_refused_with_a_comment_and_then_approved(server: ModelServer, tmp_path: Path) -> None:
    setup = SessionSetup(tmp_path, server)
    server.script[:] = [
        calls("enter_plan_mode"),
        calls("exit_plan_mode", plan="# First\n1. guess"),
        calls("exit_plan_mode", plan="# Second\n1. measure"),
        calls("write", path="a.txt", content="one"),
        says("done"),
    ]
    with started(setup, approval="all") as terminal:
        assert "# First" in terminal.answer(ASKED, "r measure first\n")
        assert "# Second" in terminal.answer(ASKED, "e\n")
        assert terminal.wait()[0] == 0
    assert "The user says: measure first" in to_text(server.requests[2]["messages"][-1])
    assert (setup.cwd / "a.txt").exists()


def test_server_that_samples_gets_a_text_of_the_model_after_a_yes(server: ModelServer, tmp_path: Path) -> None:
    setup = SessionSetup(tmp_path, server)
    setup.mount(honest())
    server.script[:] = [
        calls("honest__ask", method="sampling/createMessage"),
        says("something"),
        calls("honest__ask", method="roots/list"),
        says("done"),
    ]
    with started(setup, allow=("honest__*",)) as terminal:
        shown = terminal.answer(ASKED, "y\n")
        assert terminal.wait()[0] == 0
    assert "server honest wants a text from the model" in shown
    assert "| Say something." in shown
    assert "at most 100 tokens" in shown
    _, sampled, _, last = server.requests
    assert sampled["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Say something."}]}]
    assert sampled["max_completion_tokens"] == 100
    assert "tools" not in sampled
    answered = to_text(server.requests[2]["messages"][-1])
    assert '"text": "something"' in answered
    assert '"stopReason": "endTurn"' in answered
    assert setup.cwd.as_uri() in to_text(last["messages"][-1])


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
