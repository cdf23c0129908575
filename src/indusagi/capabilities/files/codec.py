"""Decode and encode text files: encoding, byte order mark and line endings.

We determine the encoding in a fixed order: byte order mark, strict UTF-8, a guess from a sample, Latin-1. Encoding the
text again yields the same bytes, even after a wrong guess: the file looks odd, but no byte gets lost. We only recognize
UTF-16 and UTF-32 by their BOM.

Lines end in LF or CRLF. A carriage return anywhere else is an ordinary character.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import re
from typing import Literal, TypeAlias

from indusagi.core.records import record

LineEnding: TypeAlias = Literal["lf", "crlf", "mixed", "none"]

CHUNK_BYTES = 256 * 1024
"""How much of a file to process at once: a cancelled reader stops between chunks."""
SAMPLE_BYTES = 16 * 1024
SAMPLE_LEAD_BYTES = 1024
"""How far before the first invalid UTF-8 byte to look for the start of its line."""
_MARKS = (
    # UTF-32's BOM starts with UTF-16's, so it comes first.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDE = ("utf-16", "utf-32")
# UTF-16 may contain lone surrogates, even though none of its bytes is invalid.
_PASS, _ESCAPE = "surrogatepass", "surrogateescape"
_SUPERSETS = {"gb2312": "gb18030"}
"""In practice, files labelled with the first use the second, which has characters many personal names need."""
_MIN_CONFIDENCE = 0.5
_NEW_FIGURES = 7
_MIN_CONFIDENCE_7 = 0.2
"""Below this, a guess is worse than the most common encoding of such files. chardet 7 reports lower figures: 0.1 to 0.2
for French mistaken for Cyrillic, 0.23 and up for a sentence in Russian, Greek or Hebrew."""
_VALID_SHARE = 4
"""Valid UTF-8 bytes required per invalid byte: in other encodings, pairs look like UTF-8 by chance."""
_LONGEST_WORD = 32
_WORD = re.compile(rb"[A-Za-z]+")
_ASCII = bytes(range(0x20, 0x7F)) + b"\t\r\n"
_NON_ASCII = bytes(range(0x80, 0x100))
_C1_CONTROLS = bytes(range(0x80, 0xA0))
"""Control characters in Latin-1, which don't occur in text; quotes and dashes in windows-1252."""


@record(kw_only=True)
class TextForm:
    """Properties of a text file beyond its characters."""

    encoding: str = "utf-8"
    """Python codec name, without the BOM."""
    bom: bytes = b""
    """Byte order mark of the file; not part of the text."""
    line_ending: LineEnding = "none"
    final_newline: bool = False
    guessed: bool = False
    """The file doesn't declare its encoding and isn't UTF-8."""
    damaged: bool = False
    """Some bytes are invalid in this encoding; they become lone surrogates in the text."""

    @property
    def wide(self) -> bool:
        """Whether a newline takes more than one byte: UTF-16 or UTF-32."""
        return self.encoding.startswith(_WIDE)


def decode_lossless(data: bytes) -> tuple[str, TextForm]:
    """Decode a whole file such that `encode` restores the same bytes.

    Also decodes binary data, which yields NULs. Preserves line endings. Guessing loads a library and takes up to a
    tenth of a second, so don't call this on the event loop.
    """
    bom, encoding = detect_bom(data)
    body = data[len(bom) :]
    text: str | None = None
    if not bom:
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError as exc:
            encoding = guess_encoding_at(body, exc.start, count_non_ascii(body[: exc.start]))
    if text is None:
        errors = _PASS if encoding.startswith(_WIDE) else _ESCAPE
        try:
            text = body.decode(encoding, errors)
            is_exact = text.encode(encoding, errors) == body  # some encodings can spell a character in two ways
        except UnicodeError:
            is_exact = False
        if text is None or not is_exact:
            bom, encoding, text = b"", "latin-1", data.decode("latin-1")
    crlf = text.count("\r\n")
    return text, TextForm(
        encoding=encoding,
        bom=bom,
        line_ending=name_line_ending(crlf, text.count("\n") - crlf),
        final_newline=text.endswith("\n"),
        guessed=not bom and encoding != "utf-8",
        damaged=not text.isascii() and _has_surrogates(text),
    )


def encode(text: str, form: TextForm) -> bytes:
    """Encode a whole file: the inverse of `decode_lossless`.

    Raises `OSError` with EILSEQ if the encoding lacks a character.
    """
    return form.bom + encode_piece(text, form, errors=_PASS if form.wide else _ESCAPE)


