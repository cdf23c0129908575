"""The system's look-up of names, kept from holding up anything else."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from anyio import to_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT_ONCE: Final = 16
"""A look-up cannot be called off, only left alone: this many threads may be stuck in one."""
_free = threading.BoundedSemaphore(_AT_ONCE)


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """Look up the addresses of a name; a caller that is cancelled does not wait for them.

    Raises:
        OSError: There are none, or too many look-ups are under way.
    """
    if not _free.acquire(blocking=False):
        raise OSError(f"{_AT_ONCE} names are being looked up already: try again later")
    return await to_thread.run_sync(partial(_look_up, host, port), abandon_on_cancel=True)


def _look_up(host: str, port: int) -> Sequence[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    finally:
        _free.release()
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
