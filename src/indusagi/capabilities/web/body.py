"""Response bodies: decompress in small steps within a size limit, then decode as text.

A compression bomb costs no more than a body of maximum size. Decoding tries a byte order mark first, then the charset
declared by the server or page, then UTF-8 (mislabelled pages are common). We replace and count undecodable bytes
(https://encoding.spec.whatwg.org/#bom-sniff).
"""

from __future__ import annotations

import codecs
import re
import zlib
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from indusagi.capabilities.files.codec import shorten_words
from indusagi.capabilities.ports import FetchError
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence


Truncation: TypeAlias = Literal["size", "ratio", "ended early"]
"""Why a body is incomplete."""
_STEP: Final = 64 * 1024
_SHORT: Final = 64 * 1024
"""Bodies up to this size may have any compression ratio."""
_GZIP: Final = zlib.MAX_WBITS | 16
_PLAIN: Final = frozenset({"", "identity"})
_PACKED: Final = frozenset({"gzip", "x-gzip"})


class BodyEndedEarly(FetchError):
    """The connection closed before the body was complete."""


class ResponseBody:
    """Collects a body up to a size limit."""

    def __init__(self, coding: str, cap: int, ratio: int) -> None:
        coding = coding.strip().lower()
        if coding not in _PLAIN | _PACKED:
            message = f"the server packed its answer as {coding[:40]!r}, which was not asked for"
            raise FetchError(message, code="unsupported", reason="coding")
        self._decompressor = zlib.decompressobj(_GZIP) if coding in _PACKED else None
        self._gzip_members = 0
        self._is_padding = False
        self._cap = cap
        self._ratio = ratio
        self._data = bytearray()
        self.packed = 0
        """Bytes received, before decompression."""
        self.cut: Truncation | None = None

    @property
    def data(self) -> bytes:
        """The decompressed bytes so far."""
        return bytes(self._data)

    def feed(self, piece: bytes) -> bool:
        """Add a chunk; return whether we want more.

        Raises:
            FetchError: The body isn't compressed the way the server claims.
        """
        left = self._cap - self.packed
        self.packed += len(piece)
        if self._decompressor is None:
            self._data += piece[:left]
        else:
            self._unpack(piece[:left])
        if len(piece) > left:
            self.cut = self.cut or "size"
        return self.cut is None

    def finish(self, *, early: bool) -> None:
        """Mark the end of the body; `early` means the connection closed first."""
        unfinished = self._decompressor is not None and self.packed > 0 and not self._decompressor.eof
        if early or (unfinished and not self._is_padding):
            self.cut = self.cut or "ended early"

    def _unpack(self, piece: bytes) -> None:
        while piece and self.cut is None and self._decompressor is not None and not self._is_padding:
            try:
                grown = self._decompressor.decompress(piece, _STEP)
            except zlib.error as exc:
                # Padding may follow the last member of a gzip file; readers ignore it (RFC 1952).
                self._is_padding = self._gzip_members > 0
                if self._is_padding:
                    return
                message = f"the server said that its answer is packed, but it is not: {exc}"
                raise FetchError(message, code="failed", reason="coding") from None
            piece = self._decompressor.unconsumed_tail
            self._keep(grown, self.packed - len(piece))
            if self._decompressor.eof:
                piece = self._decompressor.unused_data
                self._gzip_members += 1
                self._decompressor = zlib.decompressobj(_GZIP) if piece else self._decompressor

    def _keep(self, grown: bytes, used: int) -> None:
        self._data += grown[: self._cap - len(self._data)]
        if len(self._data) > max(_SHORT, self._ratio * used):
            self.cut = "ratio"
        elif len(self._data) >= self._cap:
            self.cut = "size"


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
