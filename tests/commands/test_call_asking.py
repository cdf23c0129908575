"""`indus call` on a terminal: the person is asked where a rule asks, and by servers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import run
from tests.support.servers import diary, honest
from tests.support.terminal import CTRL_C, CTRL_D, LineTerminal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
ASKED = "Enter: n): "


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory whose rules ask about every `write`, with a server that asks back."""
    folder = tmp_path / "project"
    (folder / ".indusvx").mkdir(parents=True)
    (folder / ".indusvx" / "permissions.json").write_text('{"ask": ["write"]}', encoding="utf-8")
    return folder


def started(folder: Path, *words: str) -> LineTerminal:
    return LineTerminal("call", "-C", str(folder), *words, environ=os.environ)


def mounted(folder: Path, *flags: str) -> str:
    config = honest("--log", folder / "log", *flags)
    row = {"command": config.command, "args": [*config.args]}
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"honest": row}}), encoding="utf-8")
    return str(path)


def test_rule_that_asks_is_put_to_the_person(project: Path) -> None:
    words = ("write", "path=a.txt", "content=x")
    with started(project, *words) as terminal:
        shown = terminal.answer(ASKED, "n not today\n")
        assert "asks because: rule ask write" in shown
        assert "[s]" not in shown
        code, rest = terminal.wait()
    assert code == 1
    assert "the user declined: not today" in rest
    assert not (project / "a.txt").exists()
    with started(project, *words) as terminal:
        terminal.answer(ASKED, "y\n")
        assert terminal.wait()[0] == 0
    assert (project / "a.txt").exists()


def test_typing_a_call_is_its_approval_without_such_a_rule(project: Path) -> None:
    (project / "a.txt").write_text("one\n", encoding="utf-8")
    with started(project, "edit", "path=a.txt", "oldText=one", "newText=two") as terminal:
        code, shown = terminal.wait()
    assert code == 0, shown
    assert (project / "a.txt").read_text(encoding="utf-8") == "two\n"


@pytest.mark.parametrize("output", ["text", "json"])
def test_call_without_a_terminal_is_not_asked_about(output: str, project: Path) -> None:
    words = ("call", "-C", str(project), "write", "path=a.txt", "content=x", "--output", output)
    assert run(*words).returncode == 0
    assert (project / "a.txt").exists()


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_server_elicits_by_a_form(era: str, project: Path) -> None:
    words = ("--mcp", mounted(project, "--era", era), "honest__ask", "method=elicitation/create")
    with started(project, *words) as terminal:
        first = terminal.answer(ASKED, "y\n")
        assert "server honest asks for information" in first
        assert "| What is your name?" in first
        terminal.answer("asks for name (text, required)\nanswer: ", "\n")
        terminal.answer("An answer is required.\nanswer: ", "Ada\n")
        assert 'name: "Ada"' in terminal.answer("(y/c/n, Enter: y): ", "\n")
        code, shown = terminal.wait()
    assert code == 0
    assert '{"action": "accept", "content": {"name": "Ada"}}' in shown


@pytest.mark.parametrize(("typed", "action"), [("n\n", "decline"), ("\n", "decline"), (CTRL_D, "cancel")])
def test_elicitation_is_declined_or_cancelled(typed: str, action: str, project: Path) -> None:
    with started(project, "--mcp", mounted(project), "honest__ask", "method=elicitation/create") as terminal:
        terminal.answer(ASKED, typed)
        code, shown = terminal.wait()
    assert code == 0
    assert f'{{"action": "{action}"}}' in shown


def test_server_elicits_while_a_resource_is_read(project: Path) -> None:
    words = ("--mcp", mounted(project, "--era", "modern"), "@honest:test://asked")
    with started(project, *words) as terminal:
        assert "server honest asks for information" in terminal.answer(ASKED, "n\n")
        code, shown = terminal.wait()
    assert code == 0
    assert '{"action": "decline"}' in shown


def test_ctrl_c_at_an_elicitation_leaves_a_sane_terminal_and_no_process(project: Path) -> None:
    with started(project, "--mcp", mounted(project), "honest__ask", "method=elicitation/create") as terminal:
        terminal.answer(ASKED, "y\n")
        terminal.answer("\nanswer: ", CTRL_C)
        assert terminal.wait()[0] == 130
        assert terminal.read_modes() == terminal.modes
        assert not terminal.has_processes()
    (pid,) = diary(project / "log", "start")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_server_of_a_call_cannot_sample_and_knows_the_workspace(project: Path) -> None:
    with started(project, "--mcp", mounted(project), "honest__ask", "method=sampling/createMessage") as terminal:
        assert "this needs sampling/createMessage" in terminal.wait()[1]
    with started(project, "--mcp", mounted(project), "honest__ask", "method=roots/list") as terminal:
        assert project.as_uri() in terminal.wait()[1]
