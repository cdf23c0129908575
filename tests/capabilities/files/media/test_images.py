"""Pictures are passed on as they are, made smaller, or refused before they are unpacked."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from indusagi.capabilities.files.media.images import (
    LONGEST_SIDE,
    MOST_BYTES,
    EncodedImage,
    fit_image_sync,
    read_image_size,
)
from indusagi.capabilities.files.text.display import ReadFailure

FORMATS = ["PNG", "JPEG", "GIF", "WebP", "BMP", "TIFF"]


def picture(kind: str, size: tuple[int, int], **options: object) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, "red").save(out, kind, **options)
    return out.getvalue()


@cache
def noise(size: tuple[int, int], kind: str = "PNG", mode: str = "L") -> bytes:
    out = io.BytesIO()
    Image.effect_noise(size, 90).convert(mode).save(out, kind)
    return out.getvalue()


def fitted(data: bytes, mime: str) -> EncodedImage:
    found = fit_image_sync(data, mime)
    assert isinstance(found, EncodedImage), found
    with Image.open(io.BytesIO(found.data)) as image:
        assert (image.size, image.get_format_mimetype()) == ((found.width, found.height), found.mime)
    assert max(found.width, found.height) <= LONGEST_SIDE
    assert len(found.data) <= MOST_BYTES
    return found


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("GIF", {}),
        ("WebP", {}),
        ("WebP", {"lossless": True}),
        ("WebP", {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}),
    ],
)
@pytest.mark.parametrize("size", [(1, 1), (300, 200), (1_567, 3)])
def test_the_size_in_the_header_is_the_one_that_pillow_reads(
    kind: str, options: dict[str, object], size: tuple[int, int]
) -> None:
    assert read_image_size(picture(kind, size, **options)) == size


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WebP"])
def test_finding_e10_a_header_that_is_cut_has_its_own_size_or_none(kind: str) -> None:
    data = picture(kind, (300, 200))[:700]
    sizes = [read_image_size(data[:end]) for end in range(len(data))]
    first = sizes.index((300, 200))
    assert sizes == [None] * first + [(300, 200)] * (len(sizes) - first)


@given(
    st.sampled_from([b"GIF89a", b"\xff\xd8\xff\xe0", b"RIFF....WEBPVP8 ", b"RIFF....WEBPxxxx", b""]),
    st.binary(max_size=60),
)
def test_a_broken_header_has_no_size_or_a_possible_one(start: bytes, rest: bytes) -> None:
    size = read_image_size(start + rest)
    assert size is None or (len(start) >= 4 and 0 <= min(size) <= max(size) <= 2**32)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WebP"])
def test_a_small_picture_is_passed_on_byte_for_byte(kind: str) -> None:
    data = picture(kind, (640, 480))
    found = fitted(data, f"image/{kind.lower()}")
    assert found.data is data
    assert found.former == (640, 480)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_large_picture_is_made_smaller(kind: str) -> None:
    found = fitted(picture(kind, (4_000, 1_000)), f"image/{kind.lower()}")
    assert (found.width, found.height) == (1_568, 392)
    assert found.former == (4_000, 1_000)
    assert found.mime == ("image/jpeg" if kind == "JPEG" else "image/png")


def test_what_does_not_fit_as_png_becomes_a_jpeg() -> None:
    assert fitted(noise((1_500, 1_500)), "image/png").mime == "image/jpeg"


def test_what_is_still_too_large_is_made_smaller_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indusagi.capabilities.files.media.images.MOST_BYTES", 60_000)
    found = fit_image_sync(noise((1_500, 1_500), mode="RGB"), "image/png")
    assert isinstance(found, EncodedImage)
    assert len(found.data) <= 60_000
    assert found.width < 1_500


def test_transparency_is_put_on_white_where_there_is_none() -> None:
    out = io.BytesIO()
    image = Image.effect_noise((1_500, 1_500), 90).convert("RGBA")
    image.putalpha(0)
    image.save(out, "PNG", compress_level=0)
    found = fitted(out.getvalue(), "image/png")
    assert found.mime == "image/jpeg"
    with Image.open(io.BytesIO(found.data)) as shown:
        assert shown.getpixel((0, 0)) == (255, 255, 255)


def test_a_picture_is_turned_the_way_its_camera_was_held() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    found = fitted(picture("JPEG", (3_000, 1_000), exif=exif), "image/jpeg")
    assert found.height > found.width


def bomb(width: int, height: int) -> bytes:
    """Make a PNG of a few bytes that claims to be large."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(1_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data)


def test_a_picture_that_would_fill_the_memory_is_not_unpacked() -> None:
    found = fit_image_sync(bomb(60_000, 60_000), "image/png")
    assert isinstance(found, ReadFailure)
    assert found.code == "too_large"
    assert "60,000 by 60,000" in found.why


@pytest.mark.parametrize("size", [(8_001, 8_001), (60_000, 60_000)])
def test_nor_is_one_whose_size_only_pillow_can_read(size: tuple[int, int]) -> None:
    header = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 200, 0, 0, 54, 40, *size, 1, 24, 0, 0, 0, 0, 0, 0)
    found = fit_image_sync(header + bytes(100), "image/bmp")
    assert isinstance(found, ReadFailure)
    assert found.code == "too_large"


@pytest.mark.parametrize(
    "data",
    [
        noise((2_000, 2_000))[:5_000],
        bomb(2_000, 2_000),
        b"\x89PNG\r\n\x1a\nnothing of the kind",
        b"\xff\xd8\xff\xe0",
        b"II*\0\xff\xff\xff\xff",
        noise((200, 200))[:5_000],
        picture("PNG", (20, 20))[:40],
        b"GIF89a\x01\0\x01\0",
    ],
    ids=["cut", "short", "nonsense", "start", "nowhere", "small", "header", "nothing"],
)
def test_a_damaged_picture_is_refused(data: bytes) -> None:
    found = fit_image_sync(data, "image/png")
    assert isinstance(found, ReadFailure)
    assert found.code == "failed"
    assert "damaged" in found.why
    assert found == fit_image_sync(data, "image/png"), "the same words every time"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WebP"])
def test_a_small_picture_that_was_cut_off_is_not_passed_on(kind: str) -> None:
    out = io.BytesIO()
    Image.effect_noise((200, 200), 90).convert("RGB").save(out, kind)
    data = out.getvalue()
    assert read_image_size(data[: len(data) // 2]) == (200, 200)
    assert isinstance(fit_image_sync(data[: len(data) // 2], f"image/{kind.lower()}"), ReadFailure)


@pytest.fixture
def _no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "PIL", None)


@pytest.mark.usefixtures("_no_pillow")
@pytest.mark.parametrize(
    ("data", "mime"), [(picture("PNG", (4_000, 10)), "image/png"), (picture("BMP", (10, 10)), "image/bmp")]
)
def test_without_pillow_the_extra_is_named(data: bytes, mime: str) -> None:
    found = fit_image_sync(data, mime)
    assert isinstance(found, ReadFailure)
    assert found.code == "unsupported"
    assert "indus-deck[documents]" in found.why


SMALL = picture("PNG", (10, 10))


@pytest.mark.usefixtures("_no_pillow")
def test_without_pillow_a_small_picture_is_shown_all_the_same() -> None:
    found = fit_image_sync(SMALL, "image/png")
    assert isinstance(found, EncodedImage)
    assert found.data is SMALL
