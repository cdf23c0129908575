"""`indus` on a pseudo-terminal in line mode, which is its controlling terminal as in a shell."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import termios
from time import monotonic
from typing import TYPE_CHECKING

from tests.support.scripts import command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIMIT_S = 20.0
CTRL_C, CTRL_D = "\x03", "\x04"
_LAUNCH = "import fcntl,os,sys,termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class LineTerminal:
    """The command `indus` in a session of its own; `close` ends it with everything it started.

    Standard error is the terminal, standard input too unless `piped` is given, standard output unless `stdout` is.
    """

    def __init__(
        self,
        *arguments: str,
        environ: Mapping[str, str],
        piped: str | None = None,
        stdout: int | None = None,
        launcher: Sequence[str] = (),
    ) -> None:
        self._ours, theirs = os.openpty()
        self._theirs = theirs
        self._seen = ""
        self.modes = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, *(launcher or (command(),)), *arguments],
            stdin=theirs if piped is None else subprocess.PIPE,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            env=dict(environ),
            start_new_session=True,
        )
        if piped is not None:
            assert self.process.stdin is not None
            self.process.stdin.write(piped.encode())
            self.process.stdin.close()

    def __enter__(self) -> LineTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._ours)
        os.close(self._theirs)

    def read_until(self, text: str) -> str:
        """Read what is shown until it holds a text; give everything since the last such call."""
        deadline = monotonic() + LIMIT_S
        while text not in self._seen:
            assert self._read(deadline), f"{text!r} was not shown: {self._seen!r}"
        end = self._seen.index(text) + len(text)
        shown, self._seen = self._seen[:end], self._seen[end:]
        return shown

    def type(self, text: str) -> None:
        """Type a text; a newline is the Enter key."""
        os.write(self._ours, text.encode())

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
            self._read(monotonic() + 0.05)
        while self._read(monotonic()):
            pass
        shown, self._seen = self._seen, ""
        return self.process.returncode, shown

    def read_modes(self) -> object:
        """Give the modes of the terminal."""
        return termios.tcgetattr(self._theirs)

    def has_processes(self) -> bool:
        """Tell whether a process of the session is left, except for one that is ending."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _read(self, deadline: float) -> bool:
        if not select.select([self._ours], [], [], max(0.0, deadline - monotonic()))[0]:
            return False
        self._seen += os.read(self._ours, 65_536).decode("utf-8", "replace").replace("\r\n", "\n")
        return True
