"""`read`: show a file to the model as numbered lines, an image, pages, cells or a directory listing.

We read a text once and never load it as a whole. The result says which lines it shows, of how many, and how to
continue. We record a digest of the whole file, which `edit` and `write` check.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Event
from typing import BinaryIO, Literal, TypeAlias

from anyio import to_thread

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.budget import DEFAULT_PAGES, MAX_PAGES, STANDARD_BYTES, STANDARD_LINES
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.codec import HEAD_BYTES, TextForm, digest_bytes, format_hex, sniff
from indusagi.capabilities.files.lines import (
    LineRange,
    ReadFailure,
    TextScan,
    describe_invisible,
    format_path,
    format_path_below,
    scan_lines,
)
from indusagi.capabilities.files.media import (
    EncodedImage,
    PdfPages,
    fit_image,
    parse_page_range,
    read_notebook_page,
    read_pdf_pages,
)
from indusagi.capabilities.ports import FileKind
from indusagi.capabilities.tool import DefinedTool, define_native_tool
from indusagi.capabilities.tools.ls import run_ls
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given, path_trouble, report_missing_path
from indusagi.capabilities.worker import run_in_thread
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.core.text import format_count
from indusagi.runtime.contract import JsonContentBlock, JsonSchema, TextContentBlock, ToolResult

_ALIASES = {**PATH_ALIASES, "line": "offset", "start_line": "offset", "startLine": "offset"}
_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1, "description": "Absolute, or relative to the workspace."},
        "offset": {"type": "integer", "description": "First line, from 1; negative: from the end."},
        "limit": {"type": "integer", "minimum": 1, "description": "How many lines."},
        "pages": {
            "type": "string",
            "description": f"Of a PDF: '3' or '3-5', {MAX_PAGES} at most; default: the first {DEFAULT_PAGES}.",
        },
    },
    "required": ["path"],
    "additionalProperties": False,
}
_DESCRIPTION = (
    "Read a file, a picture, a PDF, a notebook or a directory. Text comes as number, tab, "
    f"line (the number is not part of the file), {STANDARD_LINES:,} lines or "
    f"{STANDARD_BYTES // 1024} KiB at most; the last line names the next offset. Read a file "
    "before you edit it."
)
MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
"""We load images and PDF files as a whole, so there's a limit."""
MAX_NOTEBOOK_BYTES = 16 * 1024 * 1024
"""Larger notebooks are shown as plain text, because we'd have to parse their JSON as a whole."""
_NUMBER_WIDTH = 6
_MIN_LINE_BYTES = _NUMBER_WIDTH + 2
_FRAME_BYTES = 1024
"""Budget for the lines around the content."""
_FRAME_LINES = 2


def read_tool() -> DefinedTool:
    """Create the `read` tool."""
    prepare = coerce_to(_PARAMETERS, _ALIASES)
    return define_native_tool("read", "Read file", _DESCRIPTION, _PARAMETERS, _run, prepare, read_only=True)


@record
class LoadedFile:
    """A file we can only show after loading all of it."""

    kind: Literal["image", "pdf", "notebook"]
    mime: str
    data: bytes
    digest: str


FileContents: TypeAlias = "TextScan | LoadedFile | ReadFailure"


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    path = path_given(arguments)
    try:
        stat = await ctx.fs.stat(path)
    except OSError as exc:
        return await report_missing_path(exc, path, ctx)
    offset, limit, pages = arguments.get("offset"), arguments.get("limit"), arguments.get("pages")
    # The result including its frame must fit the budget, or it'd be cut and saved to a file.
    max_lines = min(STANDARD_LINES, ctx.budget.max_lines - _FRAME_LINES)
    max_bytes = min(STANDARD_BYTES, ctx.budget.max_bytes) - _FRAME_BYTES
    count = min(limit if isinstance(limit, int) else STANDARD_LINES, max_lines)
    wanted = LineRange((offset if isinstance(offset, int) else 1) or 1, max(1, count), max(1, max_bytes))
    if stat.kind is FileKind.DIRECTORY:
        return await run_ls({"path": path, "showHidden": True}, ctx)
    if stat.kind is not FileKind.FILE:
        reason = "a pipe, a socket or a device; only regular files and directories are read"
        return ToolResult.error(f"{format_path(path)} is {reason}", code="denied", refusal="special")
    stopped = Event()
    try:
        resolved = await ctx.fs.resolve(path)
        work = partial(read_contents, name=path, size=stat.size, wanted=wanted, stopped=stopped.is_set)
        contents = await ctx.fs.reading(path, work)
    except OSError as exc:
        return path_trouble(exc, path)
    finally:
        # A cancelled call doesn't wait for its thread, which checks this event between chunks.
        stopped.set()
    return await _show(contents, wanted, pages if isinstance(pages, str) else None, resolved, ctx)