def encode_piece(text: str, form: TextForm, *, errors: str = "strict") -> bytes:
    """Encode a text for insertion into a file of this form, without a BOM.

    Raises `OSError` with EILSEQ if the encoding lacks a character, or for a lone surrogate.
    """
    try:
        return text.encode(form.encoding, errors)
    except UnicodeEncodeError as exc:
        character = exc.object[exc.start]
        code_point = f"U+{ord(character):04X}"
        if _has_surrogates(character):
            message = f"{code_point} is half a surrogate pair, not a character: write the whole character"
        else:
            name = f"{character!r} ({code_point})" if character.isprintable() else code_point
            message = (
                f"{name} cannot be written in {form.encoding}, the encoding of the file: "
                "use other characters, or convert the file to UTF-8 first"
            )
        raise OSError(errno.EILSEQ, message) from exc


def digest_bytes(data: bytes) -> str:
    """Compute the digest the read state stores for a file."""
    return hashlib.sha256(data).hexdigest()


def detect_bom(data: bytes) -> tuple[bytes, str]:
    """Return the BOM at the start of a file and the encoding it implies."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return mark, encoding
    return b"", "utf-8"


def count_non_ascii(data: bytes) -> int:
    """Count the bytes that are not ASCII."""
    return 0 if data.isascii() else len(data) - len(data.translate(None, _NON_ASCII))


def guess_encoding(sample: bytes, valid_before: int = 0) -> str:
    """Guess the encoding of a file that isn't valid UTF-8; the result is a superset of ASCII.

    `sample` has the bytes around the first invalid one, with `valid_before` non-ASCII bytes before that. Still returns
    UTF-8 if most non-ASCII bytes are valid, since then only a few bytes are damaged.
    """
    invalid = len(sample) - len(sample.decode("utf-8", "ignore").encode("utf-8"))
    if valid_before + count_non_ascii(sample) - invalid > _VALID_SHARE * invalid:
        return "utf-8"
    import chardet  # noqa: PLC0415 — only for a file that is not UTF-8

    has_c1_controls = len(sample) != len(sample.translate(None, _C1_CONTROLS))
    western = "cp1252" if has_c1_controls else "latin-1"
    guess = chardet.detect(shorten_words(sample))
    name = guess["encoding"]
    try:
        is_usable = name is not None and _ASCII.decode(name) == _ASCII.decode("ascii")
    except (LookupError, UnicodeDecodeError):
        is_usable = False
    least = _MIN_CONFIDENCE_7 if int(chardet.__version__.partition(".")[0]) >= _NEW_FIGURES else _MIN_CONFIDENCE
    if name is None or guess["confidence"] < least or not is_usable:
        return western
    # German is easily mistaken for Turkish: if both decode to the same text, prefer the common encoding.
    is_same = sample.decode(name, "replace") == sample.decode(western, "replace")
    found = codecs.lookup(name).name
    return western if is_same else _SUPERSETS.get(found, found)


def shorten_words(sample: bytes) -> bytes:
    """Shorten long words for chardet: they lower its confidence, and its search is quadratic and holds the GIL."""
    return _WORD.sub(lambda word: word[0][:_LONGEST_WORD], sample)


def guess_encoding_at(data: bytes, invalid_at: int, valid_before: int) -> str:
    """Guess the encoding from the bytes around the first one that isn't valid UTF-8: see `guess_encoding`."""
    lead = data[max(0, invalid_at - SAMPLE_LEAD_BYTES) : invalid_at]
    return guess_encoding(lead[lead.rfind(b"\n") + 1 :] + data[invalid_at : invalid_at + SAMPLE_BYTES], valid_before)


def name_line_ending(crlf: int, lf: int) -> LineEnding:
    """Name the line endings of a file from the count of each kind."""
    if crlf and lf:
        return "mixed"
    return "crlf" if crlf else "lf" if lf else "none"


