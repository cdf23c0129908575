"""What a session writes to a terminal: complete, in order, and never a control sequence of a model or tool."""

from __future__ import annotations

import shutil
import subprocess
from collections import UserList
from threading import Condition
from typing import TYPE_CHECKING

import pytest
from tests.support.model_server import Reply, calls, says
from tests.support.scripts import command
from tests.support.servers import hidden, honest
from tests.support.terminal import ACTIVITY, ENTER, TerminalSetup, open_setup
from tests.support.waiting import LIMIT_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

LINES, PIECE, HELD = 10_000, 50, 300
"""A long block of code is printed in parts, of which one is held back."""
WIDTHS = (40, 160, 41, 80, 159, 60, 120, 43, 100, 40, 140, 55, 90, 70, 160, 45, 130, 50, 110, 80)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[TerminalSetup]:
    with open_setup(tmp_path) as prepared:
        yield prepared


class PacedLines(UserList[str]):
    """The pieces of a code block with numbered lines; `release` lets the model go on to a number."""

    def __init__(self, count: int) -> None:
        pieces = ["```\n", *(f"line {number:05}\n" for number in range(count)), "```\n", "All lines."]
        super().__init__(pieces)
        self._allowed = 0
        self._changed = Condition()

    def release(self, number: int) -> None:
        """Let the model write the lines before a number."""
        with self._changed:
            self._allowed = number
            self._changed.notify_all()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self.data), PIECE):
            with self._changed:
                self._changed.wait_for(lambda start=start: self._allowed > start, LIMIT_S)
            yield "".join(self.data[start : start + PIECE])


def read_lines(text: str) -> list[int]:
    """Give the numbers of the lines in a text."""
    return [int(row.split()[1]) for row in text.splitlines() if row.startswith("line ")]


@pytest.mark.repeats
def test_ten_thousand_lines_are_complete_and_in_order_after_twenty_resizes(setup: TerminalSetup) -> None:
    lines = PacedLines(LINES)
    with setup.open(script=(Reply(text=lines),)) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("count")
        step = LINES // len(WIDTHS)
        for number, width in enumerate(WIDTHS, 1):
            lines.release(number * step)
            terminal.wait_for(lambda number=number: len(terminal.emulator.scrollback) > number * step - HELD)
            terminal.resize(width)
        lines.release(2 * LINES)
        terminal.wait_for_answer("All lines.")
        assert read_lines(terminal.text) == list(range(LINES))
        assert terminal.leave() == 0


def test_a_draft_of_several_lines_stays_within_the_live_region(setup: TerminalSetup) -> None:
    with setup.open(script=(says("Long enough."),), rows=12) as terminal:
        terminal.wait_for_prompt()
        for start in range(0, 30, 6):  # a longer paste is folded
            end = "\n" if start < 24 else ""
            terminal.paste("\n".join(f"row {number}" for number in range(start, start + 6)) + end)
        terminal.wait_for("row 29")
        terminal.resize(40)
        terminal.wait_for(lambda: terminal.emulator.cursor.x > 0)
        terminal.type("!")
        terminal.wait_for("row 29!")
        terminal.type(ENTER)
        terminal.wait_for_answer("Long enough.")
        assert terminal.text.count("  row 15") == 1
        assert "  … 9 more lines" in terminal.text
        assert terminal.leave() == 0


HOSTILE = "\x1b[2J\x1b[3J\x1b]52;c;aGk=\x07\x1b[?1049h\x1b[1;5r\x9b2J\x1b]0;title\x07\u202etxt\u2066\x08\x00\x7f end"


