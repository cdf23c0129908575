"""Which model answers: what was asked for, what there is a key for, what runs on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import anyio

from indusagi.core.faults import CoreError
from indusagi.core.json import is_json_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.launch.invocation import Invocation

Dialect: TypeAlias = Literal["anthropic", "openai", "compatible"]

ANTHROPIC_DEFAULT = "claude-sonnet-4-5"
OPENAI_DEFAULT = "gpt-5.1"
LOCAL_PORTS = (11434, 8080, 1234)
"""Where Ollama, llama.cpp and LM Studio listen unless told otherwise."""
OWN_KEY = "INDUS_API_KEY"
"""The variable with the key for the address of `--base-url`."""
_PROBE_S = 0.2
_LARGEST_ANSWER = 256 * 1024


class NoModelError(CoreError):
    """There is no model to ask, and this says what can be done about it."""


class InvalidAddressError(CoreError):
    """An address at which no server can be."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model, and where it is."""

    dialect: Dialect
    name: str
    base_url: str | None = None
    """None: the provider's own address, or the one that its usual variable names."""
    api_key: str | None = field(default=None, repr=False)
    note: str = ""
    """How it was chosen, if nobody named it."""
    context_window: int | None = None
    """Tokens that it reads, as far as that is known."""

    @property
    def label(self) -> str:
        """Give the name for people."""
        return self.name if self.dialect == "compatible" else f"{self.dialect}:{self.name}"


async def choose_model(
    invocation: Invocation, environ: Mapping[str, str], ports: Sequence[int] = LOCAL_PORTS
) -> ModelChoice:
    """Decide which model a run asks.

    Raises:
        NoModelError: There is none; the message says how to get one.
        InvalidAddressError: Where it is to be no server can be.
    """
    choice = await _choose(invocation, environ, ports)
    if invocation.context_window is not None:
        return replace(choice, context_window=invocation.context_window)
    if choice.dialect == "compatible" and choice.base_url and choice.context_window is None:
        served = await _served(choice.base_url, choice.name)
        return replace(choice, context_window=served.context_window) if served else choice
    return choice


async def _choose(invocation: Invocation, environ: Mapping[str, str], ports: Sequence[int]) -> ModelChoice:
    base_url = invocation.base_url or environ.get("OPENAI_BASE_URL") or None
    for address in (base_url, environ.get("ANTHROPIC_BASE_URL")):
        if address:
            _check(address)
    if invocation.model:
        insisted = invocation.base_url is not None
        return _named(invocation.model, base_url, insisted=insisted, environ=environ)
    if base_url is not None:
        found = await _served(base_url)
        if found is None:
            raise NoModelError(f"{base_url} does not tell which models it has: name one with --model")
        window = found.context_window
        choice = ModelChoice("compatible", found.name, base_url, context_window=window)
        return _with_key(choice, environ)
    if environ.get("ANTHROPIC_API_KEY"):
        return _named(f"anthropic:{ANTHROPIC_DEFAULT}", None, insisted=False, environ=environ)
    if environ.get("OPENAI_API_KEY"):
        return _named(f"openai:{OPENAI_DEFAULT}", None, insisted=False, environ=environ)
    return await _local(ports)


def _check(address: str) -> None:
    from urllib.parse import urlsplit  # noqa: PLC0415 — only for those who have to look

    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").encode("idna")
        fine = parts.scheme in {"http", "https"} and host and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not address.isprintable() or " " in address:
        raise InvalidAddressError(f"{address!r} is no address of a server: write it as http://127.0.0.1:8080/v1")


def _named(model: str, base_url: str | None, *, insisted: bool, environ: Mapping[str, str]) -> ModelChoice:
    provider, colon, name = model.partition(":")
    # Names of local models hold colons too ("qwen3:8b"): only the two providers are read as such.
    if colon and name and provider == "anthropic":
        where = base_url if insisted else environ.get("ANTHROPIC_BASE_URL") or None
        return _with_key(ModelChoice("anthropic", name, where), environ)
    if colon and name and provider == "openai":
        dialect: Dialect = "compatible" if insisted else "openai"
        return _with_key(ModelChoice(dialect, name, base_url), environ)
    if base_url is None:
        raise NoModelError(
            f"--model {model}: whose model is it? Say anthropic:{model} or openai:{model}, "
            "or give the address of its server with --base-url"
        )
    return _with_key(ModelChoice("compatible", model, base_url), environ)


