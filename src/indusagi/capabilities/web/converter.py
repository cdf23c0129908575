"""The conversion of a page, the process that does it, and what goes between it and us."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from indusagi.capabilities.worker.limits import limit_ourselves
from indusagi.capabilities.worker.message import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

Style: TypeAlias = Literal["markdown", "plain"]
LONGEST_S: Final = 20
"""How long a conversion may take; hostile pages of the largest size need two."""
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


def request(html: str, base_url: str, style: Style) -> list[bytes]:
    """Write what the process is to do."""
    return packed({"base_url": base_url, "style": style}, [_encoded(html)])


def answer(pieces: Sequence[bytes]) -> tuple[str, bool]:
    """Read what the process has written.

    Raises:
        ValueError: There is no answer, or the page was not taken.
    """
    try:
        given, parts = unpacked(b"".join(pieces))
    except ValueError:
        raise ValueError("the converter gave up") from None
    if not parts:
        raise ValueError(given["refused"])
    return _decoded(parts[0]), given["deep"] is True


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def main() -> int:
    """Answer the one request on standard input: what the process is for."""
    limit_ourselves(LONGEST_S, _MEMORY)
    given, (html,) = unpacked(sys.stdin.buffer.read())
    facts: dict[str, Any] = {**given}
    try:
        text, deep = convert(_decoded(html), **facts)
        reply = packed({"deep": deep}, [_encoded(text)])
    except ValueError as exc:
        reply = packed({"refused": str(exc)}, [])
    for piece in reply:
        sys.stdout.buffer.write(piece)
    return 0
