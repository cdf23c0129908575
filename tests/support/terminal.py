"""`indus` on a pseudo terminal, which is its controlling terminal as in a shell.

Of a `Terminal` keys are typed, an emulator (pyte) holds what is shown, and every byte is checked; a `LineTerminal` is
in line mode, and what is shown is text. The emulator keeps the lines that scroll off its top, and it does not wrap them
again when its width changes. The checker accepts the control sequences that an append-only session needs and no others.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import termios
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import pyte
from tests.support.forked import start_command
from tests.support.model_server import model_server
from tests.support.scripts import command
from tests.support.waiting import is_alive

from indusagi.core.ids import new_ulid
from indusagi.core.process.tree import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from tests.support.model_server import ModelServer, Reply

    from indusagi.interop.protocol_bridge.contract import StdioServerConfig

LIMIT_S = 60.0
"""Longer than any wait takes that succeeds."""
REGION_ROWS, QUESTION_ROWS = 8, 32
_ASKED = "esc  No, and stop"
"""In a question about a call, which may be higher."""
ENTER, ESCAPE, TAB, UP, DOWN = "\r", "\x1b", "\t", "\x1b[A", "\x1b[B"
CTRL_C, CTRL_D, ALT_ENTER = "\x03", "\x04", "\x1b\r"
ACTIVITY = "esc to interrupt"
_END = b"\0the end of the output\0"
_SEQUENCE = re.compile(r"\x1b(?:\[(?P<parameters>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])|(?P<other>.?))", re.DOTALL)
_MODES = {"?1", "?7", "?12", "?25", "?2004", "?2026"}
"""Cursor keys, wrapping, blinking, the cursor, bracketed paste, synchronized output."""
_FINALS = "ABCDGKm"
"""Relative movement, column, erasing in the row, colours."""
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def check_output(text: str, *, color: bool = True) -> list[str]:
    """List what a session must not write to a terminal: everything but text and a few control sequences.

    Forbidden are, above all, erasing the display (CSI 2 J, CSI 3 J), the alternate screen (`?1049h`, `?1047h`, `?47h`),
    scroll regions (CSI r), absolute positions, OSC sequences, and directions of writing. Without `color`, SGR
    sequences may only reset.
    """
    problems: list[str] = []
    for match in _SEQUENCE.finditer(text):
        parameters, between, final = match["parameters"], match["between"], match["final"]
        if final is None:
            allowed = False
        elif final == "J":
            allowed = parameters in {"", "0"}
        elif final in {"h", "l"}:
            allowed = parameters in _MODES
        elif final == "m" and not color:
            allowed = parameters in {"", "0"}
        else:
            allowed = final in _FINALS and not between and not parameters.startswith(("?", "<", "=", ">"))
        if not allowed:
            problems.append(repr(match[0]))
    chars = sorted(set(_SEQUENCE.sub("", text)) - set("\r\n\b"))
    problems.extend(
        f"character U+{ord(char):04X}" for char in chars if char < " " or "\x7f" <= char <= "\x9f" or char in _BIDI
    )
    return problems


class Emulator(pyte.Screen):
    """A terminal that keeps what scrolls off its top, and notes how far the cursor moves up."""

    def __init__(self, columns: int, rows: int) -> None:
        self.scrollback: list[str] = []
        self.highest = 0
        """The most rows that the cursor was above the lowest row it had reached before."""
        self._lowest = 0
        super().__init__(columns, rows)

    def index(self) -> None:
        """Move down; the line that leaves the screen at the top is kept."""
        if self.cursor.y == self.lines - 1:
            self.scrollback.append(self.read_row(0))
        super().index()
        self._lowest = max(self._lowest, len(self.scrollback) + self.cursor.y)

    def cursor_up(self, count: int | None = None) -> None:
        """Move up, and note how far above the lowest row that is."""
        wanted = len(self.scrollback) + self.cursor.y - (count or 1)
        self.highest = max(self.highest, self._lowest - wanted)
        super().cursor_up(count)

    def read_row(self, row: int) -> str:
        """Read a row without the spaces at its end."""
        cells = self.buffer[row]
        return "".join(cells[column].data for column in range(self.columns)).rstrip()


class _TerminalProcess:
    """A command whose controlling terminal is a new pseudo terminal.

    The kernel hands written bytes to the other end in a work queue, maybe after the process has ended: `drain` writes a
    mark behind them and reads up to it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        size: tuple[int, int],
        cwd: Path | str | None = None,
        is_indus: bool = True,
        **streams: Any,
    ) -> None:
        self._ours, self._theirs = os.openpty()
        self._set_size(*size)
        self.modes = termios.tcgetattr(self._theirs)
        options = {**dict.fromkeys(("stdin", "stdout", "stderr"), self._theirs), **streams}
        self.process = start_command(
            argv, environ=environ, is_indus=is_indus, terminal=2, start_new_session=True, cwd=cwd, **options
        )

    def type(self, keys: str) -> None:
        """Send keys; in line mode a newline is the Enter key."""
        data = keys.encode()
        while data:
            self._read(0.0)  # the program may wait for its output to be read
            data = data[os.write(self._ours, data[:1024]) :]

    def read_modes(self) -> object:
        """Give the modes of the terminal."""
        return termios.tcgetattr(self._theirs)

    def hang_up(self) -> None:
        """Close the terminal."""
        for descriptor in (self._ours, self._theirs):
            if descriptor >= 0:
                os.close(descriptor)
        self._ours = self._theirs = -1

    def close(self) -> None:
        """End the process if it runs, and close the terminal."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.hang_up()

    def drain(self) -> None:
        """Read all that was written until now."""
        if self._theirs < 0:
            return
        os.write(self._theirs, _END)
        deadline = monotonic() + LIMIT_S
        data = b""
        while not data.endswith(_END):
            assert select.select([self._ours], [], [], deadline - monotonic())[0], "the terminal does not answer"
            data += os.read(self._ours, 65_536)
        self._take(data.removesuffix(_END))

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self, timeout_s: float) -> bool:
        """Take what was written, after waiting for it; return whether there was anything."""
        if self._ours < 0 or not select.select([self._ours], [], [], max(0.0, timeout_s))[0]:
            return False
        try:
            data = os.read(self._ours, 65_536)
        except OSError:  # EIO: see pty(7)
            return False
        self._take(data)
        return bool(data)

    def _take(self, data: bytes) -> None:
        """Take what was written."""
        raise NotImplementedError


class LineTerminal(_TerminalProcess):
    """The command `indus` in line mode; leaving the block ends it with everything it started.

    Standard error is the terminal, standard input too unless `piped` is given, standard output unless `stdout` is.
    """

    def __init__(
        self, *arguments: str, environ: Mapping[str, str], piped: str | None = None, stdout: int | None = None
    ) -> None:
        self._seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        options: dict[str, Any] = {} if piped is None else {"stdin": subprocess.PIPE}
        if stdout is not None:
            options["stdout"] = stdout
        super().__init__([command(), *arguments], environ=environ, size=(0, 0), **options)
        if piped is not None:
            assert self.process.stdin is not None
            self.process.stdin.write(piped.encode())
            self.process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def read_until(self, text: str) -> str:
        """Read what is shown until it holds a text; give everything since the last such call."""
        deadline = monotonic() + LIMIT_S
        while text not in self._seen:
            assert self._read(deadline - monotonic()), f"{text!r} was not shown: {self._seen!r}"
        end = self._seen.index(text) + len(text)
        shown, self._seen = self._seen[:end], self._seen[end:]
        return shown

    def answer(self, shown: str, text: str) -> str:
        """Wait for a text, then type another; give what was shown."""
        before = self.read_until(shown)
        self.type(text)
        return before

    def wait(self) -> tuple[int, str]:
        """Wait for the end; give the exit code and the rest of what was shown."""
        deadline = monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert monotonic() < deadline, f"it goes on: {self._seen!r}"
            self._read(0.05)
        self.drain()
        shown, self._seen = self._seen, ""
        return self.process.returncode, shown

    def has_processes(self) -> bool:
        """Tell whether a process of the session is left, except for one that is ending."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _take(self, data: bytes) -> None:
        self._seen = (self._seen + self._decoder.decode(data)).replace("\r\n", "\n")


