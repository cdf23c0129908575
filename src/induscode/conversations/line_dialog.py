"""Line dialog: questions of `indus -p` and `indus call`, printed on the controlling terminal and answered by a line.

The question goes to `/dev/tty` (tty(4)), so that piped input and output stay as they are. A thread waits in select(2)
for the terminal or for a pipe that its task closes when it is cancelled: the thread ends with the question, and the
modes of the terminal are restored.
"""

from __future__ import annotations

import os
import select
import sys
import termios
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.cancel import CancelToken
from induscode.cli.dialog import Reply
from induscode.cli.terminal import held_status_lines, print_status

if TYPE_CHECKING:
    from collections.abc import Generator

    from induscode.cli.dialog import Choice, Question

_TERMINAL = "/dev/tty"
_ATTEMPTS = 20
"""Number of invalid answers to one question after which it counts as cancelled."""
_CHUNK = 4096
"""Longest line of a terminal in canonical mode (termios(3))."""


def find_line_dialog(cancel: CancelToken | None = None) -> LineDialog | None:
    """Find the terminal of this process; None if there is no person who reads standard error and can answer.

    A process in the background has none: reading from the terminal would stop it (SIGTTIN in signal(7)).
    """
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    paths = [_TERMINAL]
    if sys.stdin is not None and sys.stdin.isatty():
        paths.append(os.ttyname(sys.stdin.fileno()))
    for path in paths:
        try:
            terminal = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            is_ours = path != _TERMINAL or os.tcgetpgrp(terminal) == os.getpgrp()
        except OSError:
            is_ours = False
        finally:
            os.close(terminal)
        return LineDialog(path, cancel) if is_ours else None
    return None


class LineDialog:
    """A terminal in its usual line mode, as a dialog.

    Args:
        path: The device of the terminal.
        cancel: Ends an open question; the answer counts as cancelled.
    """

    def __init__(self, path: str = _TERMINAL, cancel: CancelToken | None = None) -> None:
        self._path = path
        self.cancel = cancel or CancelToken()
        """Ends an open question; replaced once the program has its token."""
        self._lock = anyio.Lock()

    async def ask(self, question: Question, /) -> Reply:
        """Print a question and read the answer; status lines wait until it is there."""
        async with self._lock:
            with held_status_lines():
                return await self._ask(question)

    def show(self, text: str, /) -> None:
        """Print one line."""
        print_status(text)

    async def _ask(self, question: Question) -> Reply:
        prompt = format_prompt(question)
        text = "\n".join(("", *format_question(question), prompt))
        for _ in range(_ATTEMPTS):
            line = await self._read_line(text, hidden=question.secret)
            if line is None:
                return Reply(cancelled=True)
            if not question.choices:
                answer = line if question.secret else line.strip()
                problem = None if question.check is None else question.check(answer)
                if problem is None:
                    return Reply(text=answer)
                text = f"{problem}\n{prompt}"
                continue
            match = find_choice(question, line)
            if match is None:
                *keys, last = [choice.key for choice in question.choices]
                text = f"Type {', '.join(keys)} or {last} and press Enter.\n{prompt}"
                continue
            choice, comment = match
            if choice.takes_text and line.strip() and not comment:
                added = await self._read_line("why? (Enter: no comment) ")
                if added is None:
                    return Reply(cancelled=True)
                comment = added.strip()
            return Reply(choice.key, comment)
        return Reply(cancelled=True)

    async def _read_line(self, text: str, *, hidden: bool = False) -> str | None:
        """Print a text and read a line; None if the wait was cancelled or the terminal has ended."""
        wake, held = os.pipe()
        writers = [held]

        def end_wait() -> None:
            try:
                os.close(writers.pop())
            except IndexError:
                return  # it was called before

        done = anyio.Event()
        lines: list[str | None] = []

        async def read() -> None:
            try:
                lines.append(await to_thread.run_sync(_converse, self._path, text, wake, hidden))
            finally:
                done.set()

        forget = self.cancel.on_cancel(end_wait)
        try:
            # The task group waits for the thread also if this task is cancelled.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                try:
                    await done.wait()
                finally:
                    end_wait()
        finally:
            forget()
            os.close(wake)
        return lines[0]


# -- text ---------------------------------------------------------------------------------------


def format_question(question: Question) -> list[str]:
    """Format a question as lines: its title, its facts, and its choices."""
    lines = [question.title, *(f"  {line}" for line in question.lines)]
    return [*lines, *(f"  [{choice.key}] {choice.label}" for choice in question.choices)]


def format_prompt(question: Question) -> str:
    """Format the text before the answer."""
    if question.choices:
        default = f", Enter: {question.default}" if question.default else ""
        return f"answer ({'/'.join(choice.key for choice in question.choices)}{default}): "
    return "answer: "


def find_choice(question: Question, line: str) -> tuple[Choice, str] | None:
    """Find the choice that a line names by its key, by `yes` or by `no`, and the text after it.

    A text after a choice that takes none is no answer: `y, but only the first` is no yes.
    """
    word, _, rest = line.strip().partition(" ")
    word, rest = (word or question.default).rstrip(",.:").casefold(), rest.strip()
    key = {"yes": "y", "no": "n"}.get(word, word)
    for choice in question.choices:
        if key == choice.key.casefold():
            return (choice, rest) if choice.takes_text or not rest else None
    return None


# -- the terminal, in a thread ------------------------------------------------------------------


def _converse(path: str, text: str, wake: int, hidden: bool) -> str | None:
    """Print a text and read a line; None at the end of the terminal, or when the other end of `wake` is closed."""
    try:
        terminal = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        with _input_modes(terminal, hidden):
            if not _write(terminal, text.encode("utf-8", "backslashreplace"), wake):
                return None
            data = bytearray()
            # select, because poll(2) of macOS does not accept terminals.
            while wake not in select.select([wake, terminal], [], [])[0]:
                try:
                    chunk = os.read(terminal, _CHUNK)
                except BlockingIOError:
                    continue  # another process has taken the line
                data += chunk
                if data.endswith(b"\n"):
                    return data.decode("utf-8", "replace").rstrip("\r\n")
                if not chunk:
                    break  # Ctrl-D
            _write(terminal, b"\n", None)
            return None
    except (OSError, termios.error):
        return None
    finally:
        os.close(terminal)


@contextmanager
def _input_modes(terminal: int, hidden: bool) -> Generator[None]:
    """Discard what was typed before the question, and hide what is typed from now on if `hidden`."""
    termios.tcflush(terminal, termios.TCIFLUSH)
    if not hidden:
        yield
        return
    before = termios.tcgetattr(terminal)
    modes = [*before]
    modes[3] = (modes[3] & ~termios.ECHO) | termios.ECHONL
    try:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, modes)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


def _write(terminal: int, data: bytes, wake: int | None) -> bool:
    """Write completely; False if the wait is cancelled before. Without `wake` only what fits at once."""
    left = memoryview(data)
    while left:
        if wake is not None and wake in select.select([wake], [terminal], [])[0]:
            return False
        try:
            left = left[os.write(terminal, left) :]
        except BlockingIOError:
            if wake is None:
                return True
    return True
