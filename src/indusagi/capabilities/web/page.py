"""Turn a web response into a page for the model: bytes to text, HTML to Markdown, JSON indented.

The HTML converter holds the GIL while it works. Short pages are converted in a thread, longer ones in a worker process
with a time and memory limit, which cancellation kills.

Decoding tries a byte order mark first, then the charset declared by the server or page, then UTF-8 (mislabelled pages
are common). We replace and count undecodable bytes (https://encoding.spec.whatwg.org/#bom-sniff).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from html import unescape
from typing import Final, Literal, TypeAlias

from indusagi.capabilities.budget import MAX_PAGES
from indusagi.capabilities.files.codec import shorten_words, sniff
from indusagi.capabilities.files.lines import ReadFailure
from indusagi.capabilities.files.media import PdfPages, read_pdf_pages
from indusagi.capabilities.web.html_worker import Style, convert_html
from indusagi.capabilities.worker import WorkerError, WorkerLimits, run_in_thread, run_in_worker
from indusagi.core.records import record
from indusagi.core.text import escape_invisible, format_count, remove_break_hints
from indusagi.net.address import FetchError
from indusagi.net.client import WebResponse, get_media_type

Medium: TypeAlias = Literal["html", "json", "text", "image", "binary"]
_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,60}/[a-z0-9!#$&^_.+-]{1,100}")
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_TEXT_TYPES = re.compile(
    r"text/.*|.*\+(json|xml|yaml)"
    r"|application/(json|xml|javascript|ecmascript|x-javascript|typescript|yaml|x-yaml|toml|sql"
    r"|graphql|x-sh|x-ndjson|jsonl?|json5|x-www-form-urlencoded|rtf|x-tex|x-latex)"
)
_JSON = re.compile(r"(application|text)/(json|.*\+json)")
_UNSPECIFIC_TYPES: Final = frozenset({"", "application/octet-stream", "binary/octet-stream", "text/plain"})
"""Generic media types, for files the server knows nothing about."""
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Images that a model can see."""
_HTML_START = re.compile(rb"\s*(<!--.{0,500}?-->\s*)?<(!doctype\s+html|html|head|body)\b", re.I | re.S)
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES: Final = 8 * 1024
_EXTENSIONS: Final = {
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "application/gzip": ".gz",
    "application/x-tar": ".tar",
    "application/epub+zip": ".epub",
    "application/wasm": ".wasm",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "audio/mpeg": ".mp3",
    "video/mp4": ".mp4",
}


def media_type(headers: Mapping[str, str]) -> str:
    """Return the media type without parameters (RFC 9110 §8.3); empty if it's missing or malformed."""
    named = get_media_type(headers)
    return named if _TYPE.fullmatch(named) else ""


def is_text(headers: Mapping[str, str]) -> bool:
    """Return whether the headers declare a text type, where a part is useful on its own."""
    named = media_type(headers)
    return not named or _TEXT_TYPES.fullmatch(named) is not None


def detect_medium(headers: Mapping[str, str], body: bytes) -> tuple[Medium, str]:
    """Detect the medium and media type from the headers and the first bytes."""
    named = media_type(headers)
    head = body[:_HEAD_BYTES]
    sniffed = sniff(head)
    if sniffed is not None and sniffed.mime in {*_IMAGES, PDF}:
        return "image" if sniffed.family == "image" else "binary", sniffed.mime
    wide = body.startswith(_WIDE) or "utf-16" in headers.get("content-type", "").lower()
    if named in _HTML or (named in _UNSPECIFIC_TYPES - {"text/plain"} and _HTML_START.match(head)):
        return "html", named or "text/html"
    if b"\x00" in head and not wide:
        return "binary", named or "application/octet-stream"
    if _JSON.fullmatch(named):
        return "json", named
    # The last character may be truncated: ignore its first bytes.
    is_utf8 = "\N{REPLACEMENT CHARACTER}" not in head[:-3].decode("utf-8", "replace")[:-1]
    if _TEXT_TYPES.fullmatch(named) or (named in _UNSPECIFIC_TYPES and (wide or is_utf8)):
        return "text", named or "text/plain"
    return "binary", named or "application/octet-stream"


def file_extension(named: str) -> str:
    """Return the file extension of a media type."""
    return _EXTENSIONS.get(named, ".bin")


