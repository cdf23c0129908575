"""Parses an editor's request parameters (directories, servers, prompts) before anything is opened.

Content blocks: https://agentclientprotocol.com/protocol/content. Servers:
https://agentclientprotocol.com/protocol/session-setup#mcp-servers.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from indusagi.adapters.calls import IMAGE_TYPES, Attachment
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject, JsonValue

_TRANSPORTS = ("http", "sse")


@record
class EditorPrompt:
    """An editor's prompt as the model receives it."""

    text: str
    attachments: Sequence[Attachment] = ()


def invalid(message: str) -> RpcError:
    """Build the error for an unusable parameter."""
    return RpcError(INVALID_PARAMS, message)


def get_text(params: JsonObject, name: str) -> str:
    """Return a non-empty string parameter; `RpcError` if it's missing."""
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(f"{name} must be a text, and not empty")
    return value


def parse_cwd(params: JsonObject) -> str:
    """Return the real path of the working directory; `RpcError` unless it's absolute and can be entered. Blocks."""
    path = get_text(params, "cwd")
    if not os.path.isabs(path):
        raise invalid(f"cwd must be an absolute path, not {path!r}")
    try:
        os.stat(os.path.join(path, "."))
        return os.path.realpath(path)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise invalid(f"the working directory {path!r} cannot be used: {reason}") from exc


def parse_servers(value: JsonValue) -> dict[str, JsonObject]:
    """Parse `mcpServers` into configuration rows by name.

    Raises:
        RpcError: A server is invalid, or a name occurs twice.
    """
    if not value:  # editors written in Lua send an empty array as an empty object
        return {}
    if not isinstance(value, list):
        raise invalid("mcpServers must be an array")
    rows: dict[str, JsonObject] = {}
    for server in value:
        if not is_json_object(server):
            raise invalid("a server in mcpServers must be an object")
        name = get_text(server, "name")
        if name in rows:
            raise invalid(f"mcpServers has two servers {name!r}")
        kind = server.get("type", "stdio")
        if kind in _TRANSPORTS:
            headers = _parse_pairs(server.get("headers"), f"headers of server {name!r}")
            rows[name] = {"type": kind, "url": get_text(server, "url"), "headers": headers}
        elif kind == "stdio":
            arguments = server.get("args") or []
            if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
                raise invalid(f"args of server {name!r} must be an array of texts")
            env = _parse_pairs(server.get("env"), f"env of server {name!r}")
            rows[name] = {"type": "stdio", "command": get_text(server, "command"), "args": arguments, "env": env}
        else:
            raise invalid(f"server {name!r} has the transport {kind!r}; stdio, http and sse are supported")
    return rows


def _parse_pairs(value: JsonValue, owner: str) -> JsonObject:
    """Parse an array of `{name, value}` objects."""
    pairs: JsonObject = {}
    for pair in value if isinstance(value, list) else ():
        if not is_json_object(pair) or not isinstance(pair.get("value"), str):
            raise invalid(f"{owner}: each must have a name and a value")
        pairs[get_text(pair, "name")] = pair["value"]
    return pairs


def parse_prompt(value: JsonValue) -> EditorPrompt:
    """Parse a prompt's content blocks: text, resource links, embedded resources and images.

    Raises:
        RpcError: A block is invalid, or of a kind that `initialize` doesn't offer.
    """
    if not isinstance(value, list) or not value:
        raise invalid("prompt must be an array of content blocks, and not empty")
    texts: list[str] = []
    attachments: list[Attachment] = []
    for block in value:
        if not is_json_object(block):
            raise invalid("a content block must be an object")
        part = _parse_block(block)
        if isinstance(part, Attachment):
            attachments.append(part)
        else:
            texts.append(part)
    return EditorPrompt("".join(texts).strip() or "See the attached image.", tuple(attachments))


def _parse_block(block: JsonObject) -> str | Attachment:
    kind = block.get("type")
    if kind == "text":
        text = block.get("text")
        if not isinstance(text, str):
            raise invalid("a text block must have a text")
        return text
    if kind == "image":
        return _decode_image(block.get("mimeType"), block.get("data"))
    if kind == "resource_link":
        uri = get_text(block, "uri")
        return f" {name_resource(uri)} "
    resource = block.get("resource")
    if kind == "resource" and is_json_object(resource):
        uri = get_text(resource, "uri")
        text = resource.get("text")
        if isinstance(text, str):
            # Like `@path` attaches files: the text between tags that carry the name.
            return f"\n\n<resource uri={name_resource(uri)!r}>\n{text}\n</resource>\n\n"
        return _decode_image(resource.get("mimeType"), resource.get("blob"))
    raise invalid(f"content of type {kind!r} is not supported: text, image, resource and resource_link are")


def _decode_image(media_type: JsonValue, data: JsonValue) -> Attachment:
    if not isinstance(media_type, str) or media_type not in IMAGE_TYPES:
        raise invalid(f"a file of type {media_type!r} is not supported: {', '.join(sorted(IMAGE_TYPES))} are")
    try:
        return Attachment(base64.b64decode(str(data), validate=True), media_type)
    except (binascii.Error, ValueError) as exc:
        raise invalid(f"the data of an image is not base64: {exc}") from exc


def name_resource(uri: str) -> str:
    """Name a resource for the model: files by path, anything else by URI."""
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        return uri
    # Editors put the lines of a selection in the fragment, e.g. `#L10:20`.
    return unquote(parts.path) + (f"#{parts.fragment}" if parts.fragment else "")
