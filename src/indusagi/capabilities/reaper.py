"""Reaper: a process that ends the commands of this one if this one is killed.

It is `sh`, which waits on a pipe whose other end only this process holds. The kernel closes that end however the
process ends; a line says before that the end is an orderly one. Otherwise `sh` becomes Python, which ends the commands
by their receipts. It leads a session of its own, so that a signal to the group of this process does not reach it.
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
"""Registers our packages without running their `__init__`, as the worker processes do."""
_VARIABLES = ("PATH", "HOME", "XDG_STATE_HOME")
_CLOSE_S = 5.0


class Reaper:
    """The process, started with the first command. Every method blocks: call it in a thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def start(self) -> None:
        """Start the process, once; without it the next run finds what was left behind."""
        with self._lock:
            started = read_start_time(os.getpid()) if self._process is None else None
            if started is None:  # it runs, or there are no receipts on this system
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
        """End the process without an effect; a later command starts another."""
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
