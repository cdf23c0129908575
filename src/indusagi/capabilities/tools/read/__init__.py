"""`read`: what is in a file, for a model: numbered lines, a picture, pages, cells or a listing.

A text is gone through once and never loaded; the answer always says which lines it shows, of how
many, and how to go on. What was shown is remembered with a digest of the whole file, which is what
`edit` and `write` ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from threading import Event

from anyio import to_thread

from indusagi.capabilities.budget import STANDARD_BYTES, STANDARD_LINES
from indusagi.capabilities.coercion import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.look import WHOLE_BYTES, Binary, Loaded, Look, Oversized, is_called_notebook, look
from indusagi.capabilities.files.media.notebook import NotebookPage
from indusagi.capabilities.files.media.notebook_apart import notebook_page
from indusagi.capabilities.files.media.pdf import DEFAULT_PAGES, MOST_PAGES
from indusagi.capabilities.files.text.display import format_path, format_path_below
from indusagi.capabilities.files.text.lines import Scan, Wanted
from indusagi.capabilities.files.text.sniff import format_hex
from indusagi.capabilities.ports import FileKind
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given, path_trouble
from indusagi.capabilities.tools.read.folder import folder_listing, report_missing_path
from indusagi.capabilities.tools.read.media import show_notebook, show_pdf, show_picture
from indusagi.capabilities.tools.read.text import show_lines
from indusagi.core.json import JsonObject, JsonValue
from indusagi.runtime.contract import JsonSchema, ToolResult

_FRAME_BYTES = 1024
"""What is left of the budget for the lines that say what is shown."""
_FRAME_LINES = 2
_ALIASES = {**PATH_ALIASES, "line": "offset", "start_line": "offset", "startLine": "offset"}
_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1, "description": "Absolute, or relative to the workspace."},
        "offset": {"type": "integer", "description": "First line, from 1; negative: from the end."},
        "limit": {"type": "integer", "minimum": 1, "description": "How many lines."},
        "pages": {
            "type": "string",
            "description": f"Of a PDF: '3' or '3-5', {MOST_PAGES} at most; default: the first {DEFAULT_PAGES}.",
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


@dataclass(frozen=True, slots=True)
class Cells:
    """Some lines of a notebook."""

    page: NotebookPage
    digest: str
    """That of the whole file."""


@dataclass(frozen=True, slots=True)
class NoCells:
    """A file that is called a notebook, as the text it is."""

    scan: Scan
    why: str


def read_tool() -> DefinedTool:
    """Make the tool that reads files."""
    return define_tool(
        ToolSpec(
            "read",
            _DESCRIPTION,
            _PARAMETERS,
            _run,
            title="Read file",
            read_only=True,
            prepare=coerce_to(_PARAMETERS, _ALIASES),
            terse=True,
        )
    )


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    path = path_given(arguments)
    try:
        found = await ctx.fs.stat(path)
    except OSError as exc:
        return await report_missing_path(exc, path, ctx)
    try:
        if found.kind is FileKind.DIRECTORY:
            return await folder_listing(path, ctx)
        if found.kind is not FileKind.FILE:
            return _special(path)
        resolved = await ctx.fs.resolve(path)
        name = await to_thread.run_sync(format_path_below, resolved, ctx.cwd)
        seen = await _look(path, found.size, _wanted(arguments, ctx), ctx)
    except OSError as exc:
        return path_trouble(exc, path)
    return await _show(seen, arguments, name, resolved, ctx)


async def _look(path: str, size: int, wanted: Wanted, ctx: ToolContext) -> Look | Cells | NoCells:
    seen = await _look_at(path, path, size, wanted, ctx)
    if isinstance(seen, Scan) and is_called_notebook(path):
        return NoCells(seen, "it is too large for that")
    if not isinstance(seen, Loaded) or seen.what != "notebook":
        return seen
    page = await notebook_page(seen.data, wanted)
    if not isinstance(page, str):
        return Cells(page, seen.digest)
    text = await _look_at(path, "", size, wanted, ctx)
    return NoCells(text, page) if isinstance(text, Scan) else text


async def _look_at(path: str, name: str, size: int, wanted: Wanted, ctx: ToolContext) -> Look:
    left = Event()
    work = partial(look, name=name, size=size, wanted=wanted, stopped=left.is_set)
    try:
        return await ctx.fs.reading(path, work)
    finally:
        # The thread is not waited for when this call is cancelled; it looks here and ends.
        left.set()


def _wanted(arguments: JsonObject, ctx: ToolContext) -> Wanted:
    # A result with its frame must fit the budget: else it would be cut, and kept in a file.
    lines = min(STANDARD_LINES, ctx.budget.max_lines - _FRAME_LINES)
    most = min(STANDARD_BYTES, ctx.budget.max_bytes) - _FRAME_BYTES
    count = min(_number(arguments, "limit", STANDARD_LINES), lines)
    return Wanted(_number(arguments, "offset", 1) or 1, max(1, count), max(1, most))


def _number(arguments: JsonObject, name: str, default: int) -> int:
    given = arguments.get(name)
    return given if isinstance(given, int) else default


async def _show(
    seen: Look | Cells | NoCells, arguments: JsonObject, name: str, resolved: str, ctx: ToolContext
) -> ToolResult:
    """Answer with what was found, and remember it if it could be shown."""
    known: dict[str, JsonValue] = {"path": resolved}
    if isinstance(seen, Binary):
        return _refused(seen, name, known)
    if isinstance(seen, Oversized):
        what = f"{name}: a {seen.type.name} of more than {WHOLE_BYTES:,} bytes is not read"
        return ToolResult.error(what, code="too_large", **known)
    why_no_cells = ""
    if isinstance(seen, NoCells):
        seen, why_no_cells = seen.scan, f"not shown as a notebook: {seen.why}"
    if isinstance(seen, Scan):
        result = show_lines(seen, _wanted(arguments, ctx), name, known, note=why_no_cells)
    elif isinstance(seen, Cells):
        result = await show_notebook(seen.page, name, _wanted(arguments, ctx), known)
    elif seen.what == "image":
        result = await show_picture(seen, name, known)
    else:
        pages = arguments.get("pages")
        result = await show_pdf(seen, name, pages if isinstance(pages, str) else None, known)
    _remember(result, resolved, seen.digest, ctx)
    return result


def _remember(result: ToolResult, resolved: str, digest: str | None, ctx: ToolContext) -> None:
    state = ctx.framework.read_state
    if state is None or digest is None or result.is_error:
        return
    first, last = result.details.get("first"), result.details.get("last")
    if isinstance(first, int) and isinstance(last, int):
        state.record(resolved, digest, (first, last))
    else:
        state.record(resolved, digest)


def _refused(seen: Binary, name: str, known: dict[str, JsonValue]) -> ToolResult:
    lines = [f"{name} is not text: {seen.type.name}, {seen.size:,} bytes.", f"It begins with: {format_hex(seen.head)}"]
    if seen.type.mime == "text/plain":
        lines.append("Convert it with iconv to read it.")
    facts: dict[str, JsonValue] = {**known, "type": seen.type.mime, "bytes": seen.size}
    return ToolResult.error("\n".join(lines), code="binary", **facts)


def _special(path: str) -> ToolResult:
    what = "a pipe, a socket or a device; only regular files and directories are read"
    return ToolResult.error(f"{format_path(path)} is {what}", code="denied", refusal="special")
