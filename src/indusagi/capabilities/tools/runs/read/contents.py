"""Read an open file: scan the lines of a text, or load all bytes of a document."""

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
"""We load images and PDF files as a whole, so there's a limit."""
MAX_NOTEBOOK_BYTES = 16 * 1024 * 1024
"""Larger notebooks are shown as plain text, because we'd have to parse their JSON as a whole."""


@record
class LoadedFile:
    """A file we can only show after loading all of it."""

    kind: Literal["image", "pdf", "notebook"]
    mime: str
    data: bytes
    digest: str


@record
class OversizedFile:
    """A file we'd have to load, but that's too large."""

    type: FileType


@record
class BinaryFile:
    """A file that's neither text nor a supported document."""

    type: FileType
    size: int
    head: bytes


FileContents: TypeAlias = "TextScan | LoadedFile | OversizedFile | BinaryFile"


def read_contents(
    file: BinaryIO, *, name: str, size: int, wanted: LineRange, stopped: Callable[[], bool]
) -> FileContents:
    """Read as much of a file as we need to show it. Blocks.

    Args:
        file: Open for reading, positioned at its start.
        name: Its name, which marks a notebook until we parse it as one.
        size: Its size according to `stat`.
        wanted: The lines to return, if it's text.
        stopped: Polled between chunks; True aborts the scan.
    """

    def read_rest(limit: int) -> bytes:
        """Read the rest, up to one byte past the limit."""
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
    """Return whether a file with this name should be a notebook."""
    return name.lower().endswith(".ipynb")
