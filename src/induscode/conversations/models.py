"""Choice of the model: the flags, then the environment's keys, then a server on this machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from indusagi.core.faults import CoreError, Note
from indusagi.core.json import JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import hide_in_urls, hide_value, parse_secret, parse_secret_text
from indusagi.net.address import FetchError, parse_url

if TYPE_CHECKING:
    from induscode.launch.invocation import Invocation

ModelApi: TypeAlias = Literal["anthropic", "openai", "compatible"]

ANTHROPIC_DEFAULT = "claude-sonnet-4-5"
OPENAI_DEFAULT = "gpt-5.1"
LOCAL_PORTS = (11434, 8080, 1234)
"""Default ports of Ollama, llama.cpp and LM Studio."""
OWN_KEY = "INDUS_API_KEY"
"""Variable with the key for `--base-url`."""
PROVIDER_KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "own": OWN_KEY}
"""The variable with each provider's key, and name of the stored secret; `own` is the server of `--base-url`."""
KEY_VARIABLES = tuple(PROVIDER_KEYS.values())
_ADDRESS_PROBE_S = 5.0
"""Time limit for a server that the user named to list its models."""
_PORT_PROBE_S = 0.5
"""Time limit for a server that may listen on a default port."""
_MAX_RESPONSE_BYTES = 256 * 1024
_WINDOW_KEYS = ("max_model_len", "context_window", "context_length", "max_context_length", "n_ctx")
"""Keys for the context window: vLLM, Groq, OpenRouter, LM Studio and llama.cpp."""


class NoModelError(CoreError):
    """No model is available. The message includes a remedy."""


class InvalidAddressError(CoreError):
    """The address of a model server is invalid."""


_KNOWN_NAMES = re.compile(r"(?P<openai>chatgpt-|gpt-(?!oss)|o\d+(?:-|$))|(?P<anthropic>claude-)")
"""Names that only one provider gives its models."""

_KNOWN_WINDOWS = (
    (re.compile(r"claude-"), 200_000),
    (re.compile(r"gpt-5"), 400_000),
    (re.compile(r"gpt-4\.1"), 1_000_000),
    (re.compile(r"gpt-4o|chatgpt-"), 128_000),
    (re.compile(r"o\d"), 200_000),
)
"""Context windows of the providers' models, which their lists don't give: https://docs.claude.com/en/docs/about-claude/models
and https://platform.openai.com/docs/models."""


@record
class ModelChoice:
    """A model and its address."""

    api: ModelApi
    name: str
    base_url: str | None = None
    """`None` for the provider's default address, or the one in its usual variable."""
    api_key: str | None = field(default=None, repr=False)
    note: str = ""
    """How `choose_model` found the model, if the user didn't name one."""
    context_window: int | None = None
    """Context window in tokens, if known."""
    key_from: str = field(default="", compare=False)
    """Where the key is from, for users."""

    @property
    def provider(self) -> tuple[str, ...]:
        """Identifies the recipient of the messages: models with an equal value share a provider."""
        return self.api, self.base_url or ""

    @property
    def label(self) -> str:
        """The display name."""
        return self.name if self.api == "compatible" else f"{self.api}:{self.name}"


async def choose_model(
    invocation: Invocation, environ: Mapping[str, str], ports: Sequence[int] = LOCAL_PORTS
) -> ModelChoice:
    """Choose the model for a run.

    Raises:
        NoModelError: No model is available.
        InvalidAddressError: The model server's address is invalid.
    """
    choice = await _choose(invocation, await find_keys(environ), ports)
    if invocation.context_window is not None:
        return replace(choice, context_window=invocation.context_window)
    if choice.api == "compatible" and choice.base_url and choice.context_window is None:
        served = await _probe_server(choice.base_url, choice.name)
        window = None if served is None else served.context_window or await _probe_props(choice.base_url)
        return replace(choice, context_window=window)
    known = (window for pattern, window in _KNOWN_WINDOWS if pattern.match(choice.name))
    return choice if choice.context_window else replace(choice, context_window=next(known, None))


def list_key_references(environ: Mapping[str, str]) -> Mapping[str, str]:
    """List the references to keys: of their variables, or to stored secrets of their names. Blocks."""
    from indusagi.interop.auth.secrets import SecretFiles  # noqa: PLC0415 — for a model only

    stored = SecretFiles().list_rows()
    texts = {name: environ.get(name, "").strip() or f"${{keyring:{name}}}" * (name in stored) for name in KEY_VARIABLES}
    return {name: parse_secret_text(text) for name, text in texts.items() if parse_secret(text) is not None}


