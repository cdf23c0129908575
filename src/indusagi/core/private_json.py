"""A JSON document in a private file that several processes read and change.

Readers see the old document or the new one. Writers hold the lock of the directory while they read, change and replace
the file; a damaged file is renamed to `….corrupt-…` before a change, and never overwritten.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from indusagi.core.app_dirs import locked_directory, make_private_dir, read_small_file, replace_private_file
from indusagi.core.ids import new_ulid

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from indusagi.core.json import JsonValue

T = TypeVar("T")


class PrivateJsonFile(Generic[T]):
    """One file. The methods block: call them in a thread.

    Args:
        path: Of the file; its directory is made private.
        largest_bytes: A larger file counts as damaged.
        parse: Returns the content of a document, and whether the document is damaged; None is an absent document.
        dump: Returns the document of a content.
    """

    def __init__(
        self,
        path: str,
        largest_bytes: int,
        parse: Callable[[JsonValue], tuple[T, bool]],
        dump: Callable[[T], JsonValue],
    ) -> None:
        self._path = path
        self._largest_bytes = largest_bytes
        self._parse = parse
        self._dump = dump

    def read(self) -> tuple[T, bool]:
        """Return the content, and whether the file is damaged or unreadable."""
        try:
            document: JsonValue = json.loads(read_small_file(self._path, self._largest_bytes, follow=False))
        except FileNotFoundError:
            return self._parse(None)[0], False
        except (OSError, ValueError, RecursionError):
            return self._parse(None)[0], True
        return self._parse(document)

    @contextmanager
    def change(self) -> Generator[T]:
        """Let the caller change the content; it is written when the block ends without an error.

        Raises:
            OSError: The file cannot be written, or another process holds the lock for too long.
        """
        with locked_directory(make_private_dir(os.path.dirname(self._path))):
            content, damaged = self.read()
            if damaged:
                os.replace(self._path, f"{self._path}.corrupt-{new_ulid()}")
            yield content
            replace_private_file(self._path, json.dumps(self._dump(content), indent=1).encode("utf-8"))
