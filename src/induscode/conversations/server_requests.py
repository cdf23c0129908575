"""Handles server requests during a call (elicitation, sampling, roots) by asking the user.

Each question names the configured server that asks. Server text is escaped and every line of it prefixed, so that it
can't pass for a line of ours. A server gets an answer only after the user says yes.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import anyio

from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import asks_for_secret
from indusagi.interop.protocol_bridge.client.handlers import Handlers, current_server
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from induscode.cli.dialog import Choice, Dialog, Question, Reply
from induscode.cli.terminal import escape_unprintable

if TYPE_CHECKING:
    Sampling: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]

REFUSED = -1
"""Error code of a refused sampling request:
https://modelcontextprotocol.io/specification/2025-06-18/client/sampling#error-handling."""
_NO_MODEL = -32000
_MAX_SHOWN_LINES = 400
_DECLINE = Choice(key="n", label="no, decline", refuses=True)


def build_server_handlers(
    dialog: Dialog, sample: Sampling | None = None, roots: Sequence[str] | None = None
) -> Handlers:
    """Build the handlers for server requests.

    `sample` completes a sampling request with a model, and `roots` are the directories to disclose to servers. If one
    is `None`, the client doesn't advertise it.
    """
    requests = ServerRequests(dialog, sample, roots or ())
    return Handlers(
        elicit=requests.elicit,
        sample=None if sample is None else requests.sample,
        roots=None if roots is None else requests.list_roots,
    )


class SamplingModel:
    """The model for sampling requests. Created before servers start; each turn attaches its model."""

    def __init__(self) -> None:
        self._complete: Sampling | None = None

    def attach(self, complete: Sampling | None) -> None:
        """Set the function that completes requests, or none at the end of a conversation."""
        self._complete = complete

    async def complete(self, params: JsonObject) -> JsonObject:
        """Complete a sampling request; `RpcError` if no model is open, or it didn't answer."""
        if self._complete is None:
            raise RpcError(_NO_MODEL, "there is no model before the first turn")
        return await self._complete(params)


class ServerRequests:
    """Answers server requests in one session."""

    def __init__(self, dialog: Dialog, sample: Sampling | None, roots: Sequence[str]) -> None:
        self._dialog = dialog
        self._sample = sample
        self._roots = tuple(roots)
        self._sampling_servers: set[str] = set()
        """Servers that may sample in this session."""
        self._lock = anyio.Lock()
        """Keeps the questions of one request together."""

    async def elicit(self, params: JsonObject) -> JsonObject:
        """Answer `elicitation/create`: https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation."""
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
        while True:
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

    async def _ask_url(self, server: str, params: JsonObject) -> JsonObject:
        """Ask for consent to a web address. The user opens it, never this program."""
        url = params.get("url")
        host = _find_host(url) if isinstance(url, str) else None
        if host is None:
            raise RpcError(INVALID_PARAMS, "the address to open is not an http or https address")
        lines = [*_quote(params.get("message")), f"address: {escape_unprintable(str(url))}", f"domain: {host}"]
        if not str(url).casefold().startswith("https:"):
            lines.append("the connection to it is not encrypted")
        lines.append("indus does not open it: open it in a browser if you trust the domain")
        title = f"server {server} asks you to open a web address"
        yes = Choice(key="y", label="yes, I open it")
        action = await self._choose(title, lines, yes, _DECLINE, default="n")
        return {"action": "cancel" if action is None else "accept" if action == "y" else "decline"}

    async def sample(self, params: JsonObject) -> JsonObject:
        """Answer `sampling/createMessage`: https://modelcontextprotocol.io/specification/2025-06-18/client/sampling.

        Raises:
            RpcError: The user refused, the request is invalid, or the model didn't answer.
        """
        assert self._sample is not None
        server = _get_server()
        async with self._lock:
            if server not in self._sampling_servers:
                once = Choice(key="y", label="Yes")
                every = "Yes, and don't ask again this session for this server"
                session = Choice(key="s", label=every, lasts=True)
                title = f"server {server} wants a text from the model, and receives it"
                lines = _describe_sampling(params)
                no = Choice(key="n", label="No", refuses=True)
                action = await self._choose(title, lines, once, session, no, default="n")
                if action not in {"y", "s"}:
                    raise RpcError(REFUSED, "the user refused the sampling request")
                if action == "s":
                    self._sampling_servers.add(server)
        return await self._sample(params)

    async def list_roots(self, params: JsonObject) -> JsonObject:
        """Answer `roots/list`: https://modelcontextprotocol.io/specification/2025-06-18/client/roots."""
        roots: list[JsonValue] = [{"uri": Path(path).as_uri(), "name": os.path.basename(path)} for path in self._roots]
        return {"roots": roots}

    async def _choose(self, title: str, lines: Sequence[str], *choices: Choice, default: str) -> str | None:
        """Ask a question with choices. Return the key of the choice, or `None` if the user cancelled."""
        shown = [*lines[:_MAX_SHOWN_LINES]]
        if len(lines) > _MAX_SHOWN_LINES:
            shown.append(f"… and {len(lines) - _MAX_SHOWN_LINES} more lines")
        question = Question(title=escape_unprintable(title), lines=tuple(shown), choices=choices, default=default)
        reply = await self._dialog.ask(question)
        return None if reply.cancelled else reply.key


