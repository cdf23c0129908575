"""The terminal's two ends: its output, keys typed before the session, and the input line's text."""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import subprocess
import sys
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from prompt_toolkit.data_structures import Size
from prompt_toolkit.layout.processors import Processor, Transformation
from prompt_toolkit.output.vt100 import Vt100_Output

from induscode.cli.terminal import escape_controls, redirect_to_null, redirected_status_lines

if TYPE_CHECKING:
    from prompt_toolkit.layout.processors import TransformationInput

_JOINERS = "\u200c\u200d"
_MAX_BRANCH = 200
_FOLDED_LINES = 10
"""A longer paste is folded."""


class _TerminalOutput(Vt100_Output):
    """Standard output that goes silent once the terminal is gone: SIGHUP or end of input ends the session."""

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            redirect_to_null(sys.stdout.fileno())


class VisibleInput(Processor):
    """Replaces bidi controls and other invisible characters in the input by a visible sign.

    prompt_toolkit already shows control characters. Joiners of emoji and scripts stay.
    """

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Replace the characters."""

        def show(text: str) -> str:
            return "".join(c if c < "\xa0" or c in _JOINERS or escape_controls(c) == c else "�" for c in text)

        return Transformation([(part[0], show(part[1])) for part in transformation_input.fragments])


def open_output() -> Vt100_Output:
    """Open standard output. Never queries the cursor position, as the reply could arrive as typed text."""

    def get_size() -> Size:
        try:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            columns, rows = 0, 0
        return Size(rows=rows or 24, columns=columns or 80)

    return _TerminalOutput(sys.stdout, get_size, term=os.environ.get("TERM"), enable_bell=False, enable_cpr=False)


def read_typed_ahead(descriptor: int) -> list[str]:
    """Read lines entered before the terminal switched to raw mode.

    The kernel turned their Enter into a newline (ICRNL, termios(3)), which in raw mode would continue the message.
    """
    data = b""
    try:
        while count := int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder):
            data += os.read(descriptor, count)
    except OSError:  # the terminal is gone
        return []
    return [line for line in data.decode("utf-8", "replace").split("\n") if line.strip()]


def open_pager(text: str) -> bool:
    """Show a text in the user's pager, and return whether there's one. Blocks."""
    with suppress(OSError, ValueError):
        words = shlex.split(os.environ.get("PAGER", "")) or ["less"]
        subprocess.run(words, input=text.encode("utf-8", "backslashreplace"), check=False)
        return True
    return False


class FoldedPastes:
    """Long pastes, by the text that stands for them in the input line."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return a paste, or what stands for it if it's long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if (lines := text.count("\n") + 1) <= _FOLDED_LINES:
            return text
        sign = f"[Pasted text #{len(self._texts) + 1} +{lines} lines]"
        self._texts[sign] = text
        return sign

    def unfold(self, text: str) -> str:
        """Return the whole text of a message, and forget its pastes."""
        for sign, paste in self._texts.items():
            text = text.replace(sign, paste)
        self._texts.clear()
        return text


class _LogHandler(logging.Handler):
    """Passes the first line of each log message to a function; Python would write it to standard error."""

    def __init__(self, output: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output(record.getMessage().partition("\n")[0])


@contextmanager
def redirected_messages(output: Callable[[str], object]) -> Generator[None]:
    """Redirect status lines and log messages to a function inside the block."""
    handler, root = _LogHandler(output), logging.getLogger()
    root.addHandler(handler)
    try:
        with redirected_status_lines(output):
            yield
    finally:
        root.removeHandler(handler)


def describe_place(cwd: str) -> str:
    """Return a directory, below `~` where it is, with the branch checked out there."""
    home = os.path.expanduser("~")
    shown = "~" + cwd.removeprefix(home) if cwd == home or cwd.startswith(f"{home}/") else cwd
    try:
        with open(os.path.join(cwd, ".git", "HEAD"), encoding="utf-8", errors="replace") as file:
            branch = file.read(_MAX_BRANCH).strip().removeprefix("ref: refs/heads/")
    except OSError:
        return shown
    return f"{shown} ({branch})"
