"""The terminal's two ends: its output, keys typed before the session, and the input line's text."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shlex
import subprocess
import sys
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from shutil import which
from typing import TYPE_CHECKING
from urllib.parse import unquote

from prompt_toolkit.data_structures import Size
from prompt_toolkit.layout.processors import Processor, Transformation
from prompt_toolkit.output.vt100 import Vt100_Output

from indusagi.core.app_dirs import make_private_dir, read_small_file, replace_file
from indusagi.core.ids import new_ulid
from induscode.cli.terminal import escape_controls, redirect_to_null, redirected_status_lines

if TYPE_CHECKING:
    from prompt_toolkit.layout.processors import TransformationInput

_JOINERS = "\u200c\u200d"
_MAX_BRANCH = 200
_FOLDED_LINES = 10
"""A longer paste is folded."""
_PICTURE_PATH = re.compile(r"(?:file://|~?/|'/)\S.*\.(?:png|jpe?g|gif|webp)'?\s*", re.IGNORECASE)
_MAX_PICTURE = 20 * 1024 * 1024
_CLIPBOARDS = (
    ("wl-paste", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-target", "image/png", "-out"),
    ("pngpaste", "-"),
)
_CLIPBOARD_S = 5.0


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


def names_picture(text: str) -> bool:
    """Return whether a paste is the absolute path of a picture, as terminals paste a file that's dropped on them."""
    return _PICTURE_PATH.fullmatch(text) is not None


def read_picture(pasted: str | None) -> bytes:
    """Read the picture whose path was pasted, or the clipboard's. Empty if there's none. Blocks."""
    from indusagi.capabilities.files.codec import HEAD_BYTES, sniff  # noqa: PLC0415 — for a picture

    data = b""
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):
        if pasted is not None:
            path = unquote(pasted.removeprefix("file://")) if pasted.startswith("file://") else shlex.split(pasted)[0]
            data = read_small_file(os.path.expanduser(path), _MAX_PICTURE)
        elif command := next((one for one in _CLIPBOARDS if which(one[0])), None):
            data = subprocess.run(command, capture_output=True, timeout=_CLIPBOARD_S, check=False).stdout
    kind = sniff(data[:HEAD_BYTES]) if data else None
    return data if kind is not None and kind.family == "image" else b""


def hide_pictures(text: str, folder: str) -> str:
    """Shorten the mentions of pasted pictures in a message."""
    return re.sub(rf'@"{re.escape(folder)}/\w+"', "[Picture]", text) if folder else text


class FoldedPastes:
    """Long pastes and pictures, by the text that stands for them in the input line."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return a paste, or what stands for it if it's long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if (lines := text.count("\n") + 1) <= _FOLDED_LINES:
            return text
        return self._keep(f"Pasted text #{len(self._texts) + 1} +{lines} lines", text)

    def fold_picture(self, folder: str, pasted: str | None) -> str:
        """Keep the picture whose path was pasted, or the clipboard's, and return its placeholder, if any. Blocks."""
        data = read_picture(pasted)
        if not data or not folder:
            return ""
        path = os.path.join(folder, new_ulid())
        try:
            make_private_dir(folder)
            replace_file(path, data)
        except OSError:
            return ""
        return self._keep(f"Picture #{len(self._texts) + 1}", f'@"{path}"')

    def _keep(self, name: str, text: str) -> str:
        self._texts[f"[{name}]"] = text
        return f"[{name}]"

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
