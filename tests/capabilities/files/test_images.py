"""Images are passed on, scaled down, or refused before they are decoded; large WebP files are decoded in a worker."""

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

from indusagi.capabilities import worker
from indusagi.capabilities.files import media as module
from indusagi.capabilities.files.lines import ReadFailure
from indusagi.capabilities.files.media import (
    LONGEST_SIDE,
    MAX_BYTES,
    EncodedImage,
    fit_image,
    fit_image_sync,
    read_image_size,
)

FORMATS = ["PNG", "JPEG", "GIF", "WebP", "BMP", "TIFF"]


def image_file(kind: str, size: tuple[int, int], **options: object) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, "red").save(out, kind, **options)
    return out.getvalue()


@cache
def noise(size: tuple[int, int], kind: str = "PNG", mode: str = "L") -> bytes:
    out = io.BytesIO()
    Image.effect_noise(size, 90).convert(mode).save(out, kind)
    return out.getvalue()


def fit(data: bytes, mime: str) -> EncodedImage:
    found = fit_image_sync(data, mime)
    assert isinstance(found, EncodedImage), found
    with Image.open(io.BytesIO(found.data)) as image:
        assert (image.size, image.get_format_mimetype()) == ((found.width, found.height), found.mime)
    assert max(found.width, found.height) <= LONGEST_SIDE
    assert len(found.data) <= MAX_BYTES
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
def test_the_size_in_the_header_is_that_of_pillow(kind: str, options: dict[str, object], size: tuple[int, int]) -> None:
    assert read_image_size(image_file(kind, size, **options)) == size


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WebP"])
def test_finding_e10_a_header_that_is_cut_has_its_own_size_or_none(kind: str) -> None:
    data = image_file(kind, (300, 200))[:700]
    sizes = [read_image_size(data[:end]) for end in range(len(data))]
    first = sizes.index((300, 200))
    assert sizes == [None] * first + [(300, 200)] * (len(sizes) - first)


@given(
    st.sampled_from([b"GIF89a", b"\xff\xd8\xff\xe0", b"RIFF....WEBPVP8 ", b"RIFF....WEBPxxxx", b""]),
    st.binary(max_size=60),
)
def test_a_damaged_header_gives_no_size_or_a_possible_one(start: bytes, rest: bytes) -> None:
    size = read_image_size(start + rest)
    assert size is None or (len(start) >= 4 and 0 <= min(size) <= max(size) <= 2**32)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WebP"])
def test_a_small_image_is_passed_on_byte_for_byte(kind: str) -> None:
    data = image_file(kind, (640, 480))
    found = fit(data, f"image/{kind.lower()}")
    assert found.data is data
    assert found.original_size == (640, 480)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_large_image_is_scaled_down(kind: str) -> None:
    found = fit(image_file(kind, (4_000, 1_000)), f"image/{kind.lower()}")
    assert (found.width, found.height) == (1_568, 392)
    assert found.original_size == (4_000, 1_000)
    assert found.mime == ("image/jpeg" if kind == "JPEG" else "image/png")


@pytest.fixture
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 60_000)
    monkeypatch.setattr(module, "LONGEST_SIDE", 400)


@pytest.mark.usefixtures("_small_limits")
def test_an_image_too_large_as_png_becomes_a_jpeg() -> None:
    found = fit(noise((400, 400)), "image/png")
    assert (found.mime, found.width) == ("image/jpeg", 400)


@pytest.mark.usefixtures("_small_limits")
def test_an_image_too_large_as_jpeg_gets_fewer_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 8_000)
    found = fit(noise((400, 400), mode="RGB"), "image/png")
    assert len(found.data) <= 8_000
    assert found.width < 400


