"""Paths by components, programs that are safe to run, and sorting of long lists."""

from __future__ import annotations

import os
from heapq import merge
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
_CHUNK_ITEMS = 4_000


def is_within(path: str, *folders: str) -> bool:
    """Tell whether an absolute path is one of the directories or lies in one, component by component."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def parts_below(path: str, folder: str) -> list[str]:
    """Return the components that lead from `folder` to a path within it."""
    return [part for part in path[len(folder) :].split("/") if part]


def find_trusted_program(name: str, search_path: str, workspace: str) -> str | None:
    """Find a program in `search_path`, skipping relative entries and programs in the workspace.

    A repository could bring a program of that name, or a link to one. Reads directories: blocks.
    """
    from shutil import which  # noqa: PLC0415 — only callers that run programs pay

    root = os.path.realpath(workspace)
    for entry in search_path.split(os.pathsep):
        if os.path.isabs(entry) and not is_within(os.path.realpath(entry), root):
            # One entry at a time: behind a link into the workspace there may be a trusted program.
            program = which(name, path=entry)
            if program is not None and not is_within(os.path.realpath(program), root):
                return program
    return None


def sort_in_chunks(items: Sequence[T], key: Callable[[T], Any]) -> list[T]:
    """Sort in chunks, for a worker thread: `sorted` holds the GIL for the whole list, which stops the event loop."""
    if len(items) <= _CHUNK_ITEMS:
        return sorted(items, key=key)
    chunks = (sorted(items[start : start + _CHUNK_ITEMS], key=key) for start in range(0, len(items), _CHUNK_ITEMS))
    return list(merge(*chunks, key=key))
