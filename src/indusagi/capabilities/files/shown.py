"""The names of files as they are shown: harmless, and always on one line."""

from __future__ import annotations

import os

from indusagi.core.text import clean_text


def shown_name(path: str) -> str:
    """Give a path on one line, without what nobody sees, with bytes that are no text spelt out."""
    if path.isascii() and path.isprintable():  # as most are
        return path
    try:
        text = os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # no name of a file, but what somebody took for one
        text = path
    cleaned, unseen = clean_text(text.replace("\n", "\\n").replace("\t", "\\t"))
    return f"{cleaned} (hidden characters left out)" if unseen else cleaned


def joined(base: str, path: str) -> str:
    """Put a path behind the one of the directory it lies in, which may be the current one."""
    return path if base == "." else os.path.join(base, path)


def shown_place(resolved: str, root: str) -> str:
    """Give the name under which the user knows a path: relative where it lies in `root`."""
    if resolved == root:
        return "."
    return shown_name(resolved.removeprefix(root.rstrip("/") + "/"))