@record
class ModelKeys:
    """The keys of providers: of their variables, then of the stored secrets with the same names."""

    environ: Mapping[str, str] = field(repr=False)
    references: Mapping[str, str]

    def describe(self, variable: str) -> str:
        """Describe where a key is from, or return an empty text without one."""
        is_set, reference = bool(self.environ.get(variable, "").strip()), self.references.get(variable)
        if reference is None:
            return f"the variable {variable}" if is_set else ""
        return f"{reference} in the variable {variable}" if is_set else f"the stored secret {variable}"

    async def read(self, variable: str) -> str | None:
        """Return a key, or `None` without one; `NoModelError` if it can't be read or sent."""
        from indusagi.interop.auth.secrets import SecretFault, reveal_value  # noqa: PLC0415 — for a model only

        try:
            text = await reveal_value(self.references.get(variable, self.environ.get(variable, "")))
        except SecretFault as exc:
            raise NoModelError(str(exc)) from exc
        key = text.strip()
        if not (key.isascii() and key.isprintable()):
            raise NoModelError(f"the key of {self.describe(variable)} has characters that no key has: copy it again")
        if key:
            hide_value(key)
        return key or None


async def find_keys(environ: Mapping[str, str]) -> ModelKeys:
    """Find the keys without reading any."""
    return ModelKeys(environ, await to_thread.run_sync(list_key_references, environ))


def find_key_problem(key: str) -> str | None:
    """Return why a text can't be a key, or `None`."""
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        return "This isn't a key: it's empty, or has characters that no key has. Copy it again"
    return None


def store_key(provider: str, key: str) -> Sequence[Note]:
    """Store a provider's key among the secrets, and return notes about that. Blocks; `SecretFault` if it can't."""
    from indusagi.interop.auth.secrets import SecretFiles  # noqa: PLC0415 — for a new key

    store = SecretFiles()
    store.set(PROVIDER_KEYS[provider], key.strip())
    return store.notes


async def choose_agent_model(
    model: str | None, invocation: Invocation, session: ModelChoice, *, from_project: bool
) -> ModelChoice:
    """Choose an agent's own model.

    Raises:
        NoModelError: The model is unknown, or a project agent names another provider's model.
        InvalidAddressError: The model server's address is invalid.
    """
    choice = await choose_model(replace(invocation, model=model), os.environ)
    if from_project and choice.provider != session.provider:
        raise NoModelError("a file of the project names no model of another provider; one of yours may")
    return choice


async def _choose(invocation: Invocation, keys: ModelKeys, ports: Sequence[int]) -> ModelChoice:
    environ = keys.environ
    base_url = invocation.base_url or environ.get("OPENAI_BASE_URL") or None
    for address in (base_url, environ.get("ANTHROPIC_BASE_URL")):
        if address:
            check_address(address)
    if invocation.model:
        return await _parse_model(invocation.model, base_url, from_flag=invocation.base_url is not None, keys=keys)
    if base_url is not None:
        served = await _probe_server(base_url)
        if served is None:
            raise NoModelError(f"{hide_in_urls(base_url)} does not list its models: name one with --model")
        return await _add_key(served, keys)
    for provider, model in (("anthropic", ANTHROPIC_DEFAULT), ("openai", OPENAI_DEFAULT)):
        if keys.describe(PROVIDER_KEYS[provider]):
            return await _parse_model(f"{provider}:{model}", None, from_flag=False, keys=keys)
    return await _find_local_model(ports)


def check_address(address: str) -> None:
    """Raise `InvalidAddressError` unless an address is a server's."""
    try:
        parse_url(address, with_user=True)
    except FetchError:
        message = f"{hide_in_urls(address)!r} is not a server address: write it as http://127.0.0.1:8080/v1"
        raise InvalidAddressError(message) from None


async def _parse_model(model: str, base_url: str | None, *, from_flag: bool, keys: ModelKeys) -> ModelChoice:
    provider, colon, name = model.partition(":")
    # Local model names have colons too ("qwen3:8b"), so recognise the two providers only.
    if colon and name and provider == "anthropic":
        address = base_url if from_flag else keys.environ.get("ANTHROPIC_BASE_URL") or None
        return await _add_key(ModelChoice("anthropic", name, address), keys)
    if colon and name and provider == "openai":
        return await _add_key(ModelChoice("compatible" if from_flag else "openai", name, base_url), keys)
    if base_url is None and (model == "local" or provider == "local"):
        raise NoModelError(
            f"--model {model}: indus no longer runs models itself; start Ollama or llama.cpp, then name the model "
            "with --base-url http://127.0.0.1:11434/v1"
        )
    if base_url is None and (known := _KNOWN_NAMES.match(model)):
        choice = await _parse_model(f"{known.lastgroup}:{model}", None, from_flag=False, keys=keys)
        return replace(choice, note=f"--model {model} means {choice.label}")
    if base_url is None:
        raise NoModelError(
            f"--model {model}: whose model is it? Say anthropic:{model} or openai:{model}, "
            "or give the address of its server with --base-url"
        )
    return await _add_key(ModelChoice("compatible", model, base_url), keys)


