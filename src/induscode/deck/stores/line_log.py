"""A log of JSON lines that survives a crash: each line carries its length and its checksum.

Recovery keeps the longest beginning in which every line is whole. What comes after that is moved to
a file of its own, never deleted.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import TYPE_CHECKING, cast

from indusagi.core.ids import new_ulid
from indusagi.core.json import compact_json, is_json_object

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

_PRIVATE = 0o600


class LineLog:
    """The rows of one file, and the file itself, open for more."""

    def __init__(self, path: str) -> None:
        """Open the log, and set aside what a crash has left at its end.

        Raises:
            OSError: It cannot be opened.
        """
        self.rows: list[JsonObject] = []
        self.set_aside: str | None = None
        """Where the damaged end went, if there was one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._handle = os.open(path, flags, _PRIVATE)
        try:
            self._recover(path)
        except BaseException:
            os.close(self._handle)
            raise

    def append(self, row: JsonObject) -> None:
        """Add a row; when this returns it is on the disk.

        Raises:
            OSError: It could not be written; the log is as it was before.
        """
        line = encode_line(row)
        end = os.fstat(self._handle).st_size
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._handle, left) :]
            os.fdatasync(self._handle) if hasattr(os, "fdatasync") else os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, end)
            raise
        self.rows.append(row)

    def close(self) -> None:
        """Give the file up."""
        os.close(self._handle)

    def _recover(self, path: str) -> None:
        data = _whole(self._handle)
        at = 0
        while at < len(data):
            end = data.find(b"\n", at)
            row = None if end < 0 else decode_line(data[at:end])
            if row is None:
                break
            self.rows.append(row)
            at = end + 1
        if at < len(data):
            self.set_aside = f"{path}.corrupt-{new_ulid()}"
            handle = os.open(self.set_aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
            with os.fdopen(handle, "wb") as file:
                file.write(data[at:])
            os.ftruncate(self._handle, at)


def encode_line(row: JsonObject) -> bytes:
    """Write a row as a line: checksum, length, JSON."""
    body = compact_json(row).encode("utf-8")
    return b"%08x %d %s\n" % (zlib.crc32(body), len(body), body)


def decode_line(line: bytes) -> JsonObject | None:
    """Read a line back; None if it is not what was written."""
    checksum, _, rest = line.partition(b" ")
    length, _, body = rest.partition(b" ")
    if not length.isdigit() or int(length) != len(body) or checksum != b"%08x" % zlib.crc32(body):
        return None
    row = cast("JsonValue", json.loads(body))
    return row if is_json_object(row) else None


def _whole(handle: int) -> bytes:
    chunks: list[bytes] = []
    at = 0
    while chunk := os.pread(handle, 1024 * 1024, at):
        chunks.append(chunk)
        at += len(chunk)
    return b"".join(chunks)
