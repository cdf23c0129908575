"""Images, PDF files and notebooks, prepared for models.

A small image passes through unchanged, but is decoded once first: a provider that receives a damaged image rejects the
conversation from then on. Other images get scaled down. Both need pillow, an optional extra. The size comes from the
file header before anything is decoded.

A hostile PDF file can make the parser loop, grow or crash, so it runs in a worker with CPU time and memory limits.

A Jupyter notebook becomes text: its cells, and the text and images in their outputs. Supports versions 3 and 4 of the
format (https://nbformat.readthedocs.io/en/latest/format_description.html); skips missing and invalid members.
"""

from __future__ import annotations

import binascii
import io
import json
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from indusagi.capabilities.budget import DEFAULT_PAGES, MAX_PAGES
from indusagi.capabilities.files.codec import HEAD_BYTES, sniff
from indusagi.capabilities.files.lines import DOCUMENTS, LONGEST_LINE, LineRange, ReadFailure
from indusagi.capabilities.worker import WorkerError, WorkerLimits, run_in_thread, run_in_worker
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_text

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


# -- PDF files --------------------------------------------------------------------------------------


MAX_CHARACTERS = 500_000
"""Total for all pages."""
_LIMITS = WorkerLimits(cpu_s=30, memory_bytes=2 * 1024 * 1024 * 1024)
_RANGE = re.compile(r"\s*([0-9]{1,6})\s*(?:(-)\s*([0-9]{1,6})?)?\s*")


@record
class PdfPages:
    """Some pages of a document."""

    first: int
    texts: Sequence[str]
    total: int
    """Page count of the whole document."""


def parse_page_range(text: str | None) -> tuple[int, int] | ReadFailure:
    """Parse `3`, `3-5` or `3-`; defaults to the first ten pages."""
    if text is None or not text.strip():
        return 1, DEFAULT_PAGES
    match = _RANGE.fullmatch(text)
    if match is None or int(match[1]) < 1:
        return ReadFailure(f"pages {text!r} is not like '3' or '3-5'", "failed")
    first = int(match[1])
    last = int(match[3]) if match[3] else first + (DEFAULT_PAGES - 1 if match[2] else 0)
    if last < first:
        return ReadFailure(f"pages {text!r} ends before it begins", "failed")
    if last - first >= MAX_PAGES:
        return ReadFailure(f"pages {text!r} are more than {MAX_PAGES}: ask for fewer at a time", "too_large")
    return first, last


async def read_pdf_pages(data: bytes, first: int, last: int) -> PdfPages | ReadFailure:
    """Extract the text of some pages in a worker."""
    try:
        return await run_in_worker(
            extract_pdf_pages,
            data,
            first,
            last,
            returns=(PdfPages, ReadFailure),
            library="pypdfium2",
            limits=_LIMITS,
            deadline_s=DEADLINE_S,
        )
    except WorkerError as exc:
        return ReadFailure(f"the PDF reader {exc}", exc.code)


