"""Bytes of a page as text: what the server says of them, what the page says, what they look like.

A mark at the beginning is never wrong and comes first. A label that the bytes do not bear out gives
way to UTF-8 if they are that, for mislabelled pages are common; else the bytes that do not fit are
replaced, and that is told.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from indusagi.capabilities.files.text.codec import shorten_words

if TYPE_CHECKING:
    from collections.abc import Sequence

_MARKS: Final = ((codecs.BOM_UTF8, "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_LABEL = re.compile(r"charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_IN_PAGE = re.compile(
    rb"<meta[^>]{0,500}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})"
    rb"|^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9_:.-]{1,40})",
    re.IGNORECASE,
)
_LOOKED_AT: Final = 1024
"""Where a page may say what it is written in."""
_SNIFFED: Final = 32 * 1024
_PIECE: Final = 256 * 1024
_TEXTS = re.compile(
    r"ascii|utf-8|utf-16(-[lb]e)?|iso8859-\d+|cp\d+|koi8-[rut]|gb\w+|hz|big5\w*|shift_jis\w*"
    r"|euc_\w+|iso2022_\w+|mac-\w+|tis-620|johab"
)
"""The codecs of Python that are writings; others unpack, unescape or run away."""
_AS_BROWSERS_DO: Final = {"ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030"}


@dataclass(frozen=True, slots=True)
class Decoded:
    """A text, what it was written in, and how many places could not be read."""

    text: str
    charset: str
    replaced: int = 0


def decoded(data: bytes, content_type: str, *, whole: bool = True) -> Decoded:
    """Read bytes as text; a character that the end of half a page cuts in two is left out."""
    for mark, charset in _MARKS:
        if data.startswith(mark):
            return _read(data[len(mark) :], [charset], charset, whole=whole)
    label = _label(content_type) or _label_in(data)
    tried = list(dict.fromkeys(filter(None, (label, "utf-8"))))
    return _read(data, tried, label, whole=whole)


def _read(data: bytes, tried: Sequence[str], label: str | None, *, whole: bool) -> Decoded:
    for charset in tried:
        text = _strictly(data, charset, whole=whole)
        if text is not None:
            return Decoded(text, charset)
    charset = label or _guess(data)
    text = _piecewise(data, charset, "replace", whole=whole)
    return Decoded(text, charset, text.count("\N{REPLACEMENT CHARACTER}"))


def _label(content_type: str) -> str | None:
    found = _LABEL.search(content_type)
    return None if found is None else _known(found[1])


def _label_in(data: bytes) -> str | None:
    found = _IN_PAGE.search(data[:_LOOKED_AT])
    if found is None:
        return None
    charset = _known((found[1] or found[2]).decode("ascii"))
    # It was read one byte at a time, so it is not what it says here.
    return "utf-8" if charset is not None and charset.startswith("utf-16") else charset


def _known(label: str) -> str | None:
    try:
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        return None
    name = _AS_BROWSERS_DO.get(name, name)
    return name if _TEXTS.fullmatch(name) else None


def _strictly(data: bytes, charset: str, *, whole: bool) -> str | None:
    try:
        return _piecewise(data, charset, "strict", whole=whole)
    except UnicodeError:
        return None


def _piecewise(data: bytes, charset: str, errors: str, *, whole: bool) -> str:
    """Decode in pieces: no other thread runs while a codec is at work."""
    decoder = codecs.getincrementaldecoder(charset)(errors)
    parts = [decoder.decode(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]
    return "".join((*parts, decoder.decode(b"", whole)))


def _guess(data: bytes) -> str:
    import chardet  # noqa: PLC0415 — large tables, for pages that say nothing

    guess = chardet.detect(shorten_words(data[:_SNIFFED]))["encoding"]
    return (guess and _known(guess)) or "cp1252"
