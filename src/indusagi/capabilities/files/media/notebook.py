"""A Jupyter notebook as text: its cells, and of what they put out, the text and the pictures.

The format is read as it is found: versions 3 and 4, and whatever is missing or odd is passed over.
"""

from __future__ import annotations

import binascii
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indusagi.capabilities.files.text.lines import LONGEST_LINE
from indusagi.capabilities.files.text.sniff import HEAD_BYTES, sniff
from indusagi.core.json import is_json_object
from indusagi.core.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from indusagi.capabilities.files.text.lines import Wanted
    from indusagi.core.json import JsonObject, JsonValue

MOST_PICTURES = 8
"""Of one notebook, in one answer."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_OUTPUT_CHARACTERS = 10_000
"""Of one output: a cell that printed all night is not what a reader wants to see."""


@dataclass(frozen=True, slots=True)
class NotebookPicture:
    """A picture that a cell has put out."""

    line: int
    """The line of the text that stands for it."""
    mime: str
    """What it is, whatever it is called: a provider refuses one that is something else."""
    data: bytes


@dataclass(slots=True)
class Notebook:
    """A notebook as lines of text, and pictures beside them."""

    cells: int
    lines: list[str] = field(default_factory=list[str])
    pictures: list[NotebookPicture] = field(default_factory=list[NotebookPicture])


@dataclass(frozen=True, slots=True)
class NotebookPage:
    """Some lines of a notebook, and the pictures among them."""

    cells: int
    total: int
    """Lines of all of it."""
    first: int
    """The number of the first line, be there one or not."""
    lines: Sequence[str]
    pictures: Sequence[NotebookPicture]


def page_of(notebook: Notebook, wanted: Wanted) -> NotebookPage:
    """Choose the lines that are wanted; long ones are cut."""
    total = len(notebook.lines)
    first = wanted.first if wanted.first > 0 else max(1, total + wanted.first + 1)
    lines: list[str] = []
    left = wanted.most_bytes
    for line in notebook.lines[first - 1 : first - 1 + wanted.count]:
        more = len(line) - LONGEST_LINE
        lines.append(line if more <= 0 else f"{line[:LONGEST_LINE]}… [+{more:,} characters]")
        left -= len(lines[-1])
        if left < 0:
            break
    among = range(first, first + len(lines))
    pictures = [picture for picture in notebook.pictures if picture.line in among]
    return NotebookPage(notebook.cells, total, first, lines, pictures[:MOST_PICTURES])


def read_notebook(data: bytes) -> Notebook | None:
    """Read a notebook; None if it is not one."""
    try:
        document: JsonValue = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not is_json_object(document):
        return None
    found = list(_cells(document))
    if not found and "cells" not in document:
        return None
    notebook = Notebook(len(found))
    for number, cell in enumerate(found, start=1):
        _show(cell, number, notebook)
    return notebook


def _cells(document: JsonObject) -> Iterator[JsonObject]:
    sheets = document.get("worksheets")
    holders = [document, *(sheets if isinstance(sheets, list) else [])]
    for holder in holders:
        yield from _objects(holder.get("cells") if is_json_object(holder) else None)


def _objects(value: JsonValue) -> Iterator[JsonObject]:
    if isinstance(value, list):
        yield from (item for item in value if is_json_object(item))


def _show(cell: JsonObject, number: int, notebook: Notebook) -> None:
    kind = cell.get("cell_type")
    count = cell.get("execution_count", cell.get("prompt_number"))
    ran = f", run as [{count}]" if isinstance(count, int) else ""
    name = clean_text(kind)[0] if isinstance(kind, str) else "unknown"
    notebook.lines.append(f"## cell {number}: {name}{ran}")
    notebook.lines.extend(_joined(cell.get("source", cell.get("input"))).split("\n"))
    for output in _objects(cell.get("outputs")):
        _show_output(output, notebook)
    notebook.lines.append("")


def _show_output(output: JsonObject, notebook: Notebook) -> None:
    bundle = output.get("data")
    shown = bundle if is_json_object(bundle) else output
    text = _text_of(output, shown)
    if text:
        notebook.lines.append("# output:")
        cut = text[:_OUTPUT_CHARACTERS]
        notebook.lines.extend(cut.split("\n"))
        if len(cut) < len(text):
            notebook.lines.append(f"… [+{len(text) - len(cut):,} characters]")
    for mime in _PICTURES:
        picture = _picture(shown.get(mime, shown.get(mime.partition("/")[2])))
        if picture is not None:
            notebook.lines.append(f"# output: {mime}, {len(picture):,} bytes")
            found = sniff(picture[:HEAD_BYTES])
            kind = found.mime if found and found.family == "image" else mime
            notebook.pictures.append(NotebookPicture(len(notebook.lines), kind, picture))


def _text_of(output: JsonObject, shown: JsonObject) -> str:
    if output.get("output_type") in {"error", "pyerr"}:
        # The colours of a traceback are for a terminal.
        trace = clean_text(_joined(output.get("traceback"), "\n"))[0]
        return trace or f"{_joined(output.get('ename'))}: {_joined(output.get('evalue'))}"
    for name in ("text", "text/plain", "text/markdown"):
        found = _joined(shown.get(name))
        if found:
            return found
    return ""


def _joined(value: JsonValue, between: str = "") -> str:
    """Put a text together that may be a list of its lines."""
    if isinstance(value, list):
        return between.join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _picture(value: JsonValue) -> bytes | None:
    try:
        return binascii.a2b_base64(_joined(value)) or None
    except ValueError:
        return None
