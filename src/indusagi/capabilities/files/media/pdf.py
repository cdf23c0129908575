"""Extract the text of a PDF file, page by page.

A hostile file can make the parser loop, grow or crash, so it runs in a worker with CPU time and memory limits.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING

from indusagi.capabilities.budget import DEFAULT_PAGES, MAX_PAGES
from indusagi.capabilities.files.text.lines import DOCUMENTS, ReadFailure
from indusagi.capabilities.worker import WorkerError, WorkerLimits, run_in_worker
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_CHARACTERS = 500_000
"""Total for all pages."""
DEADLINE_S = 30.0
_LIMITS = WorkerLimits(cpu_s=30, memory_bytes=2 * 1024 * 1024 * 1024)
_RANGE = re.compile(r"\s*([0-9]{1,6})\s*(?:(-)\s*([0-9]{1,6})?)?\s*")


@record
class PdfPages:
    """Some pages of a document."""

    first: int
    texts: Sequence[str]
    total: int
    """Page count of the whole document."""


def parse_page_range(text: str | None) -> tuple[int, int] | ReadFailure:
    """Parse `3`, `3-5` or `3-`; defaults to the first ten pages."""
    if text is None or not text.strip():
        return 1, DEFAULT_PAGES
    match = _RANGE.fullmatch(text)
    if match is None or int(match[1]) < 1:
        return ReadFailure(f"pages {text!r} is not like '3' or '3-5'", "failed")
    first = int(match[1])
    last = int(match[3]) if match[3] else first + (DEFAULT_PAGES - 1 if match[2] else 0)
    if last < first:
        return ReadFailure(f"pages {text!r} ends before it begins", "failed")
    if last - first >= MAX_PAGES:
        return ReadFailure(f"pages {text!r} are more than {MAX_PAGES}: ask for fewer at a time", "too_large")
    return first, last


async def read_pdf_pages(data: bytes, first: int, last: int) -> PdfPages | ReadFailure:
    """Extract the text of some pages in a worker."""
    try:
        return await run_in_worker(
            extract_pdf_pages,
            data,
            first,
            last,
            returns=(PdfPages, ReadFailure),
            library="pypdfium2",
            limits=_LIMITS,
            deadline_s=DEADLINE_S,
        )
    except WorkerError as exc:
        return ReadFailure(f"the PDF reader {exc}", exc.code)


def extract_pdf_pages(data: bytes, first: int, last: int) -> PdfPages | ReadFailure:
    """Extract the text of some pages; runs in the worker."""
    try:
        pdfium = import_module("pypdfium2")
    except ImportError:
        return ReadFailure(f"to read PDF files, {DOCUMENTS}", "unsupported")
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as exc:
        if "assword" in str(exc):
            return ReadFailure("the document is locked with a password", "denied")
        return ReadFailure("the document is damaged", "failed")
    texts: list[str] = []
    left = MAX_CHARACTERS
    for index in range(first - 1, min(last, len(document))):
        try:
            text: str = document[index].get_textpage().get_text_bounded()
        except pdfium.PdfiumError as exc:
            text = f"[this page cannot be read: {exc}]"
        cut = len(text) - left
        if cut > 0:
            text = f"{text[:left]}\n[the page continues; {cut:,} characters of it are left out]"
        # pdfium ends lines with CRLF.
        texts.append(text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").strip("\n"))
        left -= len(text)
        if left <= 0:
            break
    return PdfPages(first, texts, len(document))
