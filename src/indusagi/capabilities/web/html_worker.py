"""The HTML converter, and the worker process that runs it. The process imports only this module and the converter."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from indusagi.capabilities.worker.limits import limit_ourselves
from indusagi.capabilities.worker.message import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

Style: TypeAlias = Literal["markdown", "plain"]
LONGEST_S: Final = 20
"""Time limit of a conversion in seconds; hostile pages of the largest size take two."""
_MEMORY: Final = 1024 * 1024 * 1024
_EXCLUDED: Final = ["nav", "script", "style", "noscript", "template", "iframe", "svg", "dialog"]


def convert(html: str, base_url: str, style: Style) -> tuple[str, bool]:
    """Convert a page in this thread; return the text, and whether deeply nested parts were dropped.

    Raises:
        ValueError: The converter refuses the page.
    """
    import html_to_markdown as converter  # noqa: PLC0415 — a large library, only for HTML

    options = converter.ConversionOptions(
        output_format=style,
        base_url=base_url,
        exclude_selectors=_EXCLUDED,
        inline_data_media="alt_text_only",
        extract_metadata=False,
        preprocessing=converter.PreprocessingOptions(remove_navigation=True, remove_forms=False),
    )
    try:
        result = converter.convert(html, options)
    except converter.ConversionError as exc:
        raise ValueError(str(exc)) from exc
    deep = any(str(warning.kind) == "depth_limit_exceeded" for warning in result.warnings)
    return result.content or "", deep


def encode_request(html: str, base_url: str, style: Style) -> list[bytes]:
    """Encode the request to the worker."""
    return packed({"base_url": base_url, "style": style}, [_encode_text(html)])


def decode_answer(pieces: Sequence[bytes]) -> tuple[str, bool]:
    """Decode the answer of the worker.

    Raises:
        ValueError: There is no answer, or the page was refused.
    """
    try:
        given, parts = unpacked(b"".join(pieces))
    except ValueError:
        raise ValueError("the converter gave up") from None
    if not parts:
        raise ValueError(given["refused"])
    return _decode_text(parts[0]), given["deep"] is True


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def main() -> int:
    """Run the worker: read one request from standard input, write one answer."""
    limit_ourselves(LONGEST_S, _MEMORY)
    given, (html,) = unpacked(sys.stdin.buffer.read())
    facts: dict[str, Any] = {**given}
    try:
        text, deep = convert(_decode_text(html), **facts)
        reply = packed({"deep": deep}, [_encode_text(text)])
    except ValueError as exc:
        reply = packed({"refused": str(exc)}, [])
    for piece in reply:
        sys.stdout.buffer.write(piece)
    return 0
