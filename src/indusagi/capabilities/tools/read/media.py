"""Pictures, PDF files and notebooks as `read` shows them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.files.media.pdf import MOST_PAGES, parse_page_range, read_pdf_pages
from indusagi.capabilities.files.media.picture_apart import fit_image
from indusagi.capabilities.files.text.display import ReadFailure
from indusagi.capabilities.files.text.invisible import find_invisible
from indusagi.capabilities.tools.read.text import fitting
from indusagi.runtime.content import JsonContentBlock, TextContentBlock
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.files.look import Loaded
    from indusagi.capabilities.files.media.images import EncodedImage
    from indusagi.capabilities.files.media.notebook import NotebookPage
    from indusagi.capabilities.files.media.pdf import PdfPages
    from indusagi.capabilities.files.text.lines import Wanted
    from indusagi.core.json import JsonValue


async def show_picture(seen: Loaded, name: str, known: dict[str, JsonValue]) -> ToolResult:
    """Answer with a picture, and a line about it."""
    picture = await fit_image(seen.data, seen.mime)
    if isinstance(picture, ReadFailure):
        return _unshown(picture, name, known)
    width, height = picture.former
    said = f"[{name}: {seen.mime}, {width} by {height} pixels, {len(seen.data):,} bytes"
    if picture.data is not seen.data:
        said += f"; shown as {picture.mime}, {picture.width} by {picture.height} pixels"
    facts: dict[str, JsonValue] = {
        **known,
        "kind": "image",
        "type": picture.mime,
        "width": picture.width,
        "height": picture.height,
        "bytes": len(seen.data),
    }
    return ToolResult((TextContentBlock(said + "]"), _block(picture)), details=facts)


async def show_pdf(seen: Loaded, name: str, pages: str | None, known: dict[str, JsonValue]) -> ToolResult:
    """Answer with the text of some pages."""
    wanted = parse_page_range(pages)
    if isinstance(wanted, ReadFailure):
        return _unshown(wanted, name, known)
    found = await read_pdf_pages(seen.data, *wanted)
    if isinstance(found, ReadFailure):
        return _unshown(found, name, known)
    if not found.texts:
        has = "1 page" if found.total == 1 else f"{found.total} pages"
        return _unshown(ReadFailure(f"the document has only {has}", "not_found"), name, known)
    last = found.first + len(found.texts) - 1
    facts: dict[str, JsonValue] = {
        **known,
        "kind": "pdf",
        "pages": found.total,
        "firstPage": found.first,
        "lastPage": last,
    }
    return ToolResult.text(await to_thread.run_sync(_pdf_text, found, last), **facts)


def _pdf_text(found: PdfPages, last: int) -> str:
    pages = [(number, _sound(text)) for number, text in enumerate(found.texts, start=found.first)]
    lines: list[str] = []
    for number, text in pages:
        lines += [f"--- page {number} ---", text or "[no text on this page]"]
    hidden = find_invisible(pages, "page")
    if hidden:
        lines.insert(0, f"[hidden characters: {', '.join(str(kind) for kind in hidden)}]")
    after = f"next pages='{last + 1}-{min(last + MOST_PAGES, found.total)}'"
    lines.append(f"[pages {found.first}-{last} of {found.total}; {after if last < found.total else 'end of file'}]")
    return "\n".join(lines)


async def show_notebook(page: NotebookPage, name: str, wanted: Wanted, known: dict[str, JsonValue]) -> ToolResult:
    """Answer with lines of a notebook, and with the pictures among them."""
    total = page.total
    facts: dict[str, JsonValue] = {**known, "kind": "notebook", "cells": page.cells}
    if not total:
        return ToolResult.text(f"[{name}: a notebook without cells]", **facts)
    if not page.lines:
        why = f"offset {page.first:,} is past the end: as text the notebook has {total:,} lines"
        return _unshown(ReadFailure(why, "not_found"), name, facts)
    chosen = enumerate(page.lines, start=page.first)
    shown = fitting(((number, _sound(text)) for number, text in chosen), wanted.most_bytes)
    pictures = [picture for picture in page.pictures if picture.line <= shown.last]
    fitted = [await fit_image(picture.data, picture.mime) for picture in pictures]
    end = "end of file" if shown.last == total else f"next offset={shown.last + 1}"
    text = "\n".join(
        (
            _notebook_head(name, page.cells, find_invisible(shown.lines)),
            str(shown),
            f"[lines {shown.first}-{shown.last} of {total}; {end}]",
        )
    )
    # One that cannot be shown is still named in its line of the text.
    shown_pictures = [_block(picture) for picture in fitted if not isinstance(picture, ReadFailure)]
    return ToolResult((TextContentBlock(text), *shown_pictures), details=facts)


def _notebook_head(name: str, count: int, hidden: Sequence[object]) -> str:
    cells = "1 cell" if count == 1 else f"{count:,} cells"
    careful = f"; hidden characters: {', '.join(str(kind) for kind in hidden)}" if hidden else ""
    return f"[{name}: a notebook of {cells}, shown as text; the file itself is JSON{careful}]"


def _block(picture: EncodedImage) -> JsonContentBlock:
    data = base64.b64encode(picture.data).decode("ascii")
    return JsonContentBlock({"type": "image", "data": data, "mimeType": picture.mime})


def _unshown(found: ReadFailure, name: str, known: dict[str, JsonValue]) -> ToolResult:
    return ToolResult.error(f"{name}: {found.why}", code=found.code, **known)


def _sound(text: str) -> str:
    """Write halves of surrogate pairs out: JSON and PDF files can hold them, text cannot."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
