"""Printing and saving of a tool's outcome by `indus call`.

Texts and embedded text resources are printed. Images, audio and other data are summarised in one line, and written to
files when a directory is given.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import os
import re
import sys
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object
from indusagi.core.text import cut_text
from induscode.cli.terminal import print_line, print_status, print_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolContentBlock, ToolOutcome

_LONGEST_LINE = 500
_MOST_NAMES = 10_000
"""Names that are tried for a saved file."""
# Media types that the table of Python 3.11 lacks, or has only where the system adds to it.
_SUFFIXES = {
    "application/yaml": ".yaml",
    "application/x-yaml": ".yaml",
    "audio/flac": ".flac",
    "audio/mp4": ".m4a",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "audio/webm": ".weba",
    "image/jpg": ".jpg",
    "image/webp": ".webp",
    "text/markdown": ".md",
}


def to_json(outcome: ToolOutcome) -> JsonObject:
    """Convert an outcome to one JSON value."""
    content: list[JsonValue] = []
    for block in outcome.content:
        if block.kind == "text":
            content.append({**(block.extra or {}), "type": "text", "text": block.text})
        else:
            content.append(block.value)
    return {
        "isError": outcome.is_error,
        "content": content,
        "structured": outcome.structured,
        "details": dict(outcome.details),
    }


def print_blocks(blocks: Sequence[ToolContentBlock], *, raw: bool) -> None:
    """Print blocks: texts unchanged if `raw`, else safe for a terminal; data in one line each.

    Unchanged texts, also those of resources, have nothing before and after them but the end of a line between two.
    """
    is_open = False
    """Whether the last text ended without the end of its line."""
    for block in blocks:
        text = block.text if block.kind == "text" else _get_resource(block.value).get("text")
        if is_open:
            print_line("")
        is_open = raw and isinstance(text, str) and not text.endswith("\n")
        if block.kind != "text" and not (raw and isinstance(text, str)):
            print_line(summarize_block(block.value))
        if isinstance(text, str):
            sys.stdout.write(text) if raw else print_text(text)


def format_block(block: ToolContentBlock) -> str:
    """Return the text of a block, or one line about its data."""
    return block.text if block.kind == "text" else summarize_block(block.value)


def summarize_block(value: JsonValue) -> str:
    """Summarise a block that is not text in one line."""
    kind = value.get("type") if is_json_object(value) else None
    if not isinstance(kind, str):
        return compact_json(value)
    facts = _get_resource(value)
    parts = [kind, *(str(facts[key]) for key in ("uri", "mimeType") if facts.get(key))]
    data = _get_base64(facts)
    if data is not None:
        parts.append(f"{len(data) * 3 // 4 - data[-2:].count('='):,} bytes")
    text = facts.get("text")
    if isinstance(text, str):
        parts.append(f"{len(text):,} characters")
    return cut_text(f"[{', '.join(parts)}]", _LONGEST_LINE)


def save_blocks(blocks: Sequence[ToolContentBlock], directory: str, tool: str) -> list[str]:
    """Write the data of every image, audio and resource block to a new file in a directory.

    A file name is made of the tool's name and a number, without any text of the server. No file is replaced.

    Raises:
        OSError: The directory cannot be created, or a file cannot be written.
    """
    os.makedirs(directory, exist_ok=True)
    paths: list[str] = []
    for block in blocks:
        if block.kind == "text":
            continue
        facts = _get_resource(block.value)
        content = _decode(facts)
        if content is None:
            continue
        mime = facts.get("mimeType")
        # RFC 9110 §8.3.1: parameters follow a semicolon, and the case does not matter.
        kind = mime.partition(";")[0].strip().lower() if isinstance(mime, str) else ""
        unknown = ".txt" if isinstance(facts.get("text"), str) else ".bin"
        suffix = _SUFFIXES.get(kind) or mimetypes.guess_extension(kind) or unknown
        paths.append(_write_new(directory, re.sub(r"[^A-Za-z0-9_-]", "_", tool), suffix, content))
    return paths


def _get_resource(value: JsonValue) -> JsonObject:
    """Return the resource of an embedded block, else the block itself."""
    if not is_json_object(value):
        return {}
    inner = value.get("resource")
    return inner if is_json_object(inner) else value


def _get_base64(facts: JsonObject) -> str | None:
    data = facts.get("data", facts.get("blob"))
    return data if isinstance(data, str) else None


def _decode(facts: JsonObject) -> bytes | None:
    data, text = _get_base64(facts), facts.get("text")
    if data is None:
        return text.encode("utf-8", "replace") if isinstance(text, str) else None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        print_status("a block was not saved: its data is not valid base64")
        return None


def _write_new(directory: str, name: str, suffix: str, content: bytes) -> str:
    for number in range(1, _MOST_NAMES):
        path = os.path.join(directory, f"{name}-{number}{suffix}")
        try:
            with open(path, "xb") as file:
                file.write(content)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(17, "too many saved files", directory)