def extract_pdf_pages(data: bytes, first: int, last: int) -> PdfPages | ReadFailure:
    """Extract the text of some pages; runs in the worker."""
    try:
        pdfium = import_module("pypdfium2")
    except ImportError:
        return ReadFailure(f"to read PDF files, {DOCUMENTS}", "unsupported")
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as exc:
        if "assword" in str(exc):
            return ReadFailure("the document is locked with a password", "denied")
        return ReadFailure("the document is damaged", "failed")
    texts: list[str] = []
    left = MAX_CHARACTERS
    for index in range(first - 1, min(last, len(document))):
        try:
            text: str = document[index].get_textpage().get_text_bounded()
        except pdfium.PdfiumError as exc:
            text = f"[this page cannot be read: {exc}]"
        cut = len(text) - left
        if cut > 0:
            text = f"{text[:left]}\n[the page continues; {cut:,} characters of it are left out]"
        # pdfium ends lines with CRLF.
        texts.append(text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").strip("\n"))
        left -= len(text)
        if left <= 0:
            break
    return PdfPages(first, texts, len(document))


# -- notebooks --------------------------------------------------------------------------------------


MAX_IMAGES = 8
SMALL_BYTES = 128 * 1024
"""Up to this size, the JSON parser holds the GIL for ten milliseconds."""
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_OUTPUT_CHARACTERS = 10_000


@record
class NotebookImage:
    """An image in the output of a cell."""

    line: int
    """The line of text that represents it."""
    mime: str
    """Detected from its bytes: providers reject an image that doesn't match its declared type."""
    data: bytes


@dataclass(slots=True)
class Notebook:
    """A notebook as lines of text, and its images."""

    cells: int
    lines: list[str] = field(default_factory=list[str])
    images: list[NotebookImage] = field(default_factory=list[NotebookImage])


@record
class NotebookPage:
    """Some lines of a notebook, with the images among them."""

    cells: int
    total: int
    """Line count of the whole notebook."""
    first: int
    """Number of the first line, even if it doesn't exist."""
    lines: Sequence[str]
    images: Sequence[NotebookImage]


async def read_notebook_page(data: bytes, wanted: LineRange) -> NotebookPage | str:
    """Read some lines of a notebook, or return the reason we can't.

    Parses a large notebook in a worker, which only sends back the lines to show.
    """
    try:
        if len(data) <= SMALL_BYTES:
            page = await run_in_thread(parse_notebook_page, data, wanted)
        else:
            returns = (NotebookPage, NotebookImage)
            page = await run_in_worker(parse_notebook_page, data, wanted, returns=returns, deadline_s=DEADLINE_S)
    except WorkerError as exc:
        return f"the process that reads it {exc}"
    return "it is not one" if page is None else page


def parse_notebook_page(data: bytes, wanted: LineRange) -> NotebookPage | None:
    """Parse a notebook and select lines, cutting long ones; None if it isn't a notebook."""
    notebook = parse_notebook(data)
    if notebook is None:
        return None
    total = len(notebook.lines)
    first = wanted.first if wanted.first > 0 else max(1, total + wanted.first + 1)
    lines: list[str] = []
    left = wanted.max_bytes
    for line in notebook.lines[first - 1 : first - 1 + wanted.count]:
        cut = len(line) - LONGEST_LINE
        lines.append(line if cut <= 0 else f"{line[:LONGEST_LINE]}… [+{cut:,} characters]")
        left -= len(lines[-1])
        if left < 0:
            break
    numbers = range(first, first + len(lines))
    images = [image for image in notebook.images if image.line in numbers]
    return NotebookPage(notebook.cells, total, first, lines, images[:MAX_IMAGES])


def parse_notebook(data: bytes) -> Notebook | None:
    """Parse a notebook; None if it isn't one."""
    try:
        document: JsonValue = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not is_json_object(document):
        return None
    sheets = document.get("worksheets")  # version 3
    holders = [document, *(sheets if isinstance(sheets, list) else [])]
    cells = [cell for holder in holders if is_json_object(holder) for cell in _objects(holder.get("cells"))]
    if not cells and "cells" not in document:
        return None
    notebook = Notebook(len(cells))
    for number, cell in enumerate(cells, start=1):
        kind = cell.get("cell_type")
        name = clean_text(kind)[0] if isinstance(kind, str) else "unknown"
        count = cell.get("execution_count", cell.get("prompt_number"))
        ran = f", run as [{count}]" if isinstance(count, int) else ""
        notebook.lines.append(f"## cell {number}: {name}{ran}")
        notebook.lines.extend(_join_text(cell.get("source", cell.get("input"))).split("\n"))
        for output in _objects(cell.get("outputs")):
            _add_output(output, notebook)
        notebook.lines.append("")
    return notebook


def _objects(value: JsonValue) -> Iterator[JsonObject]:
    if isinstance(value, list):
        yield from (item for item in value if is_json_object(item))


def _add_output(output: JsonObject, notebook: Notebook) -> None:
    bundle = output.get("data")
    shown = bundle if is_json_object(bundle) else output
    if output.get("output_type") in ("error", "pyerr"):
        # The colors of a traceback are meant for a terminal.
        trace = clean_text(_join_text(output.get("traceback"), "\n"))[0]
        text = trace or f"{_join_text(output.get('ename'))}: {_join_text(output.get('evalue'))}"
    else:
        texts = (_join_text(shown.get(name)) for name in ("text", "text/plain", "text/markdown"))
        text = next(filter(None, texts), "")
    if text:
        notebook.lines.append("# output:")
        cut = text[:_OUTPUT_CHARACTERS]
        notebook.lines.extend(cut.split("\n"))
        if len(cut) < len(text):
            notebook.lines.append(f"… [+{len(text) - len(cut):,} characters]")
    for mime in _IMAGE_TYPES:
        encoded = _join_text(shown.get(mime, shown.get(mime.partition("/")[2])))
        try:
            image = binascii.a2b_base64(encoded)
        except ValueError:
            continue
        if image:
            notebook.lines.append(f"# output: {mime}, {len(image):,} bytes")
            detected = sniff(image[:HEAD_BYTES])
            kind = detected.mime if detected and detected.family == "image" else mime
            notebook.images.append(NotebookImage(len(notebook.lines), kind, image))


def _join_text(value: JsonValue, separator: str = "") -> str:
    """Join a text that may be a list of lines."""
    if isinstance(value, list):
        return separator.join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
