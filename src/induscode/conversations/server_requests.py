"""Requests of servers during a call, put to the person by a dialog: elicitation, sampling, roots.

Each question names the configured server that asks. The text of a server is escaped and marked at the beginning of
every line, so that it cannot pass for a line of ours. A server receives an answer only after the person's yes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import anyio

from indusagi.core.json import compact_json, is_json_object
from indusagi.interop.protocol_bridge.client.handlers import Handlers, current_server
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from induscode.cli.dialog import Choice, Question
from induscode.cli.terminal import escape_unprintable
from induscode.conversations.forms import InvalidFormError, list_lines, parse_form

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.cli.dialog import Dialog
    from induscode.conversations.forms import FormField

    Sampling: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]

REFUSED = -1
"""Error code of a refused sampling request:
https://modelcontextprotocol.io/specification/2025-06-18/client/sampling#error-handling."""
_NO_MODEL = -32000
_ROUNDS = 10
"""How often the answers to one form may be changed."""
_SHOWN_LINES = 400
_DECLINE = Choice(key="n", label="no, decline", refuses=True)


def build_server_handlers(
    dialog: Dialog, sample: Sampling | None = None, roots: Sequence[str] | None = None
) -> Handlers:
    """Build the handlers for requests of servers.

    Args:
        dialog: Asks the person.
        sample: Completes a sampling request with a model; without it, servers are told that there is no sampling.
        roots: Directories that servers may know of; without them, servers are told that there are no roots.
    """
    requests = ServerRequests(dialog, sample, roots or ())
    return Handlers(
        elicit=requests.elicit,
        sample=None if sample is None else requests.sample,
        roots=None if roots is None else requests.list_roots,
    )


class SamplingModel:
    """The model for sampling requests. It exists before servers start; each turn connects its model by `attach`."""

    def __init__(self) -> None:
        self._complete: Sampling | None = None

    def attach(self, complete: Sampling) -> None:
        """Set the function that completes requests."""
        self._complete = complete

    async def complete(self, params: JsonObject) -> JsonObject:
        """Complete a sampling request.

        Raises:
            RpcError: No model is open, or it gave no answer.
        """
        if self._complete is None:
            raise RpcError(_NO_MODEL, "there is no model before the first turn")
        return await self._complete(params)


