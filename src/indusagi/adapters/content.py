"""Results as models receive them: text, plus images and documents."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.runtime.contract import TextContentBlock, ToolResult

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
DOCUMENT_TYPES = frozenset({"application/pdf"})
_MAX_ATTACHMENT_BYTES = 20 * 1024 * 1024
"""Every provider rejects larger requests."""


@record
class Attachment:
    """An image or document in a result or next to a prompt."""

    data: bytes
    media_type: str

    @property
    def is_image(self) -> bool:
        """Whether it's an image rather than a document."""
        return self.media_type in IMAGE_TYPES

    @property
    def file_name(self) -> str:
        """File name for libraries that want one."""
        return f"attachment.{self.media_type.rpartition('/')[2]}"

    def encode(self) -> str:
        """Return the data as base64."""
        return base64.b64encode(self.data).decode("ascii")

    def to_data_url(self) -> str:
        """Return the data as a URL: https://www.rfc-editor.org/rfc/rfc2397."""
        return f"data:{self.media_type};base64,{self.encode()}"


@record
class ModelContent:
    """A result as the model receives it. Errors are text only: no provider accepts images with an error mark."""

    text: str
    attachments: Sequence[Attachment] = ()
    is_error: bool = False

    @property
    def marked_text(self) -> str:
        """Text for an API without an error mark: a failure starts with `Error:`."""
        return f"Error: {self.text}" if self.is_error else self.text


def to_model_content(result: ToolResult) -> ModelContent:
    """Convert a result to text and attachments; the text mentions content that no model accepts."""
    texts: list[str] = []
    attachments: list[Attachment] = []
    for block in result.content:
        part = block.text if isinstance(block, TextContentBlock) else _convert_value(block.value)
        if isinstance(part, Attachment):
            attachments.append(part)
        elif isinstance(part, str):
            texts.append(part)
        else:
            texts.append(part[0])
            attachments.append(part[1])
    if not result.content and result.structured is not None:
        texts.append(compact_json(result.structured))
    if result.is_error and attachments:
        texts.append(f"[left out of a failed answer: {', '.join(file.media_type for file in attachments)}]")
        attachments = []
    return ModelContent("\n".join(texts), tuple(attachments), result.is_error)


def _convert_value(value: JsonValue) -> str | Attachment | tuple[str, Attachment]:
    """Convert an MCP content block (https://modelcontextprotocol.io/specification/2025-06-18/server/tools#tool-result)."""
    if is_json_object(value):
        if value.get("type") in ("image", "audio"):
            return _decode_media(value, str(value.get("type")), value.get("data"))
        resource = value.get("resource")
        if value.get("type") == "resource" and is_json_object(resource):
            uri, text = resource.get("uri"), resource.get("text")
            if isinstance(text, str):
                return f"[resource {uri}]\n{text}"
            if "blob" not in resource:
                return compact_json(resource)
            part = _decode_media(resource, "resource", resource.get("blob"))
            return part if isinstance(part, str) else (f"[resource {uri}: attached]", part)
    return compact_json(value)


def _decode_media(block: JsonObject, kind: str, encoded: JsonValue) -> str | Attachment:
    media_type = str(block.get("mimeType") or "application/octet-stream").partition(";")[0].strip()
    name = f"{kind} {block['uri']}" if "uri" in block else kind
    try:
        data = base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else None
    except (binascii.Error, ValueError):
        data = None
    if data is None:
        return f"[{name}: left out, its content is not valid base64]"
    if media_type not in IMAGE_TYPES | DOCUMENT_TYPES or len(data) > _MAX_ATTACHMENT_BYTES:
        return f"[{name}: {media_type}, {len(data):,} bytes, left out: no model takes it]"
    return Attachment(data, media_type)
