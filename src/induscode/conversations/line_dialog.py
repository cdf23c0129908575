"""Line dialog: asks the questions of `indus -p` and `indus call` on the controlling terminal.

Questions go to `/dev/tty` (tty(4)), so that they don't disturb piped input and output. A thread waits in select(2) for
the terminal, or for a pipe that the task closes on cancellation. So the thread ends with the question and restores the
terminal's modes.
"""

from __future__ import annotations

import os
import select
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager

import anyio
from anyio import to_thread

from indusagi.core.cancel import CancelToken
from induscode.cli.dialog import Choice, Question, Reply, number_lines
from induscode.cli.terminal import escape_unprintable, held_status_lines, print_status

_TERMINAL = "/dev/tty"
_MAX_ATTEMPTS = 20
"""Invalid answers to one question before it counts as cancelled."""
_DETAILS = "d"
_CHUNK = 4096
"""Maximum line length of a terminal in canonical mode (termios(3))."""


def find_line_dialog(cancel: CancelToken | None = None) -> LineDialog | None:
    """Find this process's terminal, or return `None` unless a user can read standard error and answer.

    A background process has none, because reading from the terminal would stop it (SIGTTIN in signal(7)).
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
    """A dialog on a terminal in line mode. `path` is the terminal's device."""

    def __init__(self, path: str = _TERMINAL, cancel: CancelToken | None = None) -> None:
        self._path = path
        self.cancel = cancel or CancelToken()
        """Cancels an open question. The program replaces it with its own token."""
        self._lock = anyio.Lock()

    async def ask(self, question: Question, /) -> Reply:
        """Print a question and read the answer, holding back status lines until then."""
        async with self._lock:
            with held_status_lines():
                return await self._ask(question)

    def show(self, text: str, /) -> None:
        """Print one line."""
        print_status(text)

    async def _ask(self, question: Question) -> Reply:
        prompt = format_prompt(question)
        text = "\n".join(("", *format_question(question), prompt))
        for _ in range(_MAX_ATTEMPTS):
            line = await self.read_line(text, hidden=question.secret)
            if line is None:
                return Reply(cancelled=True)
            if not question.choices:
                answer = line if question.secret else line.strip()
                problem = None if question.check is None else question.check(answer)
                if problem is None:
                    return Reply(text=answer)
                text = f"{problem}\n{prompt}"
                continue
            if line.strip() == _DETAILS and question.brief is not None:
                text = "\n".join((*(f"  {fact}" for fact in question.lines), prompt))
                continue
            match = find_choice(question, line)
            if match is None:
                *keys, last = [choice.key for choice in question.choices]
                text = f"Type {', '.join(keys)} or {last} and press Enter.\n{prompt}"
                continue
            choice, comment = match
            if choice.takes_text and line.strip() and not comment:
                added = await self.read_line("why? (Enter: no comment) ")
                if added is None:
                    return Reply(cancelled=True)
                comment = added.strip()
            return Reply(choice.key, comment)
        return Reply(cancelled=True)

    async def read_line(self, text: str, *, hidden: bool = False) -> str | None:
        """Print a text and read a line. Return `None` on cancellation or at the end of the terminal."""
        wake, held = os.pipe()
        writers = [held]

        def end_wait() -> None:
            try:
                os.close(writers.pop())
            except IndexError:
                return  # already closed

        done = anyio.Event()
        lines: list[str | None] = []

        async def read() -> None:
            try:
                lines.append(await to_thread.run_sync(_converse, self._path, text, wake, hidden))
            finally:
                done.set()

        forget = self.cancel.on_cancel(end_wait)
        try:
            # The task group waits for the thread even if this task is cancelled.
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
    """Format a question as lines: its title, its facts, its change, and its choices."""
    change = question.change
    lines = [question.title if change is None else f"{question.title}  {change.counts}"]
    lines += [escape_unprintable(line.expandtabs(4)) for line in question.markdown.splitlines()]
    lines += [f"  {line}" for line in (question.lines if question.brief is None else question.brief)]
    lines += () if change is None else (row for _, row in number_lines(change.diff))
    lines += [question.prompt] if question.prompt else ()
    lines += [f"  [{choice.key}] {choice.label}" for choice in question.choices]
    return lines if question.brief is None else [*lines, f"  [{_DETAILS}] details"]


def format_prompt(question: Question) -> str:
    """Format the text before the answer."""
    if question.choices:
        default = f", Enter: {question.default}" if question.default else ""
        return f"answer ({'/'.join(choice.key for choice in question.choices)}{default}): "
    return "answer: "


def find_choice(question: Question, line: str) -> tuple[Choice, str] | None:
    """Find the choice that a line names by key, `yes` or `no`, and the text after it.

    Text after a choice that doesn't take any makes the answer invalid: `y, but only the first` isn't a yes.
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
    """Print a text and read a line. Return `None` at the end of the terminal or when `wake` is closed."""
    try:
        terminal = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        with _input_modes(terminal, hidden):
            if not _write(terminal, text.encode("utf-8", "backslashreplace"), wake):
                return None
            data = bytearray()
            # Use select, because macOS's poll(2) doesn't accept terminals.
            while wake not in select.select([wake, terminal], [], [])[0]:
                try:
                    chunk = os.read(terminal, _CHUNK)
                except BlockingIOError:
                    continue  # another process took the line
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
    """Discard earlier input, and turn off echo if `hidden`."""
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
    """Write all data, or return False if cancelled first. Without `wake`, don't wait for a full terminal."""
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
