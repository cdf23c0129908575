"""The process that reads a large notebook, and what goes between it and us: a request, a page.

Only what is shown comes back: all of a notebook would have to be read once more.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from indusagi.capabilities.files.media.notebook import NotebookPage, NotebookPicture, page_of, read_notebook
from indusagi.capabilities.files.text.lines import Wanted
from indusagi.capabilities.worker.message import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence


def request(data: bytes, wanted: Wanted) -> list[bytes]:
    """Write what the process is to do."""
    facts = {"first": wanted.first, "count": wanted.count, "most_bytes": wanted.most_bytes}
    return packed({**facts}, [data])


def answer(pieces: Sequence[bytes]) -> NotebookPage | None:
    """Read what the process has written; None if it was no notebook.

    Raises:
        ValueError: It has written nothing, or not all of it.
    """
    given, parts = unpacked(b"".join(pieces))
    if not given:
        return None
    facts: dict[str, Any] = {**given}
    places = facts.pop("pictures")
    pictures = [NotebookPicture(line, mime, data) for (line, mime), data in zip(places, parts, strict=True)]
    return NotebookPage(**facts, pictures=pictures)


def _reply(page: NotebookPage | None) -> list[bytes]:
    if page is None:
        return packed({}, [])
    return packed(
        {
            "cells": page.cells,
            "total": page.total,
            "first": page.first,
            "lines": [*page.lines],
            "pictures": [[picture.line, picture.mime] for picture in page.pictures],
        },
        [picture.data for picture in page.pictures],
    )


def page_in(data: bytes, wanted: Wanted) -> NotebookPage | None:
    """Read a notebook and choose what is wanted of it; None if it is not one."""
    notebook = read_notebook(data)
    return None if notebook is None else page_of(notebook, wanted)


def main() -> int:
    """Answer the one request on standard input: what the process is for."""
    given, (data,) = unpacked(sys.stdin.buffer.read())
    facts: dict[str, Any] = {**given}
    for piece in _reply(page_in(data, Wanted(**facts))):
        sys.stdout.buffer.write(piece)
    return 0
