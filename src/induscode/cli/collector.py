"""The garbage collector of a command: late during imports, rare while a gateway runs.

The collector pauses the process: a full collection visits every object, among them the modules and definitions that
live as long as the process.
"""

import atexit
import gc

_FIRST_COLLECTION = 50_000
"""New objects before the first search for garbage: a command that lists something ends with fewer."""
_SERVING_COLLECTION = 5_000
"""New objects before a search in a process that serves. A call leaves some hundred until its response is sent."""


def defer_collection() -> None:
    """Let the garbage collector start late, and spare the end of the process its search.

    During imports the collector runs a hundred times and finds nothing. Its first run here restores the usual
    thresholds, so that a program that goes on (a gateway, a session) collects as always. At the exit all objects are
    frozen (https://docs.python.org/3/library/gc.html#gc.freeze): the memory is freed with the process.
    """
    usual = gc.get_threshold()

    def restore(_phase: str, _info: dict[str, int]) -> None:
        gc.set_threshold(*usual)
        gc.callbacks.remove(restore)

    gc.callbacks.append(restore)
    gc.set_threshold(_FIRST_COLLECTION, *usual[1:])
    atexit.register(gc.freeze)


def spare_start_objects() -> None:
    """Collect once, and exempt all objects of the start from later collections.

    A gateway has fifty thousand of them, which a full collection would visit for 30 ms and more while calls wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_SERVING_COLLECTION, *gc.get_threshold()[1:])
