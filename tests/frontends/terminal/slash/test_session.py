"""Slash commands of the session itself, on a terminal, with good and with bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.model_server import Reply, calls, says
from tests.support.scripts import run
from tests.support.servers import honest
from tests.support.slash import WIDE, wait_for_answer
from tests.support.terminal import CTRL_C, ENTER, ESCAPE, TerminalSetup, open_setup

from induscode.conversations.transcript import conversations_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.terminal import Terminal

pytestmark = pytest.mark.process

COMMANDS = (
    *("compact", "context", "cost", "exit", "fork", "help", "memory"),
    *("model", "plan", "quit", "resume", "rewind", "tasks"),
)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[TerminalSetup]:
    with open_setup(tmp_path) as prepared:
        yield prepared


def say(terminal: Terminal, prompt: str, answer: str) -> None:
    """Enter a prompt, and wait for the end of the turn."""
    terminal.enter(prompt)
    terminal.wait_for_answer(answer)


def choose(terminal: Terminal, line: str, title: str, key: str) -> None:
    """Enter a command that asks, wait for its question, and answer it."""
    terminal.enter(line)
    terminal.wait_for(title)
    terminal.wait_for("n  no")
    terminal.type(key)


def test_commands_say_in_one_line_what_is_wrong(setup: TerminalSetup) -> None:
    with setup.open(columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        for line, answer in (
            ("/help nothing", "unknown command /nothing"),
            ("/plan maybe", "write /plan on, /plan off"),
            ("/model two words", "write one name"),
            ("/model bare-name-without-server extra", "write one name"),
            ("/cost now", "this command takes no arguments"),
            ("/context now", "this command takes no arguments"),
            ("/memory burn", "write /memory, /memory add TEXT"),
            ("/memory add", "write what is to be noted"),
            ("/tasks burn 1", "write /tasks, /tasks output N"),
            ("/tasks stop", "write /tasks, /tasks output N"),
            ("/tasks stop 7", "there is no task '7'"),
            ("/resume 7", "there is no conversation 7"),
            ("/resume ../../etc", "there is no conversation '../../etc'"),
            ("/fork", "the conversation is empty"),
            ("/fork now", "this command takes no arguments"),
            ("/compact", "nothing was changed: there is nothing to compact"),
            ("/rewind", "the conversation has no prompts yet"),
            ("/rewind x", "write /rewind, or /rewind N"),
            ("/rewind 3 files", "there is no point 3"),
            ("/rewind files", "write /rewind, or /rewind N"),
            ("/exit now", "this command takes no arguments"),
        ):
            wait_for_answer(terminal, line, answer)
        assert "Traceback" not in terminal.text
        assert setup.server.requests == []
        terminal.enter("/quit")
        assert terminal.wait_for_end() == 0


def test_help_lists_every_command_with_its_arguments(setup: TerminalSetup) -> None:
    with setup.open(columns=WIDE, rows=60) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/help", "? lists the keys")
        for name in COMMANDS:
            assert f"/{name}" in terminal.text
        wait_for_answer(terminal, "/help rewind", "/rewind [N] [files|talk|both]")
        assert terminal.leave() == 0


def test_plan_mode_is_switched_told_to_the_model_and_kept(setup: TerminalSetup) -> None:
    with setup.open(script=(says("I look around"),), columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/plan on", "plan mode is on: only read-only tools run")
        say(terminal, "look", "I look around")
        assert "The user has turned plan mode on" in setup.requested()
        assert terminal.leave() == 0
    with setup.open("--continue", columns=WIDE) as terminal:
        terminal.wait_for("plan mode ⇧⇥")
        wait_for_answer(terminal, "/plan", "plan mode is off")
        assert terminal.leave() == 0


def test_the_model_is_shown_and_switched_in_place(setup: TerminalSetup) -> None:
    script = (says("first"), says("second"))
    with setup.open(script=script, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/model", "openai:scripted at http://127.0.0.1")
        say(terminal, "one", "first")
        wait_for_answer(terminal, "/model openai:other", "Model: openai:other")
        say(terminal, "two", "second")
        assert [request["model"] for request in setup.server.requests] == ["scripted", "other"]
        assert "first" in setup.requested()
        wait_for_answer(terminal, "/cost", "this conversation")
        assert [line.split()[2:5] for line in terminal.text.splitlines() if line.startswith("this conversation")] == [
            ["2", "20", "10"]
        ]
        assert terminal.leave() == 0


@pytest.mark.parametrize("columns", [40, 100])
def test_the_context_is_a_table_with_bars_that_fits(setup: TerminalSetup, columns: int) -> None:
    with setup.open("--context-window", "100000", script=(says("hi"),), columns=columns) as terminal:
        terminal.wait_for_prompt()
        say(terminal, "hello", "hi")
        wait_for_answer(terminal, "/context", "Last request")
        shown = terminal.text.rpartition("> /context\n")[2].splitlines()
        names = ["system prompt", "native tools", "messages", "together", "free"]
        for name, row in zip(names, shown, strict=False):
            assert row.startswith(name)
            assert row[-1] in "█▏▎▍▌▋▊▉"
        assert terminal.leave() == 0


def test_notes_are_shown_added_and_cleared_after_a_question(setup: TerminalSetup) -> None:
    notes = setup.cwd / ".indusvx" / "memory.md"
    with setup.open(columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/memory", "there are no notes")
        wait_for_answer(terminal, "/memory add ship on Friday", "added to")
        assert notes.read_text() == "ship on Friday\n"
        wait_for_answer(terminal, "/memory", "ship on Friday")
        choose(terminal, "/memory clear", "Remove all notes", "n")
        terminal.wait_for("→ no")
        assert notes.read_text() == "ship on Friday\n"
        choose(terminal, "/memory clear", "(1 line)?", "y")
        terminal.wait_for("the notes are empty now")
        assert notes.read_text() == ""
        assert terminal.leave() == 0


def test_jobs_are_listed_read_and_stopped(setup: TerminalSetup) -> None:
    script = (calls("process", action="start", command="echo ready; sleep 600"), says("it runs"))
    with setup.open("--approval", "all", script=script, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/tasks", "there are no background jobs")
        say(terminal, "start it", "it runs")
        wait_for_answer(terminal, "/tasks", "echo ready; sleep 600")
        # The command shows what the job has written so far: the job has to have written first.
        terminal.wait_for(lambda: any(path.read_bytes() for path in setup.home.rglob("jobs/*.out")))
        wait_for_answer(terminal, "/tasks output job-1", "ready")
        choose(terminal, "/fork", "1 job ends with it: job-1", "n")
        terminal.wait_for("→ no")
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/tasks stop 1", "job-1: stopped")
        assert terminal.leave() == 0


def test_a_sub_session_is_a_task_with_its_report(setup: TerminalSetup) -> None:
    script = (calls("task", objective="count the files"), says("There are none."), says("none, it says"))
    with setup.open("--approval", "all", script=script, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        say(terminal, "how many?", "none, it says")
        wait_for_answer(terminal, "/tasks", "count the files")
        wait_for_answer(terminal, "/tasks output 1", "There are none.")
        wait_for_answer(terminal, "/tasks stop 1", "has ended; /tasks resume")
        assert terminal.leave() == 0


def test_finding_p7_a_resumed_task_begins_a_point_that_can_be_restored(setup: TerminalSetup) -> None:
    script = (
        calls("task", objective="count the files"),
        says("There are none."),
        says("none, it says"),
        calls("write", path="made", content="by the task"),
        says("now there is one"),
    )
    with setup.open("--approval", "all", script=script, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        say(terminal, "how many?", "none, it says")
        wait_for_answer(terminal, "/tasks resume 1 make one", "goes on in the background")
        terminal.wait_for("is done after")
        assert terminal.leave() == 0
    assert (setup.cwd / "made").exists()
    points = json.loads(run("rewind", "--json", cwd=setup.cwd).stdout)["points"]
    assert len(points) == 2
    done = run("rewind", "--to", "2", "--files", "--yes", cwd=setup.cwd)
    assert done.returncode == 0, done.stderr
    assert not (setup.cwd / "made").exists()


def test_a_background_task_is_watched_stopped_and_resumed(setup: TerminalSetup) -> None:
    script = (
        calls("task", objective="watch the tide", agent="explore", background=True),
        says("it is under way"),
        Reply(text=("I see water",), stalls=True),
        says("low tide"),
        says("the tide is low"),
    )
    with setup.open("--approval", "all", script=script, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        # Both requests are made at once: the replies are told apart by what they are about.
        setup.server.pick = lambda body, reply: (
            ("watch the tide" in str(body["messages"][1:2])) == (reply in script[2:4])
        )
        say(terminal, "look at the sea", "it is under way")
        wait_for_answer(terminal, "/tasks", "explore: watch the tide")
        wait_for_answer(terminal, "/tasks", "running")
        choose(terminal, "/fork", "1 task ends with it", "n")
        terminal.wait_for("→ no")
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/tasks stop 1", "stopping")
        terminal.wait_for("ended early (cancelled)")
        wait_for_answer(terminal, "/tasks output 1", "I see water")
        wait_for_answer(terminal, "/tasks resume 1 look again", "goes on in the background")
        terminal.wait_for("is done after")
        wait_for_answer(terminal, "/tasks output 1", "low tide")
        say(terminal, "well?", "the tide is low")
        assert "Its report:\\nlow tide" in json.dumps(setup.server.requests[-1])
        assert terminal.leave() == 0


def test_an_earlier_conversation_is_listed_and_opened(setup: TerminalSetup) -> None:
    with setup.open(script=(says("the first answer"),), columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        say(terminal, "the first question", "the first answer")
        assert terminal.leave() == 0
    with setup.open(script=(says("on we go"),), columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/resume --json", '"title":"the first question"')
        wait_for_answer(terminal, "/resume", "the first question  2 messages")
        terminal.type("nothing")
        terminal.wait_for(lambda: "the first question  2" not in terminal.text)
        terminal.type("\x7f" * 7 + f"FIRST{ENTER}")
        terminal.wait_for("continuing conversation")
        terminal.wait_for("> the first question\nthe first answer")
        say(terminal, "go on", "on we go")
        assert "the first answer" in setup.requested()
        assert terminal.leave() == 0


def test_continue_shows_the_last_prompt_and_the_end_of_the_answer(setup: TerminalSetup) -> None:
    lines = "\n\n".join(f"line {number}" for number in range(40))
    with setup.open(script=(says(lines),), columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        say(terminal, "count", "line 39")
        assert terminal.leave() == 0
    with setup.open("-c", columns=WIDE) as terminal:
        terminal.wait_for("line 39")
        assert "> count\n" in terminal.text
        assert "line 3\n" not in terminal.text
        assert terminal.leave() == 0


def test_a_fork_goes_on_in_a_copy(setup: TerminalSetup) -> None:
    with setup.open(script=(says("original"), says("copied")), columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        say(terminal, "one", "original")
        wait_for_answer(terminal, "/fork", "continuing conversation")
        say(terminal, "two", "copied")
        assert terminal.leave() == 0
    logs = [folder / "transcript.log" for folder in Path(conversations_dir()).iterdir()]
    texts = sorted((path.read_text(encoding="utf-8") for path in logs), key=len)
    assert ["copied" in text for text in texts] == [False, True]
    assert all("original" in text for text in texts)


def list_servers(terminal: Terminal) -> list[str]:
    return [row for row in terminal.list_processes() if not row.endswith(" indus")]


def test_servers_stay_open_in_a_fork_and_another_conversation(setup: TerminalSetup) -> None:
    setup.write_config("mcp.json", honest())
    script = (says("original"), says("copied"), says("back"))
    with setup.open("--mcp", "mcp.json", script=script, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/mcp list", "honest")
        servers = list_servers(terminal)
        say(terminal, "one", "original")
        wait_for_answer(terminal, "/fork", "continuing conversation")
        say(terminal, "two", "copied")
        wait_for_answer(terminal, "/resume 1", "continuing conversation")
        say(terminal, "three", "back")
        assert servers == list_servers(terminal) != []
        assert "honest__" in setup.requested()
        assert terminal.leave() == 0


def test_a_compaction_reports_what_it_replaced(setup: TerminalSetup) -> None:
    script = (says("a1"), says("a2"), says("a3"), says("the short version"), says("a4"))
    with setup.open(script=script, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        for number in (1, 2, 3):
            say(terminal, f"q{number}", f"a{number}")
        wait_for_answer(terminal, "/compact keep names", "a summary replaces 2 messages with 0 tool results, 4 stay")
        assert "keep names" in setup.requested()
        say(terminal, "q4", "a4")
        assert "the short version" in setup.requested()
        assert json.dumps("q1") not in setup.requested()
        assert terminal.leave() == 0


def test_a_compaction_without_a_model_changes_nothing(setup: TerminalSetup) -> None:
    script = (says("a1"), says("a2"), says("a3"), Reply(status=500, error="down today"), calls("ls"), says("a4"))
    with setup.open(script=script, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        for number in (1, 2, 3):
            say(terminal, f"q{number}", f"a{number}")
        wait_for_answer(terminal, "/compact", "nothing was changed: the model gave no summary")
        assert "down today" in terminal.text
        wait_for_answer(terminal, "/compact", "the model called a tool instead of writing a summary")
        say(terminal, "q4", "a4")
        assert "q1" in setup.requested()
        assert terminal.leave() == 0


def test_a_rewind_lists_previews_asks_and_reports(setup: TerminalSetup) -> None:
    script = (calls("write", path="new.txt", content="x\n"), says("written"), says("again"))
    with setup.open("--approval", "all", script=script, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        say(terminal, "write a file", "written")
        terminal.type(f"{ESCAPE}{ESCAPE}")
        terminal.wait_for("write a file  +1 −0 in 1 file")  # noqa: RUF001 — a minus
        terminal.type(ENTER)
        terminal.wait_for("new.txt: is removed")
        terminal.type("n")
        terminal.wait_for("nothing was changed")
        assert (setup.cwd / "new.txt").exists()
        terminal.enter("/rewind 1 both")
        terminal.wait_for(lambda: terminal.text.count("Back to the state before: write a file") == 2)
        terminal.type("y")
        terminal.wait_for("Restored 1 path, removed 4 messages")
        assert not (setup.cwd / "new.txt").exists()
        terminal.wait_for("\n> write a file\n  openai:scripted")
        terminal.type(CTRL_C)
        say(terminal, "something else", "again")
        assert "write a file" not in setup.requested()
        assert terminal.leave() == 0


def test_enter_at_a_question_means_no(setup: TerminalSetup) -> None:
    with setup.open(columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/memory add keep this", "added to")
        choose(terminal, "/memory clear", "Remove all notes", ENTER)
        terminal.wait_for("→ no")
        wait_for_answer(terminal, "/memory", "keep this")
        assert terminal.leave() == 0
