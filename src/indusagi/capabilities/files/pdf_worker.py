"""The text of a PDF, taken out in a process of its own: run as a script, never imported for use.

A hostile file can make a parser loop, grow or crash. All that may happen here: the one who started
this process ends it at a deadline, and limits of the system hold before the parser is loaded.
The length of the file, the file and which pages come in; one JSON object goes out.
"""

import json
import resource
import struct
import sys
from importlib import import_module
from typing import Any

MOST_CHARACTERS = 500_000
"""Of all pages together."""
_MEMORY_BYTES = 2 * 1024 * 1024 * 1024
_CPU_S = 30


def main() -> None:
    """Read a request from standard input and answer it on standard output."""
    _limit()
    size, first, last = struct.unpack(">QII", sys.stdin.buffer.read(16))
    data = sys.stdin.buffer.read(size)
    try:
        library = import_module("pypdfium2")  # under the limits
    except ImportError:
        answer: dict[str, Any] = {"trouble": "missing"}
    else:
        answer = _text(library, data, first, last)
    sys.stdout.write(json.dumps(answer))


def _limit() -> None:
    for kind, most in ((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_CPU, _CPU_S)):
        try:
            resource.setrlimit(kind, (most, most))
        except (OSError, ValueError):  # a stricter limit holds already, or the system has none
            continue


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


if __name__ == "__main__":  # pragma: no cover — in a process that tells nobody what it ran
    main()
