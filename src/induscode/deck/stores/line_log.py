"""A crash-safe log of JSON lines, each with its CRC-32 and length.

Recovery keeps the longest prefix of complete lines and moves the rest to a separate file, never deleting it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from typing import cast

from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object

_PRIVATE = 0o600


class LineLog:
    """The rows of a file opened for appending."""

    def __init__(self, path: str) -> None:
        """Open the log and set aside an incomplete end left by a crash; raises `OSError` if it can't be opened."""
        self.rows: list[JsonObject] = []
        self.set_aside: str | None = None
        """The file with the damaged end, if any."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._handle = os.open(path, flags, _PRIVATE)
        try:
            self._recover(path)
        except BaseException:
            os.close(self._handle)
            raise

    def append(self, row: JsonObject) -> None:
        """Append a row and sync it to disk (fdatasync(2)).

        Raises `OSError` if it couldn't be written; the log is unchanged.
        """
        self.extend([row])

    def extend(self, rows: Sequence[JsonObject]) -> None:
        """Append rows with one write and one sync.

        Raises `OSError` if they couldn't be written; the log is unchanged.
        """
        if not rows:
            return
        lines = b"".join(map(encode_line, rows))
        end = os.fstat(self._handle).st_size
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(self._handle, left) :]
            os.fdatasync(self._handle) if hasattr(os, "fdatasync") else os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, end)
            raise
        self.rows.extend(rows)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _recover(self, path: str) -> None:
        data = b""
        while chunk := os.pread(self._handle, 1024 * 1024, len(data)):
            data += chunk
        start = 0
        while start < len(data):
            end = data.find(b"\n", start)
            row = None if end < 0 else decode_line(data[start:end])
            if row is None:
                break
            self.rows.append(row)
            start = end + 1
        if start < len(data):
            self.set_aside = f"{path}.corrupt-{new_ulid()}"
            handle = os.open(self.set_aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
            with os.fdopen(handle, "wb") as file:
                file.write(data[start:])
            os.ftruncate(self._handle, start)


def encode_line(row: JsonObject) -> bytes:
    """Encode a row as a line: checksum, length, JSON."""
    body = compact_json(row).encode("utf-8")
    return b"%08x %d %s\n" % (zlib.crc32(body), len(body), body)


def read_lines(path: str) -> list[JsonObject]:
    """Read the rows of a log up to a damaged one, without opening it for writing. A missing log is empty."""
    rows: list[JsonObject] = []
    try:
        with open(path, "rb") as file:
            for line in file:
                row = decode_line(line.rstrip(b"\n"))
                if row is None:
                    break
                rows.append(row)
    except OSError:
        return []
    return rows


def decode_line(line: bytes) -> JsonObject | None:
    """Decode a line, or return `None` if its length or checksum is wrong."""
    checksum, _, rest = line.partition(b" ")
    length, _, body = rest.partition(b" ")
    if not length.isdigit() or int(length) != len(body) or checksum != b"%08x" % zlib.crc32(body):
        return None
    row = cast("JsonValue", json.loads(body))
    return row if is_json_object(row) else None
