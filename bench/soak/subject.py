"""`indus` with an observer: `python subject.py SOCKET ARGUMENT...`.

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
from weakref import WeakSet

_WITHIN_S = 10.0


_made: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""The event loops of this process. They are record_event when they are made: to look for them among all
objects would hold on to what other threads have half made, which the interpreter does not bear."""


def note_loops() -> None:
    """Note every event loop from here on."""
    make = asyncio.events.new_event_loop

    def record_event() -> asyncio.AbstractEventLoop:
        loop = make()
        _made.add(loop)
        return loop

    asyncio.events.new_event_loop = record_event


def loops() -> list[asyncio.AbstractEventLoop]:
    """Give those that run."""
    return [loop for loop in [*_made] if loop.is_running()]


def objects() -> int:
    """Count what the collector knows after it has collected, without touching any of it."""
    gc.collect()
    gc.freeze()
    try:
        return gc.get_freeze_count()
    finally:
        gc.unfreeze()


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
    """Answer every connection, for ever."""
    while True:
        connection, _ = listening.accept()
        with connection:
            said = {"tasks": tasks(), "objects": objects()}
            connection.sendall(json.dumps(said).encode())


def main() -> int:
    place, *arguments = sys.argv[1:]
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen()
    note_loops()
    threading.Thread(target=observe, args=(listening,), daemon=True).start()
    from induscode.__main__ import main as indus  # noqa: PLC0415 — after the observer, as the program is

    sys.argv = ["indus", *arguments]
    return indus()


if __name__ == "__main__":
    sys.exit(main())
