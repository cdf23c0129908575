"""Stands for `npx` and the like: unpacks a server into a shared cache, then runs it.

`package_manager.py CACHE STEPS ON_SIGNAL COMMAND …`: takes the lock of the cache, writes a file in
so many steps of 0.1 s (a path: until that file is there), marks the folder as whole, gives the lock
back and becomes the command. ON_SIGNAL says what SIGINT and SIGTERM do while it unpacks: `clean`
takes 0.2 s to undo all, `clean-slowly` 0.5 s, `finish` goes on to the end. Whoever kills it leaves
the lock and half of a folder behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time


def main() -> None:
    """Unpack, then run."""
    cache, steps, on_signal, *command = sys.argv[1:]
    folder = os.path.join(cache, "_npx", "0123456789abcdef")
    lock = os.path.join(folder, "concurrency.lock")
    told: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda one, _: told.append(one))
    if not os.path.exists(os.path.join(folder, "whole")):
        os.makedirs(lock)
        with open(os.path.join(folder, "package"), "wb", buffering=0) as file:
            left = int(steps) if steps.isdigit() else None
            while left != 0 if left is not None else not os.path.exists(steps):
                file.write(b"x" * 65536)
                time.sleep(0.02 if left is None else 0.1)
                if told and on_signal != "finish":
                    _undo(folder, file.fileno(), 2 if on_signal == "clean" else 5)
                left = None if left is None else left - 1
        with open(os.path.join(folder, "whole"), "w", encoding="ascii"):
            pass
        os.rmdir(lock)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if told:
        sys.exit(130)
    os.execv(command[0], command)


def _undo(folder: str, file: int, steps: int) -> None:
    """Take a while to put things right, working all the time."""
    for _ in range(steps):
        os.write(file, b"undo")
        time.sleep(0.1)
    shutil.rmtree(folder)
    sys.exit(130)


main()
