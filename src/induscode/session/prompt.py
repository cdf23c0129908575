"""What the model is asked: the text after `-p`, and whatever is piped in."""

from __future__ import annotations

import os
import select
import stat
from typing import TYPE_CHECKING

from indusagi.core.faults import CoreError

if TYPE_CHECKING:
    from typing import IO

LARGEST_INPUT = 4 * 1024 * 1024
"""More than that fits into no context window."""
_SILENCE_S = 3.0
"""How long a pipe may stay silent before it is taken for one that nobody writes to."""


class BadPrompt(CoreError):
    """There is nothing to ask, or too much of it."""


def read_prompt(given: str | None, stdin: IO[str] | None) -> str:
    """Put the prompt together. It blocks, and never on a terminal: call it in a thread.

    Raises:
        BadPrompt: There is nothing, or more than can be asked.
    """
    piped = piped_text(stdin)
    parts = [part for part in (given or "", piped) if part.strip()]
    if not parts:
        raise BadPrompt('there is nothing to ask: say it after -p, as in indus -p "…"')
    return "\n\n".join(parts)


def piped_text(stdin: IO[str] | None) -> str:
    """Read what is piped in; nothing if standard input is a terminal, is closed, or stays silent.

    Raises:
        BadPrompt: It is too much.
    """
    handle = _handle(stdin)
    if handle is None:
        return ""
    chunks: list[bytes] = []
    size = 0
    # The first bytes may never come: a pipe that somebody forgot to close. After them the end will.
    if not _has_something(handle):
        return ""
    while chunk := os.read(handle, 65_536):
        chunks.append(chunk)
        size += len(chunk)
        if size > LARGEST_INPUT:
            raise BadPrompt(f"more than {LARGEST_INPUT:,} bytes were piped in: give a file to read")
    return b"".join(chunks).decode("utf-8", "replace")


def _handle(stdin: IO[str] | None) -> int | None:
    try:
        handle = stdin.fileno() if stdin is not None else None
        mode = os.fstat(handle).st_mode if handle is not None else 0
    except (OSError, ValueError):
        return None
    piped = stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
    return handle if piped else None


def _has_something(handle: int) -> bool:
    ready, _, _ = select.select([handle], [], [], _SILENCE_S)
    return bool(ready)
