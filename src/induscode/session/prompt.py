"""What the model is asked: the text after `-p`, and whatever is piped in."""

from __future__ import annotations

import os
import select
import stat
from typing import TYPE_CHECKING

from indusagi.core.faults import CoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

LARGEST_INPUT = 4 * 1024 * 1024
"""More than that fits into no context window."""
_SILENCE_S = 3.0
"""How long a pipe may stay silent before it is taken for one that nobody writes to."""


_LOOK_S = 0.1


class BadPrompt(CoreError):
    """There is nothing to ask, or too much of it."""


def _never() -> bool:
    return False


def read_prompt(given: str | None, stdin: IO[str] | None, stopped: Callable[[], bool] = _never) -> tuple[str, str]:
    """Put the prompt together, and say what is odd about it; nothing if nothing is.

    It blocks, but never on a terminal, and not for long once `stopped` says so: for a thread.

    Raises:
        BadPrompt: There is nothing, or more than can be asked.
    """
    said = (given or "").strip()
    piped, note = _piped(stdin, stopped, patience_s=_SILENCE_S if said else None)
    parts = [part for part in (given or "", piped) if part.strip()]
    if not parts:
        raise BadPrompt('there is nothing to ask: say it after -p, as in indus -p "…"')
    return "\n\n".join(parts), note


def _piped(stdin: IO[str] | None, stopped: Callable[[], bool], patience_s: float | None) -> tuple[str, str]:
    """Read what is piped in; nothing if it is a terminal, is closed, or stays silent for too long.

    A pipe that is the only source of the prompt is waited for: there is nothing else to do.
    """
    handle = _handle(stdin)
    if handle is None:
        return "", ""
    chunks: list[bytes] = []
    size, waited = 0, 0.0
    while not stopped():
        if not _ready(handle):
            waited += _LOOK_S
            # The first bytes may never come, from a pipe that somebody forgot to close.
            if not chunks and patience_s is not None and waited >= patience_s:
                return "", f"nothing was piped in for {patience_s:g} s: going on without it"
            continue
        chunk = os.read(handle, 65_536)
        if not chunk:
            break
        chunks.append(chunk)
        size += len(chunk)
        if size > LARGEST_INPUT:
            raise BadPrompt(f"more than {LARGEST_INPUT:,} bytes were piped in: give a file to read")
    return b"".join(chunks).decode("utf-8", "replace"), ""


def _handle(stdin: IO[str] | None) -> int | None:
    try:
        handle = stdin.fileno() if stdin is not None else None
        mode = os.fstat(handle).st_mode if handle is not None else 0
    except (OSError, ValueError):
        return None
    piped = stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
    return handle if piped else None


def _ready(handle: int) -> bool:
    ready, _, _ = select.select([handle], [], [], _LOOK_S)
    return bool(ready)