@pytest.mark.usefixtures("_small_limits")
def test_transparent_pixels_of_a_jpeg_become_white() -> None:
    out = io.BytesIO()
    image = Image.effect_noise((400, 400), 90).convert("RGBA")
    image.putalpha(0)
    image.save(out, "PNG", compress_level=0)
    found = fit(out.getvalue(), "image/png")
    assert found.mime == "image/jpeg"
    with Image.open(io.BytesIO(found.data)) as shown:
        assert shown.getpixel((0, 0)) == (255, 255, 255)


def test_the_orientation_of_the_camera_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    found = fit(image_file("JPEG", (3_000, 1_000), exif=exif), "image/jpeg")
    assert found.height > found.width


def bomb(width: int, height: int) -> bytes:
    """Make a PNG of a few bytes that claims to be large."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(1_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data)


def test_a_decompression_bomb_is_not_decoded() -> None:
    found = fit_image_sync(bomb(60_000, 60_000), "image/png")
    assert isinstance(found, ReadFailure)
    assert found.code == "too_large"
    assert "60,000 by 60,000" in found.why


@pytest.mark.parametrize("size", [(8_001, 8_001), (60_000, 60_000)])
def test_a_decompression_bomb_known_to_pillow_only_is_not_decoded(size: tuple[int, int]) -> None:
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
        image_file("PNG", (20, 20))[:40],
        b"GIF89a\x01\0\x01\0",
    ],
    ids=["cut", "short", "nonsense", "start", "nowhere", "small", "header", "nothing"],
)
def test_a_damaged_image_is_refused(data: bytes) -> None:
    found = fit_image_sync(data, "image/png")
    assert isinstance(found, ReadFailure)
    assert found.code == "failed"
    assert "damaged" in found.why
    assert found == fit_image_sync(data, "image/png"), "the same words every time"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WebP"])
def test_a_small_truncated_image_is_refused(kind: str) -> None:
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
    ("data", "mime"), [(image_file("PNG", (4_000, 10)), "image/png"), (image_file("BMP", (10, 10)), "image/bmp")]
)
def test_without_pillow_the_extra_is_named(data: bytes, mime: str) -> None:
    found = fit_image_sync(data, mime)
    assert isinstance(found, ReadFailure)
    assert found.code == "unsupported"
    assert "indus-deck[documents]" in found.why


SMALL = image_file("PNG", (10, 10))


@pytest.mark.usefixtures("_no_pillow")
def test_without_pillow_a_small_image_is_passed_on() -> None:
    found = fit_image_sync(SMALL, "image/png")
    assert isinstance(found, EncodedImage)
    assert found.data is SMALL


# -- WebP in a worker ---------------------------------------------------------------------------


@cache
def webp(size: tuple[int, int] = (1_600, 20)) -> bytes:
    out = io.BytesIO()
    Image.effect_noise(size, 90).convert("RGB").save(out, "WebP", quality=10)
    return out.getvalue()


@pytest.mark.process
@pytest.mark.parametrize("cut", [None, -20])
async def test_an_image_is_the_same_in_a_thread_and_in_a_worker(
    cut: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_WEBP_PIXELS", 30_000)
    data = webp()[:cut]
    from_worker = await fit_image(data, "image/webp")
    assert from_worker == fit_image_sync(data, "image/webp")
    assert isinstance(from_worker, ReadFailure if cut else EncodedImage)


@pytest.mark.process
@pytest.mark.parametrize(
    ("size", "mime", "in_worker"),
    [((1_600, 20), "image/webp", True), ((1_600, 10), "image/webp", False), ((1_600, 20), "image/png", False)],
)
async def test_only_a_large_webp_file_goes_to_a_worker(
    size: tuple[int, int], mime: str, *, in_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def instead(*_: object) -> list[str]:
        return ["/bin/true"]

    monkeypatch.setattr(module, "LARGE_WEBP_PIXELS", 30_000)
    monkeypatch.setattr(worker, "build_command", instead)
    found = await fit_image(webp(size), mime)
    if in_worker:
        assert found == ReadFailure("the process that decodes it ended without a result", "failed")
    else:
        assert isinstance(found, EncodedImage)