def _get_server() -> str:
    return current_server.get() or "of unknown name"


def _quote(text: JsonValue) -> list[str]:
    """Prefix the lines of a server's text."""
    return [f"| {line}" for line in list_lines(text)]


def _find_host(url: str) -> str | None:
    """Return the ASCII domain of an HTTP(S) address, or `None` if it isn't one."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        ascii_host = host if host.isascii() else host.encode("idna").decode("ascii")
    except ValueError:  # UnicodeError is one
        return None
    return escape_unprintable(ascii_host) if parts.scheme in {"http", "https"} and ascii_host else None


def _describe_sampling(params: JsonObject) -> list[str]:
    """Describe the system prompt, messages and limits of a sampling request."""
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


# -- forms ------------------------------------------------------------------------------------
#
# A form's schema is flat, with one primitive type per field:
# https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation#requested-schema. Field names reveal
# a form that asks for a secret.

_MAX_FIELDS = 50
_KEYS = "123456789abcdefghijklmnopqrstuvwxyz"
_SKIP = "-"
_KINDS = {"string": "text", "number": "a number", "integer": "a whole number", "boolean": "yes or no"}
_OPTION_KINDS = {"enum": "one of the values", "list": "any of the values"}
_LIMITS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minimum": "not below {}",
    "maximum": "not above {}",
    "minItems": "at least {} values",
    "maxItems": "at most {} values",
    "format": "format: {}",
}


class InvalidFormError(CoreError):
    """MCP doesn't allow a form's schema."""


@record(kw_only=True)
class FormField:
    """One field of a form."""

    name: str
    label: str
    kind: str
    """`string`, `number`, `integer`, `boolean`, `enum` or `list`."""
    schema: JsonObject
    required: bool
    options: tuple[tuple[str, str], ...] = ()
    """Values of an enumeration with their labels."""

    @property
    def default(self) -> JsonValue:
        """The value of an empty answer, if any."""
        return self.schema.get("default")

    @property
    def is_secret(self) -> bool:
        """Whether the field asks for a secret, which MCP forbids in forms."""
        return asks_for_secret(" ".join((self.name, self.label, str(self.schema.get("format", "")))))

    def build_question(self, server: str) -> Question:
        """Build the question for this field."""
        need = "required" if self.required else "optional"
        title = f"server {server} asks for {self.label} ({(_KINDS | _OPTION_KINDS)[self.kind]}, {need})"
        lines = list_lines(self.schema.get("description"))
        lines += [text.format(self.schema[key]) for key, text in _LIMITS.items() if key in self.schema]
        choices: list[Choice] = []
        default = ""
        if self.kind in {"enum", "boolean"} and len(self.options) <= len(_KEYS):
            keys, values = self._keys, self._values
            choices = [
                Choice(key=keys[i], label=escape_unprintable(label)) for i, (_, label) in enumerate(self.options)
            ]
            default = keys[values.index(self.default)] if self.default in values else ""
            if not self.required:
                choices.append(Choice(key=_SKIP, label="leave it out"))
                default = default or _SKIP
        else:
            if self.options:
                numbers = "a number" if self.kind == "enum" else "numbers, separated by commas"
                lines += [f"{index}: {label}" for index, (_, label) in enumerate(self.options, 1)]
                lines.append(f"answer with {numbers}")
            if self.default is not None:
                lines.append(f"Enter: {compact_json(self.default)}")
            elif not self.required:
                lines.append("Enter: leave it out")
        return Question(
            title=escape_unprintable(title),
            lines=tuple(map(escape_unprintable, lines)),
            choices=tuple(choices),
            default=default,
            check=None if choices else self.find_problem,
        )

    @property
    def _keys(self) -> str:
        return "yn" if self.kind == "boolean" else _KEYS

    @property
    def _values(self) -> list[JsonValue]:
        return [True, False] if self.kind == "boolean" else [value for value, _ in self.options]

    def find_problem(self, text: str) -> str | None:
        """Return the problem with an answer, or `None` if it's valid."""
        try:
            self._parse_text(text)
        except ValueError as exc:
            return f"{exc}."
        return None

    def parse_reply(self, reply: Reply) -> JsonObject:
        """Convert a valid answer to its part of the form's content, which is empty for a skipped field."""
        if reply.key == _SKIP:
            return {}
        if reply.key:
            return {self.name: self._values[self._keys.index(reply.key)]}
        value = self._parse_text(reply.text)
        return {} if value is None else {self.name: value}

    def _parse_text(self, text: str) -> JsonValue:
        if not text.strip():
            if self.default is not None:
                return self.default
            if self.required:
                raise ValueError("An answer is required")
            return None
        if self.kind == "string":
            self._check_string(text)
            return text
        if self.options:
            return self._parse_options(text)
        try:
            number = int(text) if self.kind == "integer" else float(text)
        except ValueError:
            raise ValueError(f"Type {_KINDS[self.kind]}") from None
        if not math.isfinite(number):
            raise ValueError("Type a finite number")
        self._check_size(number, "minimum", "maximum")
        return number

    def _check_size(self, size: float, least: str, most: str) -> None:
        """Check a size against two limits of the schema."""
        low, high = self.schema.get(least), self.schema.get(most)
        if isinstance(low, (int, float)) and size < low:
            raise ValueError(f"Allowed: {_LIMITS[least].format(low)}")
        if isinstance(high, (int, float)) and size > high:
            raise ValueError(f"Allowed: {_LIMITS[most].format(high)}")

    def _check_string(self, text: str) -> None:
        self._check_size(len(text), "minLength", "maxLength")
        match self.schema.get("format"):
            case "email" if not re.fullmatch(r"[^@\s]+@[^@\s]+", text):
                raise ValueError("Type an address such as ada@example.org")
            case "uri" if not urlsplit(text).scheme:
                raise ValueError("Type an address such as https://example.org")
            case "date":
                _parse_time(date.fromisoformat, text, "2026-07-28")
            case "date-time":
                _parse_time(datetime.fromisoformat, text, "2026-07-28T12:00:00Z")
            case _:
                pass

    def _parse_options(self, text: str) -> JsonValue:
        values: list[JsonValue] = []
        for part in text.split(","):
            word = part.strip()
            if word.isdecimal() and 1 <= int(word) <= len(self.options):
                values.append(self.options[int(word) - 1][0])
            elif word in {value for value, _ in self.options}:
                values.append(word)
            else:
                raise ValueError(f"There is no {word!r} among the values")
        if self.kind == "enum":
            if len(values) != 1:
                raise ValueError("Choose one value")
            return values[0]
        values = [*dict.fromkeys(map(str, values))]
        self._check_size(len(values), "minItems", "maxItems")
        return values


