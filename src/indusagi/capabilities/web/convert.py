"""Convert a fetched page: bytes to text, HTML to Markdown, JSON indented, invisible characters escaped.

The HTML converter holds the GIL while it works. Short pages are converted in a thread, longer ones in a worker process
with a time and memory limit, which cancellation kills.

Decoding tries a byte order mark first, then the charset declared by the server or page, then UTF-8 (mislabelled pages
are common). We replace and count undecodable bytes (https://encoding.spec.whatwg.org/#bom-sniff).
"""

from __future__ import annotations

import codecs
import json
import re
from html import unescape
from typing import TYPE_CHECKING, Final

from indusagi.capabilities.files.text.codec import shorten_words
from indusagi.capabilities.web.html_worker import convert_html
from indusagi.capabilities.worker import WorkerError, WorkerLimits, run_in_thread, run_in_worker
from indusagi.core.records import record
from indusagi.core.text import escape_invisible, remove_break_hints
from indusagi.net.policy import FetchError

if TYPE_CHECKING:
    from collections.abc import Sequence

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


# -- text -------------------------------------------------------------------------------------


_BOMS: Final = ((codecs.BOM_UTF8, "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_LABEL = re.compile(r"charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_IN_PAGE = re.compile(
    r"<meta[^>]{0,500}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})"
    r"|^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9_:.-]{1,40})",
    re.IGNORECASE,
)
_DECLARATION_BYTES: Final = 1024
"""Where a page may declare its charset (HTML standard: the first 1024 bytes)."""
_SNIFFED: Final = 32 * 1024
_PIECE: Final = 256 * 1024
_TEXT_CODECS = re.compile(
    r"ascii|utf-8|utf-16(-[lb]e)?|iso8859-\d+|cp\d+|koi8-[rut]|gb\w+|hz|big5\w*|shift_jis\w*"
    r"|euc_\w+|iso2022_\w+|mac-\w+|tis-620|johab"
)
"""Python codecs for text; others decompress, unescape or are very slow."""
_AS_BROWSERS_DO: Final = {"ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030"}


@record
class DecodedText:
    """A decoded text, its charset, and the number of replacements."""

    text: str
    charset: str
    replaced: int = 0


def decode_text(data: bytes, content_type: str, *, whole: bool = True) -> DecodedText:
    """Decode bytes as text, dropping a truncated character at the end of an incomplete body."""
    for mark, charset in _BOMS:
        if data.startswith(mark):
            return _decode_first(data[len(mark) :], [charset], charset, whole=whole)
    match = _LABEL.search(content_type)
    label = None if match is None else _find_codec(match[1])
    if label is None and (match := _IN_PAGE.search(data[:_DECLARATION_BYTES].decode("latin-1"))):
        label = _find_codec(match[1] or match[2])
        # We could read the declaration as ASCII, so the page can't be UTF-16.
        label = "utf-8" if label is not None and label.startswith("utf-16") else label
    tried = list(dict.fromkeys(filter(None, (label, "utf-8"))))
    return _decode_first(data, tried, label, whole=whole)


def _decode_first(data: bytes, tried: Sequence[str], label: str | None, *, whole: bool) -> DecodedText:
    for charset in tried:
        try:
            return DecodedText(_decode_in_pieces(data, charset, "strict", whole=whole), charset)
        except UnicodeError:
            continue
    charset = label
    if charset is None:
        import chardet  # noqa: PLC0415 — large tables, only for pages without a charset

        guess = chardet.detect(shorten_words(data[:_SNIFFED]))["encoding"]
        charset = (guess and _find_codec(guess)) or "cp1252"
    text = _decode_in_pieces(data, charset, "replace", whole=whole)
    return DecodedText(text, charset, text.count("\N{REPLACEMENT CHARACTER}"))


def _find_codec(label: str) -> str | None:
    try:
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        return None
    name = _AS_BROWSERS_DO.get(name, name)
    return name if _TEXT_CODECS.fullmatch(name) else None


def _decode_in_pieces(data: bytes, charset: str, errors: str, *, whole: bool) -> str:
    """Decode in chunks, because codecs hold the GIL while they work."""
    decoder = codecs.getincrementaldecoder(charset)(errors)
    parts = [decoder.decode(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]
    return "".join((*parts, decoder.decode(b"", whole)))
