"""One look at an open file: what it is, and as much of it as somebody wants to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.capabilities.files.codec import digest_bytes
from indusagi.capabilities.files.lines import Scan, scan
from indusagi.capabilities.files.notebook import read_notebook
from indusagi.capabilities.files.sniff import HEAD_BYTES, FileType, sniff

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from indusagi.capabilities.files.lines import Wanted
    from indusagi.capabilities.files.notebook import Notebook

WHOLE_BYTES = 32 * 1024 * 1024
"""Pictures and PDF files are loaded; larger ones are not."""
NOTEBOOK_BYTES = 16 * 1024 * 1024
"""A larger notebook is shown as the text it is: its JSON would be parsed in one go."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file that can only be shown from all of its bytes."""

    what: Literal["image", "pdf"]
    mime: str
    data: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class Cells:
    """A notebook."""

    notebook: Notebook
    digest: str


@dataclass(frozen=True, slots=True)
class Oversized:
    """A file that would have to be loaded, and is too large for that."""

    type: FileType


@dataclass(frozen=True, slots=True)
class Binary:
    """A file that is not text, nor anything else that can be shown."""

    type: FileType
    size: int
    head: bytes


Look: TypeAlias = "Scan | Loaded | Cells | Oversized | Binary"


def look(
    file: BinaryIO, *, name: str, size: int, wanted: Wanted, stopped: Callable[[], bool]
) -> Look:
    """Read what is needed of a file; for a thread.

    Args:
        file: Open for reading, at its start.
        name: What it is called: a notebook is known by that alone.
        size: How large it is said to be.
        wanted: Which lines, should it be a text.
        stopped: Asked now and then; when it says yes, the answer no longer matters.
    """
    head = file.read(HEAD_BYTES) or b""
    found = sniff(head)
    if found is None:
        cells = _cells(file, head) if name.lower().endswith(".ipynb") else None
        return cells or scan(file, head, size, wanted, stopped)
    if found.family == "other":
        return Binary(found, size, head)
    data = _rest(file, head, WHOLE_BYTES)
    if len(data) > WHOLE_BYTES:
        return Oversized(found)
    return Loaded(found.family, found.mime, data, digest_bytes(data))


def _cells(file: BinaryIO, head: bytes) -> Cells | None:
    """Read a notebook; what is not one is text, and is left to be read from behind the head."""
    data = _rest(file, head, NOTEBOOK_BYTES)
    notebook = read_notebook(data) if len(data) <= NOTEBOOK_BYTES else None
    if notebook is None:
        file.seek(len(head))
        return None
    return Cells(notebook, digest_bytes(data))


def _rest(file: BinaryIO, head: bytes, most: int) -> bytes:
    """Read on, one byte too many of what is too large."""
    return head + (file.read(most + 1 - len(head)) or b"")
