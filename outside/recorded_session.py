"""A session on a real terminal, recorded as text: `python -m outside.recorded_session [--write]`.

tmux runs `indus` with a scripted model, and everything else is real: a test fails, the model edits the file after a
yes to the diff, runs the test again and calls an MCP server, and a rewind takes it all back. `--write` puts the screens
into docs/evidence/session.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.model_server import calls, model_server, says

from outside.say import complain, say, write_between

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "evidence" / "session.md"
_NAME = "recording"
_COLUMNS, _ROWS = 92, 60
_LIMIT_S, _POLL_S = 120.0, 0.3
_TYPING_S = 1.5
"""A question waits until typing pauses."""
_FILES = {
    "cart.py": "def total(prices):\n    return sum(prices[1:])\n",
    "test_cart.py": """\
import unittest

from cart import total


class CartTests(unittest.TestCase):
    def test_total_adds_all_prices(self):
        self.assertEqual(total([3, 4]), 7)


unittest.main(argv=["test_cart"])
""",
}
_TEST = "python3 test_cart.py"
_SCRIPT = (
    calls("bash", command=_TEST),
    calls("read", path="cart.py"),
    calls("edit", path="cart.py", old_text="sum(prices[1:])", new_text="sum(prices)"),
    calls("bash", command=_TEST),
    says("The test passes. `total` left out the first price, because it summed `prices[1:]`."),
    calls("diary__add", text="cart: total adds every price"),
    says("Noted in the diary."),
)
_STEPS = (
    (
        "The model wants to run the test, and a test can do anything, so you're asked:",
        "● Run",
        "Fix the failing test: python3 test_cart.py",
        "esc  No",
    ),
    (
        "`s` allows it for the session. The edit is tried before the question, which shows the change:",
        "● Edit",
        "s",
        "this edit?",
    ),
    ("", "", "y", "summed prices[1:]."),
    ("The next prompt calls an MCP server:", "● diary", "Note it in the diary", "esc  No"),
    ("", "", "y", "Noted in the diary."),
    ("`/rewind` lists the prompts, the newest first:", "Go back", "/rewind", "type to search"),
    (
        "Typing narrows the list, and Enter chooses. Before anything happens, you see what comes back:",
        "Back to",
        "Fix",
        "Back to the state before",
    ),
    ("", "", "y", "Undo: /rewind"),
)
"""What an excerpt shows and its first row, the keys before it, and what the screen shows then."""


class Recorder:
    """A terminal in tmux, with a server of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")

    def run(self, *words: str) -> str:
        """Run a command of tmux."""
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def wait_for(self, text: str) -> str:
        """Wait until the screen shows a text, and return the screen."""
        limit = time.monotonic() + _LIMIT_S
        while text not in (shown := self.run("capture-pane", "-p")):
            if time.monotonic() > limit:
                raise TimeoutError(f"{text!r} isn't shown:\n{shown}")
            time.sleep(_POLL_S)
        time.sleep(_POLL_S)  # the rest of the frame
        return self.run("capture-pane", "-p")

    def type(self, text: str) -> None:
        """Type a text. A letter answers a question; a prompt ends with Enter."""
        self.run("send-keys", "-l", text)
        time.sleep(_POLL_S)
        if len(text) > 1:
            self.run("send-keys", "Enter")


def record(folder: Path) -> Iterator[str]:
    """Run the session, and yield the lines of the recording.

    Raises:
        TimeoutError: The terminal doesn't show what it should.
        ValueError: The rewind hasn't restored the file.
    """
    home, project = folder / "home", folder / "home" / "shop"
    project.mkdir(parents=True)
    for name, text in _FILES.items():
        (project / name).write_text(text, "utf-8")
    servers = {"diary": {"command": sys.executable, "args": [str(_ROOT / "examples" / "notes_server.py")]}}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": servers}), "utf-8")
    terminal = Recorder(folder)
    with model_server(*_SCRIPT) as server:
        variables = {"HOME": home, "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none", "PS1": "$ "}
        indus = Path(sys.executable).with_name("indus")
        command = [indus, "--model", "openai:scripted", "--mcp", folder / "servers.json"]
        words = ["env", *(f"{name}={value}" for name, value in variables.items()), *map(str, command)]
        size = ("-x", str(_COLUMNS), "-y", str(_ROWS), "-c", str(project))
        terminal.run("new-session", "-d", *size, shlex.join(words))
        try:
            terminal.wait_for("of context")
            for about, first, keys, shown in _STEPS:
                terminal.type(keys)
                screen = terminal.wait_for(shown)
                if about:
                    yield from (about, "", *_to_block(screen[screen.rindex(first) :]))
                time.sleep(_TYPING_S)
            yield from (
                "The whole session, as the terminal keeps it:",
                "",
                *_to_block(terminal.run("capture-pane", "-p")),
            )
            if (project / "cart.py").read_text("utf-8") != _FILES["cart.py"]:
                raise ValueError("the rewind has not restored cart.py")
        finally:
            terminal.run("kill-server")


def _to_block(screen: str) -> Sequence[str]:
    return ["```text", *(line.rstrip() for line in screen.strip("\n").splitlines()), "```", ""]


def main() -> int:
    """Record, and print or write the recording."""
    parser = argparse.ArgumentParser(prog="python -m outside.recorded_session")
    parser.add_argument("--write", action="store_true", help="write docs/evidence/session.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recorded-") as folder:
        try:
            lines = [*record(Path(folder))]
        except (OSError, TimeoutError, ValueError, subprocess.CalledProcessError) as exc:
            complain(f"outside.recorded_session: {exc}")
            return 1
    if options.write:
        write_between(_PAGE, _NAME, lines)
    else:
        say("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
