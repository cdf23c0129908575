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

from indusagi.capabilities.files.text.sniff import format_hex, is_binary, sniff

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
