"""File types, detected from the first bytes of a file; its name does not matter."""

from __future__ import annotations

from typing import Literal, TypeAlias

from indusagi.capabilities.files.text.codec import detect_bom
from indusagi.core.records import record

Family: TypeAlias = Literal["image", "pdf", "other"]

HEAD_BYTES = 8 * 1024
"""How many bytes of a file are examined."""
_HEX_BYTES = 64
_CONTROL_SHARE = 25
"""Data that is not UTF-8 and has one control character in so many bytes is binary."""
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
    """Whether text never begins like this."""

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
    """Detect the type of a file from its first bytes; None for text, in any encoding."""
    for signature in _SIGNATURES:
        if signature.sure and signature.matches(head):
            return signature.type
    if not is_binary(head):
        return None
    for signature in _SIGNATURES:
        if signature.matches(head):
            return signature.type
    # Latin text in UTF-16 without a mark: every other byte is zero, and no other byte is.
    halves = (head[0::2], head[1::2])
    for high, low in ((0, 1), (1, 0)):
        zeros = halves[high].count(0)
        if zeros > max(_MIN_ZEROS, len(halves[high]) // 2) and 0 not in halves[low]:
            return _other(f"{_UTF_16[high]} without a byte order mark", "text/plain")
    return _UNKNOWN


def is_binary(head: bytes) -> bool:
    """Tell whether a file that begins like this is binary: it has NULs, or too many control characters."""
    if detect_bom(head)[1] != "utf-8":
        return False
    if b"\0" in head:
        return True
    controls = len(head) - len(head.translate(None, _CONTROLS))
    # The end of the sample may cut a character of up to four bytes.
    invalid = len(head) - len(head.decode("utf-8", "ignore").encode("utf-8"))
    return controls * _CONTROL_SHARE > len(head) and invalid > 3


def format_hex(head: bytes) -> str:
    """Format the first 64 bytes of a file as hexadecimal digits."""
    return head[:_HEX_BYTES].hex(" ")