class Terminal(_TerminalProcess):
    """The program on a terminal of its own. Leaving the block ends it, and checks what it wrote and left behind.

    Args:
        arguments: The command line.
        cwd: The directory of the process.
        environ: Variables beside those of this process.
        name: The command.
        program: What is started in its place.
        columns: The width of the terminal.
        rows: Its height.
        color: Whether colours are expected; without it, one is a failure.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path | str | None = None,
        environ: Mapping[str, str] | None = None,
        name: str = "indus",
        program: Sequence[str] = (),
        columns: int = 80,
        rows: int = 24,
        color: bool = True,
    ) -> None:
        self.emulator = Emulator(columns, rows)
        self.raw = bytearray()
        self._stream = pyte.ByteStream(self.emulator)
        self._color = color
        self._mark = new_ulid()
        variables = {**os.environ, "TERM": "xterm-256color", **(environ or {}), MARK: self._mark}
        argv = [*(program or (command(name),)), *arguments]
        super().__init__(argv, environ=variables, size=(columns, rows), cwd=cwd, is_indus=not program)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                assert self.process.poll() is not None, f"it runs on:\n{self.text}"
                self.check()
        finally:
            self.close()

    # -- what the person does -----------------------------------------------------------------

    def enter(self, text: str) -> None:
        """Type a text and Enter."""
        self.type(text + ENTER)

    def paste(self, text: str) -> None:
        """Send a text as a terminal does in bracketed paste mode."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def resize(self, columns: int, rows: int | None = None) -> None:
        """Change the size; the kernel sends SIGWINCH."""
        self._read(0.0)
        rows = rows or self.emulator.lines
        self.emulator.resize(rows, columns)
        self._set_size(columns, rows)

    # -- what the person sees -----------------------------------------------------------------

    @property
    def rows(self) -> list[str]:
        """The rows of the screen."""
        return [self.emulator.read_row(row) for row in range(self.emulator.lines)]

    @property
    def text(self) -> str:
        """Everything above and on the screen."""
        return "\n".join([*self.emulator.scrollback, *self.rows]).rstrip()

    @property
    def output(self) -> str:
        """Everything that was written, with its control sequences."""
        return self.raw.decode("utf-8", "backslashreplace")

    def wait_for(self, wanted: str | Callable[[], bool]) -> None:
        """Read until a text is shown, or a condition holds.

        Raises:
            AssertionError: The program ended before, or `LIMIT_S` passed.
        """
        deadline = monotonic() + LIMIT_S
        while not self._holds(wanted):
            if self.process.poll() is not None:
                self.drain()
                assert self._holds(wanted), f"it ended with {self.process.returncode} before {wanted!r}:\n{self.text}"
                return
            self._read(0.02)
            assert monotonic() < deadline, f"{wanted!r} does not come:\n{self.text}"

    def _holds(self, wanted: str | Callable[[], bool]) -> bool:
        if self.raw.rfind(b"\x1b[?2026h") > self.raw.rfind(b"\x1b[?2026l") and self.process.poll() is None:
            return False  # within a synchronized update, which a terminal shows as one
        if not isinstance(wanted, str):
            return wanted()
        text = self.text
        # A long line is wrapped, mostly at words, and where depends on the path of the test's directory.
        return wanted in text or wanted in text.replace("\n", "") or wanted in re.sub(r"\n +", " ", text)

    def wait_for_prompt(self) -> None:
        """Read until the input line is shown and the conversation is open."""
        self.wait_for(lambda: any(row.startswith(">") for row in self.rows) and "starting…" not in self.text)

    def wait_for_answer(self, text: str) -> None:
        """Read until a text is shown and the turn is over."""
        self.wait_for(lambda: text in self.text and not any(ACTIVITY in row for row in self.rows))

    def wait_for_end(self) -> int:
        """Read until the program has ended; give its exit code."""
        self.wait_for(lambda: self.process.poll() is not None)
        self.drain()
        return self.process.returncode

    def leave(self) -> int:
        """Press Ctrl-D, and give the exit code."""
        self.type(CTRL_D)
        return self.wait_for_end()

    # -- what must hold at the end ------------------------------------------------------------

    def check(self) -> None:
        """Check the bytes, the modes of the terminal, and that no process is left."""
        problems = check_output(self.output, color=self._color)
        assert not problems, f"it wrote {', '.join(problems)}"
        most = max(REGION_ROWS, self.emulator.lines // 3 + 4)
        most = min(QUESTION_ROWS, self.emulator.lines) if _ASKED in self.output else most
        assert self.emulator.highest <= most, f"the cursor moved {self.emulator.highest} rows up"
        if self._theirs >= 0:
            assert self.read_modes() == self.modes, "the modes of the terminal differ"
            for mode in ("?2004", "?2026"):
                assert self.output.rfind(f"\x1b[{mode}h") <= self.output.rfind(f"\x1b[{mode}l"), f"{mode} is left on"
            assert self.output.rfind("\x1b[?25l") <= self.output.rfind("\x1b[?25h"), "the cursor is hidden"
            assert self.output.rfind("\x1b[?7l") <= self.output.rfind("\x1b[?7h"), "long lines are not wrapped"
        assert self.list_processes() == []

    def list_processes(self) -> list[str]:
        """List the processes of the session, those included that have left its process group."""
        if not os.path.isdir("/proc/self"):
            return [str(self.process.pid)] if is_alive(self.process.pid) else []
        # A fork of a process has the variables of that process there.
        found = [f"{self.process.pid} indus"] if self.process.poll() is None else []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if pid == str(self.process.pid):
                continue
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    is_ours = self._mark.encode() in file.read()
                if is_ours and is_alive(int(pid)):
                    with open(f"/proc/{pid}/cmdline", "rb") as file:
                        found.append(f"{pid} {file.read().replace(bytes(1), b' ').decode(errors='replace').strip()}")
            except OSError:
                continue
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        self.process.send_signal(number)

    def _take(self, data: bytes) -> None:
        self.raw += data
        self._stream.feed(data)


@dataclass
class TerminalSetup:
    """A working directory and a scripted model; `open` starts `indus` in it on a terminal."""

    cwd: Path
    server: ModelServer
    api: Literal["openai", "anthropic"] = "openai"
    environ: dict[str, str] = field(default_factory=dict[str, str])

    def open(self, *arguments: str, script: tuple[Reply, ...] = (), model: bool = True, **options: Any) -> Terminal:
        """Start the program; `options` are those of `Terminal`."""
        self.server.script[:] = script
        environ = {**self.variables, **self.environ, **options.pop("environ", {})}
        words = ("--model", f"{self.api}:scripted", *arguments) if model else arguments
        return Terminal(*words, cwd=self.cwd, environ=environ, **options)

    @property
    def variables(self) -> dict[str, str]:
        """The variables with the address and key of the model."""
        if self.api == "anthropic":
            return {"ANTHROPIC_BASE_URL": self.server.url, "ANTHROPIC_API_KEY": "key"}
        return {"OPENAI_BASE_URL": f"{self.server.url}/v1", "OPENAI_API_KEY": "key"}

    @property
    def home(self) -> Path:
        """The home directory of the user."""
        return Path(os.environ["HOME"])

    def write_config(self, name: str, *servers: StdioServerConfig) -> Path:
        """Write a configuration file with servers into the working directory."""
        rows = {one.id: {"command": one.command, "args": [*one.args], "env": dict(one.env)} for one in servers}
        path = self.cwd / name
        path.write_text(json.dumps({"mcpServers": rows}), encoding="utf-8")
        return path

    def requested(self, number: int = -1) -> str:
        """Give a request to the model as text."""
        return json.dumps(self.server.requests[number], ensure_ascii=False)


@contextmanager
def open_setup(folder: Path) -> Generator[TerminalSetup]:
    """Run a scripted model for sessions below a directory."""
    cwd = folder / "project"
    cwd.mkdir()
    with model_server() as server:
        yield TerminalSetup(cwd, server)
