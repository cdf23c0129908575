"""URIs of a server's resources in a host that serves several servers.

Two servers may have resources of one URI. Each server therefore has a prefix of its own, made from its configured id,
and a URI of it is the prefix followed by the URI that the server uses: `indus://github/repo://a/b`. A prefix ends in
the first slash after the escaped id, so that none begins another, and the server's own URI is what follows: it is
looked up by the prefix and never taken apart.

Clients treat some schemes in a way of their own: `ui://` of MCP Apps
(https://modelcontextprotocol.io/specification/2026-07-28/extensions/apps) and `skill://`. Such a URI keeps its scheme,
and the id comes before its path: `ui://github/app/main.html` for `ui://app/main.html`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias
from urllib.parse import quote, unquote

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.text import matches_parts

Convert: TypeAlias = Callable[[str], str]
"""Turns the URI that a server uses into the one that clients see, or back."""

SCHEME = "indus"
KEPT_SCHEMES = ("ui", "skill")
_UI = "ui"
_LEGACY_UI = "ui/resourceUri"
_RESOURCE_URI = "resourceUri"
_EXPRESSION = re.compile(r"\{[^{}]*\}")


class UriMap:
    """The URIs of one server, in both directions."""

    def __init__(self, server: str) -> None:
        self.server = server
        authority = quote(server, safe="")
        self._prefixes = [(f"{SCHEME}://{authority}/", "")]
        self._prefixes += [(f"{scheme}://{authority}/", f"{scheme}://") for scheme in KEPT_SCHEMES]

    def to_host(self, uri: str) -> str:
        """Return the URI under which clients see a resource of this server."""
        for prefix, own in self._prefixes[1:]:
            if uri.startswith(own):
                return prefix + uri[len(own) :]
        return self._prefixes[0][0] + uri

    def to_server(self, uri: str) -> str | None:
        """Return the server's own URI; `None` if the resource is another server's."""
        return next((own + uri[len(prefix) :] for prefix, own in self._prefixes if uri.startswith(prefix)), None)


def normalize_uri(uri: str) -> str:
    """Return a form that is equal for URIs that differ in escapes alone, which some clients add or resolve."""
    return unquote(uri)


def matches_template(uri: str, template: str) -> bool:
    """Tell whether a URI may have been made from a template, whose expressions stand for any text.

    https://www.rfc-editor.org/rfc/rfc6570
    """
    return matches_parts(uri, _EXPRESSION.split(template))


def convert_meta(meta: JsonValue, convert: Convert) -> JsonValue:
    """Convert the addresses of MCP Apps in a `_meta`; everything else, the content policy included, stays."""
    if not is_json_object(meta):
        return meta
    ui, changed = meta.get(_UI), dict[str, JsonValue]()
    if is_json_object(ui) and isinstance(address := ui.get(_RESOURCE_URI), str):
        changed[_UI] = {**ui, _RESOURCE_URI: convert(address)}
    if isinstance(legacy := meta.get(_LEGACY_UI), str):
        changed[_LEGACY_UI] = convert(legacy)
    return {**meta, **changed} if changed else meta


def convert_row(row: JsonObject, convert: Convert) -> JsonObject:
    """Convert a listed item, a link or the contents of a resource: its URI or template, and its `_meta`."""
    changed: JsonObject = {
        key: convert(value) for key in ("uri", "uriTemplate") if isinstance(value := row.get(key), str)
    }
    meta, files = row.get("_meta"), row.get("resources")
    converted = convert_meta(meta, convert)
    if converted is not meta:
        changed["_meta"] = converted
    if isinstance(files, list):  # of a skill
        changed["resources"] = [convert_row(file, convert) if is_json_object(file) else file for file in files]
    return {**row, **changed} if changed else row


def convert_block(block: JsonValue, convert: Convert) -> JsonValue:
    """Convert one content block: a link, an embedded resource, or the content of a nested result."""
    if not is_json_object(block):
        return block
    kind, resource, content = block.get("type"), block.get("resource"), block.get("content")
    if kind == "resource_link":
        return convert_row(block, convert)
    if kind == "resource" and is_json_object(resource):
        return {**block, "resource": convert_row(resource, convert)}
    if kind == "tool_result" and isinstance(content, list):
        return {**block, "content": convert_blocks(content, convert)}
    return block


def convert_blocks(blocks: Sequence[JsonValue], convert: Convert) -> list[JsonValue]:
    """Convert several content blocks."""
    return [convert_block(block, convert) for block in blocks]


def convert_result(result: JsonObject, convert: Convert) -> JsonObject:
    """Convert a result of `resources/read`, `prompts/get`, `skills/get` or `resources/directory/read`."""
    changed: JsonObject = {}
    contents, messages, skill, rows = (result.get(key) for key in ("contents", "messages", "skill", "resources"))
    if isinstance(rows, list):
        changed["resources"] = [convert_row(row, convert) if is_json_object(row) else row for row in rows]
    if is_json_object(skill):
        changed["skill"] = convert_row(skill, convert)
    if isinstance(contents, list):
        changed["contents"] = [convert_row(row, convert) if is_json_object(row) else row for row in contents]
    if isinstance(messages, list):
        changed["messages"] = [_convert_message(message, convert) for message in messages]
    meta = result.get("_meta")
    converted = convert_meta(meta, convert)
    if converted is not meta:
        changed["_meta"] = converted
    return {**result, **changed} if changed else result


def _convert_message(message: JsonValue, convert: Convert) -> JsonValue:
    content = message.get("content") if is_json_object(message) else None
    if not is_json_object(message) or content is None:
        return message
    # Sampling messages of 2025-11-25 may hold several blocks.
    many = isinstance(content, list)
    return {**message, "content": convert_blocks(content, convert) if many else convert_block(content, convert)}
