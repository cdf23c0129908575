"""Convert a Jupyter notebook to text: its cells, and the text and images in their outputs.

Supports versions 3 and 4 of the format (https://nbformat.readthedocs.io/en/latest/format_description.html); skips
missing and invalid members.
"""

from __future__ import annotations

import binascii
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indusagi.capabilities.files.text.codec import HEAD_BYTES, sniff
from indusagi.capabilities.files.text.lines import LONGEST_LINE
from indusagi.capabilities.worker import WorkerError, run_in_thread, run_in_worker
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from indusagi.capabilities.files.text.lines import LineRange
    from indusagi.core.json import JsonObject, JsonValue

MAX_IMAGES = 8
SMALL_BYTES = 128 * 1024
"""Up to this size, the JSON parser holds the GIL for ten milliseconds."""
DEADLINE_S = 30.0
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
