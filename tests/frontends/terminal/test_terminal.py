"""The session on a terminal: start, input line, answers, and how it ends."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.model_server import Reply, calls, says
from tests.support.scripts import run
from tests.support.servers import honest
from tests.support.terminal import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    ENTER,
    ESCAPE,
    TAB,
    UP,
    Terminal,
    TerminalSetup,
    check_output,
    open_setup,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[TerminalSetup]:
    with open_setup(tmp_path) as prepared:
        yield prepared


# -- the checker itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forbidden",
    [
        "\x1b[2J", "\x1b[3J", "\x1b[?1049h", "\x1b[?1047h", "\x1b[?47h", "\x1b[1;20r", "\x1b[H", "\x1b[5;1H", "\x1b[6n",
        "\x1b[2S", "\x1b[L", "\x1bc", "\x1b]52;c;aGk=\x07", "\x1bP1$r\x1b\\", "\x9b2J", "\x07", "\x7f", "a\u202eb",
    ],
)  # fmt: skip
def test_the_checker_rejects_what_is_not_append_only(forbidden: str) -> None:
    assert check_output(f"text\r\n{forbidden}more")


def test_the_checker_accepts_text_movement_within_rows_and_colours() -> None:
    drawn = (
        "\x1b[?25l\x1b[?7l\x1b[0m\x1b[2A\x1b[J\x1b[1;38;5;3mgrün 漢\x1b[0m\x1b[K\r\n\x1b[3D\x1b[?7h\x1b[?25h\x1b[?2004h"
    )
    assert check_output(drawn) == []
    assert check_output(drawn, color=False) == [repr("\x1b[1;38;5;3m")]


def test_the_emulator_keeps_lines_in_order_and_measures_how_far_the_cursor_goes_up(tmp_path: Path) -> None:
    script = "print(*range(100), sep='\\n'); print('\\x1b[9A', end='')"
    with Terminal("-c", script, cwd=tmp_path, program=[sys.executable], rows=10) as terminal:
        assert terminal.wait_for_end() == 0
        assert terminal.text.split() == [str(number) for number in range(100)]
        assert terminal.emulator.highest == 9
        with pytest.raises(AssertionError, match="9 rows up"):
            terminal.check()
        terminal.emulator.highest = 0


# -- start ------------------------------------------------------------------------------------------

_HELD_IMPORTS = """
import os, sys, time
class Gate:
    large = {"rich", "mcp", "httpx", "openai", "anthropic", "pydantic", "pydantic_ai", "markdown_it", "jsonschema"}
    ours = ("induscode.conversations.run", "induscode.conversations.conversation", "induscode.boot", "induscode.deck")
    def find_spec(self, name, path=None, target=None):
        # Looking for a module (importlib.util.find_spec) imports nothing.
        is_import = sys._getframe(2).f_globals.get("__name__") != "importlib.util"
        if is_import and (name.partition(".")[0] in self.large or name.startswith(self.ours)):
            while not os.path.exists("GATE"):
                time.sleep(0.005)
