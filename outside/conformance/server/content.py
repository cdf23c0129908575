"""What the tools, resources and prompts hand out: the smallest of each kind."""

from __future__ import annotations

from mcp_types import AudioContent, CallToolResult, EmbeddedResource, ImageContent, TextContent, TextResourceContents

from outside.conformance.server.samples import PNG, WAV


def said(text: str) -> CallToolResult:
    """A result of one line."""
    return CallToolResult(content=[TextContent(text=text)])


def image() -> ImageContent:
    """A picture of one pixel."""
    return ImageContent(data=PNG, mime_type="image/png")


def audio() -> AudioContent:
    """A sound without a sample."""
    return AudioContent(data=WAV, mime_type="audio/wav")


def embedded(uri: str, kind: str, text: str) -> EmbeddedResource:
    """A resource inside of an answer."""
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=kind, text=text))
