"""The process that takes the text out of a PDF, and what goes between it and us.

A hostile file can make a parser loop, grow or crash. All that may happen here: the one who started
this process ends it at a deadline, and limits of the system hold before the parser is loaded.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from indusagi.capabilities.worker.limits import limit_ourselves
from indusagi.capabilities.worker.message import packed, unpacked

MOST_CHARACTERS = 500_000
"""Of all pages together."""
_MEMORY_BYTES = 2 * 1024 * 1024 * 1024
_CPU_S = 30


def request(data: bytes, first: int, last: int) -> list[bytes]:
    """Write what the process is to do."""
    return packed({"first": first, "last": last}, [data])


def main() -> int:
    """Answer the one request on standard input: what the process is for."""
    limit_ourselves(_CPU_S, _MEMORY_BYTES)
    given, (data,) = unpacked(sys.stdin.buffer.read())
    pages: dict[str, Any] = {**given}
    try:
        library = import_module("pypdfium2")  # under the limits
    except ImportError:
        answer: dict[str, Any] = {"trouble": "missing"}
    else:
        answer = _text(library, data, **pages)
    for piece in packed(answer, []):
        sys.stdout.buffer.write(piece)
    return 0


def _text(library: Any, data: bytes, first: int, last: int) -> dict[str, Any]:
    try:
        document = library.PdfDocument(data)
    except library.PdfiumError as exc:
        return {"trouble": "password" if "assword" in str(exc) else "damaged", "why": str(exc)}
    pages: list[str] = []
    left = MOST_CHARACTERS
    for index in range(first - 1, min(last, len(document))):
        try:
            text: str = document[index].get_textpage().get_text_bounded()
        except library.PdfiumError as exc:
            text = f"[this page cannot be read: {exc}]"
        cut = len(text) - left
        if cut > 0:
            text = f"{text[:left]}\n[the page goes on; {cut:,} characters of it are left out]"
        pages.append(text)
        left -= len(text)
        if left <= 0:
            break
    return {"total": len(document), "pages": pages}
