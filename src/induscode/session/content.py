"""The answer of a tool as a model gets it: text, and what is not text beside it."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object
from indusagi.runtime.content import TextContentBlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.content import ToolContentBlock
    from indusagi.runtime.contract import ToolResult

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
DOCUMENTS = frozenset({"application/pdf"})
_LARGEST_BYTES = 20 * 1024 * 1024
"""Larger requests are refused by every provider."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """Something that is not text."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class ForModel:
    """An answer, ready to be put into a request."""

    text: str
    attachments: Sequence[Attachment] = ()


def for_model(result: ToolResult) -> ForModel:
    """Turn an answer into what a model can take; what it cannot take is named in the text."""
    texts: list[str] = []
    attachments: list[Attachment] = []
    for block in result.content:
        text, attachment = _block(block)
        if text is not None:
            texts.append(text)
        if attachment is not None:
            attachments.append(attachment)
    if not result.content and result.structured is not None:
        texts.append(compact_json(result.structured))
    return ForModel("\n".join(texts), tuple(attachments))


def _block(block: ToolContentBlock) -> tuple[str | None, Attachment | None]:
    if isinstance(block, TextContentBlock):
        return block.text, None
    value = block.value
    if is_json_object(value):
        if value.get("type") in {"image", "audio"}:
            return _media(value, str(value.get("type")), value.get("data"))
        resource = value.get("resource")
        if value.get("type") == "resource" and is_json_object(resource):
            return _resource(resource)
    return compact_json(value), None


def _resource(resource: JsonObject) -> tuple[str | None, Attachment | None]:
    uri = resource.get("uri")
    text = resource.get("text")
    if isinstance(text, str):
        return f"[resource {uri}]\n{text}", None
    if "blob" in resource:
        said, attachment = _media(resource, "resource", resource.get("blob"))
        return (said if attachment is None else f"[resource {uri}: attached]"), attachment
    return compact_json(resource), None


def _media(owner: JsonObject, what: str, encoded: JsonValue) -> tuple[str | None, Attachment | None]:
    media_type = str(owner.get("mimeType") or "application/octet-stream").partition(";")[0].strip()
    named = f"{what} {owner['uri']}" if "uri" in owner else what
    data = _decoded(encoded)
    if data is None:
        return f"[{named}: left out, its content is not valid base64]", None
    if media_type not in PICTURES | DOCUMENTS or len(data) > _LARGEST_BYTES:
        return f"[{named}: {media_type}, {len(data):,} bytes, left out: no model takes it]", None
    return None, Attachment(data, media_type)


def _decoded(encoded: JsonValue) -> bytes | None:
    if not isinstance(encoded, str):
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
