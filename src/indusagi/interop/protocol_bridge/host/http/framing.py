"""The head of an HTTP request, checked before anything is made of it: where does its body end?

Two servers that answer this differently, such as a proxy and the host behind it, can be made to see
different requests in the same bytes ("request smuggling"). What RFC 9112 leaves to the recipient is
therefore refused here, and a body that is too large is refused before it is sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_END = re.compile(rb"\r?\n\r?\n")
_VERSION = re.compile(rb"[ \t]HTTP/(\d+)\.(\d+)[ \t]*\Z")
HEAD_BYTES = 32 * 1024
"""The most that the line of a request and its headers may take together."""
_MOST_DIGITS = 18
"""A number of more digits is larger than any limit, and need not be read."""


@dataclass(frozen=True, slots=True)
class HeadFault:
    """Why a request is refused by its head alone, as an HTTP status and a sentence."""

    status: int
    message: str


def check_head(received: bytes, body_limit: int) -> HeadFault | None:
    """Find what is wrong with the framing of a request; None if nothing is, or more must come.

    Args:
        received: What has come since the request before it ended.
        body_limit: The largest body that is taken, in bytes.
    """
    end = _END.search(received)
    if (len(received) if end is None else end.start()) > HEAD_BYTES:
        return HeadFault(431, f"the headers have more than {HEAD_BYTES:,} bytes")
    if end is None:
        return None
    first, *lines = received[: end.start()].lstrip(b"\r\n").replace(b"\r\n", b"\n").split(b"\n")
    version = _VERSION.search(first)
    if version is not None and version[1] != b"1":
        return HeadFault(505, "only HTTP/1.1 is spoken here")
    if any(line[:1] in {b" ", b"\t"} for line in lines):
        # https://www.rfc-editor.org/rfc/rfc9112#section-5.2
        return HeadFault(400, "a header is folded over several lines")
    lengths = _find_values(lines, b"content-length")
    encodings = _find_values(lines, b"transfer-encoding")
    if encodings and lengths:
        # https://www.rfc-editor.org/rfc/rfc9112#section-6.1
        return HeadFault(400, "Content-Length and Transfer-Encoding exclude each other")
    if encodings and version is not None and version[2] == b"0":
        return HeadFault(400, "HTTP/1.0 has no Transfer-Encoding")
    return _check_lengths(lengths, body_limit)


def _find_values(lines: list[bytes], name: bytes) -> list[bytes]:
    named = (line.partition(b":") for line in lines)
    return [value.strip(b" \t") for found, _, value in named if found.strip().lower() == name]


def _check_lengths(lengths: list[bytes], body_limit: int) -> HeadFault | None:
    """Refuse what is not one number; https://www.rfc-editor.org/rfc/rfc9112#section-6.3."""
    if not lengths:
        return None
    if len(lengths) > 1 or b"," in lengths[0]:
        return HeadFault(400, "there is more than one Content-Length")
    if not lengths[0].isdigit():
        return HeadFault(400, "the Content-Length must be a number of digits")
    digits = lengths[0].lstrip(b"0")
    if len(digits) > _MOST_DIGITS or int(digits or b"0") > body_limit:
        return HeadFault(413, f"the body has more than {body_limit:,} bytes")
    return None
