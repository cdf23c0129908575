"""Which files were read, and what was in them then: the memory behind read-before-edit.

A path is remembered with a digest of its bytes, never with a time: a file that was touched but
not changed is still the file that was read.
"""

from typing import Protocol


class ReadStateHandle(Protocol):
    """Remembers what a session has seen of each file. Paths are absolute and resolved."""

    def record(self, path: str, digest: str) -> None:
        """Remember that the bytes with this digest are what stood at `path`."""
        ...

    def digest(self, path: str) -> str | None:
        """Tell what was last recorded for `path`; None if it was never read."""
        ...

    def forget(self, path: str) -> None:
        """Drop what is known of `path`; an unknown one is fine."""
        ...


class ReadState:
    """The handle for one session, in memory."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}

    def record(self, path: str, digest: str) -> None:
        """Remember that the bytes with this digest are what stood at `path`."""
        self._digests[path] = digest

    def digest(self, path: str) -> str | None:
        """Tell what was last recorded for `path`; None if it was never read."""
        return self._digests.get(path)

    def forget(self, path: str) -> None:
        """Drop what is known of `path`; an unknown one is fine."""
        self._digests.pop(path, None)
