"""Which files were read, and what was in them then: the memory behind read-before-edit.

A path is remembered with a digest of its bytes, never with a time: a file that was touched but
not changed is still the file that was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class ReadStateHandle(Protocol):
    """Remembers what a session has seen of each file. Paths are absolute and resolved."""

    def record(self, path: str, digest: str, lines: tuple[int, int] | None = None) -> None:
        """Remember that the bytes with this digest are what stood at `path`.

        `lines` are the first and the last of those that were shown. Without them the file was
        written, or shown in another way than by lines.
        """
        ...

    def digest(self, path: str) -> str | None:
        """Tell what was last recorded for `path`; None if it was never read."""
        ...

    def seen(self, path: str) -> Sequence[tuple[int, int]]:
        """List the lines that were shown of what is recorded for `path`: ranges, in order."""
        ...

    def forget(self, path: str) -> None:
        """Drop what is known of `path`; an unknown one is fine."""
        ...


class ReadState:
    """The handle for one session, in memory."""

    def __init__(self) -> None:
        self._files: dict[str, _Known] = {}

    def record(self, path: str, digest: str, lines: tuple[int, int] | None = None) -> None:
        """Remember that the bytes with this digest are what stood at `path`."""
        known = self._files.get(path)
        seen = known.seen if known is not None and known.digest == digest else ()
        self._files[path] = _Known(digest, seen if lines is None else _merged(seen, lines))

    def digest(self, path: str) -> str | None:
        """Tell what was last recorded for `path`; None if it was never read."""
        known = self._files.get(path)
        return None if known is None else known.digest

    def seen(self, path: str) -> Sequence[tuple[int, int]]:
        """List the lines that were shown of what is recorded for `path`: ranges, in order."""
        known = self._files.get(path)
        return () if known is None else known.seen

    def forget(self, path: str) -> None:
        """Drop what is known of `path`; an unknown one is fine."""
        self._files.pop(path, None)


@dataclass(frozen=True, slots=True)
class _Known:
    digest: str
    seen: tuple[tuple[int, int], ...]


def _merged(seen: tuple[tuple[int, int], ...], lines: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Add a range to others; those that touch become one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted((*seen, lines)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)
