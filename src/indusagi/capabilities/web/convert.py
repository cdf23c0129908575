"""Conversion of a fetched page: HTML to Markdown or plain text, JSON indented, invisible characters escaped.

The HTML converter holds the interpreter lock while it works. A short page is converted in a thread, a longer one in a
worker process with a time and memory limit, which a cancelled caller kills.
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
"""Longer JSON is shown as it came: the parser holds the interpreter lock for 10 ms at this length."""

_DEEPEST: Final = 16
"""The deepest indentation: a few nested bytes must not become megabytes of spaces."""


def format_json(text: str) -> str:
    """Indent JSON by two spaces, every token as it was written; invalid or very deep JSON is returned unchanged."""
    if len(text) > LONGEST_JSON:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    # `finditer` releases the interpreter lock between two tokens; `findall` would not.
    written: list[str] = []
    depth, before = 0, ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        closes, is_first = token in {"}", "]"}, before in {"{", "["}
        depth -= closes
        if before and (closes != is_first if is_first else closes or before == ","):
            written.append("\n" + "  " * min(depth, _DEEPEST))
        written.append(": " if token == ":" else token)
        depth += token in {"{", "["}
        before = token
    return "".join(written)


def show_invisible(text: str) -> tuple[str, int]:
    """Normalize line endings and escape invisible characters and lone surrogates; also count the escaped ones."""
    shown: list[str] = []
    start = hidden = 0
    # In pieces, so that a pattern runs over little at a time. No piece ends inside of a CRLF or of a sequence of
    # non-ASCII characters, which may be one visible sign.
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
"""Characters up to which a page is converted in a thread."""
_LIMITS: Final = WorkerLimits(cpu_s=20, memory_bytes=1024 * 1024 * 1024)
"""Hostile pages of the largest size take two seconds."""
_HEAD: Final = 64 * 1024
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,500})", re.IGNORECASE)


@record
class ConvertedPage:
    """A page as text."""

    text: str
    title: str
    shortened: bool
    """Whether deeply nested parts were dropped."""


async def convert_page(html: str, base_url: str, style: Style) -> ConvertedPage:
    """Convert a page; its links become absolute.

    Raises:
        FetchError: The page cannot be converted, or not in time.
    """
    # The converter takes a text with many NULs for a binary file.
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