def _has_surrogates(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


# -- sniff ------------------------------------------------------------------------------------


Family: TypeAlias = Literal["image", "pdf", "other"]

HEAD_BYTES = 8 * 1024
_HEX_BYTES = 64
_CONTROL_SHARE = 25
"""Non-UTF-8 data with more than one control character per this many bytes is binary."""
_MIN_ZEROS = 3
_CONTROLS = bytes(set(range(0x20)) - set(b"\t\n\r\f\x1b")) + b"\x7f"


@record
class FileType:
    """A kind of file."""

    name: str
    mime: str
    family: Family = "other"


@record
class _Signature:
    magic: bytes
    type: FileType
    at: int = 0
    sure: bool = True
    """Whether text never starts like this."""

    def matches(self, head: bytes) -> bool:
        return head.startswith(self.magic, self.at)


def _image(name: str) -> FileType:
    return FileType(f"{name} image", f"image/{name.lower()}", "image")


def _other(name: str, mime: str = "application/octet-stream") -> FileType:
    return FileType(name, mime)


_SIGNATURES = (
    _Signature(b"\x89PNG\r\n\x1a\n", _image("PNG")),
    _Signature(b"\xff\xd8\xff", _image("JPEG")),
    _Signature(b"GIF87a", _image("GIF")),
    _Signature(b"GIF89a", _image("GIF")),
    _Signature(b"WEBPVP8", _image("WebP"), at=8),
    _Signature(b"II*\0", _image("TIFF")),
    _Signature(b"MM\0*", _image("TIFF")),
    _Signature(b"BM", _image("BMP"), sure=False),
    _Signature(b"%PDF-", FileType("PDF document", "application/pdf", "pdf")),
    _Signature(b"PK\x03\x04", _other("ZIP archive or Office document", "application/zip")),
    _Signature(b"PK\x05\x06", _other("empty ZIP archive", "application/zip")),
    _Signature(b"\x1f\x8b", _other("gzip data", "application/gzip")),
    _Signature(b"1AY&SY", _other("bzip2 data", "application/x-bzip2"), at=4),
    _Signature(b"\xfd7zXZ\0", _other("xz data", "application/x-xz")),
    _Signature(b"\x28\xb5\x2f\xfd", _other("Zstandard data", "application/zstd")),
    _Signature(b"7z\xbc\xaf\x27\x1c", _other("7-Zip archive", "application/x-7z-compressed")),
    _Signature(b"Rar!\x1a\x07", _other("RAR archive", "application/vnd.rar")),
    _Signature(b"ustar", _other("tar archive", "application/x-tar"), at=257, sure=False),
    _Signature(b"\x7fELF", _other("ELF program or library", "application/x-elf")),
    _Signature(b"\xfe\xed\xfa", _other("Mach-O program or library")),
    _Signature(b"\xcf\xfa\xed\xfe", _other("Mach-O program or library")),
    _Signature(b"\xca\xfe\xba\xbe", _other("Java class or Mach-O program")),
    _Signature(b"MZ", _other("Windows program or library"), sure=False),
    _Signature(b"\0asm", _other("WebAssembly module", "application/wasm")),
    _Signature(b"SQLite format 3\0", _other("SQLite database", "application/vnd.sqlite3")),
    _Signature(b"PAR1", _other("Parquet table"), sure=False),
    _Signature(b"\x93NUMPY", _other("NumPy array")),
    _Signature(b"\x89HDF\r\n\x1a\n", _other("HDF5 data", "application/x-hdf5")),
    _Signature(b"ID3", _other("MP3 sound", "audio/mpeg"), sure=False),
    _Signature(b"OggS\0", _other("Ogg sound or video", "application/ogg")),
    _Signature(b"fLaC", _other("FLAC sound", "audio/flac"), sure=False),
    _Signature(b"WAVEfmt", _other("WAV sound", "audio/wav"), at=8),
    _Signature(b"ftyp", _other("MP4, HEIC or AVIF media", "video/mp4"), at=4, sure=False),
    _Signature(b"\x1aE\xdf\xa3", _other("Matroska or WebM video", "video/x-matroska")),
    _Signature(b"wOFF", _other("font", "font/woff"), sure=False),
    _Signature(b"wOF2", _other("font", "font/woff2"), sure=False),
    _Signature(b"!<arch>\n", _other("ar archive or Debian package"), sure=False),
)
_UNKNOWN = _other("data of an unknown type")
_UTF_16 = {0: "big-endian UTF-16 text", 1: "little-endian UTF-16 text"}


def sniff(head: bytes) -> FileType | None:
    """Detect the type of a file from its first bytes; None for text in any encoding."""
    for signature in _SIGNATURES:
        if signature.sure and signature.matches(head):
            return signature.type
    if not is_binary(head):
        return None
    for signature in _SIGNATURES:
        if signature.matches(head):
            return signature.type
    # Latin text in UTF-16 without a BOM: every other byte is zero, the others never are.
    halves = (head[0::2], head[1::2])
    for high, low in ((0, 1), (1, 0)):
        zeros = halves[high].count(0)
        if zeros > max(_MIN_ZEROS, len(halves[high]) // 2) and 0 not in halves[low]:
            return _other(f"{_UTF_16[high]} without a byte order mark", "text/plain")
    return _UNKNOWN


def is_binary(head: bytes) -> bool:
    """Return whether these first bytes look binary: NULs, or too many control characters."""
    if detect_bom(head)[1] != "utf-8":
        return False
    if b"\0" in head:
        return True
    controls = len(head) - len(head.translate(None, _CONTROLS))
    # The sample may end within a character of up to four bytes.
    invalid = len(head) - len(head.decode("utf-8", "ignore").encode("utf-8"))
    return controls * _CONTROL_SHARE > len(head) and invalid > 3


def format_hex(head: bytes) -> str:
    """Format the first 64 bytes of a file as hexadecimal digits."""
    return head[:_HEX_BYTES].hex(" ")
