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
from concurrent.futures import Future
from functools import partial
from typing import cast

_WITHIN_S = 10.0


def loops() -> list[asyncio.AbstractEventLoop]:
    """Find the event loops of this process that run."""
    # By its type: a stand-in for something else may load it when it is asked for its class.
    kind = asyncio.AbstractEventLoop
    found = [cast("asyncio.AbstractEventLoop", o) for o in _all() if issubclass(type(o), kind)]
    return [loop for loop in found if loop.is_running()]


def _all() -> list[object]:
    return gc.get_objects()


def tasks() -> int:
    """Count the tasks of every event loop, each in its own thread."""
    counted: Future[int]
    total = 0
    for loop in loops():
        counted = Future()
        loop.call_soon_threadsafe(partial(_count, loop, counted))
        total += counted.result(_WITHIN_S)
    return total


def _count(loop: asyncio.AbstractEventLoop, counted: Future[int]) -> None:
    counted.set_result(len(asyncio.all_tasks(loop)))


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
