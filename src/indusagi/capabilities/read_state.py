"""Read state: which files were read, with a digest of their content, for read-before-edit.

A digest of the bytes rather than a time: a file that was touched but not changed is still the file that was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from indusagi.core.records import record


class ReadStateHandle(Protocol):
    """What a session has read of each file. Paths are absolute and resolved."""

    def record(self, path: str, digest: str, lines: tuple[int, int] | None = None) -> None:
        """Record the digest of the content that was read from or written to `path`.

        `lines` are the first and last shown line; None if the file was written, or not shown by lines.
        """
        ...

    def digest(self, path: str) -> str | None:
        """Return the last recorded digest of `path`; None if it was never read."""
        ...

    def list_shown_lines(self, path: str) -> Sequence[tuple[int, int]]:
        """Return the shown lines of the recorded content as sorted ranges."""
        ...

    def forget(self, path: str) -> None:
        """Forget `path`; an unknown one is fine."""
        ...


class ReadState:
    """The read state of one session, in memory."""

    def __init__(self) -> None:
        self._files: dict[str, _Known] = {}

    def record(self, path: str, digest: str, lines: tuple[int, int] | None = None) -> None:
        """Record the digest of the content that was read from or written to `path`."""
        known = self._files.get(path)
        shown = known.shown if known is not None and known.digest == digest else ()
        if lines is None:
            self._files[path] = _Known(digest, shown)
            return
        merged: list[tuple[int, int]] = []
        for first, last in sorted((*shown, lines)):
            if merged and first <= merged[-1][1] + 1:  # overlapping or adjacent
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        self._files[path] = _Known(digest, tuple(merged))

    def digest(self, path: str) -> str | None:
        """Return the last recorded digest of `path`; None if it was never read."""
        known = self._files.get(path)
        return None if known is None else known.digest

    def list_shown_lines(self, path: str) -> Sequence[tuple[int, int]]:
        """Return the shown lines of the recorded content as sorted ranges."""
        known = self._files.get(path)
        return () if known is None else known.shown

    def forget(self, path: str) -> None:
        """Forget `path`; an unknown one is fine."""
        self._files.pop(path, None)


@record
class _Known:
    digest: str
    shown: tuple[tuple[int, int], ...]
