"""`indus` with an observer: `python soak_subject.py SOCKET ARGUMENT...`.

A thread listens on the socket. Whoever connects gets one line of JSON about this process: how many
tasks its event loops have, and how many objects its collector knows after it has collected.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import threading


def tasks() -> int:
    """Count the tasks of every event loop in this process."""
    loops = [one for one in gc.get_objects() if isinstance(one, asyncio.AbstractEventLoop)]
    return sum(len(asyncio.all_tasks(loop)) for loop in loops)


def observe(listening: socket.socket) -> None:
    """Answer whoever connects, for ever."""
    while True:
        connection, _ = listening.accept()
        with connection:
            gc.collect()
            said = {"tasks": tasks(), "objects": len(gc.get_objects())}
            connection.sendall(json.dumps(said).encode())


def main() -> int:
    place, *arguments = sys.argv[1:]
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen()
    threading.Thread(target=observe, args=(listening,), daemon=True).start()
    from induscode.cli import main as indus  # noqa: PLC0415 — after the observer, as the program is

    sys.argv = ["indus", *arguments]
    return indus()


if __name__ == "__main__":
    sys.exit(main())
