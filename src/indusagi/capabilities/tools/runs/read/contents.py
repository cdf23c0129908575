"""The contents of an open file: scanned lines of a text, or all bytes of a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.capabilities.files.text.codec import HEAD_BYTES, FileType, digest_bytes, sniff
from indusagi.capabilities.files.text.lines import TextScan, scan_lines
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from indusagi.capabilities.files.text.lines import LineRange

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
"""Images and PDF files are loaded as a whole; larger ones are refused."""
MAX_NOTEBOOK_BYTES = 16 * 1024 * 1024
"""A larger notebook is shown as plain text: its JSON would have to be parsed as a whole."""


@record
class LoadedFile:
    """A file that can only be shown from all of its bytes."""

    kind: Literal["image", "pdf", "notebook"]
    mime: str
    data: bytes
    digest: str


@record
class OversizedFile:
    """A file that would have to be loaded, and is too large for that."""

    type: FileType


@record
class BinaryFile:
    """A file that is neither text nor a document that can be shown."""

    type: FileType
    size: int
    head: bytes


FileContents: TypeAlias = "TextScan | LoadedFile | OversizedFile | BinaryFile"


def read_contents(
    file: BinaryIO, *, name: str, size: int, wanted: LineRange, stopped: Callable[[], bool]
) -> FileContents:
    """Read as much of a file as is needed to show it; not for the event loop.

    Args:
        file: Open for reading, positioned at its start.
        name: Its name, which marks a notebook until it has been parsed as one.
        size: Its size according to `stat`.
        wanted: Which lines, if it is a text.
        stopped: Asked between chunks; True means that the result is not wanted any more.
    """

    def read_rest(limit: int) -> bytes:
        """Read on, up to one byte past the limit."""
        return head + (file.read(limit + 1 - len(head)) or b"")

    head = file.read(HEAD_BYTES) or b""
    found = sniff(head)
    if found is None and is_notebook_name(name):
        data = read_rest(MAX_NOTEBOOK_BYTES)
        if len(data) <= MAX_NOTEBOOK_BYTES:
            return LoadedFile("notebook", "application/x-ipynb+json", data, digest_bytes(data))
        file.seek(len(head))
    if found is None:
        return scan_lines(file, head, size, wanted, stopped)
    if found.family == "other":
        return BinaryFile(found, size, head)
    data = read_rest(MAX_DOCUMENT_BYTES)
    if len(data) > MAX_DOCUMENT_BYTES:
        return OversizedFile(found)
    return LoadedFile(found.family, found.mime, data, digest_bytes(data))


def is_notebook_name(name: str) -> bool:
    """Tell whether a file of this name should be a notebook."""
    return name.lower().endswith(".ipynb")