async def _show(
    contents: FileContents, wanted: LineRange, pages: str | None, resolved: str, ctx: ToolContext
) -> ToolResult:
    """Format the contents of a file, and record it as read if we could show it."""
    name = format_path_below(resolved, ctx.cwd)
    details: dict[str, JsonValue] = {"path": resolved}
    if isinstance(contents, ReadFailure):
        return _report_failure(contents, name, details)
    if isinstance(contents, TextScan):
        note = "not shown as a notebook: it is too large for that" if is_notebook_name(resolved) else ""
        result = format_text(contents, wanted, name, details, note=note)
    elif contents.kind == "notebook":
        result = await format_notebook(contents, name, wanted, details)
    elif contents.kind == "image":
        result = await format_image(contents, name, details)
    else:
        result = await format_pdf(contents, name, pages, details)
    state = ctx.framework.read_state
    if state is not None and contents.digest is not None and not result.is_error:
        state.record(resolved, contents.digest)
    return result


def read_contents(
    file: BinaryIO, *, name: str, size: int, wanted: LineRange, stopped: Callable[[], bool]
) -> FileContents:
    """Read as much of a file as we need to show it, `wanted` lines if it's text. Blocks.

    The name marks a notebook, and `size` comes from `stat`. Reading ends once `stopped` returns True.
    """
    head = file.read(HEAD_BYTES) or b""
    found = sniff(head)
    if found is not None and found.family == "other":
        remedy = "\nConvert it with iconv to read it." if found.mime == "text/plain" else ""
        why = f"is not text: {found.name}, {size:,} bytes.\nIt begins with: {format_hex(head)}{remedy}"
        return ReadFailure(why, "binary", {"type": found.mime, "bytes": size})
    if found is None and not is_notebook_name(name):
        return scan_lines(file, head, size, wanted, stopped)
    limit = MAX_NOTEBOOK_BYTES if found is None else MAX_DOCUMENT_BYTES
    data = head + (file.read(limit + 1 - len(head)) or b"")
    if found is None and len(data) <= limit:
        return LoadedFile("notebook", "application/x-ipynb+json", data, digest_bytes(data))
    if found is None or found.family == "other":
        file.seek(len(head))
        return scan_lines(file, head, size, wanted, stopped)
    if len(data) > limit:
        return ReadFailure(f"a {found.name} of more than {limit:,} bytes is not read", "too_large")
    return LoadedFile(found.family, found.mime, data, digest_bytes(data))


def is_notebook_name(name: str) -> bool:
    """Return whether a file with this name should be a notebook."""
    return name.lower().endswith(".ipynb")


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
    nul = next((number for number, text in scan.lines if "\0" in text), None)
    if nul is not None:
        message = f"line {nul} of {name} holds NUL characters and is not text; other lines may be"
        return ToolResult.error(message, code="binary", **details)
    shown = fit_lines(scan.lines, wanted.max_bytes)
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


async def format_notebook(file: LoadedFile, name: str, wanted: LineRange, details: dict[str, JsonValue]) -> ToolResult:
    """Format lines of a notebook, including their images; or its JSON, if it isn't one."""
    page = await read_notebook_page(file.data, wanted)
    if isinstance(page, str):
        scan = await run_in_thread(
            scan_lines, io.BytesIO(file.data), file.data[:HEAD_BYTES], len(file.data), wanted, lambda: False
        )
        return format_text(scan, wanted, name, details, note=f"not shown as a notebook: {page}")
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
    facts = {**details, **failure.facts}
    colon = "" if failure.code == "binary" else ":"
    return ToolResult.error(f"{name}{colon} {failure.why}", code=failure.code, **facts)


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which may occur in JSON and PDF files."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