Format: TypeAlias = Literal["markdown", "text", "html", "raw"]
ACCEPT: Final[dict[Format, str]] = {
    "markdown": "text/markdown, text/html;q=0.9, application/xhtml+xml;q=0.9, text/plain;q=0.8, "
    "application/json;q=0.8, */*;q=0.5",
    "text": "text/plain, text/markdown;q=0.9, text/html;q=0.8, application/json;q=0.8, */*;q=0.5",
    "html": "text/html, application/xhtml+xml;q=0.9, */*;q=0.5",
    "raw": "*/*",
}


@record
class TextPage:
    """A page as text without invisible characters."""

    text: str
    kind: str
    notes: Sequence[str] = ()
    hidden: int = 0
    """Number of invisible characters we escaped."""


@record
class BytesPage:
    """A binary response."""

    data: bytes
    kind: str
    is_image: bool


async def build_page(fetched: WebResponse, form: Format) -> TextPage | BytesPage:
    """Build the page to show; HTML we can't convert is shown as source."""
    medium, kind = detect_medium(fetched.headers, fetched.body)
    if medium in {"image", "binary"}:
        return BytesPage(fetched.body, kind, medium == "image")
    content_type = fetched.headers.get("content-type", "")
    read = await run_in_thread(partial(decode_text, fetched.body, content_type, whole=fetched.cut is None))
    notes: list[str] = []
    if read.replaced:
        said = f"{format_count(read.replaced, 'place is', 'places are')} not {read.charset}"
        notes.append(f"{said}, and shown as \N{REPLACEMENT CHARACTER}")
    text = read.text
    if form in {"markdown", "text"}:
        text = await _convert_text(text, medium, fetched.target.url, form, notes)
    visible, hidden = await run_in_thread(show_invisible, text)
    if hidden:
        notes.append(describe_invisible(hidden))
    return TextPage(visible, kind, tuple(notes), hidden)


def describe_invisible(hidden: int) -> str:
    """Describe the number of invisible characters we escaped."""
    return f"{format_count(hidden, 'character')} that cannot be seen: written as <U+…>"


async def _convert_text(text: str, medium: Medium, url: str, form: Format, notes: list[str]) -> str:
    if medium == "json":
        return await run_in_thread(format_json, text)
    if medium != "html":
        return text
    try:
        page = await convert_page(text, url, "markdown" if form == "markdown" else "plain")
    except FetchError as trouble:
        notes.append(f"{trouble}; this is its source")
        return text
    if page.shortened:
        notes.append("parts of the page were left out, for they are nested too deep")
    elif not page.text.strip():
        notes.append("the page has no text of its own; it may be made by a script in a browser")
    return f"Title: {page.title}\n\n{page.text}" if page.title else page.text


PDF: Final = "application/pdf"


async def extract_pdf_text(page: BytesPage) -> TextPage | ReadFailure:
    """Extract the text of the first pages of a PDF."""
    found = await read_pdf_pages(page.data, 1, MAX_PAGES)
    if isinstance(found, ReadFailure):
        return found
    return await run_in_thread(_format_pages, found)


def _format_pages(found: PdfPages) -> TextPage:
    parts = (
        f"--- page {number} ---\n{text or '[no text on this page]'}\n"
        for number, text in enumerate(found.texts, start=found.first)
    )
    text, hidden = show_invisible("".join(parts))
    notes = [f"the text of {len(found.texts)} of its {found.total} pages"]
    if hidden:
        notes.append(describe_invisible(hidden))
    return TextPage(text, PDF, tuple(notes), hidden)


# -- conversion -------------------------------------------------------------------------------


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
_TITLE_CHARS: Final = 64 * 1024
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

    Raises `FetchError` if the page can't be converted, at least not in time.
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
    match = _TITLE.search(html, 0, _TITLE_CHARS)
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
    except LookupError:
        return None
    name = _AS_BROWSERS_DO.get(name, name)
    return name if _TEXT_CODECS.fullmatch(name) else None


def _decode_in_pieces(data: bytes, charset: str, errors: str, *, whole: bool) -> str:
    """Decode in chunks, because codecs hold the GIL while they work."""
    decoder = codecs.getincrementaldecoder(charset)(errors)
    parts = [decoder.decode(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]
    return "".join((*parts, decoder.decode(b"", whole)))
