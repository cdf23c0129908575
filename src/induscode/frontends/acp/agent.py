"""Agent side of the Agent Client Protocol: one connection to an editor, any number of concurrent sessions.

https://agentclientprotocol.com/protocol/overview. Each session runs in its own task. When the editor's input ends,
every session closes, and with it every process it started.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import anyio
from anyio import to_thread

from indusagi import __version__
from indusagi.adapters.calls import IMAGE_TYPES, Attachment
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.interop.protocol_bridge.host.stdio import StdioHostTransport
from indusagi.interop.protocol_bridge.rpc.connection import (
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Cancellation,
    JsonRpcConnection,
    RpcError,
)
from induscode.frontends.acp.session import EditorPrompt, EditorSession, invalid, to_rpc_error
from induscode.frontends.acp.updates import list_sessions
from induscode.launch.invocation import Invocation

if TYPE_CHECKING:
    from anyio.abc import TaskGroup


PROTOCOL_VERSION = 1
INVALID_REQUEST = -32600
ACP_CANCELLATION = Cancellation(method="$/cancel_request", facts={}, code=-32800)
"""https://agentclientprotocol.com/protocol/cancellation"""
_MAX_REQUESTS = 256
"""Limit for concurrent requests: one prompt per session, and more."""
_KEYS = (
    "indus needs no sign-in: it takes the key of a model from `indus models login`, or from ANTHROPIC_API_KEY or "
    "OPENAI_API_KEY in the environment of the editor"
)


async def serve_editor(
    transport: StdioHostTransport,
    build_invocation: Callable[[str], Invocation],
    *,
    cancel: CancelToken,
    on_closing: Callable[[], None],
) -> None:
    """Serve an editor until its input ends or `cancel` is cancelled, then close every session.

    `build_invocation` returns the invocation for a working directory; it may block, and raises `ValueError`.
    `on_closing` runs before the sessions close.
    """
    async with anyio.create_task_group() as tasks:
        agent = AcpAgent(transport, build_invocation, tasks)
        with cancel.guard():
            await transport.read_file()
            await transport.input_ended.wait()
        on_closing()
        # Don't cancel the group: every part a session opened has to close within its deadline.
        await agent.aclose()