def test_control_sequences_of_a_model_a_tool_a_server_and_a_paste_are_shown_as_text(setup: TerminalSetup) -> None:
    setup.write_config("mcp.json", hidden("\\u001b[2J\\u202e"), honest(id="fs"))
    setup.cwd.joinpath("evil.txt").write_bytes(HOSTILE.encode())
    name = "evil\x1b[2J\u202e.txt"
    setup.cwd.joinpath(name).write_text("x\n", encoding="utf-8")
    script = (
        Reply(
            text=(
                f"{HOSTILE}\n\n- {HOSTILE}\n\n```{HOSTILE}\n{HOSTILE}\n```\n\n",
                "\x1b",
                "[2J",
                f"[a](http://x/{HOSTILE})",
            )
        ),
        calls("bash", command="cat evil.txt; cat evil.txt >&2; exit 3"),
        calls("read", path=f"no{HOSTILE}"),
        calls("fs__echo", text=HOSTILE),
        calls("h__refuse"),
        calls(f"no{HOSTILE}", **{HOSTILE: HOSTILE}),
        calls("write", path=name, content=HOSTILE),
        Reply(status=400, error=HOSTILE),
    )
    with setup.open("--mcp", "./mcp.json", "--allow", "bash(*)", script=script) as terminal:
        terminal.wait_for_prompt()
        terminal.paste(f"look: {HOSTILE}")
        terminal.wait_for("look:")
        terminal.enter("")
        terminal.wait_for(r"\x1b[2J")
        terminal.wait_for_answer("[a](http")
        terminal.paste("go")
        terminal.enter("")
        asked = ("y  Yes", "✗ scripted (400)")
        for _ in range(6):
            terminal.wait_for(lambda: any(text in row for text in asked for row in terminal.rows))
            if "✗ scripted (400)" in terminal.text:
                break
            count = len(setup.server.requests)
            terminal.type("y")
            terminal.wait_for(lambda count=count: len(setup.server.requests) > count)
        terminal.wait_for_answer("✗ scripted (400)")
        assert setup.server.script == []
        terminal.type("@evil")
        terminal.wait_for("evil.txt")
        terminal.type("\x03")
        terminal.wait_for(lambda: ">" in terminal.rows)
        assert terminal.leave() == 0


def test_the_bell_of_a_title_never_rings_and_no_colour_is_written_with_no_color(setup: TerminalSetup) -> None:
    script = (says("# Title\n\n**bold** `code`\n\n```python\ndef f(): return 1\n```\n"), calls("ls"), says("Done."))
    with setup.open(script=script, color=False, environ={"NO_COLOR": "1"}) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("show")
        terminal.wait_for_answer("def f()")
        terminal.enter("list")
        terminal.wait_for_answer("Done.")
        assert terminal.leave() == 0


# -- tmux -------------------------------------------------------------------------------------------


@pytest.mark.repeats
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
async def test_in_tmux_all_lines_are_in_the_scrollback_after_twenty_resizes(
    setup: TerminalSetup, tmp_path: Path
) -> None:
    """Lines are wrapped again by tmux when the width changes, as most terminals do."""
    lines = PacedLines(LINES)
    setup.server.script[:] = [Reply(text=lines)]
    socket = str(tmp_path / "tmux")

    def tmux(*words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", socket, "-f", "/dev/null", *words], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def capture() -> str:
        return tmux("capture-pane", "-p", "-J", "-S", "-")

    environ = {"OPENAI_BASE_URL": f"{setup.server.url}/v1", "OPENAI_API_KEY": "key", "TERM": "tmux-256color"}
    words = [word for name, value in environ.items() for word in ("-e", f"{name}={value}")]
    tmux(
        "set-option", "-g", "history-limit", "30000", ";", "new-session", "-d", "-x", "80", "-y", "24", *words,
        "-c", str(setup.cwd), command(), "--model", "openai:scripted",
    )  # fmt: skip
    try:
        await until(lambda: "0 of context" in capture())
        tmux("send-keys", "-l", "count")
        tmux("send-keys", "Enter")
        for number, width in enumerate(WIDTHS, 1):
            last = number * LINES // len(WIDTHS) - HELD
            lines.release(last + HELD)
            await until(lambda last=last: f"line {last:05}" in tmux("capture-pane", "-p", "-S", "-200"))
            tmux("resize-window", "-x", str(width), "-y", "24")
        lines.release(2 * LINES)
        await until(lambda: "15 of context" in tmux("capture-pane", "-p"))
        await until(lambda: ACTIVITY not in tmux("capture-pane", "-p"))
        await until(lambda: read_lines(capture()) == list(range(LINES)))
        tmux("send-keys", "C-d")
        await until(lambda: tmux("list-sessions") == "")
    finally:
        tmux("kill-server")
