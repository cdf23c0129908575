"""A program on a pseudo-terminal, and the text that a person would see on it.

Only what an append-only program needs is understood: text, line ends, cursor movement and erasing, each as in
https://invisible-island.net/xterm/ctlseqs/ctlseqs.html. Colours and modes are skipped.
"""

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable

COLUMNS, ROWS = 98, 60
PATTERN = re.compile(r"\x1b\[([0-9;?]*)([@-~])|\x1b[^\[]|[\r\n\b\a]|[^\x1b\r\n\b\a]+")


class Screen:
    """The rows of a terminal; the oldest ones are kept."""

    def __init__(self):
        self.rows = [""]
        self.row = self.column = 0
        self._rest = ""

    def feed(self, text):
        """Write what the program printed; an unfinished sequence waits for the next text."""
        text = self._rest + text
        self._rest = ""
        begin = text.rfind("\x1b")
        if begin >= 0 and not PATTERN.match(text, begin):
            text, self._rest = text[:begin], text[begin:]
        for match in PATTERN.finditer(text):
            if match[2]:
                self._control(match[1], match[2])
            elif match[0] == "\n":
                self.row += 1
            elif match[0] == "\r":
                self.column = 0
            elif match[0] == "\b":
                self.column = max(0, self.column - 1)
            elif match[0][0] >= " ":
                self._write(match[0])

    def _write(self, text):
        self.rows += [""] * (self.row + 1 - len(self.rows))
        before = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = before[: self.column] + text + before[self.column + len(text) :]
        self.column += len(text)

    def _control(self, parameters, final):
        first = parameters.split(";")[0]
        count = int(first) if first.isdigit() else 0
        if final == "A":
            self.row = max(0, self.row - (count or 1))
        elif final == "B":
            self.row += count or 1
        elif final == "C":
            self.column += count or 1
        elif final == "D":
            self.column = max(0, self.column - (count or 1))
        elif final in "JK" and not count:
            self.rows += [""] * (self.row + 1 - len(self.rows))
            self.rows[self.row] = self.rows[self.row][: self.column]
            if final == "J":
                del self.rows[self.row + 1 :]


class Terminal:
    """A program on a pseudo-terminal. Leave the block to end it."""

    def __init__(self, command, cwd, env):
        self.screen = Screen()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._file, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        try:
            self.process = subprocess.Popen(
                command, stdin=side, stdout=side, stderr=side, start_new_session=True, cwd=cwd, env=env
            )
        finally:
            os.close(side)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._file)

    def lines(self):
        """List the rows as they are now."""
        return [row.rstrip() for row in self.screen.rows]

    def wait_for(self, condition: Callable[[list[str]], bool]):
        """Read until the rows meet a condition, and list them."""
        try:
            while not condition(self.lines()):
                self._read()
        except Exception as exc:
            exc.add_note("\n".join(("on the terminal:", *self.lines())))
            raise
        return self.lines()

    def wait_for_end(self):
        """Read until the program has ended; return the rows and its exit code."""
        try:
            while True:
                self._read()
        except EOFError:
            return self.lines(), self.process.wait()

    def type(self, text):
        os.write(self._file, text.encode())

    def _read(self):
        try:
            data = os.read(self._file, 65536)
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        if not data:
            raise EOFError("the program has ended")
        self.screen.feed(self._decoder.decode(data))
