"""Prepare images for models: small enough, and in a format every provider accepts.

We pass a small image through unchanged, but decode it once first: a provider that receives a damaged image rejects the
conversation from then on. Other images get scaled down. Both need pillow, an optional extra. We read the size from the
file header before decoding anything.
"""

from __future__ import annotations

import io
import math
import struct
from typing import TYPE_CHECKING

from indusagi.capabilities.files.text.lines import DOCUMENTS, ReadFailure
from indusagi.capabilities.worker import WorkerError, run_in_thread, run_in_worker
from indusagi.core.records import record

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST_SIDE = 1_568
"""In pixels. Every provider scales down larger images itself."""
MAX_BYTES = 500_000
MAX_PIXELS = 64_000_000
"""Don't decode larger images: a small file can claim any size."""
LARGE_WEBP_PIXELS = 2_000_000
"""Up to this size, decoding WebP takes ten to twenty milliseconds."""
DEADLINE_S = 30.0
_COMMON_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_QUALITIES = (85, 70, 50, 30)
_JPEG_OTHER_SEGMENTS = frozenset({0xC4, 0xC8, 0xCC})
"""JPEG segments numbered like the frame headers, which contain the size."""


@record
class EncodedImage:
    """An image for the model."""

    data: bytes
    mime: str
    width: int
    height: int
    original_size: tuple[int, int]


async def fit_image(data: bytes, mime: str) -> EncodedImage | ReadFailure:
    """Scale an image down to fit a model's limits.

    Decodes large WebP files in a worker, because that decoder holds the GIL; others release it.
    """
    size = read_image_size(data) if mime == "image/webp" else None
    if size is None or math.prod(size) <= LARGE_WEBP_PIXELS:
        return await run_in_thread(fit_image_sync, data, mime)
    returns = (EncodedImage, ReadFailure)
    try:
        return await run_in_worker(fit_image_sync, data, mime, returns=returns, library="PIL", deadline_s=DEADLINE_S)
    except WorkerError as exc:
        return ReadFailure(f"the process that decodes it {exc}", exc.code)


def fit_image_sync(data: bytes, mime: str) -> EncodedImage | ReadFailure:
    """Scale an image down to fit a model's limits. Takes up to a second."""
    size = read_image_size(data)
    unchanged: EncodedImage | None = None
    is_small = size is not None and len(data) <= MAX_BYTES and min(size) > 0 and max(size) <= LONGEST_SIDE
    if size is not None and mime in _COMMON_TYPES and is_small:
        unchanged = EncodedImage(data, mime, *size, original_size=size)
    elif size is not None and math.prod(size) > MAX_PIXELS:
        return _refuse_size(size)
    try:
        import PIL.Image  # noqa: PLC0415 — an extra that takes long to load
        import PIL.ImageOps  # noqa: PLC0415 — an extra that takes long to load
    except ImportError:
        if unchanged is not None:
            return unchanged
        limits = f"{LONGEST_SIDE:,} pixels a side and {MAX_BYTES // 1000} kB are shown as they are"
        is_common = mime in _COMMON_TYPES and size is not None
        reason = f"only images up to {limits}" if is_common else "it must be converted to be shown"
        return ReadFailure(f"{reason}; for others, {DOCUMENTS}", "unsupported")
    try:
        with PIL.Image.open(io.BytesIO(data)) as image:
            if math.prod(image.size) > MAX_PIXELS:
                return _refuse_size(image.size)
            if unchanged is not None:
                image.load()
                return unchanged
            original_size = image.size
            image.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))
            upright = PIL.ImageOps.exif_transpose(image)
        return _shrink(upright, original_size, as_png=mime != "image/jpeg")
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as exc:
        return ReadFailure(str(exc), "too_large")
    except PIL.UnidentifiedImageError:
        # Its message mentions our BytesIO instead of the file.
        return ReadFailure("the image is damaged or of an unknown format", "failed")
    except Exception as exc:  # noqa: BLE001 — boundary: decoders raise anything for a damaged file
        return ReadFailure(f"the image is damaged: {exc}", "failed")


def read_image_size(data: bytes) -> tuple[int, int] | None:
    """Read the width and height of a PNG, GIF, JPEG or WebP file from its header."""
    try:
        if data.startswith(b"\x89PNG") and data[12:16] == b"IHDR":
            return struct.unpack(">II", data[16:24])
        if data.startswith(b"GIF8"):
            return struct.unpack("<HH", data[6:10])
        position = 2 if data.startswith(b"\xff\xd8") else len(data)  # segments of a JPEG file
        while position + 9 <= len(data) and data[position] == 0xFF:
            if 0xC0 <= data[position + 1] <= 0xCF and data[position + 1] not in _JPEG_OTHER_SEGMENTS:
                height, width = struct.unpack(">HH", data[position + 5 : position + 9])
                return width, height
            position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        # WebP: depends on the first chunk (https://developers.google.com/speed/webp/docs/riff_container).
        kind = data[12:16] if data[8:12] == b"WEBP" else b""
        if kind == b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
        if kind == b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        if kind == b"VP8 ":
            width, height = struct.unpack("<HH", data[26:30])
            return width & 0x3FFF, height & 0x3FFF
    except (struct.error, IndexError):
        return None
    return None


def _refuse_size(size: tuple[int, int]) -> ReadFailure:
    width, height = size
    reason = f"it claims to have {width:,} by {height:,} pixels; at most {MAX_PIXELS:,} are decoded"
    return ReadFailure(reason, "too_large")


def _shrink(image: Image, original_size: tuple[int, int], *, as_png: bool) -> EncodedImage:
    """Encode an image, reducing quality and then size until the file is small enough."""
    import PIL.Image  # noqa: PLC0415 — loaded by the caller

    def encode(picture: Image, kind: str, **options: int) -> bytes:
        out = io.BytesIO()
        picture.save(out, kind, **options)
        return out.getvalue()

    for side in (LONGEST_SIDE, LONGEST_SIDE // 2, LONGEST_SIDE // 4):
        image.thumbnail((side, side))
        with_alpha = image.convert("RGBA")
        if as_png:
            data = encode(with_alpha, "PNG", optimize=True)
            if len(data) <= MAX_BYTES:
                return EncodedImage(data, "image/png", *image.size, original_size=original_size)
        white = PIL.Image.new("RGBA", with_alpha.size, "white")  # JPEG doesn't support transparency
        opaque = PIL.Image.alpha_composite(white, with_alpha).convert("RGB")
        for quality in _QUALITIES:
            data = encode(opaque, "JPEG", quality=quality)
            if len(data) <= MAX_BYTES:
                return EncodedImage(data, "image/jpeg", *image.size, original_size=original_size)
    raise ValueError("it cannot be made small enough")  # pragma: no cover — 392 pixels always can
