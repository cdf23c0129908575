"""Implementation of `read`: determine the type of a path, read it once, and format it for the model."""

from __future__ import annotations

from functools import partial
from threading import Event

from indusagi.capabilities.budget import STANDARD_BYTES, STANDARD_LINES
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.media.notebook import NotebookPage, read_notebook_page
from indusagi.capabilities.files.text.codec import format_hex
from indusagi.capabilities.files.text.lines import LineRange, TextScan, format_path, format_path_below
from indusagi.capabilities.ports import FileKind
from indusagi.capabilities.tools.paths import path_given, path_trouble
from indusagi.capabilities.tools.runs.read.contents import (
    MAX_DOCUMENT_BYTES,
    BinaryFile,
    FileContents,
    LoadedFile,
    OversizedFile,
    is_notebook_name,
    read_contents,
)
from indusagi.capabilities.tools.runs.read.directory import list_directory, report_missing_path
from indusagi.capabilities.tools.runs.read.format import format_image, format_notebook, format_pdf, format_text
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.runtime.contract import ToolResult

_FRAME_BYTES = 1024
"""Budget for the lines around the content."""
_FRAME_LINES = 2


@record
class NotebookContents:
    """Some lines of a notebook."""

    page: NotebookPage
    digest: str
    """Of the whole file."""


@record
class NotebookAsText:
    """A file with a notebook's name, shown as plain text."""

    scan: TextScan
    reason: str


async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Run a call of `read`."""
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
    try:
        if stat.kind is FileKind.DIRECTORY:
            return await list_directory(path, ctx)
        if stat.kind is not FileKind.FILE:
            reason = "a pipe, a socket or a device; only regular files and directories are read"
            return ToolResult.error(f"{format_path(path)} is {reason}", code="denied", refusal="special")
        resolved = await ctx.fs.resolve(path)
        contents = await _read(path, stat.size, wanted, ctx)
    except OSError as exc:
        return path_trouble(exc, path)
    return await _show(contents, wanted, pages if isinstance(pages, str) else None, resolved, ctx)


async def _show(
    contents: FileContents | NotebookContents | NotebookAsText,
    wanted: LineRange,
    pages: str | None,
    resolved: str,
    ctx: ToolContext,
) -> ToolResult:
    """Format the contents of a file, and record it as read if we could show it."""
    name = format_path_below(resolved, ctx.cwd)
    details: dict[str, JsonValue] = {"path": resolved}
    if isinstance(contents, BinaryFile):
        kind = contents.type
        message = (
            f"{name} is not text: {kind.name}, {contents.size:,} bytes.\nIt begins with: {format_hex(contents.head)}"
        )
        remedy = "\nConvert it with iconv to read it." if kind.mime == "text/plain" else ""
        return ToolResult.error(message + remedy, code="binary", **details, type=kind.mime, bytes=contents.size)
    if isinstance(contents, OversizedFile):
        message = f"{name}: a {contents.type.name} of more than {MAX_DOCUMENT_BYTES:,} bytes is not read"
        return ToolResult.error(message, code="too_large", **details)
    note = ""
    if isinstance(contents, NotebookAsText):
        contents, note = contents.scan, f"not shown as a notebook: {contents.reason}"
    if isinstance(contents, TextScan):
        result = format_text(contents, wanted, name, details, note=note)
    elif isinstance(contents, NotebookContents):
        result = await format_notebook(contents.page, name, wanted, details)
    elif contents.kind == "image":
        result = await format_image(contents, name, details)
    else:
        result = await format_pdf(contents, name, pages, details)
    state = ctx.framework.read_state
    if state is not None and contents.digest is not None and not result.is_error:
        first, last = result.details.get("first"), result.details.get("last")
        shown = (first, last) if isinstance(first, int) and isinstance(last, int) else None
        state.record(resolved, contents.digest, shown)
    return result


async def _read(
    path: str, size: int, wanted: LineRange, ctx: ToolContext
) -> FileContents | NotebookContents | NotebookAsText:
    contents = await _read_once(path, path, size, wanted, ctx)
    if isinstance(contents, TextScan) and is_notebook_name(path):
        return NotebookAsText(contents, "it is too large for that")
    if not isinstance(contents, LoadedFile) or contents.kind != "notebook":
        return contents
    page = await read_notebook_page(contents.data, wanted)
    if not isinstance(page, str):
        return NotebookContents(page, contents.digest)
    text = await _read_once(path, "", size, wanted, ctx)
    return NotebookAsText(text, page) if isinstance(text, TextScan) else text


async def _read_once(path: str, name: str, size: int, wanted: LineRange, ctx: ToolContext) -> FileContents:
    stopped = Event()
    work = partial(read_contents, name=name, size=size, wanted=wanted, stopped=stopped.is_set)
    try:
        return await ctx.fs.reading(path, work)
    finally:
        # A cancelled call doesn't wait for its thread, which checks this event between chunks.
        stopped.set()
