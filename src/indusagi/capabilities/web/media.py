"""What an answer is: a page, data, a text, a picture, or bytes for a file. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Medium: TypeAlias = Literal["html", "json", "text", "image", "binary"]
_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,60}/[a-z0-9!#$&^_.+-]{1,100}")
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_TEXTS = re.compile(
    r"text/.*|.*\+(json|xml|yaml)"
    r"|application/(json|xml|javascript|ecmascript|x-javascript|typescript|yaml|x-yaml|toml|sql"
    r"|graphql|x-sh|x-ndjson|jsonl?|json5|x-www-form-urlencoded|rtf|x-tex|x-latex)"
)
_JSON = re.compile(r"(application|text)/(json|.*\+json)")
_VAGUE: Final = frozenset({"", "application/octet-stream", "binary/octet-stream", "text/plain"})
"""What servers say of files they know nothing about."""
_PICTURES: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
_PAGE = re.compile(rb"\s*(<!--.{0,500}?-->\s*)?<(!doctype\s+html|html|head|body)\b", re.I | re.S)
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
_LOOKED_AT: Final = 8 * 1024
_ENDINGS: Final = {
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
    """Read the type of an answer, without what is behind the semicolon; empty if there is none."""
    named = headers.get("content-type", "").partition(";")[0].strip().lower()
    return named if _TYPE.fullmatch(named) else ""


def is_text(headers: Mapping[str, str]) -> bool:
    """Tell whether an answer says that it is a text, so that a part of it is of use."""
    named = media_type(headers)
    return not named or _TEXTS.fullmatch(named) is not None


def medium_of(headers: Mapping[str, str], body: bytes) -> tuple[Medium, str]:
    """Tell what an answer is, and its type, from what the server says and how it begins."""
    named = media_type(headers)
    for picture, kind in _PICTURES:
        if picture.match(body):
            return "image", kind
    if body.startswith(b"%PDF-"):
        return "binary", "application/pdf"
    head = body[:_LOOKED_AT]
    wide = body.startswith(_WIDE) or "utf-16" in headers.get("content-type", "").lower()
    if named in _HTML or (named in _VAGUE - {"text/plain"} and _PAGE.match(head)):
        return "html", named or "text/html"
    if b"\x00" in head and not wide:
        return "binary", named or "application/octet-stream"
    if _JSON.fullmatch(named):
        return "json", named
    if _TEXTS.fullmatch(named) or (named in _VAGUE and (wide or _reads_as_text(head))):
        return "text", named or "text/plain"
    return "binary", named or "application/octet-stream"


def ending_of(named: str) -> str:
    """Give the ending of a file of this type."""
    return _ENDINGS.get(named, ".bin")


def _reads_as_text(head: bytes) -> bool:
    # A character at the end may be cut in two: its first bytes are let be.
    return "\N{REPLACEMENT CHARACTER}" not in head[:-3].decode("utf-8", "replace")[:-1]
