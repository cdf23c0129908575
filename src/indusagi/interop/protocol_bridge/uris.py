"""URIs of resources in a host that serves several servers.

Two servers may use the same URI. Therefore each server gets a prefix made from its configured id, followed by the
server's URI: `indus://github/repo://a/b`. A prefix ends at the first slash after the escaped id, so no prefix is the
beginning of another. The rest is the server's URI, which is never parsed.

Clients handle some schemes specially: `ui://` of MCP Apps
(https://modelcontextprotocol.io/specification/2026-07-28/extensions/apps) and `skill://`. Such a URI keeps its scheme,
with the id in front of its path: `ui://github/app/main.html` for `ui://app/main.html`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias
from urllib.parse import quote, unquote

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.text import matches_parts

Convert: TypeAlias = Callable[[str], str]
"""Converts a server's URI to the client's, or back."""

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
        """Return the client's URI for a resource of this server."""
        for prefix, own in self._prefixes[1:]:
            if uri.startswith(own):
                return prefix + uri[len(own) :]
        return self._prefixes[0][0] + uri

    def to_server(self, uri: str) -> str | None:
        """Return the server's URI, or `None` if the resource belongs to another server."""
        return next((own + uri[len(prefix) :] for prefix, own in self._prefixes if uri.startswith(prefix)), None)


def normalize_uri(uri: str) -> str:
    """Unescape a URI, for comparison: some clients add or resolve escapes."""
    return unquote(uri)


def matches_template(uri: str, template: str) -> bool:
    """Return whether a URI may result from a template, whose expressions match any text.

    https://www.rfc-editor.org/rfc/rfc6570
    """
    return matches_parts(uri, _EXPRESSION.split(template))


def convert_meta(meta: JsonValue, convert: Convert) -> JsonValue:
    """Convert the MCP Apps addresses in a `_meta`; everything else, including the content policy, stays."""
    if not is_json_object(meta):
        return meta
    ui, changed = meta.get(_UI), dict[str, JsonValue]()
    if is_json_object(ui) and isinstance(address := ui.get(_RESOURCE_URI), str):
        changed[_UI] = {**ui, _RESOURCE_URI: convert(address)}
    if isinstance(legacy := meta.get(_LEGACY_UI), str):
        changed[_LEGACY_UI] = convert(legacy)
    return {**meta, **changed} if changed else meta


def convert_row(row: JsonObject, convert: Convert) -> JsonObject:
    """Convert a listed item, a link or a resource's contents: URI or template, and `_meta`."""
    changed: JsonObject = {
        key: convert(value) for key in ("uri", "uriTemplate") if isinstance(value := row.get(key), str)
    }
    meta, files = row.get("_meta"), row.get("resources")
    converted = convert_meta(meta, convert)
    if converted is not meta:
        changed["_meta"] = converted
    if isinstance(files, list):  # of a skill
        changed["resources"] = _convert_rows(files, convert)
    return {**row, **changed} if changed else row


def _convert_rows(rows: Sequence[JsonValue], convert: Convert) -> list[JsonValue]:
    return [convert_row(row, convert) if is_json_object(row) else row for row in rows]


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
    for key in ("resources", "contents"):
        if isinstance(rows := result.get(key), list):
            changed[key] = _convert_rows(rows, convert)
    skill, messages = result.get("skill"), result.get("messages")
    if is_json_object(skill):
        changed["skill"] = convert_row(skill, convert)
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
    # Sampling messages of 2025-11-25 may contain several blocks.
    many = isinstance(content, list)
    return {**message, "content": convert_blocks(content, convert) if many else convert_block(content, convert)}