def _parse_time(parse: Callable[[str], object], text: str, example: str) -> None:
    try:
        parse(text)
    except ValueError:
        raise ValueError(f"Type a time such as {example}") from None


def parse_form(schema: JsonValue) -> list[FormField]:
    """Parse the schema of a form; `InvalidFormError` if it isn't flat, or MCP doesn't allow a field's type."""
    properties = schema.get("properties", {}) if is_json_object(schema) else None
    if not is_json_object(schema) or not is_json_object(properties):
        raise InvalidFormError("the form has no schema")
    if len(properties) > _MAX_FIELDS:
        raise InvalidFormError(f"the form has more than {_MAX_FIELDS} fields")
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    return [_parse_field(name, value, name in needed) for name, value in properties.items()]


def _parse_field(name: str, schema: JsonValue, required: bool) -> FormField:
    kind = schema.get("type") if is_json_object(schema) else None
    if not is_json_object(schema) or kind not in [*_KINDS, "array"]:
        raise InvalidFormError(f"field {name!r} of the form has a type that forms do not allow: {kind!r}")
    options: tuple[tuple[str, str], ...] = ()
    if kind == "boolean":
        options = (("true", "yes"), ("false", "no"))
    elif kind == "array":
        items = schema.get("items")
        options = _parse_enum(items) if is_json_object(items) else ()
        if not options:
            raise InvalidFormError(f"field {name!r} of the form is a list without values to choose from")
        kind = "list"
    elif kind == "string":
        options = _parse_enum(schema)
        kind = "enum" if options else kind
    title = schema.get("title")
    label = title if isinstance(title, str) and title.strip() else name
    return FormField(name=name, label=label, kind=str(kind), schema=schema, required=required, options=options)


def _parse_enum(schema: JsonObject) -> tuple[tuple[str, str], ...]:
    """Read the values of `enum` with `enumNames`, or of `oneOf` or `anyOf` with titles."""
    values, labels = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, list):
        texts = [value for value in values if isinstance(value, str)]
        shown = labels if isinstance(labels, list) and len(labels) == len(texts) else texts
        return tuple((value, str(label)) for value, label in zip(texts, shown, strict=True))
    rows = schema.get("oneOf", schema.get("anyOf"))
    objects = [row for row in rows if is_json_object(row)] if isinstance(rows, list) else []
    return tuple((str(row["const"]), str(row.get("title", row["const"]))) for row in objects if "const" in row)


def list_lines(text: JsonValue) -> list[str]:
    """Split a server's text into escaped lines. Any other value has no lines."""
    lines = text.splitlines() if isinstance(text, str) else []
    return [escape_unprintable(line.expandtabs(4)) for line in lines]
