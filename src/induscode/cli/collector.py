"""Tunes the garbage collector: it starts late during imports, and runs rarely in a gateway.

A full collection pauses the process to visit every object, including modules and definitions that live as long as it.
"""

import atexit
import gc

_FIRST_COLLECTION = 50_000
"""New objects before the first collection; a listing command creates fewer."""
_SERVING_COLLECTION = 5_000
"""New objects between collections while serving. A call holds a few hundred until we send its response."""


def defer_collection() -> None:
    """Delay the first collection, and skip the one at exit.

    During imports the collector would run a hundred times and find nothing. Its first run restores the usual
    thresholds, so that a longer-running program (a gateway, a session) collects as always. At exit we freeze all
    objects (https://docs.python.org/3/library/gc.html#gc.freeze): their memory goes with the process.
    """
    usual = gc.get_threshold()

    def restore(_phase: str, _info: dict[str, int]) -> None:
        gc.set_threshold(*usual)
        gc.callbacks.remove(restore)

    gc.callbacks.append(restore)
    gc.set_threshold(_FIRST_COLLECTION, *usual[1:])
    atexit.register(gc.freeze)


def spare_start_objects() -> None:
    """Collect once, then exempt all startup objects from later collections.

    A gateway has fifty thousand of them. A full collection would visit them for 30 ms or more while calls wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_SERVING_COLLECTION, *gc.get_threshold()[1:])
