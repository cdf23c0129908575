"""How a session ends, as the exit code of the program."""

from __future__ import annotations

import signal
from enum import IntEnum


class ExitCode(IntEnum):
    """What a script is told; a signal n is 128 + n."""

    OK = 0
    """The model has answered. Calls that were not allowed are listed, and are no failure."""
    FAILED = 1
    """Something broke that is none of the others."""
    USAGE = 2
    """What was asked for makes no sense: a flag, a file, a conversation that is not there."""
    SERVER_MISSING = 3
    """A server with `required: true` was not ready; no request was made."""
    MODEL = 4
    """No model, or the model's server refused: key, limit, context window, connection."""
    LIMIT = 5
    """The most requests were made, or the same calls came back again and again."""
    INTERRUPTED = 128 + signal.SIGINT
    READER_LEFT = 128 + signal.SIGPIPE


def signal_code(name: str) -> int:
    """Give the exit code of a signal by its name, as a cancel token carries it."""
    return 128 + signal.Signals[name].value if name in signal.Signals.__members__ else ExitCode.FAILED
