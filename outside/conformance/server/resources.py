"""The resources: what there is, and reading it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    EmptyResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SubscribeRequestParams,
    TextResourceContents,
    UnsubscribeRequestParams,
)

from outside.conformance.server import skills
from outside.conformance.server.samples import PNG

if TYPE_CHECKING:
    from outside.conformance.server.asking import Asked

_TEXTS = {
    "test://static-text": "This is the content of the static text resource.",
    "test://watched-resource": "This may be watched.",
}
_BINARY = "test://static-binary"
_TEMPLATE = "test://template/{id}/data"
_MADE = re.compile(r"test://template/(?P<id>[^/]+)/data")


async def list_resources(ctx: Asked, params: PaginatedRequestParams | None) -> ListResourcesResult:
    """List all but what the template makes."""
    texts = [Resource(uri=uri, name=uri, description="A text", mime_type="text/plain") for uri in _TEXTS]
    image = Resource(uri=_BINARY, name=_BINARY, description="An image", mime_type="image/png")
    return ListResourcesResult(resources=[*texts, image, *skills.listed()])


async def list_templates(ctx: Asked, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    """List the one template."""
    template = ResourceTemplate(
        uri_template=_TEMPLATE, name="data", description="The data of an id", mime_type="application/json"
    )
    return ListResourceTemplatesResult(resource_templates=[template])


async def read(ctx: Asked, params: ReadResourceRequestParams) -> ReadResourceResult:
    """Read one.

    Raises:
        MCPError: There is none of that name.
    """
    uri = params.uri
    if uri in _TEXTS:
        return _text(uri, "text/plain", _TEXTS[uri])
    if (skill := skills.find_text(uri)) is not None:
        return _text(uri, "text/markdown", skill)
    if uri == _BINARY:
        blob = BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
        return ReadResourceResult(contents=[blob])
    if made := _MADE.fullmatch(uri):
        data = {"id": made["id"], "templateTest": True, "data": f"Data for ID: {made['id']}"}
        return _text(uri, "application/json", json.dumps(data))
    raise MCPError(INVALID_PARAMS, "Resource not found", {"uri": uri})


async def subscribe(ctx: Asked, params: SubscribeRequestParams) -> EmptyResult:
    """Agree: nothing here changes, so there is nothing to remember."""
    return EmptyResult()


async def unsubscribe(ctx: Asked, params: UnsubscribeRequestParams) -> EmptyResult:
    """Agree."""
    return EmptyResult()


def _text(uri: str, kind: str, text: str) -> ReadResourceResult:
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=kind, text=text)])
