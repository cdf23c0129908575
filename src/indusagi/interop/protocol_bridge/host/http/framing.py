"""The framing of requests: heads that can be read in one way only.

Two parties that disagree on where a body ends, such as a proxy and the host behind it, can be made to see different
requests in the same bytes ("request smuggling"). `check_head` refuses every head that RFC 9112 leaves open to
interpretation.
"""

from __future__ import annotations

import re

from indusagi.core.records import record

HEAD_BYTES = 32 * 1024
"""The limit of a request line and its headers together."""
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_HTTP_VERSION = re.compile(rb"[ \t]HTTP/(\d+)\.(\d+)[ \t]*\Z")
_LENGTH_DIGITS = 18
"""A longer number exceeds every limit and need not be parsed."""


@record
class HeadFault:
    """Why a request is refused by its head alone: an HTTP status and a message."""

    status: int
    message: str


def check_head(received: bytes, body_limit: int) -> HeadFault | None:  # noqa: C901 — one list of rules
    """Find a fault in the framing of a request; None if there is none or the head is incomplete.

    Args:
        received: The bytes since the end of the previous request.
        body_limit: The largest body that is accepted, in bytes.
    """
    end = _HEAD_END.search(received)
    if (len(received) if end is None else end.start()) > HEAD_BYTES:
        return HeadFault(431, f"the headers have more than {HEAD_BYTES:,} bytes")
    if end is None:
        return None
    first, *lines = received[: end.start()].lstrip(b"\r\n").replace(b"\r\n", b"\n").split(b"\n")
    version = _HTTP_VERSION.search(first)
    if version is not None and version[1] != b"1":
        return HeadFault(505, "only HTTP/1.1 is supported")
    lengths: list[bytes] = []
    has_encoding = False
    for line in lines:
        if line[:1] in {b" ", b"\t"}:
            # https://www.rfc-editor.org/rfc/rfc9112#section-5.2
            return HeadFault(400, "a header is folded over several lines")
        name, _, value = line.partition(b":")
        name = name.strip().lower()
        if name == b"content-length":
            lengths.append(value.strip(b" \t"))
        elif name == b"transfer-encoding":
            has_encoding = True
    if has_encoding and lengths:
        # https://www.rfc-editor.org/rfc/rfc9112#section-6.1
        return HeadFault(400, "Content-Length and Transfer-Encoding exclude each other")
    if has_encoding and version is not None and version[2] == b"0":
        return HeadFault(400, "HTTP/1.0 has no Transfer-Encoding")
    if not lengths:
        return None
    # https://www.rfc-editor.org/rfc/rfc9112#section-6.3
    if len(lengths) > 1 or b"," in lengths[0]:
        return HeadFault(400, "there is more than one Content-Length")
    if not lengths[0].isdigit():
        return HeadFault(400, "the Content-Length must be a number of digits")
    digits = lengths[0].lstrip(b"0")
    if len(digits) > _LENGTH_DIGITS or int(digits or b"0") > body_limit:
        return HeadFault(413, f"the body has more than {body_limit:,} bytes")
    return None
