"""Prints and saves the outcome of `indus call`.

Prints text and embedded text resources. Summarizes images, audio and other data in one line, and saves them to files
with `--save`.
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

_MAX_LINE = 500
_MAX_FILES = 10_000
# Media types missing from Python 3.11's table, or only there on some systems.
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
    content: list[JsonValue] = [
        {**(block.extra or {}), "type": "text", "text": block.text} if block.kind == "text" else block.value
        for block in outcome.content
    ]
    return {
        "isError": outcome.is_error,
        "content": content,
        "structured": outcome.structured,
        "details": dict(outcome.details),
    }


def print_blocks(blocks: Sequence[ToolContentBlock], *, raw: bool) -> None:
    """Print blocks: text unchanged if `raw`, else made safe for a terminal; data in one line each.

    With `raw`, nothing surrounds the texts (including text resources), except a newline between two if needed.
    """
    is_open = False  # whether the last text lacks a final newline
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
    """Return a block's text, or a one-line summary of its data."""
    return block.text if block.kind == "text" else summarize_block(block.value)


def summarize_block(value: JsonValue) -> str:
    """Summarize a non-text block in one line."""
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
    return cut_text(f"[{', '.join(parts)}]", _MAX_LINE)


def save_blocks(blocks: Sequence[ToolContentBlock], directory: str, tool: str) -> list[str]:
    """Write the data of every image, audio and resource block to a new file in a directory.

    File names consist of the tool's name and a number, nothing from the server. We never overwrite a file.

    Raises:
        OSError: We can't create the directory or write a file.
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
        # RFC 9110 §8.3.1: parameters follow a semicolon, and case doesn't matter.
        kind = mime.partition(";")[0].strip().lower() if isinstance(mime, str) else ""
        unknown = ".txt" if isinstance(facts.get("text"), str) else ".bin"
        suffix = _SUFFIXES.get(kind) or mimetypes.guess_extension(kind) or unknown
        paths.append(_write_new(directory, re.sub(r"[^A-Za-z0-9_-]", "_", tool), suffix, content))
    return paths


def _get_resource(value: JsonValue) -> JsonObject:
    """Return the resource embedded in a block, or else the block itself."""
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
    for number in range(1, _MAX_FILES):
        path = os.path.join(directory, f"{name}-{number}{suffix}")
        try:
            with open(path, "xb") as file:
                file.write(content)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(17, "too many saved files", directory)