async def _add_key(choice: ModelChoice, keys: ModelKeys) -> ModelChoice:
    """Add the API key for a model's address.

    A provider's key goes to the provider or to the address in the matching variable. It never goes to an address from
    a flag, which has a separate variable.

    Raises:
        NoModelError: The provider requires a key, and none is set.
    """
    prefix = "ANTHROPIC" if choice.api == "anthropic" else "OPENAI"
    is_usual = choice.base_url in {None, keys.environ.get(f"{prefix}_BASE_URL")}
    variable = f"{prefix}_API_KEY" if is_usual else OWN_KEY
    key = await keys.read(variable)
    if key is None and choice.base_url is None:
        login = f"indus models login {prefix.lower()}"
        raise NoModelError(f"{choice.label} needs a key: {login}, or set {prefix}_API_KEY")
    return replace(choice, api_key=key, key_from=keys.describe(variable))


async def _find_local_model(ports: Sequence[int]) -> ModelChoice:
    urls = [f"http://127.0.0.1:{port}/v1" for port in ports]
    models: dict[str, ModelChoice | None] = {}

    async def probe(url: str) -> None:
        models[url] = await _probe_server(url, limit_s=_PORT_PROBE_S)

    async with anyio.create_task_group() as tasks:
        for url in urls:
            tasks.start_soon(probe, url)
    for url in urls:
        if (served := models[url]) is not None:
            return replace(served, note=f"no key is set: using {served.name} at {url}")
    raise NoModelError(
        "no model is set up. Store a key (`indus models login anthropic`, or openai), or set ANTHROPIC_API_KEY or "
        "OPENAI_API_KEY; or start a server on this machine "
        "(`ollama serve`, `llama-server`), which indus detects; or name one with --base-url URL --model NAME"
    )


async def _probe_server(
    base_url: str, name: str | None = None, *, limit_s: float = _ADDRESS_PROBE_S
) -> ModelChoice | None:
    """Look up model `name`, or the first one, in a server's list. Return `None` if it doesn't respond in time.

    https://platform.openai.com/docs/api-reference/models/list
    """
    with anyio.move_on_after(limit_s):
        try:
            return _find_model(base_url, await _get(base_url.rstrip("/") + "/models"), name)
        except (OSError, ValueError, anyio.EndOfStream, anyio.BrokenResourceError):
            return None
    return None


async def _probe_props(base_url: str) -> int | None:
    """Look up the context window at llama.cpp, whose list of models may lack it."""
    with anyio.move_on_after(_PORT_PROBE_S):
        try:
            page = _parse_page(await _get(base_url.rstrip("/").removesuffix("/v1") + "/props"))
        except (OSError, ValueError, anyio.EndOfStream, anyio.BrokenResourceError):
            return None
        settings = page.get("default_generation_settings") if is_json_object(page) else None
        window = settings.get("n_ctx") if is_json_object(settings) else None
        return window if isinstance(window, int) and window > 0 else None
    return None


def _parse_page(body: bytes) -> JsonValue:
    # Some servers send chunks even over HTTP/1.0, so take the part in braces.
    text = body.decode("utf-8", "replace")
    return cast("JsonValue", json.loads(text[text.find("{") : text.rfind("}") + 1]))


async def _get(url: str) -> bytes:
    """Get a page over HTTP/1.0 (RFC 1945). Importing an HTTP client takes longer than the whole probe."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError("only plain http is probed")
    request = f"GET {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: application/json\r\n\r\n"
    answer = b""
    async with await anyio.connect_tcp(parts.hostname, parts.port or 80) as stream:
        await stream.send(request.encode("ascii"))
        try:
            while len(answer) < _MAX_RESPONSE_BYTES:
                answer += await stream.receive()
        except anyio.EndOfStream:
            pass
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ValueError("no list of models")
    return body


def _find_model(base_url: str, body: bytes, wanted: str | None) -> ModelChoice | None:
    page = _parse_page(body)
    rows = page.get("data") if is_json_object(page) else None
    for row in rows if isinstance(rows, list) else []:
        name = row.get("id") if is_json_object(row) else None
        if is_json_object(row) and isinstance(name, str) and name and wanted in {None, name}:
            meta = row.get("meta")
            facts = {**(meta if is_json_object(meta) else {}), **row}
            for key in _WINDOW_KEYS:
                window = facts.get(key)
                if isinstance(window, int) and not isinstance(window, bool) and window > 0:
                    return ModelChoice("compatible", name, base_url, context_window=window)
            return ModelChoice("compatible", name, base_url)
    return None
