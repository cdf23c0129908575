"""Agent side of the Agent Client Protocol: one connection to an editor, any number of concurrent sessions.

https://agentclientprotocol.com/protocol/overview. Each session runs in its own task. When the editor's input ends,
every session closes, and with it every process it started.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi import __version__
from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.rpc.connection import (
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Cancellation,
    JsonRpcConnection,
    RpcError,
)
from induscode.frontends.acp.history import list_conversations
from induscode.frontends.acp.params import get_text, invalid, parse_cwd, parse_prompt, parse_servers
from induscode.frontends.acp.session import EditorSession, to_rpc_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import TaskGroup

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host.stdio import StdioHostTransport
    from induscode.launch.invocation import Invocation

PROTOCOL_VERSION = 1
INVALID_REQUEST = -32600
ACP_CANCELLATION = Cancellation(method="$/cancel_request", facts={}, code=-32800)
"""https://agentclientprotocol.com/protocol/cancellation"""
_MAX_REQUESTS = 256
"""Limit for concurrent requests: one prompt per session, and more."""
_KEYS = (
    "indus needs no sign-in: the keys of models come from the environment of the editor, such as ANTHROPIC_API_KEY "
    "or OPENAI_API_KEY"
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
            return {"sessions": await to_thread.run_sync(list_conversations, cwd)}
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
