"""Convert a fetched page: HTML to Markdown or plain text, JSON indented, invisible characters escaped.

The HTML converter holds the GIL while it works. Short pages are converted in a thread, longer ones in a worker process
with a time and memory limit, which cancellation kills.
"""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING, Final

from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web.html_worker import convert_html
from indusagi.capabilities.worker import WorkerError, WorkerLimits, run_in_thread, run_in_worker
from indusagi.core.records import record
from indusagi.core.text import escape_invisible, remove_break_hints

if TYPE_CHECKING:
    from indusagi.capabilities.web.html_worker import Style


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_LINE_ENDS = re.compile(r"\r\n?|\u2028|\u2029|\x85")
_STEP: Final = 128 * 1024
LONGEST_JSON: Final = 128 * 1024
"""Longer JSON stays unformatted: at this length, the parser holds the GIL for 10 ms."""
_MAX_INDENT: Final = 16
"""Limits indentation, so that a few nested bytes don't become megabytes of spaces."""


def format_json(text: str) -> str:
    """Indent JSON by two spaces without changing any token; returns invalid or very deep JSON unchanged."""
    if len(text) > LONGEST_JSON:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    # Unlike `findall`, `finditer` releases the GIL between tokens.
    written: list[str] = []
    depth, before = 0, ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        closes, is_first = token in {"}", "]"}, before in {"{", "["}
        depth -= closes
        if before and (closes != is_first if is_first else closes or before == ","):
            written.append("\n" + "  " * min(depth, _MAX_INDENT))
        written.append(": " if token == ":" else token)
        depth += token in {"{", "["}
        before = token
    return "".join(written)


def show_invisible(text: str) -> tuple[str, int]:
    """Normalize line endings and escape invisible characters and lone surrogates; also return the number escaped."""
    shown: list[str] = []
    start = hidden = 0
    # Work in chunks, so that each pattern runs over a small text. Never split inside CRLF or inside a run of non-ASCII
    # characters, which may form a single visible glyph.
    while start < len(text):
        end = start + _STEP
        while end < start + 2 * _STEP and not text[end : end + 1].isascii():
            end += 1
        end += text[end - 1 : end] == "\r"
        plain = _LINE_ENDS.sub("\n", text[start:end]).replace("\u00ad", "")
        visible, found = escape_invisible(remove_break_hints(plain))
        shown.append(visible)
        hidden += found
        start = end
    return "".join(shown), hidden


SHORT: Final = 32 * 1024
"""Pages up to this length are converted in a thread."""
_LIMITS: Final = WorkerLimits(cpu_s=20, memory_bytes=1024 * 1024 * 1024)
"""Hostile pages of maximum size take two seconds."""
_HEAD: Final = 64 * 1024
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,500})", re.IGNORECASE)


@record
class ConvertedPage:
    """A page as text."""

    text: str
    title: str
    shortened: bool
    """Whether the converter dropped deeply nested parts."""


async def convert_page(html: str, base_url: str, style: Style) -> ConvertedPage:
    """Convert a page, making its links absolute.

    Raises:
        FetchError: The page can't be converted, at least not in time.
    """
    # The converter mistakes a text with many NULs for a binary file.
    html = html.replace("\x00", "")
    try:
        if len(html) <= SHORT:
            result = await run_in_thread(convert_html, html, base_url, style)
        else:
            result = await run_in_worker(
                convert_html,
                html,
                base_url,
                style,
                library="html_to_markdown",
                limits=_LIMITS,
                deadline_s=_LIMITS.cpu_s,
            )
    except WorkerError as exc:
        result = f"the converter {exc}"
    if isinstance(result, str):
        raise FetchError(f"the page could not be converted: {result}", code="failed", reason="html")
    text, shortened = result
    match = _TITLE.search(html, 0, _HEAD)
    title = "" if match is None else " ".join(unescape(match[1]).split())
    return ConvertedPage(text, title, shortened)