class ServerRequests:
    """Answers the requests of servers in one session."""

    def __init__(self, dialog: Dialog, sample: Sampling | None, roots: Sequence[str]) -> None:
        self._dialog = dialog
        self._sample = sample
        self._roots = tuple(roots)
        self._sampling_servers: set[str] = set()
        """Servers that may sample in this session."""
        self._lock = anyio.Lock()
        """The questions of one request stay together."""

    # -- elicitation --------------------------------------------------------------------------

    async def elicit(self, params: JsonObject) -> JsonObject:
        """Answer `elicitation/create`: https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation.

        Raises:
            RpcError: The request is invalid.
        """
        server = _get_server()
        async with self._lock:
            if params.get("mode", "form") == "url":
                return await self._ask_url(server, params)
            if params.get("mode", "form") != "form":
                raise RpcError(INVALID_PARAMS, f"elicitation has no mode {params['mode']!r}")
            try:
                fields = parse_form(params.get("requestedSchema"))
            except InvalidFormError as exc:
                raise RpcError(INVALID_PARAMS, str(exc)) from exc
            return await self._ask_form(server, params, fields)

    async def _ask_form(self, server: str, params: JsonObject, fields: Sequence[FormField]) -> JsonObject:
        secret = next((field for field in fields if field.is_secret), None)
        if secret is not None:
            # https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation#security-considerations
            text = f"server {server} asked for {secret.label!r} by a form, which MCP forbids for secrets: declined"
            self._dialog.show(escape_unprintable(text))
            return {"action": "decline"}
        lines = _quote(params.get("message"))
        if fields:
            lines.append(escape_unprintable(f"it asks for: {', '.join(field.label for field in fields)}"))
        title = f"server {server} asks for information"
        yes = Choice(key="y", label="yes, answer" if fields else "yes, agree")
        action = await self._choose(title, lines, yes, _DECLINE, default="n")
        if action != "y":
            return {"action": "cancel" if action is None else "decline"}
        if not fields:
            return {"action": "accept", "content": {}}
        for _ in range(_ROUNDS):
            content: JsonObject = {}
            for field in fields:
                reply = await self._dialog.ask(field.build_question(server))
                if reply.cancelled:
                    return {"action": "cancel"}
                content |= field.parse_reply(reply)
            lines = [escape_unprintable(f"{name}: {compact_json(value)}") for name, value in content.items()]
            send, change = Choice(key="y", label="yes, send it"), Choice(key="c", label="change the answers")
            title = f"send this to server {server}?"
            action = await self._choose(title, lines or ["nothing"], send, change, _DECLINE, default="y")
            if action == "y":
                return {"action": "accept", "content": content}
            if action != "c":
                return {"action": "cancel" if action is None else "decline"}
        return {"action": "cancel"}

    async def _ask_url(self, server: str, params: JsonObject) -> JsonObject:
        """Ask for consent to a web address; the person opens it, never this program."""
        url = params.get("url")
        host = _find_host(url) if isinstance(url, str) else None
        if host is None:
            raise RpcError(INVALID_PARAMS, "the address to open is no http or https address")
        lines = [*_quote(params.get("message")), f"address: {escape_unprintable(str(url))}", f"domain: {host}"]
        if not str(url).casefold().startswith("https:"):
            lines.append("the connection to it is not encrypted")
        lines.append("indus does not open it: open it in a browser if you trust the domain")
        title = f"server {server} asks you to open a web address"
        yes = Choice(key="y", label="yes, I open it")
        action = await self._choose(title, lines, yes, _DECLINE, default="n")
        return {"action": "cancel" if action is None else "accept" if action == "y" else "decline"}

    # -- sampling -----------------------------------------------------------------------------

    async def sample(self, params: JsonObject) -> JsonObject:
        """Answer `sampling/createMessage`: https://modelcontextprotocol.io/specification/2025-06-18/client/sampling.

        Raises:
            RpcError: The person refused, the request is invalid, or the model gave no answer.
        """
        assert self._sample is not None
        server = _get_server()
        async with self._lock:
            if server not in self._sampling_servers:
                once = Choice(key="y", label="yes, once")
                every = "yes, for this session: every such request of this server"
                session = Choice(key="s", label=every, lasts=True)
                title = f"server {server} wants a text from the model, and receives it"
                lines = _describe_sampling(params)
                no = Choice(key="n", label="no, refuse", refuses=True)
                action = await self._choose(title, lines, once, session, no, default="n")
                if action not in {"y", "s"}:
                    raise RpcError(REFUSED, "the user refused the sampling request")
                if action == "s":
                    self._sampling_servers.add(server)
        return await self._sample(params)

    # -- roots --------------------------------------------------------------------------------

    async def list_roots(self, params: JsonObject) -> JsonObject:
        """Answer `roots/list`: https://modelcontextprotocol.io/specification/2025-06-18/client/roots."""
        roots: list[JsonValue] = [{"uri": Path(path).as_uri(), "name": os.path.basename(path)} for path in self._roots]
        return {"roots": roots}

    async def _choose(self, title: str, lines: Sequence[str], *choices: Choice, default: str) -> str | None:
        """Ask a question with choices; None if it was cancelled."""
        shown = [*lines[:_SHOWN_LINES]]
        if len(lines) > _SHOWN_LINES:
            shown.append(f"… and {len(lines) - _SHOWN_LINES} more lines")
        question = Question(title=escape_unprintable(title), lines=tuple(shown), choices=choices, default=default)
        reply = await self._dialog.ask(question)
        return None if reply.cancelled else reply.key


def _get_server() -> str:
    return current_server.get() or "of unknown name"


def _quote(text: JsonValue) -> list[str]:
    """Mark the lines of a server's text."""
    return [f"| {line}" for line in list_lines(text)]


def _find_host(url: str) -> str | None:
    """Give the domain of a web address, in ASCII; None if it is no web address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        ascii_host = host if host.isascii() else host.encode("idna").decode("ascii")
    except ValueError:  # UnicodeError is one
        return None
    return escape_unprintable(ascii_host) if parts.scheme in {"http", "https"} and ascii_host else None


def _describe_sampling(params: JsonObject) -> list[str]:
    """Describe a sampling request: system prompt, messages, and limits."""
    lines: list[str] = []
    system = _quote(params.get("systemPrompt"))
    if system:
        lines += ["system prompt:", *system]
    messages = params.get("messages")
    for message in messages if isinstance(messages, list) else []:
        if not is_json_object(message):
            continue
        lines.append(escape_unprintable(f"message of the {message.get('role')}:"))
        content = message.get("content")
        for block in content if isinstance(content, list) else [content]:
            if is_json_object(block) and block.get("type") == "text":
                lines += _quote(block.get("text"))
            elif is_json_object(block):
                size = len(str(block.get("data", ""))) * 3 // 4
                lines.append(escape_unprintable(f"[{block.get('type')} {block.get('mimeType')}, {size:,} bytes]"))
    lines.append(escape_unprintable(f"at most {params.get('maxTokens')} tokens"))
    return lines
