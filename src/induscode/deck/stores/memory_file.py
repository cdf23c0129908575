"""Notes of the `memory` card in a Markdown file of the project, which people can read and change too."""

from __future__ import annotations

import os
import threading
from functools import partial

from anyio import to_thread

from indusagi.core.app_dirs import make_dirs, read_small_file, replace_private_file
from induscode.deck.cards.memory import append_note_line

MEMORY_NAME = os.path.join(".indusvx", "memory.md")
_LARGEST_BYTES = 1024 * 1024


class FileMemory:
    """The notes in one file; an absent file is empty."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._lock = threading.Lock()

    async def read(self) -> str:
        """Return the notes.

        Raises:
            OSError: The file cannot be read.
        """
        return await to_thread.run_sync(self._read)

    async def replace(self, content: str) -> None:
        """Replace the notes atomically.

        Raises:
            OSError: The file cannot be written.
        """
        await to_thread.run_sync(partial(self._write, content, append=False))

    async def append(self, content: str) -> None:
        """Append to the notes, on a new line.

        Raises:
            OSError: The file cannot be written.
        """
        await to_thread.run_sync(partial(self._write, content, append=True))

    def _read(self) -> str:
        try:
            data = read_small_file(self._path, _LARGEST_BYTES, follow=False)
        except FileNotFoundError:
            return ""
        return data.decode("utf-8", "replace")

    def _write(self, content: str, *, append: bool) -> None:
        with self._lock:
            if append:
                content = append_note_line(self._read(), content)
            make_dirs(os.path.dirname(self._path))
            replace_private_file(self._path, content.encode("utf-8", "backslashreplace"))
