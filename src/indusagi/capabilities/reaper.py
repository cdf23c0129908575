"""Reaper: a process that terminates our commands if we get killed.

It's an `sh` waiting on a pipe whose other end only we hold. The kernel closes that end however we exit; for an orderly
exit, we write a line first. Otherwise `sh` execs Python, which terminates the commands found in their receipts. The
reaper leads its own session, so a signal to our process group doesn't reach it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from threading import Lock

from indusagi.capabilities import receipts
from indusagi.core.process.procfs import read_start_time

_WAIT = 'read -r _ || exec "$@"'
_END = """
import sys, types
for name, path in zip(("indusagi", "indusagi.core", "indusagi.core.process", "indusagi.capabilities"), sys.argv[1:5]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from indusagi.capabilities.receipts import end_commands
end_commands(*map(int, sys.argv[5:]))
"""
"""Registers our packages without running their `__init__`, like the worker processes."""
_VARIABLES = ("PATH", "HOME", "XDG_STATE_HOME")
_CLOSE_S = 5.0


class Reaper:
    """The process, started with the first command. All methods block: call them in a thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def start(self) -> None:
        """Start the process once. If that fails, the next run finds leftovers."""
        with self._lock:
            started = read_start_time(os.getpid()) if self._process is None else None
            if started is None:  # already running, or no receipts on this system
                return
            capabilities = os.path.dirname(os.path.abspath(receipts.__file__))
            package = os.path.dirname(capabilities)
            core = os.path.join(package, "core")
            folders = [package, core, os.path.join(core, "process"), capabilities]
            python = [sys.executable, "-I", "-c", _END, *folders, str(os.getpid()), str(started)]
            with suppress(OSError):
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _WAIT, "sh", *python],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                    cwd="/",
                    start_new_session=True,
                )

    def close(self) -> None:
        """Stop the process without reaping anything; a later command starts a new one."""
        with self._lock:
            process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        with suppress(OSError):
            process.stdin.write(b"\n")
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