class AcpAgent:
    """Answers the requests of one editor."""

    def __init__(
        self, transport: StdioHostTransport, build_invocation: Callable[[str], Invocation], tasks: TaskGroup
    ) -> None:
        self._transport = transport
        self._build_invocation = build_invocation
        self._tasks = tasks
        self._capabilities: JsonObject | None = None
        self._sessions: dict[str, EditorSession] = {}
        self._opening: set[EditorSession] = set()
        self._handlers: Mapping[str, Callable[[JsonObject], Awaitable[JsonObject]]] = {
            "authenticate": self._authenticate,
            "session/new": self._open_new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/close": self._close,
            "session/prompt": self._prompt,
            "session/set_mode": self._set_mode,
        }
        self._connection = JsonRpcConnection(
            transport,
            on_request=self._handle_request,
            on_notify=self._handle_notification,
            inbound=_MAX_REQUESTS,
            on_invalid_frame=self._refuse_frame,
            cancellation=ACP_CANCELLATION,
        )

    async def aclose(self) -> None:
        """Close all sessions and wait for them; pending requests get no response."""
        sessions = {*self._sessions.values(), *self._opening}
        for session in sessions:
            session.close()
        for session in sessions:
            await session.ended.wait()
        await self._connection.close()

    async def _handle_request(self, method: str, params: JsonObject) -> JsonObject:
        if method == "initialize":
            return self._initialize(params)
        handler = self._handlers.get(method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"{method} is not supported")
        if self._capabilities is None:
            raise RpcError(INVALID_REQUEST, f"{method} came before initialize")
        return await handler(params)

    def _handle_notification(self, method: str, params: JsonObject) -> None:
        session = self._sessions.get(str(params.get("sessionId")))
        if method == "session/cancel" and session is not None:
            session.cancel()

    def _refuse_frame(self, _: bytes) -> None:
        error: JsonObject = {"code": PARSE_ERROR, "message": "the line is not a JSON-RPC message"}
        self._transport.send({"jsonrpc": "2.0", "id": None, "error": error})

    def _initialize(self, params: JsonObject) -> JsonObject:
        """Answer with version and capabilities: https://agentclientprotocol.com/protocol/initialization."""
        if not isinstance(params.get("protocolVersion"), int):
            raise invalid("protocolVersion must be a number")
        capabilities = params.get("clientCapabilities")
        self._capabilities = capabilities if is_json_object(capabilities) else {}
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": True},
                "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
            },
            "authMethods": [],
            "agentInfo": {"name": "indus", "title": "indus", "version": __version__},
        }

    async def _authenticate(self, params: JsonObject) -> JsonObject:
        raise invalid(f"there is no way to sign in {params.get('methodId')!r}: {_KEYS}")

    async def _open_new(self, params: JsonObject) -> JsonObject:
        session = await self._open(params, None)
        return {"sessionId": session.id, "modes": session.modes.describe()}

    async def _load(self, params: JsonObject) -> JsonObject:
        session = await self._open(params, get_text(params, "sessionId"))
        session.replay()
        return {"modes": session.modes.describe()}

    async def _resume(self, params: JsonObject) -> JsonObject:
        session = await self._open(params, get_text(params, "sessionId"))
        return {"modes": session.modes.describe()}

    async def _open(self, params: JsonObject, resume: str | None) -> EditorSession:
        cwd = await to_thread.run_sync(parse_cwd, params)
        servers = parse_servers(params.get("mcpServers"))
        try:
            invocation = await to_thread.run_sync(self._build_invocation, cwd)
        except ValueError as exc:
            raise invalid(str(exc)) from exc
        invocation = replace(invocation, cwd=cwd, prompt=None, resume=resume, given_servers=servers)
        if resume in self._sessions:  # an editor that reopens a session lost its display
            await self._end(self._sessions[str(resume)])
        elicitation = (self._capabilities or {}).get("elicitation")
        takes_text = is_json_object(elicitation) and elicitation.get("form") is not None
        session = EditorSession(invocation, self._connection, self._transport.writable, takes_text=takes_text)
        self._opening.add(session)
        try:
            self._tasks.start_soon(session.run)
            await session.opened
            self._sessions[session.id] = session
            # Announce after the response, which is sent in this loop iteration: editors drop updates of sessions whose
            # id they haven't received.
            asyncio.get_running_loop().call_soon(session.announce)
        except BaseException:
            session.close()
            raise
        finally:
            self._opening.discard(session)
        return session

    async def _close(self, params: JsonObject) -> JsonObject:
        await self._end(self._find(params))
        return {}

    async def _end(self, session: EditorSession) -> None:
        session.close()
        await session.ended.wait()
        self._sessions.pop(session.id, None)

    async def _list(self, params: JsonObject) -> JsonObject:
        cwd = await to_thread.run_sync(parse_cwd, params) if params.get("cwd") is not None else None
        try:
            return {"sessions": await to_thread.run_sync(list_sessions, cwd)}
        except OSError as exc:
            raise to_rpc_error(exc) from exc

    async def _prompt(self, params: JsonObject) -> JsonObject:
        session = self._find(params)
        return await session.prompt(parse_prompt(params.get("prompt")))

    async def _set_mode(self, params: JsonObject) -> JsonObject:
        session = self._find(params)
        session.modes.change(get_text(params, "modeId"))
        session.updates.send_mode()
        return {}

    def _find(self, params: JsonObject) -> EditorSession:
        name = get_text(params, "sessionId")
        session = self._sessions.get(name)
        if session is None:
            raise invalid(f"the session {name!r} is not open: session/load opens it")
        return session


# -- request parameters -------------------------------------------------------------------------
#
# Checked before anything is opened. Content blocks: https://agentclientprotocol.com/protocol/content. Servers:
# https://agentclientprotocol.com/protocol/session-setup#mcp-servers.


_TRANSPORTS = ("http", "sse")


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
    """Parse `mcpServers` into configuration rows by name; `RpcError` if one is invalid or a name occurs twice."""
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
    """Parse a prompt's blocks: text, resource links, embedded resources and images; `RpcError` for any other."""
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
