"""The session as plain lines, for screen readers and terminals without a cursor: labels, and menus by number.

Nothing is redrawn: what happens is a line, and a message is read when the session waits for one.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import TYPE_CHECKING

import anyio

from indusagi.core.cancel import CancelToken
from induscode.cli.dialog import Reply
from induscode.cli.terminal import escape_unprintable, redirect_to_null
from induscode.conversations.line_dialog import LineDialog, find_line_dialog
from induscode.frontends.terminal.complete import open_history
from induscode.frontends.terminal.contract import LiveState
from induscode.frontends.terminal.screen import Screen
from induscode.launch.settings import VI_MODE

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer

    from induscode.cli.dialog import Question
    from induscode.frontends.terminal.contract import ScreenListener
    from induscode.launch.invocation import Invocation

_LABELS = {"✓": "done:", "✗": "failed:", "⊘": "not done:", "✻": "note:", "●": "call:"}
_MARK = re.compile(rf"^([{''.join(_LABELS)}])(?= )", re.MULTILINE)


class PlainScreen:
    """A terminal in line mode, with the methods of `Screen`."""

    can_mark = False
    is_away = False
    has_question = False
    draft = ""

    def __init__(self, listener: ScreenListener) -> None:
        self.state = LiveState()
        self.shown = asyncio.Event()
        self._listener = listener
        self._end = CancelToken()
        self._dialog = find_line_dialog(self._end) or LineDialog(cancel=self._end)
        self._expected = asyncio.Event()
        self._offered = ""

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        try:
            return os.get_terminal_size(sys.stdout.fileno()).columns or 80
        except OSError:
            return 80

    def print(self, text: str) -> None:
        """Write text, with words for its marks."""
        if not text.strip("\n"):
            return
        encoding = sys.stdout.encoding or "ascii"
        labelled = _MARK.sub(lambda match: _LABELS[match[1]], text if text.endswith("\n") else f"{text}\n")
        try:
            sys.stdout.write(labelled.encode(encoding, "backslashreplace").decode(encoding))
            sys.stdout.flush()
        except OSError:
            redirect_to_null(sys.stdout.fileno())

    def show(self, text: str) -> None:
        """Write one line, escaped. The terminal has echoed a message already."""
        if not text.startswith("> "):
            self.print(escape_unprintable(text))

    def refresh(self) -> None:
        """Do nothing: nothing is redrawn."""

    def flush(self) -> None:
        """Do nothing: lines are written at once."""

    async def ask(self, question: Question) -> Reply:
        """Ask a question, and read the answer as a line."""
        return await self._dialog.ask(question)

    def copy(self, text: str) -> None:
        """Print a text: a clipboard needs a terminal with escape sequences."""
        self.print(text)

    def offer_draft(self, text: str) -> None:
        """Offer a text, which an empty line sends."""
        self._offered = text

    def expect_message(self) -> None:
        """Read the next message."""
        self._expected.set()

    async def run(self) -> None:
        """Read messages, each when the session waits for it, until `close`."""
        self.shown.set()
        while True:
            await self._expected.wait()
            self._expected.clear()
            if self._end.cancelled:
                return
            offered, self._offered = self._offered, ""
            hint = f" (Enter sends: {escape_unprintable(offered)[:60]})" if offered else ""
            line = await self._dialog.read_line(f"you{hint}: ")
            if line is None:
                self._listener.leave()
                return
            if text := line.strip() or offered:
                self._listener.submit(text)
            else:
                self._expected.set()

    def close(self) -> None:
        """End `run`."""
        self._end.cancel("the end of the session")
        self._expected.set()


def open_screen(
    listener: ScreenListener, invocation: Invocation, *, color: bool, completer: Completer
) -> Screen | PlainScreen:
    """Open the screen of a session."""
    if invocation.plain:
        return PlainScreen(listener)
    vi = invocation.settings.get(VI_MODE)
    return Screen(listener, color=color, vi=vi, history=open_history(), completer=completer)


class _NoListener:
    """Ignores all keys but those that answer a question."""

    def submit(self, text: str) -> None: ...

    def interrupt(self) -> None: ...

    def recall(self) -> str:
        return ""

    steer = leave = switch_mode = interrupt
    list_results = recall


async def ask_once(question: Question) -> Reply:
    """Ask a question on the screen of a session, outside of one."""
    screen = Screen(_NoListener(), color=not os.environ.get("NO_COLOR"))
    reply = Reply(cancelled=True)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await screen.run()
            tasks.cancel_scope.cancel()  # the terminal may be gone

        tasks.start_soon(run)
        reply = await screen.ask(question)
        screen.close()
    return reply
