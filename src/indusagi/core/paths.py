"""What lies within a directory, by the components of its path, and which programs do not."""

from __future__ import annotations

import os


def is_within(path: str, *folders: str) -> bool:
    """Tell whether an absolute path is one of these or lies in one, component by component."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def parts_below(path: str, folder: str) -> list[str]:
    """Give the components that lead from `folder` to a path within it."""
    return [part for part in path[len(folder) :].split("/") if part]


def find_trusted_program(name: str, search_path: str, workspace: str) -> str | None:
    """Find a program, but not in the workspace and not by a relative entry of the path.

    Whoever may write to the workspace could put a program of that name there, or a link to one
    elsewhere. Not for the event loop.
    """
    from shutil import which  # noqa: PLC0415 — for those who run other programs

    root = os.path.realpath(workspace)
    usable = [
        entry
        for entry in search_path.split(os.pathsep)
        if os.path.isabs(entry) and not is_within(os.path.realpath(entry), root)
    ]
    # One at a time: behind a link that leads into the workspace there may be an honest one.
    for entry in usable:
        found = which(name, path=entry)
        if found is not None and not is_within(os.path.realpath(found), root):
            return found
    return None
