"""The conversion of a page, and the process that does it: `python -I converter.py <library>`.

Only the standard library is loaded here, so that the process starts quickly wherever this file is.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final, Literal, TypeAlias, cast

Style: TypeAlias = Literal["markdown", "plain"]
LONGEST_S: Final = 20
"""How long a conversion may take; hostile pages of the largest size need two."""
SIZE: Final = 8
"""Bytes in front of a message that tell how long it is."""
_MEMORY: Final = 1024 * 1024 * 1024
_EXCLUDED: Final = ["nav", "script", "style", "noscript", "template", "iframe", "svg", "dialog"]


def convert(html: str, base_url: str, style: Style) -> tuple[str, bool]:
    """Convert a page in this thread: the text, and whether parts were left out for lying too deep.

    Raises:
        ValueError: The converter does not take it.
    """
    import html_to_markdown as converter  # noqa: PLC0415 — a large library, for pages alone

    options = converter.ConversionOptions(
        output_format=style,
        base_url=base_url,
        exclude_selectors=_EXCLUDED,
        inline_data_media="alt_text_only",
        extract_metadata=False,
        preprocessing=converter.PreprocessingOptions(remove_navigation=True, remove_forms=False),
    )
    try:
        found = converter.convert(html, options)
    except converter.ConversionError as exc:
        raise ValueError(str(exc)) from exc
    deep = any(str(warning.kind) == "depth_limit_exceeded" for warning in found.warnings)
    return found.content or "", deep


def packed(facts: list[str | bool], text: str) -> bytes:
    """Write a few facts in a line of JSON and the text behind it, the size of all in front."""
    data = f"{json.dumps(facts)}\n{text}".encode("utf-8", "surrogatepass")
    return len(data).to_bytes(SIZE, "big") + data


def unpacked(data: bytes) -> tuple[list[Any], str]:
    """Read what `packed` wrote, without the size.

    Raises:
        ValueError: It is something else.
    """
    facts, _, text = data.partition(b"\n")
    return cast("list[Any]", json.loads(facts)), text.decode("utf-8", "surrogatepass")


def serve() -> None:
    """Answer one request on standard input: what the process is for."""
    size = int.from_bytes(sys.stdin.buffer.read(SIZE), "big")
    (base_url, style), html = unpacked(sys.stdin.buffer.read(size))
    try:
        text, deep = convert(html, base_url, style)
        answer = packed(["done", deep], text)
    except ValueError as exc:
        answer = packed(["refused", str(exc)], "")
    sys.stdout.buffer.write(answer)


def confine() -> None:
    """Set limits of time and memory for this process; where there is no such limit, go without."""
    import resource  # noqa: PLC0415 — for the process alone

    for limit, most in ((resource.RLIMIT_CPU, LONGEST_S), (resource.RLIMIT_AS, _MEMORY)):
        try:
            resource.setrlimit(limit, (most, most))
        except (OSError, ValueError):
            continue


if __name__ == "__main__":  # pragma: no cover — in a process that is not measured
    # Behind what is installed beside the interpreter: for when the library is somewhere else.
    sys.path.append(sys.argv[1])
    confine()
    serve()
