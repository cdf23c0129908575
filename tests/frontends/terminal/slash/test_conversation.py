"""Commands about the conversation and its project, and shell commands, on a terminal."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.support.model_server import calls, says
from tests.support.slash import WIDE, wait_for_answer
from tests.support.terminal import TerminalSetup, open_setup

from induscode.frontends.terminal.slash import SlashError, find_command
from induscode.frontends.terminal.slash.conversation import list_paragraphs
from induscode.frontends.terminal.slash.session import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from indusagi.core.json import JsonObject


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[TerminalSetup]:
    with open_setup(tmp_path) as prepared:
        yield prepared


@pytest.mark.process
def test_clear_begins_a_conversation_and_leaving_says_how_to_resume(setup: TerminalSetup) -> None:
    with setup.open(script=(says("Hello."), says("Who?")), columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("I'm Ann")
        terminal.wait_for_answer("Hello.")
        wait_for_answer(terminal, "/status", "conversation:")
        ids = re.findall(r"conversation: +(\w+)", terminal.text)
        wait_for_answer(terminal, "/export talk.md", "Exported 2 messages to ")
        wait_for_answer(terminal, "/export talk.md", "talk.md exists")
        terminal.enter("/new")
        wait_for_answer(terminal, "/export", "the conversation is empty")
        terminal.enter("who am I?")
        terminal.wait_for_answer("Who?")
        wait_for_answer(terminal, "/status", "none")
        assert re.findall(r"conversation: +(\w+)", terminal.text)[-1] not in ids
        assert "Ann" not in setup.requested()
        terminal.enter("/exit")
        assert terminal.wait_for_end() == 0
        assert "Resume: indus -c · 15 tokens" in terminal.text
    assert (setup.cwd / "talk.md").read_text("utf-8") == "## I'm Ann\n\nHello.\n"


@pytest.mark.process
def test_a_shell_command_runs_without_a_question_and_the_model_gets_its_output(setup: TerminalSetup) -> None:
    with setup.open(script=(says("Seen."),), columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("!echo one; echo two > made; exit 3")
        terminal.wait_for("> !echo one")
        terminal.wait_for(lambda: "\none\n" in terminal.text and "exit" in terminal.text.rpartition("\none\n")[2])
        assert setup.server.requests == []
        assert (setup.cwd / "made").read_text("utf-8") == "two\n"
        terminal.enter("what happened?")
        terminal.wait_for_answer("Seen.")
        (prompt,) = [row["content"] for row in setup.server.requests[0]["messages"] if row["role"] == "user"]
        assert "The user ran a command:" in prompt
        assert "$ echo one; echo two > made; exit 3\none" in prompt
        assert terminal.leave() == 0


@pytest.mark.process
def test_a_shell_command_obeys_deny_rules(setup: TerminalSetup) -> None:
    with setup.open(columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/permissions add deny bash(touch *) --save", "Added for this project")
        terminal.enter("!touch made")
        terminal.wait_for("bash was not run: it is denied")
        assert not (setup.cwd / "made").exists()
        assert terminal.leave() == 0


@pytest.mark.process
def test_diff_shows_changes_and_new_files_and_runs_no_program_of_the_repository(setup: TerminalSetup) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", setup.cwd, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    git("init", "-q")
    (setup.cwd / "a.txt").write_text("old\n", "utf-8")
    git("add", ".")
    git("commit", "-qm", "first")
    git("config", "diff.external", "touch made")
    (setup.cwd / "a.txt").write_text("new\n", "utf-8")
    (setup.cwd / "b.txt").write_text("b\n", "utf-8")
    with setup.open("--no-mcp", columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/diff", "new file: b.txt")
        assert "-old\n+new" in terminal.text
        assert not (setup.cwd / "made").exists()
        assert terminal.leave() == 0


@pytest.mark.process
def test_init_asks_the_model_to_write_instructions(setup: TerminalSetup) -> None:
    with setup.open(script=(calls("ls", path="."), says("Written.")), columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("/init in French")
        terminal.wait_for_answer("Written.")
        assert "AGENTS.md" in setup.requested(0)
        assert "in French" in setup.requested(0)
        assert terminal.leave() == 0


def test_a_mistyped_command_gets_a_suggestion() -> None:
    commands = {command.name: command for command in COMMANDS}
    with pytest.raises(SlashError, match=r"unknown command /cots: did you mean /cost\?"):
        find_command("cots", commands)
    with pytest.raises(SlashError, match="unknown command /xyzzy: type / to see all"):
        find_command("xyzzy", commands)


def test_an_export_has_prompts_answers_and_calls() -> None:
    messages: list[JsonObject] = [
        {
            "kind": "request",
            "parts": [{"part_kind": "user-prompt", "content": "Do it\n\n<session-note>\nx\n</session-note>"}],
        },
        {
            "kind": "response",
            "parts": [
                {"part_kind": "text", "content": "I do."},
                {"part_kind": "tool-call", "tool_name": "bash", "args": json.dumps({"command": "ls"})},
                {"part_kind": "tool-call", "tool_name": "read", "args": {"path": "a"}},
            ],
        },
    ]
    assert [*list_paragraphs(messages)] == ["## Do it", "I do.", '- `bash {"command": "ls"}`', '- `read {"path":"a"}`']