def _with_key(choice: ModelChoice, environ: Mapping[str, str]) -> ModelChoice:
    """Add the key that belongs to the address of a model.

    A provider's key goes to the provider, or to the address that a variable beside it names; it
    never goes to an address from a flag, which has a variable of its own.

    Raises:
        NoModelError: The provider wants a key, and there is none.
    """
    prefix = "ANTHROPIC" if choice.dialect == "anthropic" else "OPENAI"
    usual = choice.base_url in {None, environ.get(f"{prefix}_BASE_URL")}
    variable = f"{prefix}_API_KEY" if usual else OWN_KEY
    key = environ.get(variable, "").strip() or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise NoModelError(f"{variable} holds characters that no key has: copy it anew")
    if key is None and choice.base_url is None:
        raise NoModelError(f"{choice.label} needs a key: set {prefix}_API_KEY")
    return replace(choice, api_key=key)


async def _local(ports: Sequence[int]) -> ModelChoice:
    found: dict[int, ServedModel] = {}

    async def look(port: int) -> None:
        served = await _served(f"http://127.0.0.1:{port}/v1")
        if served is not None:
            found[port] = served

    async with anyio.create_task_group() as tasks:
        for port in ports:
            tasks.start_soon(look, port)
    for port in ports:
        if port in found:
            url = f"http://127.0.0.1:{port}/v1"
            name, window = found[port].name, found[port].context_window
            note = f"no key is set: using {name} at {url}"
            return ModelChoice("compatible", name, url, None, note, window)
    raise NoModelError(
        "there is no model to ask. Set ANTHROPIC_API_KEY or OPENAI_API_KEY; or start a server on "
        "this machine (`ollama serve`, `llama-server`), which is found by itself; or name one with "
        "--base-url URL --model NAME"
    )


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a server has."""

    name: str
    context_window: int | None = None


async def _served(base_url: str, name: str | None = None) -> ServedModel | None:
    """Ask a server for a model, or its first one; None if it does not tell in time."""
    with anyio.move_on_after(_PROBE_S):
        try:
            return _find_model(await _get(base_url.rstrip("/") + "/models"), name)
        except (OSError, ValueError, anyio.EndOfStream, anyio.BrokenResourceError):
            return None
    return None


async def _get(url: str) -> bytes:
    """Get a page by plain HTTP. A whole client would take longer to load than the look takes."""
    from urllib.parse import urlsplit  # noqa: PLC0415 — only for those who have to look

    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError("only servers with plain http are looked at")
    request = f"GET {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: application/json\r\n\r\n"
    answer = b""
    async with await anyio.connect_tcp(parts.hostname, parts.port or 80) as stream:
        await stream.send(request.encode("ascii"))
        try:
            while len(answer) < _LARGEST_ANSWER:
                answer += await stream.receive()
        except anyio.EndOfStream:
            pass
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ValueError("it does not list models")
    return body


_WINDOW_KEYS = ("max_model_len", "context_window", "context_length", "max_context_length", "n_ctx")
"""How vLLM, Groq, OpenRouter, LM Studio and llama.cpp call it."""


def _find_model(body: bytes, wanted: str | None) -> ServedModel | None:
    # Some servers send chunks even to HTTP/1.0; the object itself is what stands in the braces.
    text = body.decode("utf-8", "replace")
    page = cast("JsonValue", json.loads(text[text.find("{") : text.rfind("}") + 1]))
    rows = page.get("data") if is_json_object(page) else None
    for row in rows if isinstance(rows, list) else []:
        name = row.get("id") if is_json_object(row) else None
        if is_json_object(row) and isinstance(name, str) and name and wanted in {None, name}:
            return ServedModel(name, _window(row))
    return None


def _window(row: JsonObject) -> int | None:
    meta = row.get("meta")
    facts = {**(meta if is_json_object(meta) else {}), **row}
    for key in _WINDOW_KEYS:
        value = facts.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
