"""Turn a web response into a page for the model."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from indusagi.capabilities.budget import MAX_PAGES
from indusagi.capabilities.files.lines import ReadFailure
from indusagi.capabilities.files.media import read_pdf_pages
from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web.body import decode_text
from indusagi.capabilities.web.convert import convert_page, format_json, show_invisible
from indusagi.capabilities.worker import run_in_thread
from indusagi.core.records import record
from indusagi.core.text import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.capabilities.files.media import PdfPages
    from indusagi.capabilities.web.client import WebResponse


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
_IMAGE_MAGIC: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
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
    named = headers.get("content-type", "").partition(";")[0].strip().lower()
    return named if _TYPE.fullmatch(named) else ""


def is_text(headers: Mapping[str, str]) -> bool:
    """Return whether the headers declare a text type, where a part is useful on its own."""
    named = media_type(headers)
    return not named or _TEXT_TYPES.fullmatch(named) is not None


def detect_medium(headers: Mapping[str, str], body: bytes) -> tuple[Medium, str]:
    """Detect the medium and media type from the headers and the first bytes."""
    named = media_type(headers)
    for picture, kind in _IMAGE_MAGIC:
        if picture.match(body):
            return "image", kind
    if body.startswith(b"%PDF-"):
        return "binary", "application/pdf"
    head = body[:_HEAD_BYTES]
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
