"""One look at an open file: what it is, and as much of it as somebody wants to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.capabilities.files.text.codec import digest_bytes
from indusagi.capabilities.files.text.lines import Scan, scan
from indusagi.capabilities.files.text.sniff import HEAD_BYTES, FileType, sniff

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from indusagi.capabilities.files.text.lines import Wanted

WHOLE_BYTES = 32 * 1024 * 1024
"""Pictures and PDF files are loaded; larger ones are not."""
NOTEBOOK_BYTES = 16 * 1024 * 1024
"""A larger notebook is shown as the text it is: its JSON would have to be parsed as a whole."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file that can only be shown from all of its bytes."""

    what: Literal["image", "pdf", "notebook"]
    mime: str
    data: bytes
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


Look: TypeAlias = "Scan | Loaded | Oversized | Binary"


def look(file: BinaryIO, *, name: str, size: int, wanted: Wanted, stopped: Callable[[], bool]) -> Look:
    """Read what is needed of a file; for a thread.

    Args:
        file: Open for reading, at its start.
        name: What it is called: a notebook is known by that, until it is read as one.
        size: How large it is said to be.
        wanted: Which lines, should it be a text.
        stopped: Asked now and then; when it says yes, the answer no longer matters.
    """
    head = file.read(HEAD_BYTES) or b""
    found = sniff(head)
    if found is None:
        notebook = _notebook(file, head) if is_called_notebook(name) else None
        return notebook or scan(file, head, size, wanted, stopped)
    if found.family == "other":
        return Binary(found, size, head)
    data = _rest(file, head, WHOLE_BYTES)
    if len(data) > WHOLE_BYTES:
        return Oversized(found)
    return Loaded(found.family, found.mime, data, digest_bytes(data))


def is_called_notebook(name: str) -> bool:
    """Tell whether a file of this name should be a notebook."""
    return name.lower().endswith(".ipynb")


def _notebook(file: BinaryIO, head: bytes) -> Loaded | None:
    """Load what is called a notebook; a large one is text, to be read from behind the head."""
    data = _rest(file, head, NOTEBOOK_BYTES)
    if len(data) > NOTEBOOK_BYTES:
        file.seek(len(head))
        return None
    return Loaded("notebook", "application/x-ipynb+json", data, digest_bytes(data))


def _rest(file: BinaryIO, head: bytes, most: int) -> bytes:
    """Read on, one byte too many of what is too large."""
    return head + (file.read(most + 1 - len(head)) or b"")
