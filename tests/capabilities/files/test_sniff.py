"""File types from the first bytes; `file` gives the same."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from indusagi.capabilities.files.codec import format_hex, is_binary, sniff

if TYPE_CHECKING:
    from pathlib import Path


def picture(kind: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(out, kind)
    return out.getvalue()


def zip_archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a", "b")
    return out.getvalue()


def tar_archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return out.getvalue()


SAMPLES = {
    "image/png": picture("PNG"),
    "image/jpeg": picture("JPEG"),
    "image/gif": picture("GIF"),
    "image/webp": picture("WebP"),
    "image/tiff": picture("TIFF"),
    "image/bmp": picture("BMP"),
    "application/zip": zip_archive(),
    "application/gzip": gzip.compress(b"text"),
    "application/x-bzip2": bz2.compress(b"text"),
    "application/x-xz": lzma.compress(b"text"),
    "application/x-tar": tar_archive(),
    "application/pdf": b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n",
}


@pytest.mark.parametrize("mime", SAMPLES)
def test_a_type_is_detected_by_its_signature(mime: str) -> None:
    found = sniff(SAMPLES[mime])
    assert found is not None
    assert found.mime == mime


@pytest.mark.process
@pytest.mark.skipif(shutil.which("file") is None, reason="needs file(1)")
@pytest.mark.parametrize("mime", SAMPLES)
def test_file_gives_the_same_type(mime: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(SAMPLES[mime])
    done = subprocess.run(
        ["file", "-b", "--mime-type", str(tmp_path / "x")], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == mime


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"plain\n",
        b"BMW is not a bitmap",
        b"MZ says the book",
        b"ID3 tags, fLaC, PAR1",
        b"x" * 257 + b"ustar is how an archive begins\n",
        "日本語".encode(),
        b"caf\xe9",
        b"\xff\xfea\0b\0",
        b"\xff\xfe\0\0a\0\0\0",
        b"\x1b[31mcoloured\x1b[0m\n",
    ],
)
def test_text_has_no_type(text: bytes) -> None:
    assert sniff(text) is None


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"a\0b", "data of an unknown type"),
        (b"BM\0\0", "BMP image"),
        (b"MZ\x90\0", "Windows program or library"),
        (b"\xef\xbb\xbfa\0b", "data of an unknown type"),
        (bytes(range(1, 256)), "data of an unknown type"),
        ("plain".encode("utf-16-le"), "little-endian UTF-16 text without a byte order mark"),
        ("plain".encode("utf-16-be"), "big-endian UTF-16 text without a byte order mark"),
    ],
)
def test_binary_data_gets_the_most_specific_name(data: bytes, name: str) -> None:
    found = sniff(data)
    assert found is not None
    assert found.name == name


def test_the_python_interpreter_is_a_program() -> None:
    with open(os.path.realpath("/proc/self/exe"), "rb") as file:
        found = sniff(file.read(64))
    assert found is not None
    assert "program" in found.name


@given(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])))
def test_valid_utf_8_without_nul_is_never_binary(text: str) -> None:
    assert not is_binary(text.encode())


@given(st.binary(), st.binary())
def test_a_nul_makes_data_binary_without_a_mark_of_utf_16(before: bytes, after: bytes) -> None:
    data = before + b"\0" + after
    assert is_binary(data) is not data.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))


def test_at_most_64_bytes_are_shown() -> None:
    assert format_hex(b"\x00\xff") == "00 ff"
    assert len(format_hex(bytes(1000)).split()) == 64


# -- kinds of files ---------------------------------------------------------------------------

MAGIC: list[tuple[bytes, str]] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"RIFF\0\0\0\0WEBPVP8", "image/webp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"BM\0", "image/bmp"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh91AY&SY", "application/x-bzip2"),
    (b"\xfd7zXZ\0", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"\0" * 257 + b"ustar", "application/x-tar"),
    (b"\x7fELF", "application/x-elf"),
    (b"\0asm", "application/wasm"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
    (b"ID3\0", "audio/mpeg"),
    (b"OggS\0", "application/ogg"),
    (b"fLaC\0", "audio/flac"),
    (b"RIFF\0\0\0\0WAVEfmt", "audio/wav"),
    (b"\0\0\0\x18ftyp", "video/mp4"),
    (b"\x1aE\xdf\xa3", "video/x-matroska"),
    (b"wOFF\0", "font/woff"),
    (b"wOF2\0", "font/woff2"),
]


@pytest.mark.parametrize(("head", "mime"), MAGIC)
def test_a_file_is_known_by_its_first_bytes(head: bytes, mime: str) -> None:
    found = sniff(head)
    assert found is not None
    assert found.mime == mime
    family = {"image": "image", "application/pdf": "pdf"}
    assert found.family == family.get(mime, family.get(mime.partition("/")[0], "other"))


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\xfe\xed\xfa\xce", "Mach-O program or library"),
        (b"\xcf\xfa\xed\xfe", "Mach-O program or library"),
        (b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
        (b"MZ\0", "Windows program or library"),
        (b"PAR1\0", "Parquet table"),
        (b"\x93NUMPY", "NumPy array"),
        (b"!<arch>\n\0", "ar archive or Debian package"),
        (b"\0\x01", "data of an unknown type"),
        ("words".encode("utf-16-le"), "little-endian UTF-16 text without a byte order mark"),
        ("words".encode("utf-16-be"), "big-endian UTF-16 text without a byte order mark"),
        ("wor".encode("utf-16-le"), "data of an unknown type"),
    ],
)
def test_a_file_without_a_type_of_its_own_is_named(head: bytes, name: str) -> None:
    found = sniff(head)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "head", [b"BM words", b"MZ", b"PAR1", b"ID3 tag", b"fLaC", b"....ftyp", b"wOFF", b"wOF2", b"!<arch>\n"]
)
def test_text_may_begin_like_some_files(head: bytes) -> None:
    assert sniff(head) is None


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"", False),
        ("é".encode("latin-1") * 100, False),
        ("é".encode("latin-1") * 100 + b"\x01" * 3, False),
        ("é".encode("latin-1") * 100 + b"\x01" * 5, True),
        (b"\x01" * 50, False),
        (b"\x01" * 50 + b"\xff" * 3, False),
        (b"\x01" * 50 + b"\xff" * 4, True),
        (b"\xff\xfe\0a\0", False),
        (b"a\0", True),
    ],
)
def test_data_is_binary_with_nul_or_with_controls_among_bytes_of_no_encoding(head: bytes, *, expected: bool) -> None:
    assert is_binary(head) is expected
