"""Format file contents as results of `read`: numbered lines, images, PDF pages, notebook cells."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.budget import MAX_PAGES
from indusagi.capabilities.files.media.images import fit_image
from indusagi.capabilities.files.media.pdf import parse_page_range, read_pdf_pages
from indusagi.capabilities.files.text.lines import ReadFailure, describe_invisible
from indusagi.core.records import record
from indusagi.core.text import format_count
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.capabilities.files.media.images import EncodedImage
    from indusagi.capabilities.files.media.notebook import NotebookPage
    from indusagi.capabilities.files.media.pdf import PdfPages
    from indusagi.capabilities.files.text.codec import TextForm
    from indusagi.capabilities.files.text.lines import LineRange, TextScan
    from indusagi.capabilities.tools.runs.read.contents import LoadedFile
    from indusagi.core.json import JsonValue

_NUMBER_WIDTH = 6
_MIN_LINE_BYTES = _NUMBER_WIDTH + 2


@record
class NumberedLines:
    """At least one line, and no more than fit the budget."""

    lines: Sequence[tuple[int, str]]

    @property
    def first(self) -> int:
        """The number of the first line."""
        return self.lines[0][0]

    @property
    def last(self) -> int:
        """The number of the last line."""
        return self.lines[-1][0]

    def __str__(self) -> str:
        return "\n".join(f"{number:{_NUMBER_WIDTH}}\t{text}" for number, text in self.lines)


def fit_lines(lines: Iterable[tuple[int, str]], max_bytes: int) -> NumberedLines:
    """Take as many lines as fit, but at least one."""
    taken: list[tuple[int, str]] = []
    left = max_bytes
    for number, text in lines:
        left -= len(text.encode("utf-8")) + _MIN_LINE_BYTES
        if left < 0 and taken:
            break
        taken.append((number, text))
    return NumberedLines(taken)


def format_text(
    scan: TextScan, wanted: LineRange, name: str, details: dict[str, JsonValue], *, note: str = ""
) -> ToolResult:
    """Format scanned lines, with an optional `note` above them."""
    details = {
        **details,
        "kind": "text",
        "encoding": scan.form.encoding,
        "ending": scan.form.line_ending,
        "mark": bool(scan.form.bom),
        "bytes": scan.size,
        "lines": scan.total,
        "digest": scan.digest,
    }
    if not scan.lines and scan.total == 0:
        mark = " but for a byte order mark" if scan.form.bom else ""
        return ToolResult.text(f"[{name} is empty{mark}]", **details)
    if not scan.lines:
        # An error, so the file doesn't count as read.
        if scan.total is None:
            advice = "read it from the start, or use tail or sed in a shell"
            message = f"{name} is too large to look for these lines: {advice}"
            return ToolResult.error(message, code="too_large", **details)
        message = f"offset {wanted.first:,} is past the end: {name} has {format_count(scan.total, 'line')}"
        return ToolResult.error(message, code="not_found", **details)
    nul = next((line.number for line in scan.lines if b"\0" in line.head), None)
    if nul is not None:
        message = f"line {nul} of {name} holds NUL characters and is not text; other lines may be"
        return ToolResult.error(message, code="binary", **details)
    shown = fit_lines(((line.number, line.format(scan.form)) for line in scan.lines), wanted.max_bytes)
    at_end = shown.last == scan.total
    notes = [note] if note else []
    notes.extend(_describe_form(scan.form, scan.crlf, scan.total))
    if invisible := describe_invisible(shown.lines):
        notes.append(invisible)
    position = f"line {shown.first}" if shown.first == shown.last else f"lines {shown.first}-{shown.last}"
    if scan.total is None:
        position += f"; the file is too large to count its lines; next offset={shown.last + 1}"
    elif not at_end:
        position += f" of {scan.total}; next offset={shown.last + 1}"
    else:
        position += f" of {scan.total}; end of file{'' if scan.form.final_newline else ', without a newline there'}"
    parts = [f"[{'; '.join(notes)}]" if notes else "", str(shown), f"[{position}]"]
    details.update(first=shown.first, last=shown.last, next=None if at_end else shown.last + 1)
    return ToolResult.text("\n".join(part for part in parts if part), **details)


def _describe_form(form: TextForm, crlf: int, total: int | None) -> Iterable[str]:
    if form.encoding != "utf-8":
        yield f"encoding: {form.encoding}" + (" (guessed)" if form.guessed else "")
    if form.bom:
        yield "byte order mark"
    if form.damaged:
        replacement = "U+FFFD" if form.wide else "\\xNN"
        yield f"some bytes are not {form.encoding}, shown as {replacement}"
    if form.line_ending == "mixed":
        yield f"mixed line endings ({crlf:,} of {total or 'many'} are CRLF)"
    elif form.line_ending == "crlf":
        yield "CRLF line endings"


# -- documents ----------------------------------------------------------------------------------


async def format_image(file: LoadedFile, name: str, details: dict[str, JsonValue]) -> ToolResult:
    """Return the image and a line describing it."""
    image = await fit_image(file.data, file.mime)
    if isinstance(image, ReadFailure):
        return _report_failure(image, name, details)
    width, height = image.original_size
    text = f"[{name}: {file.mime}, {width} by {height} pixels, {len(file.data):,} bytes"
    if image.data is not file.data:
        text += f"; shown as {image.mime}, {image.width} by {image.height} pixels"
    facts: dict[str, JsonValue] = {
        **details,
        "kind": "image",
        "type": image.mime,
        "width": image.width,
        "height": image.height,
        "bytes": len(file.data),
    }
    return ToolResult((TextContentBlock(text + "]"), _to_block(image)), details=facts)


async def format_pdf(file: LoadedFile, name: str, pages: str | None, details: dict[str, JsonValue]) -> ToolResult:
    """Format the text of a page range."""
    page_range = parse_page_range(pages)
    if isinstance(page_range, ReadFailure):
        return _report_failure(page_range, name, details)
    found = await read_pdf_pages(file.data, *page_range)
    if isinstance(found, ReadFailure):
        return _report_failure(found, name, details)
    if not found.texts:
        failure = ReadFailure(f"the document has only {format_count(found.total, 'page')}", "not_found")
        return _report_failure(failure, name, details)
    last = found.first + len(found.texts) - 1
    facts: dict[str, JsonValue] = {
        **details,
        "kind": "pdf",
        "pages": found.total,
        "firstPage": found.first,
        "lastPage": last,
    }
    return ToolResult.text(await to_thread.run_sync(_format_pages, found, last), **facts)


def _format_pages(found: PdfPages, last: int) -> str:
    pages = [(number, _escape_surrogates(text)) for number, text in enumerate(found.texts, start=found.first)]
    lines: list[str] = []
    for number, text in pages:
        lines += [f"--- page {number} ---", text or "[no text on this page]"]
    if invisible := describe_invisible(pages, "page"):
        lines.insert(0, f"[{invisible}]")
    following = f"next pages='{last + 1}-{min(last + MAX_PAGES, found.total)}'"
    end = following if last < found.total else "end of file"
    lines.append(f"[pages {found.first}-{last} of {found.total}; {end}]")
    return "\n".join(lines)


async def format_notebook(
    page: NotebookPage, name: str, wanted: LineRange, details: dict[str, JsonValue]
) -> ToolResult:
    """Format lines of a notebook, including their images."""
    total = page.total
    facts: dict[str, JsonValue] = {**details, "kind": "notebook", "cells": page.cells}
    if not total:
        return ToolResult.text(f"[{name}: a notebook without cells]", **facts)
    if not page.lines:
        message = f"offset {page.first:,} is past the end: as text the notebook has {total:,} lines"
        return _report_failure(ReadFailure(message, "not_found"), name, facts)
    numbered = ((number, _escape_surrogates(text)) for number, text in enumerate(page.lines, start=page.first))
    shown = fit_lines(numbered, wanted.max_bytes)
    images = [await fit_image(image.data, image.mime) for image in page.images if image.line <= shown.last]
    invisible = describe_invisible(shown.lines)
    warning = f"; {invisible}" if invisible else ""
    head = f"a notebook of {format_count(page.cells, 'cell')}, shown as text; the file itself is JSON"
    end = "end of file" if shown.last == total else f"next offset={shown.last + 1}"
    position = f"[lines {shown.first}-{shown.last} of {total}; {end}]"
    text = f"[{name}: {head}{warning}]\n{shown}\n{position}"
    # The text still mentions images we can't show.
    blocks = [_to_block(image) for image in images if not isinstance(image, ReadFailure)]
    return ToolResult((TextContentBlock(text), *blocks), details=facts)


def _to_block(image: EncodedImage) -> JsonContentBlock:
    data = base64.b64encode(image.data).decode("ascii")
    return JsonContentBlock({"type": "image", "data": data, "mimeType": image.mime})


def _report_failure(failure: ReadFailure, name: str, details: dict[str, JsonValue]) -> ToolResult:
    return ToolResult.error(f"{name}: {failure.why}", code=failure.code, **details)


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which may occur in JSON and PDF files."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
