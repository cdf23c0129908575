"""Turns on a terminal: questions, queued messages, and Ctrl-C at every stage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.forked import CONSTANTS
from tests.support.model_server import Reply, calls, says
from tests.support.servers import fault, honest
from tests.support.terminal import CTRL_C, CTRL_D, ENTER, ESCAPE, UP, Terminal, TerminalSetup, open_setup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

CANCELLED = "Interrupted."


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[TerminalSetup]:
    with open_setup(tmp_path) as prepared:
        yield prepared


def stall(*pieces: str) -> Reply:
    """Build a reply that never ends."""
    return Reply(text=pieces, stalls=True)


def count_cancelled(terminal: Terminal) -> int:
    """Count the turns that were cancelled."""
    return terminal.text.count(CANCELLED)


def wait_for_cancelled(terminal: Terminal, count: int) -> None:
    """Wait until so many turns are cancelled, and only the program itself runs."""
    terminal.wait_for(lambda: count_cancelled(terminal) == count)
    terminal.wait_for(lambda: len(terminal.list_processes()) == 1)


# -- the first prompt -------------------------------------------------------------------------------


def test_several_words_are_the_first_prompt_of_a_session(setup: TerminalSetup) -> None:
    with setup.open("say hello", script=(says("Hello."), says("Again."))) as terminal:
        terminal.wait_for_answer("Hello.")
        terminal.enter("once more")
        terminal.wait_for_answer("Again.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert "say hello" in setup.requested(0)


# -- questions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_call_is_approved_once_refused_with_a_reason_and_allowed_for_good(setup: TerminalSetup, api: Any) -> None:
    setup.api = api
    script = [
        reply for name in "abcd" for reply in (calls("write", path=f"{name}.txt", content=f"{name}\n"), says("Ok."))
    ]
    with setup.open(script=tuple(script[:4])) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("one")
        terminal.wait_for("y  Yes")
        terminal.type("y")
        terminal.wait_for_answer("Ok.")
        assert (setup.cwd / "a.txt").read_text(encoding="utf-8") == "a\n"
        terminal.enter("two")
        terminal.wait_for("n  No, and say what to do instead")
        terminal.type("n")
        terminal.wait_for("what should it do instead?")
        terminal.enter("keep it as it is")
        terminal.wait_for_answer("⊘ Create b.txt · declined: keep it as it is")
        assert not (setup.cwd / "b.txt").exists()
        terminal.wait_for(lambda: len(setup.server.requests) == 4)
        assert "keep it as it is" in setup.requested()
        setup.server.script[:] = [
            calls("bash", command="touch c.txt"),
            says("Three."),
            calls("bash", command="touch c.txt"),
        ]
        setup.server.script.append(says("Four."))
        terminal.wait_for_answer("Ok.")
        terminal.enter("three")
        terminal.wait_for("a  Always")
        terminal.type("a")
        terminal.wait_for_answer("Three.")
        terminal.enter("four")
        terminal.wait_for_answer("Four.")
        assert "Always allow" not in terminal.text, "a question disappears with its answer"
        assert terminal.text.count("✓ $ touch c.txt") == 2
        assert terminal.leave() == 0
    stored = [path.read_text(encoding="utf-8") for path in setup.home.rglob("permissions.json")]
    assert len(stored) == 1
    assert [row["rule"] for row in json.loads(stored[0])["rules"]] == ["bash(touch *)"]


def test_enter_and_ctrl_d_at_a_question_mean_no_and_escape_stops_the_turn_too(setup: TerminalSetup) -> None:
    remove = calls("bash", command="rm -f a.txt")
    script = [reply for number in (1, 2) for reply in (remove, says(f"Ok {number}."))]
    with setup.open(script=(*script, remove, says("Never said."))) as terminal:
        terminal.wait_for_prompt()
        for number, key in enumerate((f"{ENTER}{ENTER}", CTRL_D), 1):
            terminal.enter(f"remove {number}")
            terminal.wait_for("y  Yes")
            terminal.type(key)
            terminal.wait_for_answer(f"Ok {number}.")
        assert terminal.text.count("⊘ $ rm -f a.txt · declined") == 2
        terminal.enter("remove 3")
        terminal.wait_for("y  Yes")
        terminal.type(ESCAPE)
        terminal.wait_for(CANCELLED)
        assert len(setup.server.requests) == 5
        assert "y  Yes" not in terminal.text
        assert terminal.leave() == 0


def test_a_change_is_shown_before_it_is_made_and_all_edits_are_accepted_at_once(setup: TerminalSetup) -> None:
    (setup.cwd / "a.py").write_text("one\ntwo\n", encoding="utf-8")
    edit = calls("edit", path="a.py", oldText="two", newText="three")
    missing = calls("edit", path="a.py", oldText="nine", newText="ten")
    script = (calls("read", path="a.py"), missing, edit, calls("write", path="b.py", content="new\n"), says("Done."))
    with setup.open(script=script) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("edit")
        terminal.wait_for("Make this edit?")
        assert "✗ Edit a.py" in terminal.text, "a change that can't be made isn't asked about"
        for row in ("● Edit a.py  +1 −1", "     2 - two", "     2 + three", "▸ y  Yes", "asks before changes"):  # noqa: RUF001 — a minus
            assert any(row in shown for shown in terminal.rows)
        assert (setup.cwd / "a.py").read_text(encoding="utf-8") == "one\ntwo\n"
        terminal.type("\x1b[Z")
        terminal.wait_for_answer("Done.")
        assert (setup.cwd / "a.py").read_text(encoding="utf-8") == "one\nthree\n"
        assert (setup.cwd / "b.py").read_text(encoding="utf-8") == "new\n"
        terminal.wait_for("accepts edits")
        assert terminal.text.count("     2 + three") == 1, "the diff is printed once"
        terminal.type("\x1b[Z")
        terminal.wait_for("plan mode")
        assert terminal.leave() == 0


def test_a_file_that_changes_during_the_question_is_not_written(setup: TerminalSetup) -> None:
    (setup.cwd / "a.py").write_text("one\ntwo\n", encoding="utf-8")
    edit = calls("edit", path="a.py", oldText="two", newText="three")
    with setup.open(script=(calls("read", path="a.py"), edit, says("Done."))) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("edit")
        terminal.wait_for("Make this edit?")
        (setup.cwd / "a.py").write_text("zero\none\ntwo\n", encoding="utf-8")
        terminal.type("y")
        terminal.wait_for_answer("Done.")
        assert "it has changed since the user approved the change" in terminal.text
        assert (setup.cwd / "a.py").read_text(encoding="utf-8") == "zero\none\ntwo\n"
        assert terminal.leave() == 0


def test_ctrl_o_shows_the_whole_results_in_the_pager(setup: TerminalSetup) -> None:
    shown = setup.cwd.parent / "shown"
    script = (calls("bash", command="seq 1 400; exit 3"), says("Done."))
    environ = {"PAGER": f"tee {shown}"}
    with setup.open("--allow", "bash(*)", script=script, environ=environ) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("count")
        terminal.wait_for_answer("Done.")
        assert "✗ $ seq 1 400; exit 3 · exit 3" in terminal.text
        assert "… 395 more lines · ctrl-o shows all" in terminal.text
        terminal.type("\x0f")
        terminal.wait_for(lambda: shown.exists() and "399\n400\n" in shown.read_text(encoding="utf-8"))
        terminal.wait_for_prompt()
        assert terminal.leave() == 0


def test_keys_typed_when_a_question_appears_stay_in_the_message(
    setup: TerminalSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONSTANTS, "induscode.frontends.terminal.screen:_PAUSE_S", 0.1)
    script = (calls("write", path="a.txt", content="a\n"), says("Written."), says("Answered."))
    with setup.open(script=script) as terminal:
        terminal.wait_for_prompt()
        terminal.type(f"write{ENTER}yes, and then")
        terminal.wait_for("y  Yes")
        assert not (setup.cwd / "a.txt").exists()
        terminal.type("y")
        terminal.wait_for_answer("Written.")
        terminal.wait_for("> yes, and then")
        terminal.type(ENTER)
        terminal.wait_for_answer("Answered.")
        assert setup.server.requests[-1]["messages"][-1]["content"] == "yes, and then"
        assert terminal.leave() == 0


# -- the queue --------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_escape_steers_to_the_queued_message_and_the_cancelled_turn_is_kept(setup: TerminalSetup, api: Any) -> None:
    setup.api = api
    script = (stall("The long way "), says("The short way."), says("Goodbye."))
    with setup.open(script=script) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("how do I get there?")
        terminal.wait_for("The long way")
        terminal.enter("make it short")
        terminal.enter("and thanks")
        terminal.wait_for("queued: make it short (+1 more)")
        assert len(setup.server.requests) == 1
        terminal.type(ESCAPE)
        terminal.wait_for_answer("Goodbye.")
        order = [terminal.text.index(part) for part in (
            "The long way", CANCELLED, "> make it short", "The short way.", "> and thanks", "Goodbye.",
        )]  # fmt: skip
        assert order == sorted(order)
        history = setup.requested(1)
        assert "how do I get there?" in history
        assert "The long way" in history
        assert setup.server.left.wait(60)
        assert terminal.leave() == 0


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_message_reaches_the_model_with_the_next_tool_result(setup: TerminalSetup, api: Any) -> None:
    setup.api = api
    script = (calls("bash", command="until [ -e go ]; do sleep 0.05; done"), says("As you wish."))
    with setup.open("--approval", "all", script=script) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("wait")
        terminal.wait_for(lambda: any("sleep 0.05" in row for row in terminal.list_processes()))
        terminal.enter("in French, please")
        terminal.enter("/cost")
        terminal.wait_for("queued: in French, please (+1 more)")
        (setup.cwd / "go").touch()
        terminal.wait_for_answer("As you wish.")
        assert terminal.text.index("> in French, please") < terminal.text.index("As you wish.")
        terminal.wait_for("> /cost")
        last = setup.server.requests[-1]["messages"][-1]
        assert last["role"] == "user"
        assert "in French, please" in json.dumps(last)
        assert len(setup.server.requests) == 2
        assert terminal.leave() == 0


def test_up_takes_queued_messages_back(setup: TerminalSetup) -> None:
    with setup.open(script=(stall("Thinking "), says("Goodbye."))) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("go")
        terminal.wait_for("Thinking")
        terminal.enter("one")
        terminal.enter("two")
        terminal.wait_for("queued: one (+1 more)")
        terminal.type(UP)
        terminal.wait_for(
            lambda: any(row.startswith("> one") for row in terminal.rows) and "queued:" not in terminal.text
        )
        terminal.type(f" and three{ENTER}")
        terminal.wait_for("queued: one")
        terminal.type(ESCAPE)
        terminal.wait_for_answer("Goodbye.")
        assert setup.server.requests[-1]["messages"][-1]["content"] == "one\ntwo and three"
        assert terminal.leave() == 0


def test_a_conversation_that_is_open_elsewhere_opens_as_a_copy(setup: TerminalSetup) -> None:
    with setup.open(script=(says("First."), says("Second."))) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("one")
        terminal.wait_for_answer("First.")
        with Terminal("--model", "openai:scripted", "-c", cwd=setup.cwd, environ=setup.variables) as other:
            other.wait_for("This conversation is open elsewhere. Open a copy?")
            other.type(ENTER)
            other.wait_for("continuing conversation")
            other.enter("two")
            other.wait_for_answer("Second.")
            assert other.leave() == 0
        assert terminal.leave() == 0
    assert '"one"' in setup.requested()


# -- Ctrl-C -----------------------------------------------------------------------------------------


def test_ctrl_c_cancels_a_turn_at_every_stage_and_leaves_no_process(setup: TerminalSetup) -> None:
    script = (
        stall("Speaking "),
        calls("bash", command="sleep 600 & sleep 601"),
        calls("write", path="a.txt", content="x"),
        says("Still here."),
    )
    with setup.open("--allow", "bash(sleep *)", script=script) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("speak")
        terminal.wait_for("Speaking")
        terminal.type(CTRL_C)
        wait_for_cancelled(terminal, 1)

        terminal.enter("sleep")
        terminal.wait_for(lambda: any("sleep 601" in row for row in terminal.list_processes()))
        terminal.type(CTRL_C)
        wait_for_cancelled(terminal, 2)
        assert "$ sleep 600 & sleep 601" in terminal.text

        terminal.enter("write")
        terminal.wait_for("y  Yes")
        terminal.type(CTRL_C)
        wait_for_cancelled(terminal, 3)
        assert not (setup.cwd / "a.txt").exists()

        terminal.enter("hello?")
        terminal.wait_for_answer("Still here.")
        assert terminal.leave() == 0


def test_ctrl_c_while_servers_start_cancels_the_turn_and_ctrl_d_ends_them(setup: TerminalSetup) -> None:
    setup.write_config("mcp.json", fault("mute"), honest())
    with setup.open("--mcp", "./mcp.json", script=(says("Unreachable."), says("Here."))) as terminal:
        terminal.wait_for_prompt()
        terminal.wait_for("starting mute")
        terminal.enter("hello")
        terminal.wait_for("Starting mute")
        terminal.type(CTRL_C)
        terminal.wait_for(CANCELLED)
        assert setup.server.requests == []
        assert terminal.leave() == 0


def test_esc_while_servers_start_answers_without_them(setup: TerminalSetup) -> None:
    setup.write_config("mcp.json", fault("mute"))
    with setup.open("--mcp", "./mcp.json", script=(says("Here."),)) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("hello")
        terminal.wait_for("Starting mute")
        terminal.type(ESCAPE)
        terminal.wait_for_answer("Here.")
        assert "Interrupted" not in terminal.text
        assert terminal.leave() == 0


def test_a_failed_turn_leaves_its_prompt_in_the_input_line(setup: TerminalSetup) -> None:
    failure = Reply(status=400, error="no such luck")
    with setup.open(
        "--approval", "all", script=(failure, calls("bash", command="true"), failure, says("ok"))
    ) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("try this")
        terminal.wait_for_answer("✗ scripted (400): no such luck. Enter sends it again")
        terminal.wait_for(lambda: "> try this" in terminal.rows)
        terminal.type(ENTER)
        terminal.wait_for(lambda: "> Go on." in terminal.rows)
        terminal.type(ENTER)
        terminal.wait_for_answer("ok")
        assert terminal.leave() == 0


def test_a_second_ctrl_c_leaves_a_running_command_behind_no_more_than_the_first(setup: TerminalSetup) -> None:
    command = "trap '' INT TERM; sleep 600 & while :; do sleep 1; done"
    with setup.open("--approval", "all", script=(calls("bash", command=command),)) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("go")
        terminal.wait_for(lambda: any("sleep 600" in row for row in terminal.list_processes()))
        terminal.type(CTRL_C * 2)
        assert terminal.wait_for_end() == 0
