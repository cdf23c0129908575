"""The names of files as they are shown: harmless, and always on one line."""

from __future__ import annotations

import os

from indusagi.core.text import clean_text


def shown_name(path: str) -> str:
    """Give a path for people: bytes that are no text as such, and no line of its own."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return clean_text(text.replace("\n", "\\n").replace("\t", "\\t"))[0]


def joined(base: str, path: str) -> str:
    """Put a path behind the one of the directory it lies in, which may be the current one."""
    return path if base == "." else os.path.join(base, path)


def shown_place(resolved: str, root: str) -> str:
    """Give the name under which the user knows a path: relative where it lies in `root`."""
    if resolved == root:
        return "."
    return shown_name(resolved.removeprefix(root.rstrip("/") + "/"))
