"""Pictures as a model can take them: small enough, and in a format that all of them know.

A picture that is small already is passed on byte for byte, once it is known to be whole: a provider
that is sent a broken one refuses the conversation it is in, then and ever after. Others are made
smaller. Both take pillow, which is an extra; the size is read from the file before anything is
unpacked.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.capabilities.files.text.display import DOCUMENTS, ReadFailure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image

LONGEST_SIDE = 1_568
"""Pixels. Larger pictures are made smaller by every provider anyway."""
MOST_BYTES = 500_000
MOST_PIXELS = 64_000_000
"""A picture with more is not unpacked: a small file can claim any size."""
_PASSED_ON = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_QUALITIES = (85, 70, 50, 30)
_NO_SIZE = frozenset({0xC4, 0xC8, 0xCC})
"""Segments of a JPEG that are numbered like those which hold the size."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A picture for a model."""

    data: bytes
    mime: str
    width: int
    height: int
    former: tuple[int, int]
    """What it measured before it was made smaller."""


def fit_image_sync(data: bytes, mime: str) -> EncodedImage | ReadFailure:
    """Make a picture small enough for a model; for a thread, since this can take a second."""
    size = read_image_size(data)
    passed_on: EncodedImage | None = None
    if size is not None and mime in _PASSED_ON and _is_small(data, size):
        passed_on = EncodedImage(data, mime, *size, former=size)
    elif size is not None and math.prod(size) > MOST_PIXELS:
        return _too_large(size)
    try:
        import PIL.Image  # noqa: PLC0415 — an extra, and dear to load
        import PIL.ImageOps  # noqa: PLC0415 — the same
    except ImportError:
        return passed_on or _without_pillow(known=mime in _PASSED_ON and size is not None)
    try:
        with PIL.Image.open(io.BytesIO(data)) as image:
            if math.prod(image.size) > MOST_PIXELS:
                return _too_large(image.size)
            if passed_on is not None:
                image.load()
                return passed_on
            former = image.size
            image.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))
            small = PIL.ImageOps.exif_transpose(image)
        return _encoded(small, former, as_png=mime != "image/jpeg")
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as exc:
        return ReadFailure(str(exc), "too_large")
    except PIL.UnidentifiedImageError:
        # Its words name an object of ours, and nothing of the file's.
        return ReadFailure("the picture is damaged, or of a kind that is not known here", "failed")
    except Exception as exc:  # noqa: BLE001 — boundary: decoders that are fed with anything at all
        return ReadFailure(f"the picture is damaged: {exc}", "failed")


def _without_pillow(*, known: bool) -> ReadFailure:
    fits = f"{LONGEST_SIDE:,} pixels a side and {MOST_BYTES // 1000} kB are shown as they are"
    what = f"only pictures up to {fits}" if known else "it must be converted to be shown"
    return ReadFailure(f"{what}; for others, {DOCUMENTS}", "unsupported")


def read_image_size(data: bytes) -> tuple[int, int] | None:
    """Read width and height of a PNG, GIF, JPEG or WebP from its header."""
    try:
        if data.startswith(b"\x89PNG") and data[12:16] == b"IHDR":
            return struct.unpack(">II", data[16:24])
        if data.startswith(b"GIF8"):
            return struct.unpack("<HH", data[6:10])
        if data.startswith(b"\xff\xd8"):
            return next(_jpeg_sizes(data), None)
        if data[8:12] == b"WEBP":
            return _webp_size(data)
    except (struct.error, IndexError):
        return None
    return None


def _jpeg_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if 0xC0 <= kind <= 0xCF and kind not in _NO_SIZE:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            yield width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def _webp_size(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = data[24:27], data[27:30]
        return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _is_small(data: bytes, size: tuple[int, int]) -> bool:
    return len(data) <= MOST_BYTES and min(size) > 0 and max(size) <= LONGEST_SIDE


def _too_large(size: tuple[int, int]) -> ReadFailure:
    width, height = size
    why = f"it says that it has {width:,} by {height:,} pixels; {MOST_PIXELS:,} at most are unpacked"
    return ReadFailure(why, "too_large")


def _encoded(image: Image, former: tuple[int, int], *, as_png: bool) -> EncodedImage:
    """Make it smaller until its file is small enough: first in quality, then in size."""
    for side in (LONGEST_SIDE, LONGEST_SIDE // 2, LONGEST_SIDE // 4):
        image.thumbnail((side, side))
        if as_png:
            data = _saved(image.convert("RGBA"), "PNG", optimize=True)
            if len(data) <= MOST_BYTES:
                return EncodedImage(data, "image/png", *image.size, former=former)
        for quality in _QUALITIES:
            data = _saved(_opaque(image), "JPEG", quality=quality)
            if len(data) <= MOST_BYTES:
                return EncodedImage(data, "image/jpeg", *image.size, former=former)
    raise ValueError("it cannot be made small enough")  # pragma: no cover — 392 pixels always can


def _opaque(image: Image) -> Image:
    """Put it on white: a JPEG has no transparency."""
    import PIL.Image  # noqa: PLC0415 — loaded by whoever opened the picture

    above = image.convert("RGBA")
    return PIL.Image.alpha_composite(PIL.Image.new("RGBA", above.size, "white"), above).convert("RGB")


def _saved(image: Image, kind: str, **options: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()
