"""The HTML converter. A worker process imports only this module and the library."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Style: TypeAlias = Literal["markdown", "plain"]
_EXCLUDED: Final = ["nav", "script", "style", "noscript", "template", "iframe", "svg", "dialog"]


def convert_html(html: str, base_url: str, style: Style) -> tuple[str, bool] | str:
    """Convert a page; return the text and whether deeply nested parts were dropped, or an error message."""
    import html_to_markdown as converter  # noqa: PLC0415 — a large library, only for HTML

    try:
        options = converter.ConversionOptions(
            output_format=style,
            base_url=base_url,
            exclude_selectors=_EXCLUDED,
            inline_data_media="alt_text_only",
            extract_metadata=False,
            preprocessing=converter.PreprocessingOptions(remove_navigation=True, remove_forms=False),
        )
        result = converter.convert(html, options)
    except (ValueError, converter.ConversionError) as exc:
        return str(exc)
    return result.content or "", any(str(warning.kind) == "depth_limit_exceeded" for warning in result.warnings)
