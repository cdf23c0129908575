"""Messages that were entered before, for the arrow keys: one private file of this user."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from prompt_toolkit.history import FileHistory, InMemoryHistory

from indusagi.core.app_dirs import make_private_dir, state_dir

if TYPE_CHECKING:
    from prompt_toolkit.history import History

_LARGEST = 1024 * 1024
_KEPT = 256 * 1024


def open_history() -> History:
    """Open the history; one in memory if the state directory cannot be used."""
    try:
        path = os.path.join(make_private_dir(state_dir()), "history")
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return InMemoryHistory()
    try:
        size = os.fstat(handle).st_size
        if size > _LARGEST:  # keep the newest entries, from the beginning of one of them
            tail = os.pread(handle, _KEPT, size - _KEPT)
            os.ftruncate(handle, 0)
            os.pwrite(handle, tail[tail.find(b"\n# ") + 1 :], 0)
    finally:
        os.close(handle)
    return FileHistory(path)