sys.meta_path.insert(0, Gate())
from induscode.__main__ import main
sys.exit(main())
"""
"""The program, in which large imports wait for a file."""


def test_the_prompt_takes_keys_before_anything_of_the_conversation_is_imported(setup: TerminalSetup) -> None:
    gate = setup.cwd.parent / "gate"
    held = [sys.executable, "-c", _HELD_IMPORTS.replace("GATE", str(gate))]
    with setup.open(script=(says("I am here."),), program=held) as terminal:
        terminal.type("are you there?")
        terminal.wait_for("> are you there?")
        assert "starting…" in terminal.text
        gate.touch()
        terminal.type(ENTER)
        terminal.wait_for_answer("I am here.")
        assert terminal.leave() == 0


def test_without_a_terminal_there_is_one_clear_error(setup: TerminalSetup) -> None:
    done = run(cwd=setup.cwd)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "There is no terminal" in done.stderr


def test_without_a_model_the_session_says_so_and_ends(setup: TerminalSetup) -> None:
    environ = {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "", "OLLAMA_HOST": "127.0.0.1:9"}
    with setup.open(model=False, environ=environ) as terminal:
        terminal.wait_for("Which model should answer?")
        terminal.wait_for("4  No model")
        terminal.type("4")
        assert terminal.wait_for_end() != 0
        assert "model" in terminal.text


def test_a_key_is_pasted_once_unseen_and_used(setup: TerminalSetup) -> None:
    environ = {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
    with setup.open(model=False, environ=environ) as terminal:
        terminal.wait_for("2  OpenAI")
        terminal.type("2")
        terminal.wait_for("Key of OpenAI")
        terminal.enter("not a key")
        terminal.wait_for("This isn't a key")
        terminal.type("\x7f" * 9)
        terminal.enter("sk-pasted-0123456789")
        terminal.wait_for_prompt()
        assert terminal.leave() == 0
        assert "sk-pasted" not in terminal.text + terminal.output
    environ["OPENAI_BASE_URL"] = f"{setup.server.url}/v1"
    with setup.open(script=(says("Hello."),), environ=environ) as terminal:
        terminal.enter("hi")
        terminal.wait_for_answer("Hello.")
        assert terminal.leave() == 0
    assert setup.server.headers[-1]["authorization"] == "Bearer sk-pasted-0123456789"


# -- answers and input ------------------------------------------------------------------------------

_MARKDOWN = (
    "# Title\n\nHello **wor",
    "ld**, see `code`.\n\n- item one\n- item two\n\n```python\npri",
    "nt(1)\n```\n",
    "The end.",
)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_an_answer_is_streamed_as_markdown_and_the_next_request_holds_it(setup: TerminalSetup, api: Any) -> None:
    setup.api = api
    setup.cwd.joinpath("a.txt").write_text("one\n", encoding="utf-8")
    script = (Reply(text=_MARKDOWN), calls("read", path="a.txt"), says("It says one."))
    with setup.open(script=script) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("explain")
        terminal.wait_for_answer("The end.")
        shown = terminal.text.split("> explain")[1].splitlines()
        assert shown[1:12] == [
            "Title", "", "Hello world, see code.", "", " • item one", " • item two", "",
            "── python ──────────────────────────────", "print(1)", "─" * 40, "",
        ]  # fmt: skip
        terminal.enter("and a.txt?")
        terminal.wait_for_answer("It says one.")
        assert "✓ Read a.txt · 1 line\n" in terminal.text
        assert "The end." in setup.requested(1)
        assert terminal.leave() == 0


def test_messages_of_several_lines_are_entered_in_three_ways(setup: TerminalSetup) -> None:
    with setup.open(script=(says("First."), says("Second."), says("Third."))) as terminal:
        terminal.wait_for_prompt()
        terminal.type(f"by alt{ALT_ENTER}enter{ENTER}")
        terminal.wait_for_answer("First.")
        terminal.type(f"by a backslash\\{ENTER}at the end{ENTER}")
        terminal.wait_for_answer("Second.")
        terminal.paste("def f():\r\n\treturn 1\n\x1b[2J\x07")
        terminal.wait_for("return 1")
        terminal.type(ENTER)
        terminal.wait_for_answer("Third.")
        sent = [request["messages"][-1]["content"] for request in setup.server.requests]
        assert sent[:2] == ["by alt\nenter", "by a backslash\nat the end"]
        assert sent[2].startswith("def f():\n\treturn 1\n")
        assert "> by alt\n  enter" in terminal.text
        assert terminal.leave() == 0


def test_entered_messages_are_found_by_arrow_keys_in_the_next_session(setup: TerminalSetup) -> None:
    with setup.open(script=(says("One."), says("Two."))) as terminal:
        terminal.enter("the older message")
        terminal.wait_for_answer("One.")
        terminal.enter("the newer\\")
        terminal.enter("message")
        terminal.wait_for_answer("Two.")
        assert terminal.leave() == 0
    with setup.open(script=(says("Three."),)) as terminal:
        terminal.wait_for_prompt()
        terminal.type(UP)
        terminal.wait_for("> the newer\nmessage")
        terminal.type(UP * 2)
        terminal.wait_for("> the older message")
        terminal.type(ENTER)
        terminal.wait_for_answer("Three.")
        assert setup.server.requests[-1]["messages"][-1]["content"] == "the older message"
        assert terminal.leave() == 0


def test_a_file_is_completed_and_attached(setup: TerminalSetup) -> None:
    setup.cwd.joinpath("notes.txt").write_text("buy milk\n", encoding="utf-8")
    setup.cwd.joinpath("other.txt").write_text("x\n", encoding="utf-8")
    setup.cwd.joinpath("logo.gif").write_bytes(b"GIF89a" + bytes(20))
    with setup.open(script=(says("Milk."),)) as terminal:
        terminal.wait_for_prompt()
        terminal.type("what is in @not")
        terminal.wait_for("  notes.txt")
        terminal.type(TAB)
        terminal.wait_for("@notes.txt")
        terminal.type(f" and @logo.gif ?{ENTER}")
        terminal.wait_for("note: @logo.gif is named, not attached")
        terminal.wait_for_answer("Milk.")
        assert '<file path=\\"notes.txt\\">\\nbuy milk\\n</file>' in setup.requested()
        assert terminal.leave() == 0


@pytest.mark.parametrize("columns", [40])
def test_at_40_columns_without_colours_everything_is_shown(setup: TerminalSetup, columns: int) -> None:
    long = "A paragraph that is longer than the terminal is wide, with **bold** and `code`."
    script = (
        says(f"{long}\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"),
        calls("write", path="new.txt", content="x\n"),
        says("OK."),
    )
    with setup.open(script=script, columns=columns, color=False, environ={"NO_COLOR": "1"}) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("a message that is longer than forty columns as well, surely")
        terminal.wait_for_answer("1  2")
        terminal.enter("write")
        terminal.wait_for("y  Yes")
        terminal.type("y")
        terminal.wait_for_answer("OK.")
        assert "A paragraph that is longer" in terminal.text
        assert setup.cwd.joinpath("new.txt").read_text(encoding="utf-8") == "x\n"
        assert terminal.leave() == 0


# -- ways to end ------------------------------------------------------------------------------------


def test_ctrl_c_twice_at_the_prompt_leaves_and_once_does_not(setup: TerminalSetup) -> None:
    with setup.open() as terminal:
        terminal.wait_for_prompt()
        terminal.type("a draft")
        terminal.wait_for("> a draft")
        terminal.type(CTRL_C)  # clears the draft
        terminal.wait_for(lambda: ">" in terminal.rows)
        asked = 0
        while terminal.process.poll() is None:  # a slow machine takes longer than the two seconds for the second one
            terminal.type(CTRL_C)
            terminal.wait_for(
                lambda asked=asked: (
                    terminal.text.count("Press Ctrl-C again to exit") > asked or terminal.process.poll() is not None
                )
            )
            asked += 1
        assert asked > 1
        assert terminal.wait_for_end() == 0


def test_ctrl_d_and_esc_at_the_very_first_moment_do_no_harm(setup: TerminalSetup) -> None:
    with setup.open() as terminal:
        terminal.wait_for(">")
        terminal.type(ESCAPE)
        assert terminal.leave() == 0


@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), ("hang up", 129)], ids=["term", "hup", "hang-up"]
)
def test_a_signal_ends_a_busy_session_with_everything_it_started(
    setup: TerminalSetup, end: signal.Signals | str, code: int
) -> None:
    setup.write_config("mcp.json", honest(id="fs"))
    sleeper = calls("bash", command="sleep 600 & sleep 601")
    with setup.open("--approval", "all", "--mcp", "./mcp.json", script=(sleeper,)) as terminal:
        terminal.enter("sleep")
        terminal.wait_for(lambda: any("sleep 601" in row for row in terminal.list_processes()))
        assert any("honest.py" in row for row in terminal.list_processes())
        if isinstance(end, signal.Signals):
            terminal.signal(end)
            assert terminal.wait_for_end() == code
        else:
            terminal.hang_up()
            assert terminal.process.wait(60) == code
        assert CTRL_D not in terminal.output


@pytest.mark.parametrize(("words", "term"), [(("--plain",), "xterm-256color"), ((), "dumb")])
def test_a_plain_session_has_labelled_lines_and_no_control_sequences(
    setup: TerminalSetup, words: tuple[str, ...], term: str
) -> None:
    script = (says("I look."), calls("bash", command="touch made"), says("Done."))
    with setup.open(*words, script=script, environ={"TERM": term}, color=False) as terminal:
        terminal.wait_for("you:")
        terminal.enter("look")
        terminal.wait_for("I look.")
        terminal.wait_for(lambda: terminal.text.count("you:") == 2)
        terminal.enter("make it")
        terminal.wait_for("answer (")
        terminal.enter("y")
        terminal.wait_for("Done.")
        assert "done: $ touch made" in terminal.text
        terminal.wait_for(lambda: terminal.text.count("you:") == 3)
        terminal.enter("/resume")
        terminal.wait_for("there is no other conversation")
        terminal.wait_for(lambda: terminal.text.count("you:") == 4)
        terminal.enter("/exit")
        assert terminal.wait_for_end() == 0
        assert "\x1b" not in terminal.output
